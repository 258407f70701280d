"""Feed segments whose bytes were damaged to everything that reads them.

Run as a program, so that a crash of the interpreter is seen by who started it. Behind each segment
lies a page that must not be touched, so that reading past its end is a crash too.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import random
import struct
import sys
from collections.abc import Callable
from functools import partial

from ephemera.core.errors import CorruptStore
from ephemera.core.keyvalue import Write
from ephemera.core.row import Row
from ephemera.engines.local._base import pack_key
from ephemera.engines.local._segment import (
    HEADER_BYTES,
    Segment,
    SegmentDeadlines,
    SegmentSnapshot,
    crc32c,
)
from tests.engines.local.segments_in_memory import (
    FAMILY,
    HASH_SEED,
    NOW_MS,
    MemorySegmentSet,
)

PAGE = mmap.PAGESIZE
KEYS = [b"a", b"b", b"bb", b"a longer key than the others", b"\xff"]
WORDS = [0, 1, 8, 4095, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
_libc = ctypes.CDLL(None, use_errno=True)
_guarded: list[mmap.mmap] = []


def guarded(size: int) -> memoryview:
    """Memory that ends where touching one more byte kills the process."""
    size = (size + PAGE - 1) // PAGE * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    _guarded.append(memory)
    return memoryview(memory)[:size]


def filled(chance: random.Random) -> MemorySegmentSet:
    """A segments of a few segments with puts, deletions and batches."""
    segments = MemorySegmentSet(8192, guarded)
    for _ in range(chance.randrange(1, 60)):
        key = chance.choice(KEYS)
        row = Row(chance.randbytes(chance.randrange(200)), NOW_MS, NOW_MS + chance.randrange(99))
        if chance.random() < 0.6:
            segments.store(key, row.value, row.deadline_ms)
        elif chance.random() < 0.5:
            segments.delete(FAMILY, key)
        else:
            segments.write([Write(FAMILY, key, row), Write(FAMILY, chance.choice(KEYS), None)])
    return segments


def damage(memory: memoryview, segment: Segment, chance: random.Random) -> None:
    """Overwrite some words: of slots, links, record heads, rows, the header or anything."""
    head = max(segment.position, segment.data_at + 8)
    for _ in range(chance.randrange(1, 6)):
        kind = chance.randrange(5)
        if kind == 0:
            at = HEADER_BYTES + 4 * chance.randrange((segment.data_at - HEADER_BYTES) // 4)
        elif kind == 1:
            at = chance.randrange(segment.data_at, head) // 8 * 8 + chance.choice(
                [0, 4, 12, 16, 20]
            )
        elif kind == 2:
            at = chance.choice([16, 24, 32, 40, 48, 56, 128, 192, 200, 208])
        else:
            at = chance.randrange(len(memory))
        word = chance.choice([*WORDS, chance.getrandbits(64), head // 8, segment.position // 8])
        at = min(at, len(memory) - 8)
        size = chance.choice([1, 2, 4, 8])
        memory[at : at + size] = struct.pack("<Q", word)[:size]
    if chance.random() < 0.7:
        memory[12:16] = struct.pack("<I", crc32c(bytes(memory[16:64])))


def read_everything(segments: MemorySegmentSet, chance: random.Random) -> None:
    """Every way to read; each may refuse."""
    snapshot = SegmentSnapshot(
        segments.all, [chance.choice([s.position, s.data_at, 2**64 - 1]) for s in segments.all]
    )
    start, end = sorted(pack_key(1, chance.choice(KEYS)) for _ in range(2))
    ways: list[Callable[[], object]] = [
        lambda: [segments.get(FAMILY, key, NOW_MS) for key in KEYS],
        lambda: [segments.row(FAMILY, key, NOW_MS) for key in KEYS],
        lambda: [snapshot.row(1, key) for key in KEYS],
        lambda: snapshot.chunk(start, end, False, 100),
        lambda: snapshot.chunk(b"", None, False, 100),
        lambda: snapshot.chunk(start, None, True, 100),
        lambda: segments.outlived_below(segments.segments, 0, 1, KEYS[0], NOW_MS),
        lambda: segments.pop_dead(
            _heaps(segments), segments.segments, 0, (-1, 0, 0), NOW_MS + 50, 99, 99, {1}, True
        ),
        lambda: [segment.problems() for segment in segments.all],
        lambda: [segment.count_records() for segment in segments.all],
        lambda: [segment.read_stamp() for segment in segments.all],
        lambda: [segment.records_bytes for segment in segments.all],
    ]
    chance.shuffle(ways)
    for way in ways:
        _may_refuse(way)


def _heaps(segments: MemorySegmentSet) -> list[SegmentDeadlines]:
    heaps = [SegmentDeadlines(segment) for segment in segments.all]
    for heap in heaps:
        heap.follow()
    return heaps


def _may_refuse(way: Callable[[], object]) -> None:
    with contextlib.suppress(CorruptStore):
        way()


def _attach_and_recover(memory: memoryview, chance: random.Random) -> None:
    segment = Segment(memory, "again", hash_seed=HASH_SEED)
    end, _, _ = segment.recover(chance.choice([0, segment.data_at, chance.randrange(2**20)]))
    if not segment.data_at <= end <= len(memory):
        raise AssertionError(f"recovered up to {end}")
    if segment.problems():
        raise AssertionError(f"recovered with problems: {segment.problems()}")
    segment.image(end)


def play(seed: int) -> None:
    chance = random.Random(seed)
    segments = filled(chance)
    for memory, segment in zip(segments.memories, segments.all, strict=True):
        if isinstance(memory, memoryview) and chance.random() < 0.8:
            damage(memory, segment, chance)
    read_everything(segments, chance)
    _may_refuse(lambda: segments.store(chance.choice(KEYS), b"again"))
    _may_refuse(lambda: segments.write([Write(FAMILY, key, None) for key in KEYS]))
    _may_refuse(lambda: _read_attached_anew(segments, chance))
    for memory in segments.memories:
        if isinstance(memory, memoryview):
            _may_refuse(partial(_attach_and_recover, memory, chance))


def _read_attached_anew(segments: MemorySegmentSet, chance: random.Random) -> None:
    segments.all = [Segment(memory, "anew", hash_seed=HASH_SEED) for memory in segments.memories]
    segments.refresh()
    read_everything(segments, chance)


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            play(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed}\n")
            raise
        _guarded.clear()


if __name__ == "__main__":
    main()
