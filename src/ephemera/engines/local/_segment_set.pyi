from collections.abc import Container, Sequence
from typing import NoReturn

from ephemera.core._access import CompiledAccess
from ephemera.core.clock import Clock
from ephemera.core.keyvalue import Change, Write
from ephemera.core.row import Row
from ephemera.engines.local._base import RowReader
from ephemera.engines.local._commit import GroupCommit
from ephemera.engines.local._control import Control, LockGuard
from ephemera.engines.local._segment import Segment, SegmentDeadlines, SegmentSnapshot

class FamilyRef:
    name: str
    id: int
    first_id: int
    default_ttl_ms: int | None
    def __init__(
        self, name: str, id: int, default_ttl_ms: int | None, first_id: int = 0
    ) -> None: ...

class SegmentSet(CompiledAccess):
    control: Control
    segments: list[Segment]
    lock_timeout: float
    is_read_only: bool
    syncs_each: bool
    wake_before_ms: int
    has_backlog: bool
    is_full: bool
    is_closed: bool
    @property
    def clock(self) -> Clock: ...
    reader: RowReader
    commit: GroupCommit
    def __init__(
        self,
        control: Control,
        *,
        clock: Clock,
        lock_timeout: float,
        is_read_only: bool,
        syncs_each: bool,
    ) -> None: ...
    def look(self) -> None: ...
    def show(
        self,
        segments: list[Segment],
        epoch: int,
        takes_writes: bool,
        kept: list[Segment] = ...,
    ) -> None: ...
    def hide(self) -> None: ...
    def forget(self) -> None: ...
    def refresh(self) -> None: ...
    def make_room(self, size: int, grows: bool) -> None: ...
    def refuse_growth(self) -> NoReturn: ...
    def goes_on(self) -> bool: ...
    def wait_for_checkpoint(self, grows: bool) -> None: ...
    def writer_died(self) -> None: ...
    def acknowledge(self, number: int, position: int) -> None: ...
    def wake(self) -> None: ...
    def get(self, family: FamilyRef, key: bytes, now_ms: int, /) -> bytes | None: ...
    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None: ...
    def pop_dead(
        self,
        all_deadlines: list[SegmentDeadlines],
        followed: list[Segment],
        newest: int,
        delivered: tuple[int, int, int],
        until_ms: int,
        keys_max: int,
        looks_max: int,
        names: Container[int],
        is_counting: bool,
    ) -> tuple[list[tuple[int, int, bytes, bytes, bool]], int, tuple[int, int, int]]: ...
    def outlived_below(
        self, followed: list[Segment], newest: int, family: int, key: bytes, deadline_ms: int
    ) -> bool | None: ...
    def knows(self, family: int, key: bytes, after: int) -> bool: ...
    def snapshot(self, after: int = 0) -> SegmentSnapshot: ...
    def enter(self) -> LockGuard: ...
    def writer_lock(self) -> LockGuard: ...
    def put(
        self,
        family: FamilyRef,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None: ...
    def update(
        self, family: FamilyRef, key: bytes, change: Change, *, durable: bool | None = None
    ) -> None: ...
    def delete(self, family: FamilyRef, key: bytes, *, durable: bool | None = None) -> bool: ...
    def write(self, writes: Sequence[Write], *, durable: bool | None = None) -> None: ...
    def append_batch(self, writes: Sequence[Write], now_ms: int) -> tuple[Segment, int, int]: ...
    def acknowledge_batch(self, where: tuple[Segment, int, int], durable: bool | None) -> None: ...
