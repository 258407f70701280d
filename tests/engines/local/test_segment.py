"""The segment alone, in plain memory: versions, order, recovery, and bytes that nobody wrote."""

from __future__ import annotations

import contextlib
import heapq
import random
import struct
import sys
import threading
from collections.abc import Callable
from subprocess import run

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import CorruptStore, InvalidArgument
from ephemera.core.keyvalue import Write
from ephemera.core.row import NEVER_MS, Row, encode_row
from ephemera.engines.local._base import (
    pack_key,
    pack_row,
    unpack_deadline,
    unpack_row,
    unpack_value,
)
from ephemera.engines.local._control import LockGuard
from ephemera.engines.local._segment import (
    BELOW,
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    Segment,
    SegmentDeadlines,
    SegmentSnapshot,
    crc32c,
    format_segment,
    segment_bytes_for,
    slots_for,
)
from ephemera.engines.local._segment_set import FamilyRef
from tests.engines.local import hostile
from tests.engines.local.segments_in_memory import (
    FAMILY,
    HASH_SEED,
    MORE,
    NOW_MS,
    Memory,
    MemorySegmentSet,
    chain_of,
    colliding_keys,
    read_records,
    slots_of,
    states_by_batch_end,
)
from tests.engines.local.stores import ROOT, run_python

FIRST_DEADLINE_AT = 136
SLOT, COLLIDING = colliding_keys(4)
KEYS = [*COLLIDING, b"\x00", b"\xff\xff", COLLIDING[0] + b"\x00"]
OTHER = FamilyRef("other", 256, None)
IDS = {"default": 1, "other": 256}

rows = st.builds(
    Row,
    value=st.binary(max_size=40) | st.binary(min_size=500, max_size=500),
    written_ms=st.just(NOW_MS),
    deadline_ms=st.just(NEVER_MS) | st.integers(NOW_MS + 1, NOW_MS + 10),
    idle_ms=st.just(0),
    hard_ms=st.just(NEVER_MS),
)
writes = st.builds(Write, st.sampled_from([FAMILY, OTHER]), st.sampled_from(KEYS), st.none() | rows)
batches = st.lists(writes, min_size=1, max_size=5)
edges = st.builds(pack_key, st.sampled_from([0, 1, 2, 256, 257]), st.sampled_from([b"", *KEYS]))
State = dict[bytes, Row | None]


# --- versions and order ---------------------------------------------------------------------------


@given(work=st.lists(batches, max_size=25), bounds=st.lists(st.tuples(edges, st.none() | edges)))
def test_a_cut_shows_what_was_newest_when_it_was_made(
    work: list[list[Write]], bounds: list[tuple[bytes, bytes | None]]
) -> None:
    segments = MemorySegmentSet()
    state: State = {}
    remembered: list[tuple[SegmentSnapshot, State]] = [(segments.snapshot(), {})]
    for batch in work:
        segments.write(batch)
        for family, key, row in batch:
            state[pack_key(IDS[family.name], key)] = row
        remembered.append((segments.snapshot(), dict(state)))
    for snapshot, expected in remembered:
        _compare(snapshot, expected, [(b"", None), *bounds])
    assert [problem for segment in segments.all for problem in segment.problems()] == []


def _compare(
    snapshot: SegmentSnapshot, expected: State, bounds: list[tuple[bytes, bytes | None]]
) -> None:
    for number in IDS.values():
        for key in KEYS:
            assert snapshot.row(number, key) == expected.get(pack_key(number, key), BELOW)
    for start, end in bounds:
        within = [
            (base_key, row)
            for base_key, row in sorted(expected.items())
            if start <= base_key and (end is None or base_key < end)
        ]
        assert _chunk(snapshot, start, end, is_reverse=False) == within
        assert _chunk(snapshot, start, end, is_reverse=True) == within[::-1]
        assert _chunk(snapshot, start, end, is_reverse=True, keys_max=2) == within[::-1][:2]


@given(
    prefix=st.binary(max_size=12),
    keys=st.lists(
        st.text("\0\1a\u00ff", max_size=10).map(lambda text: text.encode("latin-1")),
        min_size=1,
        max_size=60,
    ),
    split=st.integers(0, 60),
    has_two_families=st.booleans(),
)
def test_keys_that_begin_alike_are_in_order(
    prefix: bytes, keys: list[bytes], split: int, has_two_families: bool
) -> None:
    segments = MemorySegmentSet()
    state: State = {}
    for number, key in enumerate(keys):
        family = OTHER if has_two_families and number % 3 == 0 else FAMILY
        row = Row(b"%d" % number, NOW_MS)
        segments.write([Write(family, prefix + key + b"\0" * (not prefix + key), row)])
        state[pack_key(IDS[family.name], prefix + key + b"\0" * (not prefix + key))] = row
        if number == split:
            _chunk(
                segments.snapshot(), b"", None, is_reverse=False
            )  # what follows is merged into this
    assert _chunk(segments.snapshot(), b"", None, is_reverse=False) == sorted(state.items())


@pytest.mark.parametrize(
    "make_key",
    [
        lambda chance: b"counter:%012d" % chance.randrange(500),
        lambda chance: b"%d" % chance.randrange(2_000),
        lambda chance: chance.randbytes(chance.randrange(1, 4)),
        lambda chance: b"the same beginning, " * 3 + b"%05d and an end" % chance.randrange(900),
        lambda chance: chance.choice([b"a", b"a\0", b"a\0\0", b"a\0" * 7 + b"%d"]),
        lambda chance: b"one",
        lambda chance: (
            chance.choice([b"key:", b"counter:", b"user:"]) + b"%09d" % chance.randrange(300)
        ),
        lambda chance: (
            b"eight ch" * (15 - int(15 * chance.random() ** 4)) + b"%d" % chance.randrange(9)
        ),
    ],
    ids=["one size", "numbers", "anything", "long", "zeros", "one key", "prefixes", "nested"],
)
@pytest.mark.parametrize("has_two_families", [False, True])
@pytest.mark.parametrize("split", [0, 100, 2_000])
def test_many_records_are_in_order(
    make_key: Callable[[random.Random], bytes], has_two_families: bool, split: int
) -> None:
    chance = random.Random(1)
    segments = MemorySegmentSet(1024 * 1024)
    state: State = {}
    for number in range(3_000):
        family = OTHER if has_two_families and number % 3 == 0 else FAMILY
        key, row = make_key(chance), Row(b"%d" % number, NOW_MS)
        segments.write([Write(family, key, row)])
        state[pack_key(IDS[family.name], key)] = row
        if number == split:
            early = segments.snapshot()
            expected = sorted(state.items())
            assert _chunk(early, b"", None, is_reverse=False, keys_max=3_000) == expected
    assert _chunk(early, b"", None, is_reverse=True, keys_max=3_000) == expected[::-1]
    assert _chunk(segments.snapshot(), b"", None, is_reverse=False, keys_max=3_000) == sorted(
        state.items()
    )


def _chunk(
    snapshot: SegmentSnapshot,
    start: bytes,
    end: bytes | None,
    *,
    is_reverse: bool,
    keys_max: int = 1_000,
) -> list[tuple[bytes, Row | None]]:
    found: list[tuple[bytes, Row | None]] = []
    for base_key, stored, deadline_ms in snapshot.chunk(start, end, is_reverse, keys_max):
        row = None if stored is None else unpack_row(base_key, stored)
        assert deadline_ms == (NEVER_MS if row is None else row.deadline_ms)
        found.append((base_key, row))
    return found


def test_a_key_written_a_hundred_thousand_times_does_not_lengthen_its_slots_chain() -> None:
    segments = MemorySegmentSet(8 * 1024 * 1024)
    hot, neighbour = b"hot", b""
    segments.store(hot, b"")
    memory = segments.memories[0]
    slot = next(slot for slot, position in enumerate(slots_of(memory)) if position)
    for number in range(1_000_000):
        neighbour = b"%d" % number
        segments.store(neighbour, b"quiet")
        if len(chain_of(memory, slot)) == 2:
            break
    for number in range(100_000):
        segments.store(hot, b"%d" % number)
    assert len(segments.all) == 1
    assert len(chain_of(memory, slot)) == 2
    assert segments.get(FAMILY, neighbour, NOW_MS) == b"quiet"
    assert segments.get(FAMILY, hot, NOW_MS) == b"99999"


def test_checking_many_versions_of_one_key_costs_what_many_keys_cost() -> None:
    def nanoseconds(keys: list[bytes]) -> int:
        segments = MemorySegmentSet(8 * 1024 * 1024)
        for key in keys:
            segments.store(key, b"")
        start = elapsed_ns()
        assert segments.all[0].problems() == []
        return elapsed_ns() - start

    count = 15_000
    assert nanoseconds([b"hot"] * count) < 20 * nanoseconds([b"%d" % n for n in range(count)])


def test_a_batch_that_cannot_be_written_is_never_seen_and_never_overwritten() -> None:
    segments = MemorySegmentSet()
    segments.store(b"before", b"1")
    wrong = Row("2", NOW_MS)  # type: ignore[arg-type]  # what a bug above would hand down
    with pytest.raises((TypeError, ValueError)):
        segments.write([Write(FAMILY, b"a", Row(b"1", NOW_MS)), Write(FAMILY, b"b", wrong)])
    segments.store(b"after", b"2")
    found = {key: segments.get(FAMILY, key, NOW_MS) for key in (b"before", b"a", b"b", b"after")}
    assert found == {b"before": b"1", b"a": None, b"b": None, b"after": b"2"}
    assert [segment.problems() for segment in segments.all] == [[], []]


def test_a_death_that_could_not_be_noted_is_told_again() -> None:
    class Failing(MemorySegmentSet):
        failures = 1
        noted = 0

        def writer_died(self) -> None:
            if self.failures:
                self.failures -= 1
                raise CorruptStore("memory", 0, "cannot look")
            self.noted += 1
            super().writer_died()

    segments = Failing()
    segments.store(b"a", b"1")
    # A thread that ends inside leaves the lock as a process that dies does.
    guards: list[LockGuard] = []
    thread = threading.Thread(target=lambda: guards.append(segments.enter()))
    thread.start()
    thread.join()
    with pytest.raises(CorruptStore):
        segments.store(b"a", b"2")
    segments.store(b"a", b"3")
    assert segments.noted == 1


# --- recovery -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> MemorySegmentSet:
    """One segment with puts, deletions and batches."""
    segments = MemorySegmentSet()
    chance = random.Random(1)
    for number in range(12):
        key = KEYS[number % 5]
        segments.store(key, chance.randbytes(number * 3))
        if number % 3 == 0:
            segments.write(
                [
                    Write(FAMILY, KEYS[1], Row(b"batch %d" % number, NOW_MS, NOW_MS + number + 1)),
                    Write(FAMILY, KEYS[2], None),
                    Write(FAMILY, KEYS[3], Row(b"", NOW_MS)),
                ]
            )
    assert len(segments.all) == 1
    return segments


def _recovered(memory: Memory, limit: int = 0) -> tuple[Segment, int]:
    segment = Segment(memory, "copy", hash_seed=HASH_SEED + 1)
    end, _, _ = segment.recover(limit)
    return segment, end


def _state(segment: Segment, end: int) -> dict[bytes, Row]:
    """What the index of a segment finds, key by key."""
    snapshot = SegmentSnapshot([segment], [end])
    found = {key: snapshot.row(1, key) for key in KEYS}
    assert dict(_chunk(snapshot, b"", None, is_reverse=False)) == {
        pack_key(1, key): row for key, row in found.items() if row is not BELOW
    }
    return {key: row for key, row in found.items() if isinstance(row, Row)}


@pytest.mark.parametrize("filling", [0x00, 0xFF, 0x5A])
def test_every_torn_tail_leaves_whole_batches(small: MemorySegmentSet, filling: int) -> None:
    whole, segment = small.memories[0], small.all[0]
    states = states_by_batch_end(whole, segment.data_at, segment.position)
    for length in range(segment.data_at, segment.position + 1):
        torn = bytearray(whole)
        torn[length:] = bytes([filling]) * (len(torn) - length)
        copy, end = _recovered(torn)
        assert end in states
        assert end >= max(batch_end for batch_end in states if batch_end <= length)
        # What lies beyond the tear can only count if it was the same by chance.
        assert all(
            torn[r.position + 8 : r.payload_end] == whole[r.position + 8 : r.payload_end]
            for r in read_records(torn, segment.data_at, end)
        )
        assert copy.position == end
        assert _state(copy, end) == states[end]
        assert copy.problems() == []


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_no_flipped_byte_makes_other_data(small: MemorySegmentSet, flip: int) -> None:
    whole, segment = small.memories[0], small.all[0]
    states = states_by_batch_end(whole, segment.data_at, segment.position)
    refused = cut_short = 0
    for at in range(segment.position):
        damaged = bytearray(whole)
        damaged[at] ^= flip
        try:
            copy, end = _recovered(damaged)
        except CorruptStore:
            refused += 1
            continue
        assert end in states
        cut_short += end < segment.position
        assert _state(copy, end) == states[end]
    # Magic, version, checksum and the 48 bytes under it; and every byte of a record that counts.
    assert refused == 64
    payload = sum(
        r.payload_end - r.position - 8
        for r in read_records(whole, segment.data_at, segment.position)
    )
    assert cut_short == payload


def test_recovery_stops_at_the_limit(small: MemorySegmentSet) -> None:
    whole, segment = small.memories[0], small.all[0]
    states = states_by_batch_end(whole, segment.data_at, segment.position)
    for limit in range(segment.data_at, segment.position + 9, 8):
        copy, end = _recovered(bytearray(whole), limit)
        assert end == max(batch_end for batch_end in states if batch_end <= limit)
        assert _state(copy, end) == states[end]


def test_recovery_counts_the_records_that_it_keeps() -> None:
    segments = MemorySegmentSet()
    segments.write([Write(FAMILY, b"a", None), Write(FAMILY, b"b", None)])
    first, second = read_records(
        segments.memories[0], segments.all[0].data_at, segments.all[0].position
    )
    torn = bytearray(segments.memories[0])
    torn[second.position :] = bytes(len(torn) - second.position)
    end, _, records = Segment(torn, "copy", hash_seed=1).recover(0)
    assert (end, records) == (first.position, 0)


def test_an_unfinished_batch_is_dropped_with_its_times() -> None:
    segments = MemorySegmentSet()
    segments.store(b"a", b"1")
    whole = segments.all[0].position
    segments.write([Write(FAMILY, b"a", Row(b"2", NOW_MS + 9)), Write(FAMILY, b"b", None)])
    first, second = read_records(segments.memories[0], whole, segments.all[0].position)
    assert (first.mark & MORE, second.mark & MORE) == (MORE, 0)
    torn = bytearray(segments.memories[0])
    torn[second.position :] = bytes(len(torn) - second.position)
    end, latest_ms, _ = Segment(torn, "copy", hash_seed=1).recover(0)
    assert (end, latest_ms) == (whole, NOW_MS)


@pytest.mark.parametrize(("number", "salt"), [(2, 31), (1, 32), (31, 1)])
def test_records_of_another_life_are_not_accepted(
    small: MemorySegmentSet, number: int, salt: int
) -> None:
    memory = bytearray(small.memories[0])
    format_segment(memory, number=number, previous_head=0, salt=salt, created_ms=NOW_MS)
    copy, end = _recovered(memory)
    assert end == copy.data_at
    assert _state(copy, end) == {}


def test_records_at_another_position_are_not_accepted(small: MemorySegmentSet) -> None:
    segment = small.all[0]
    memory = bytearray(small.memories[0])
    length = segment.position - segment.data_at
    records = memory[segment.data_at : segment.position]
    memory[segment.data_at + 8 : segment.data_at + 8 + length] = records
    # In front of them a record of the right size would have to be; there is none.
    _, end = _recovered(memory)
    assert end == segment.data_at
    first = next(read_records(small.memories[0], segment.data_at, segment.position))
    doubled = bytearray(small.memories[0])
    doubled[first.end : first.end + first.end - first.position] = doubled[
        first.position : first.end
    ]
    _, end = _recovered(doubled)
    assert end == first.end


def test_a_stamp_is_read_back_and_a_damaged_one_counts_for_nothing(small: MemorySegmentSet) -> None:
    memory = bytearray(small.memories[0])
    segment = Segment(memory, "copy", hash_seed=1)
    assert segment.read_stamp() == (0, 0)
    segment.stamp(5_000, NOW_MS)
    assert segment.read_stamp() == (5_000, NOW_MS)
    for at in range(192, 212):
        memory[at] ^= 1
        assert segment.read_stamp() == (0, 0)
        memory[at] ^= 1


def test_an_image_of_a_segment_recovers_to_the_same(small: MemorySegmentSet) -> None:
    segment = small.all[0]
    states = states_by_batch_end(small.memories[0], segment.data_at, segment.position)
    for limit, state in states.items():
        copy, end = _recovered(bytearray(segment.image(limit)))
        assert end == limit
        assert _state(copy, end) == state
    with pytest.raises(ValueError):
        segment.image(segment.position + 8)


def test_there_is_no_image_of_less_than_the_index() -> None:
    done = run_python(
        """
        from tests.engines.local.segments_in_memory import MemorySegmentSet
        segments = MemorySegmentSet()
        segments.store(b"a", b"1")
        for limit in (0, 8, 64, 4096, segments.all[0].data_at - 8):
            for _ in range(100):
                try:
                    segments.all[0].image(limit)
                except ValueError:
                    continue
                raise SystemExit(f"an image of {limit} bytes")
        """
    )
    assert done.returncode == 0, done.stderr


# --- bytes that nobody wrote ----------------------------------------------------------------------


def _play_hostile(first: int, count: int, timeout: float) -> None:
    done = run(
        [sys.executable, "-X", "faulthandler", "-m", hostile.__name__, str(first), str(count)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_hostile_bytes_are_refused_and_crash_nothing() -> None:
    _play_hostile(1, 1_500, 60)


@pytest.mark.soak
def test_hostile_bytes_are_refused_and_crash_nothing_for_long() -> None:
    _play_hostile(random.Random().randrange(2**40), 500_000, 3_600)


@pytest.mark.parametrize("offset", [12, 20], ids=["row size", "key size"])
def test_a_record_damaged_after_a_scan_is_refused_by_the_next(offset: int) -> None:
    done = run_python(
        """
        import struct, sys
        from ephemera.core.errors import CorruptStore
        from tests.engines.local.hostile import guarded
        from tests.engines.local.segments_in_memory import MemorySegmentSet, read_records
        segments = MemorySegmentSet(8192, guarded)
        while len(segments.all) < 2:
            segments.store(b"%d" % len(segments.all), b"x" * 90)
        memory, segment = segments.memories[1], segments.all[1]
        snapshot = segments.snapshot()
        assert len(snapshot.chunk(b"", None, False, 99)) == 2
        for record in read_records(memory, segment.data_at, segment.position):
            memory[record.position + int(sys.argv[1])] = 0xff
            memory[record.position + int(sys.argv[1]) + 1] = 0xff
        try:
            snapshot.chunk(b"\\0\\0\\0\\1", None, False, 99)
        except CorruptStore:
            pass
        """,
        offset,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("head", [2**20, 2**63, 2**64 - 1])
def test_a_head_beyond_the_memory_counts_as_its_end(head: int) -> None:
    segments = MemorySegmentSet()
    segments.store(b"a", b"1")
    struct.pack_into("<Q", segments.memories[0], 128, head)
    assert segments.all[0].position == len(segments.memories[0])
    assert segments.get(FAMILY, b"a", NOW_MS) == b"1"
    segments.store(b"b", b"2")
    assert len(segments.all) == 2


@pytest.mark.parametrize("head", [0, 8, 4096])
def test_a_head_before_the_records_is_refused(head: int) -> None:
    segments = MemorySegmentSet()
    segments.store(b"a", b"1")
    memory, segment = segments.memories[0], segments.all[0]
    struct.pack_into("<Q", memory, 128, head)
    header = bytes(memory[:64])
    with contextlib.suppress(CorruptStore):
        segments.store(b"b", b"2")
    assert bytes(memory[:64]) == header
    with contextlib.suppress(CorruptStore):
        assert 0 <= segment.records_bytes <= len(memory)


@pytest.mark.parametrize("size", [0, 1, 64, 4095, 4096, 4351])
def test_memory_too_small_for_a_segment_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgument):
        format_segment(bytearray(size), number=1, previous_head=0, salt=1, created_ms=0)
    with pytest.raises(CorruptStore):
        Segment(bytearray(size), "memory", hash_seed=1)


@pytest.mark.parametrize(
    ("at", "word"),
    [(32, 0), (32, 3), (32, 2**62), (32, 2**63), (32, 4096), (24, 0), (24, 100), (24, 2**64 - 1)],
)
def test_a_header_that_lies_with_a_good_checksum_is_refused_or_harmless(at: int, word: int) -> None:
    segments = MemorySegmentSet()
    segments.store(b"a", b"1")
    memory = bytearray(segments.memories[0])
    memory[at : at + 8] = struct.pack("<Q", word)
    memory[12:16] = struct.pack("<I", crc32c(bytes(memory[16:64])))
    with contextlib.suppress(CorruptStore):
        segment = Segment(memory, "memory", hash_seed=HASH_SEED)
        segment.recover(0)
        assert segment.problems() == []


def test_a_chain_that_loops_is_refused() -> None:
    segments = MemorySegmentSet()
    for key in COLLIDING[:3]:
        segments.store(key, b"1")
    memory = segments.memories[0]
    newest, middle, oldest = chain_of(memory, SLOT)
    struct.pack_into("<I", memory, oldest, middle // 8)
    with pytest.raises(CorruptStore, match="end"):
        segments.get(FAMILY, COLLIDING[3], NOW_MS)
    assert segments.get(FAMILY, COLLIDING[2], NOW_MS) == b"1"
    # A writer that walks the same chain neither hangs nor loses its record.
    segments.store(COLLIDING[3], b"new")
    assert segments.get(FAMILY, COLLIDING[3], NOW_MS) == b"new"
    assert newest != middle


# --- checksums and the base tier's bytes ----------------------------------------------------------


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, B.4, and the check value of the catalogue
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_gives_the_published_values(data: bytes, expected: int, portable: bool) -> None:
    assert crc32c(data, portable=portable) == expected


@given(st.binary(max_size=300), st.binary(max_size=50), st.integers(0, 2**32 - 1))
def test_crc32c_is_the_same_by_hardware_and_by_table_and_in_pieces(
    data: bytes, more: bytes, crc: int
) -> None:
    assert crc32c(data, crc) == crc32c(data, crc, portable=True)
    assert crc32c(more, crc32c(data)) == crc32c(data + more)


base_names = st.tuples(
    st.sampled_from([0, 1, 255, 256, 2**24, 2**31, 2**32 - 1]), st.binary(max_size=6)
)


@given(base_names, base_names)
def test_packed_keys_order_as_family_and_key_do(a: tuple[int, bytes], b: tuple[int, bytes]) -> None:
    assert (pack_key(*a) < pack_key(*b)) == (a < b)
    assert (pack_key(*a) == pack_key(*b)) == (a == b)


all_rows = st.builds(
    Row,
    value=st.binary(max_size=64),
    written_ms=st.integers(0, 2**60),
    deadline_ms=st.just(NEVER_MS) | st.integers(1, 2**60),
    idle_ms=st.just(0),
    hard_ms=st.just(NEVER_MS),
) | st.builds(
    Row,
    value=st.binary(max_size=64),
    written_ms=st.integers(0, 2**60),
    deadline_ms=st.integers(1, 2**60),
    idle_ms=st.integers(1, 2**40),
    hard_ms=st.just(NEVER_MS) | st.integers(1, 2**60),
)


@given(row=all_rows, key=st.binary(min_size=1, max_size=20), now_ms=st.integers(0, 2**60))
@example(row=Row(b"v", 1, 5), key=b"k", now_ms=5)
@example(row=Row(b"v", 1, 5), key=b"k", now_ms=4)
def test_a_packed_row_is_read_back_whole(row: Row, key: bytes, now_ms: int) -> None:
    base_key = pack_key(1, key)
    stored = pack_row(base_key, encode_row(row))
    assert unpack_row(base_key, stored) == row
    assert unpack_deadline(stored) == row.deadline_ms
    is_dead = row.deadline_ms <= now_ms
    assert unpack_value(base_key, stored, now_ms) == (None if is_dead else row.value)


@given(row=all_rows, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_packed_row_is_refused_by_name(row: Row, at: int, flip: int) -> None:
    base_key = pack_key(1, b"the key")
    stored = bytearray(pack_row(base_key, encode_row(row)))
    stored[at % len(stored)] ^= flip
    with pytest.raises(CorruptStore, match="the key"):
        unpack_row(base_key, bytes(stored))
    with pytest.raises(CorruptStore, match="the key"):
        unpack_value(base_key, bytes(stored), NOW_MS)


def test_a_row_under_another_key_or_cut_short_is_refused() -> None:
    base_key = pack_key(1, b"a")
    stored = pack_row(base_key, encode_row(Row(b"value", NOW_MS, NOW_MS)))
    for other in (pack_key(1, b"b"), pack_key(2, b"a"), b""):
        with pytest.raises(CorruptStore):
            unpack_row(other, stored)
    for size in range(len(stored)):
        with pytest.raises(CorruptStore):
            unpack_row(base_key, stored[:size])
        unpack_deadline(stored[:size])


# --- deadlines and sizes --------------------------------------------------------------------------


@given(st.lists(st.just(NEVER_MS) | st.integers(1, 40), max_size=300), st.integers(0, 300))
@settings(max_examples=100)
def test_the_heap_of_deadlines_is_a_sorted_list(deadlines: list[int], followed: int) -> None:
    segments = MemorySegmentSet(64 * 1024)
    segments.store(b"first", b"")
    heap = SegmentDeadlines(segments.all[0])
    expected = []
    for number, deadline_ms in enumerate(deadlines):
        position = segments.all[0].position
        segments.store(b"%d" % (number % 7), b"", deadline_ms)
        if deadline_ms != NEVER_MS:
            expected.append((deadline_ms, position))
        if number == followed:
            heap.follow()
    segments.delete(FAMILY, b"0")
    heap.follow()
    heap.follow()
    assert len(heap) == len(expected)
    popped = []
    while len(heap):
        popped.append((heap.next_ms, heap.pop()))
    assert popped == sorted(expected)
    assert heap.next_ms == NEVER_MS
    with pytest.raises(IndexError):
        heap.pop()


@pytest.mark.parametrize("is_recovered", [False, True])
def test_deadlines_are_followed_from_the_first_record_that_has_one(is_recovered: bool) -> None:
    segments = MemorySegmentSet(64 * 1024)
    segments.store(b"without", b"")
    segment = segments.all[0]
    heap = SegmentDeadlines(segment)
    heap.follow()
    assert (heap.next_ms, first_deadline(segment)) == (NEVER_MS, 0)
    segments.store(b"without", b"")
    first = segment.position
    segments.store(b"with", b"", 5)
    segments.store(b"without", b"")
    segments.store(b"with", b"", 3)
    if is_recovered:
        segment.recover(0)
        heap = SegmentDeadlines(segment)
    heap.follow()
    assert (len(heap), heap.next_ms, first_deadline(segment)) == (2, 3, first)


@pytest.mark.parametrize("at", [1, 8, 4096, 2**63, 2**64 - 8])
def test_a_damaged_first_deadline_is_refused_or_harmless(at: int) -> None:
    segments = MemorySegmentSet(64 * 1024)
    segments.store(b"key", b"value", 5)
    memory = segments.memories[0]
    memory[FIRST_DEADLINE_AT : FIRST_DEADLINE_AT + 8] = at.to_bytes(8, "little")
    heap = SegmentDeadlines(segments.all[0])
    with contextlib.suppress(CorruptStore):
        heap.follow()
    assert len(heap) == 0
    assert segments.get(FAMILY, b"key", 0) == b"value"


def first_deadline(segment: Segment) -> int:
    return int.from_bytes(segment.memory[FIRST_DEADLINE_AT : FIRST_DEADLINE_AT + 8], "little")


@given(st.integers(0, SEGMENT_BYTES_MAX))
def test_slots_are_a_power_of_two_and_a_small_part_of_a_segment(size: int) -> None:
    slots = slots_for(size)
    assert slots >= 64
    assert slots & (slots - 1) == 0
    assert slots == 64 or 4 * slots <= size // 32


@given(st.integers(0, 2**34), st.integers(64 * 1024, 2**28))
def test_a_segment_is_as_large_as_usual_or_holds_its_records(needed: int, usual: int) -> None:
    size = segment_bytes_for(needed, usual)
    assert size % HEADER_BYTES == 0
    assert size >= usual // HEADER_BYTES * HEADER_BYTES or needed > usual
    assert HEADER_BYTES + 4 * slots_for(size) + needed <= size
    assert size <= max(usual + HEADER_BYTES, needed * 1.07 + 3 * HEADER_BYTES)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=1_900), all_rows), min_size=1, max_size=9))
@settings(max_examples=50)
def test_a_batch_has_room_in_the_segment_that_it_gets(batch: list[tuple[bytes, Row]]) -> None:
    segments = MemorySegmentSet()
    segments.write([Write(FAMILY, key, row) for key, row in batch])
    assert segments.all[0].position <= len(segments.memories[0])
    assert segments.all[0].problems() == []


def test_a_huge_value_gets_a_segment_of_its_own_size() -> None:
    segments = MemorySegmentSet()
    segments.store(b"small", b"1")
    segments.store(b"huge", b"x" * 1_000_000)
    segments.store(b"small", b"2")
    assert len(segments.all) == 2
    assert len(segments.memories[0]) < 1_100_000
    assert segments.get(FAMILY, b"huge", NOW_MS) == b"x" * 1_000_000
    assert segments.get(FAMILY, b"small", NOW_MS) == b"2"
    assert [segment.problems() for segment in segments.all] == [[], []]


@given(st.lists(st.integers(1, 40) | st.none(), max_size=200))
@settings(max_examples=100)
def test_deadlines_that_come_between_are_in_order(steps: list[int | None]) -> None:
    """A number is a record with that deadline; for none the earliest is taken."""
    segments = MemorySegmentSet(64 * 1024)
    segments.store(b"first", b"")
    heap = SegmentDeadlines(segments.all[0])
    waiting: list[int] = []
    for number, deadline_ms in enumerate(steps):
        if deadline_ms is not None:
            segments.store(b"%d" % number, b"", deadline_ms)
            heap.follow()
            heapq.heappush(waiting, deadline_ms)
        elif waiting:
            assert heap.next_ms == heapq.heappop(waiting)
            heap.pop()
        assert heap.next_ms == (waiting[0] if waiting else NEVER_MS)
