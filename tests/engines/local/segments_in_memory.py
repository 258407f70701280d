"""A segments of segments in plain memory, and a reader of their bytes that shares no code with them."""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ephemera.core.clock import ManualClock
from ephemera.core.row import NEVER_MS, Row, decode_row
from ephemera.engines.local._base import RowReader
from ephemera.engines.local._control import CONTROL_BYTES, Control
from ephemera.engines.local._segment import (
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    Segment,
    format_segment,
    segment_bytes_for,
)
from ephemera.engines.local._segment_set import FamilyRef, SegmentSet

HASH_SEED = 7
NOW_MS = 1_700_000_000_000
DELETED, MORE = 1, 2
Memory = bytearray | memoryview


def zeroed(size: int) -> Memory:
    return bytearray(size)


def fd_for(holder: object) -> int:
    """A file without a name, for a lock where the system has no robust mutex; open as long as its holder lives."""
    fd, name = tempfile.mkstemp()
    os.unlink(name)
    weakref.finalize(holder, os.close, fd)
    return fd


class MemorySegmentSet(SegmentSet):
    """Segments of `size` bytes each, as many as are needed."""

    def __init__(self, size: int = 8192, allocate: Callable[[int], Memory] = zeroed) -> None:
        super().__init__(
            Control(
                bytearray(CONTROL_BYTES),
                is_first=True,
                lock_fds={"writer": fd_for(self)},
                hash_seed=HASH_SEED,
            ),
            clock=ManualClock(NOW_MS),
            lock_timeout=5.0,
            is_read_only=False,
            syncs_each=False,
        )
        self.reader = RowReader(lambda: None, lambda base_key: None)
        self.size = size
        self.allocate = allocate
        self.all: list[Segment] = []
        self.memories: list[Memory] = []
        self.is_open = False
        self.refresh()

    def refresh(self) -> None:
        self.show(list(self.all), self.control.epoch, self.is_open)

    def make_room(self, size: int, grows: bool = True) -> None:
        memory = self.allocate(segment_bytes_for(size, self.size))
        number = len(self.all) + 1
        format_segment(memory, number=number, previous_head=0, salt=number * 31, created_ms=NOW_MS)
        self.memories.insert(0, memory)
        self.all.insert(0, Segment(memory, f"memory {number}", hash_seed=HASH_SEED))
        self.is_open = True
        self.control.publish()
        self.refresh()

    def writer_died(self) -> None:
        self.is_open = False
        self.control.publish()
        self.refresh()

    def store(self, key: bytes, value: bytes, deadline_ms: int = NEVER_MS) -> None:
        self.put(FAMILY, key, value, NOW_MS, deadline_ms, 0, NEVER_MS, None)


FAMILY = FamilyRef("default", 1, None)


class Read(NamedTuple):
    """A record as the layout in the module's docstring says it lies there."""

    position: int
    payload_end: int
    end: int
    family: int
    key: bytes
    mark: int
    row: Row


def read_records(memory: Memory, start: int, end: int) -> Iterator[Read]:
    """The records between two positions."""
    position = start
    while position < end:
        row_size, family, key_size, mark = struct.unpack_from("<IIHB", memory, position + 12)
        key_at = position + RECORD_HEAD_BYTES
        row_at = key_at + key_size
        payload_end = row_at + row_size
        after = (payload_end + 7) // 8 * 8
        yield Read(
            position,
            payload_end,
            after,
            family,
            bytes(memory[key_at:row_at]),
            mark,
            decode_row(bytes(memory[row_at:payload_end])),
        )
        position = after


def states_by_batch_end(memory: Memory, start: int, end: int) -> dict[int, dict[bytes, Row]]:
    """What the keys hold after each whole batch; the positions are where the batches end."""
    state: dict[bytes, Row] = {}
    states: dict[int, dict[bytes, Row]] = {start: {}}
    for record in read_records(memory, start, end):
        if record.mark & DELETED:
            state.pop(record.key, None)
        else:
            state[record.key] = record.row
        if not record.mark & MORE:
            states[record.end] = dict(state)
    return states


def slots_of(memory: Memory) -> list[int]:
    """Where the chain of each slot begins."""
    (count,) = struct.unpack_from("<Q", memory, 32)
    return [8 * at for at in struct.unpack_from(f"<{count}I", memory, HEADER_BYTES)]


def chain_of(memory: Memory, slot: int) -> list[int]:
    """The positions of the records in a slot's chain."""
    chain = []
    at = HEADER_BYTES + 4 * slot
    while position := 8 * struct.unpack_from("<I", memory, at)[0]:
        chain.append(position)
        at = position
    return chain


def colliding_keys(count: int) -> tuple[int, list[bytes]]:
    """A slot, and that many keys of it."""
    by_slot: dict[int, list[bytes]] = {}
    number = 0
    while True:
        key = b"key-%d" % number
        segments = MemorySegmentSet()
        segments.store(key, b"")
        slot = next(
            slot for slot, position in enumerate(slots_of(segments.memories[0])) if position
        )
        keys = by_slot.setdefault(slot, [])
        keys.append(key)
        if len(keys) == count:
            return slot, keys
        number += 1
