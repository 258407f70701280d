"""Every byte of a store turned over, and its files cut at every length: what was written, or an error.

The quick tests take all bytes that carry something and some of the rest; the long ones take all, bit by
bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ephemera import ManualClock, Store
from ephemera.engines.local._control import CONTROL_BYTES
from ephemera.engines.local._segment import HEADER_BYTES
from tests.crash.damage import (
    CONFINED,
    DIED,
    PREFIX,
    REFUSED,
    REPORTED,
    WHOLE,
    Damage,
    Image,
    contents_of,
    deaths,
    judge_base,
    judge_live_numbers,
    judge_log,
    judge_writes,
    others,
    tally,
    try_all,
)
from tests.engines.local.stores import crash_copy, open_local

NOW_MS = 1_700_000_000_000
FIRST, SECOND = "segments/00000001.seg", "segments/00000002.seg"
BASE = "base/00000001.mdb"
STAMP = slice(192, 212)
BITS = [1 << bit for bit in range(8)]
PAGE = 4096
HEAD = 32
META = 160
TREE = re.compile(rb"meta\0.{49}", re.DOTALL)
"""The head of a page of LMDB, and the first of the positions behind it."""


# --- the log --------------------------------------------------------------------------------------


def transactions(store: Store, clock: ManualClock, start: int) -> Iterator[None]:
    """Each kind of transaction twice: puts, batches, deletions, lifetimes of every kind, two families."""
    other = store.family("other")
    for number in range(start, start + 2):
        key = b"key %d" % number
        store.put(key, b"first")
        yield
        store.put_many({key: b"value %d" % number, b"batch": b"%d" % number}, ttl=60 + number)
        yield
        clock.advance(0.25)
        other.put(key, b"", idle=30)
        yield
        with store.transaction() as txn:
            txn.put("left", b"%d" % number)
            txn.family("other").put("right", b"%d" % number)
            txn.delete(key)
        yield


@pytest.fixture(params=["synced", "never synced"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    """A store that nobody closed, with a frozen segment and one that took writes."""
    clock = ManualClock(NOW_MS)
    path = tmp_path / "0"
    states = []
    for part in (0, 1):
        with open_local(path, clock, durability="none") as store:
            store.family("other")
            states.append(contents_of(store))
            for number, _ in enumerate(transactions(store, clock, 2 * part)):
                states.append(contents_of(store))
                if number == 3 and request.param == "synced":
                    store.sync()
            # Recovery freezes what it finds, so the second part goes to a segment of its own.
            path = crash_copy(path, tmp_path / f"{part + 1}")
    image = Image.of(path, states, clock.now_ms())
    if request.param == "never synced":
        for name in (FIRST, SECOND):
            content = bytearray(image.files[name])
            content[STAMP] = bytes(STAMP.stop - STAMP.start)
            image.files[name] = bytes(content)
    return image


def used(image: Image, name: str) -> int:
    """How much of a segment carries something."""
    return len(image.files[name].rstrip(b"\0")) + 8


def slots_end(image: Image, name: str) -> int:
    return HEADER_BYTES + 4 * int.from_bytes(image.files[name][32:40], "little")


def test_a_log_that_nobody_damaged_is_whole(log: Image, tmp_path: Path) -> None:
    beyond = Damage(SECOND, len(log.files[SECOND]))
    assert set(log.files) >= {FIRST, SECOND, BASE}
    assert len(log.states) > 16
    assert try_all(tmp_path / "trial", log, [beyond], judge_log) == {beyond: WHOLE}


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_flipped_byte_of_a_segment_leaves_a_prefix_or_is_refused(
    log: Image, tmp_path: Path, name: str
) -> None:
    records_at = slots_end(log, name)
    offsets = [*range(256), *range(256, records_at, 96), *range(records_at, used(log, name))]
    damages = [Damage(name, offset, 0xFF) for offset in offsets]
    verdicts = try_all(tmp_path / "trial", log, damages, judge_log)
    assert others(verdicts, WHOLE, PREFIX, REFUSED) == {}
    # What recovery does not believe may be anything; in a record only the links may.
    derived = [verdicts[damage] for damage in damages if HEADER_BYTES <= damage.offset < records_at]
    assert set(derived) == {WHOLE}
    assert tally(verdicts)[REFUSED] > 48


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_segment_cut_anywhere_leaves_a_prefix_or_is_refused(
    log: Image, tmp_path: Path, name: str
) -> None:
    records_at, end = slots_end(log, name), used(log, name)
    lengths = {0, 1, 63, 64, 255, HEADER_BYTES - 1, HEADER_BYTES, records_at - 1}
    lengths |= {8 * step + more for step in range(records_at // 8, end // 8) for more in (0, 1, 7)}
    damages = [Damage(name, length) for length in sorted(lengths)]
    verdicts = try_all(tmp_path / "trial", log, damages, judge_log)
    assert others(verdicts, WHOLE, PREFIX, REFUSED) == {}
    assert tally(verdicts)[WHOLE] < 8


@pytest.mark.soak
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_every_bit_and_every_length_of_a_segment(log: Image, tmp_path: Path, name: str) -> None:
    offsets = range(used(log, name))
    damages = [Damage(name, offset, flip) for offset in offsets for flip in (0, 0xFF, *BITS)]
    verdicts = try_all(tmp_path / "trial", log, damages, judge_log)
    assert others(verdicts, WHOLE, PREFIX, REFUSED) == {}


# --- the control page -----------------------------------------------------------------------------


def test_a_control_page_that_nobody_has_open_is_not_believed(log: Image, tmp_path: Path) -> None:
    offsets = [*range(512), *range(512, CONTROL_BYTES, 64)]
    damages = [Damage("control", offset, 0xFF) for offset in offsets]
    damages += [Damage("control", length) for length in (0, 1, 64, 1000)]
    verdicts = try_all(tmp_path / "trial", log, damages, judge_log)
    assert others(verdicts, WHOLE) == {}


@pytest.mark.parametrize("log", ["synced"], indirect=True)
def test_numbers_damaged_under_an_open_store_serve_nothing_wrong(
    log: Image, tmp_path: Path
) -> None:
    """The epoch, the numbers of segments, the generation of the base tier, the table's version."""
    damages = [Damage("control", offset, 0xFF) for offset in range(8, 56)]
    verdicts = try_all(tmp_path / "trial", log, damages, judge_live_numbers)
    assert others(verdicts, WHOLE, CONFINED) == {}
    assert tally(verdicts)[CONFINED] >= 16


# --- the base tier --------------------------------------------------------------------------------

# LMDB believes its pages. Some damage to them ends the process before anybody can say so: how much is
# bounded here, and told in the guarantees.


@pytest.fixture
def based(tmp_path: Path) -> Image:
    """A store with all its rows in the base tier: several pages of them, a large one, dead ones,
    given-up ones, and free pages with former versions."""
    clock = ManualClock(NOW_MS)
    with open_local(tmp_path / "store", clock) as store:
        for number in range(60):
            ttl = [None, 60, 600][number % 3]
            store.put(b"key %02d" % number, b"value %02d " % number * 8, ttl=ttl)
        store.checkpoint()
        store.family("other", default_ttl=100).put("x", "y")
        store.family("gone").put("x", "y")
        store.put_many({b"key %02d" % number: b"new %02d" % number for number in range(30, 50)})
        store.checkpoint()
        store.drop_family("gone")
        store.put("large", b"y" * 5_000, ttl=100)
        store.put_many({"dead": "1"}, ttl=1)
        store.put("dying", "2", ttl=2)
        store.checkpoint()
        clock.advance(1.5)
        store.purge_expired()
        store.put("undelivered", "3", ttl=0.1)
        clock.advance(1)
        store.checkpoint()
        states = [contents_of(store)]
        path = crash_copy(tmp_path / "store", tmp_path / "copy")
    return Image.of(path, states, clock.now_ms())


def pages_end(image: Image) -> int:
    """Where the pages of the base tier's file end, and its empty tail begins."""
    return -(-len(image.files[BASE].rstrip(b"\0")) // PAGE) * PAGE


def test_a_base_tier_that_nobody_damaged_is_whole(based: Image, tmp_path: Path) -> None:
    beyond = Damage(BASE, pages_end(based))
    assert try_all(tmp_path / "trial", based, [beyond], judge_base) == {beyond: WHOLE}
    assert pages_end(based) > 8 * PAGE


def some_base_bytes(image: Image) -> list[Damage]:
    """One in thirty bytes that carry something; in full the heads of pages, what LMDB says of its file in the first
    two, and what it says of the tree with the families."""
    content = image.files[BASE][: pages_end(image)]
    filled = [offset for offset, byte in enumerate(content) if byte]
    heads = [offset for offset in filled if offset % PAGE < HEAD]
    metas = [page + offset for page in (0, PAGE) for offset in range(META)]
    trees = [at for tree in re.finditer(TREE, content) for at in range(*tree.span())]
    chosen = sorted({*filled[::30], *heads, *metas, *trees})
    return [Damage(BASE, offset, 0xFF) for offset in chosen]


def test_a_flipped_byte_of_the_base_tier_is_found_and_confined(
    based: Image, tmp_path: Path
) -> None:
    verdicts = try_all(tmp_path / "trial", based, some_base_bytes(based), judge_base)
    assert others(verdicts, WHOLE, REFUSED, CONFINED, REPORTED, DIED) == {}
    assert tally(verdicts)[CONFINED] > 100
    assert deaths(verdicts) <= 4


def test_a_base_tier_cut_anywhere_is_found(based: Image, tmp_path: Path) -> None:
    damages = [Damage(BASE, length) for length in range(0, pages_end(based), PAGE // 8)]
    verdicts = try_all(tmp_path / "trial", based, damages, judge_base)
    assert others(verdicts, WHOLE, REFUSED, CONFINED, REPORTED) == {}
    assert tally(verdicts)[REFUSED] > 16


@pytest.mark.soak
@pytest.mark.parametrize("flip", [0xFF, *BITS])
def test_every_bit_of_the_base_tier(based: Image, tmp_path: Path, flip: int) -> None:
    damages = [Damage(BASE, offset, flip) for offset in range(pages_end(based))]
    verdicts = try_all(tmp_path / "trial", based, damages, judge_base)
    assert others(verdicts, WHOLE, REFUSED, CONFINED, REPORTED, DIED) == {}
    assert deaths(verdicts) * 2_000 < len(damages)


@pytest.mark.soak
@pytest.mark.parametrize("flip", [0xFF, *BITS])
def test_a_writer_that_meets_damage_fails_in_our_words(
    based: Image, tmp_path: Path, flip: int
) -> None:
    damages = [Damage(BASE, offset, flip) for offset in range(0, pages_end(based), 3)]
    verdicts = try_all(tmp_path / "trial", based, damages, judge_writes)
    assert others(verdicts, WHOLE, REFUSED, CONFINED, DIED) == {}
    assert deaths(verdicts) * 1_000 < len(damages)
