"""Consistent reads: a snapshot of the segments and a read transaction of the base tier, taken together.

A view is consistent by construction: published heads never change what lies below them, mapped
segments outlive their files, and the base tier's transaction stays where it began. The one thing to
see to is that both halves fit: if the epoch moved while they were taken, they are taken again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence

from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument, StoreClosed
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import Range, Write, family_dropped
from ephemera.core.row import Row
from ephemera.engines.local._base import pack_key, unpack_row
from ephemera.engines.local._control import LockGuard
from ephemera.engines.local._pages import Tree
from ephemera.engines.local._scan import Scan, ViewTransaction
from ephemera.engines.local._segment import BELOW, SegmentSnapshot
from ephemera.engines.local._segment_set import FamilyRef
from ephemera.engines.local.base_tier import BaseFile, BaseTier, lmdb_errors
from ephemera.engines.local.families import Families
from ephemera.engines.local.segments import Segments


class State:
    """Everything as it was at one moment, dead rows included.

    Any thread may close it, also while others read: their next read raises StoreClosed. In the child
    of a fork every read does, and closing it leaves the transaction to the parent.
    """

    def __init__(
        self,
        snapshot: SegmentSnapshot,
        base: BaseFile,
        txn: ViewTransaction,
        families: Mapping[str, FamilyRef],
    ) -> None:
        self.snapshot = snapshot
        self.base = base
        self.txn = txn
        self.families = families
        self.deadline_ms: int | None = None
        """From when on this may not be read any more; None: for as long as its user likes."""
        self.is_closed = False
        self._tree: Tree | None = None

    def id_of(self, family: FamilyRef) -> int:
        """The id of a family in this state. Raises InvalidArgument when it was dropped before."""
        known = self.families.get(family.name)
        if known is None or known.first_id != family.first_id:
            raise family_dropped(family.name)
        return known.id

    def row(self, family_id: int, key: bytes) -> Row | None:
        row = self.snapshot.row(family_id, key)
        if row is not BELOW:
            return row  # type: ignore[return-value]  # BELOW is the only other thing it can be
        base_key = pack_key(family_id, key)
        with lmdb_errors(self.base.path):
            stored = self.txn.get(base_key)
        return None if stored is None else unpack_row(base_key, stored)

    def scan(
        self,
        family_id: int,
        bounds: Range,
        now_ms: int | None,
        clock: Clock | None = None,
        *,
        ends_state: bool = False,
    ) -> Scan:
        """(key, row) in order of what is alive at an instant; without one, by the clock."""
        start = pack_key(family_id, bounds.start)
        end = (
            pack_key(family_id + 1, b"") if bounds.end is None else pack_key(family_id, bounds.end)
        )
        return Scan(
            self,
            start,
            end,
            is_reverse=bounds.is_reverse,
            clock=clock,
            now_ms=now_ms,
            ends_state=ends_state,
        )

    @property
    def tree(self) -> Tree | None:
        """The base tier's rows where they are mapped, if they are."""
        if self._tree is None:
            self._tree = self.txn.run(self.base.tree)
        return self._tree

    def ask(self, start: bytes, end: bytes, is_reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """The base tier's rows as LMDB reads them."""
        return self.txn.run(self.base.scan, start, end, is_reverse)

    def expire(self, now_ms: int) -> bool:
        """Close it, if its time is up; whether it is."""
        is_up = self.deadline_ms is not None and is_dead(self.deadline_ms, now_ms)
        if is_up and not self.is_closed:
            self.close()
        return is_up

    def must_be_open(self) -> None:
        if self.base.is_closed:
            raise StoreClosed("the store was closed")

    def close(self) -> None:
        self.is_closed = True
        if self._tree is not None:
            self._tree.abandon()
        self.txn.end()


def take_state(segments: Segments, base: BaseTier, families: Families) -> State:
    """The state that is published now."""
    while True:
        epoch = segments.control.epoch
        snapshot = segments.snapshot()
        # The table before the transaction: another thread may load one that is newer than the epoch.
        file, table = base.file, families.table
        state = State(snapshot, file, file.begin(), table)
        # A segment that was frozen and applied in between would show in the base tier what the snapshot
        # leaves out.
        if segments.is_at(epoch):
            return state
        state.close()


class OpenStates:
    """The states that this process reads, and since when."""

    def __init__(self) -> None:
        # Without a lock, and copied before it is walked: a signal handler may take another state meanwhile.
        self._began: dict[int, tuple[weakref.ref[State], int]] = {}

    def add(self, state: State, began_ms: int) -> None:
        number, began = id(state), self._began
        began[number] = (weakref.ref(state, lambda _: began.pop(number, None)), began_ms)

    def began(self) -> dict[State, int]:
        """Those that are open, with the instants at which they were taken."""
        found = [(ref(), began_ms) for ref, began_ms in list(self._began.values())]
        return {state: ms for state, ms in found if state is not None and not state.is_closed}


class LocalView:
    """A snapshot: a state at one instant."""

    def __init__(self, segments: Segments, state: State, now_ms: int) -> None:
        self._segments = segments
        self._state: State | None = state
        self.now_ms = now_ms

    @property
    def state(self) -> State:
        """The state, while there is one."""
        if self._segments.is_closed:
            raise StoreClosed("the store was closed")
        state = self._state
        if state is None:
            raise StoreClosed("this snapshot or transaction has ended")
        if state.expire(self._segments.clock.now_ms()):
            raise StoreClosed("this snapshot is older than snapshot_max_age allows: take a new one")
        state.txn.must_be_open()
        return state

    def family(self, name: str) -> FamilyRef | None:
        return self.state.families.get(name)

    def row(self, family: FamilyRef, key: bytes) -> Row | None:
        state = self.state
        row = state.row(state.id_of(family), key)
        return None if row is None or is_dead(row.deadline_ms, self.now_ms) else row

    def scan(self, family: FamilyRef, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        state = self.state
        return state.scan(state.id_of(family), bounds, self.now_ms)

    def close(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            state.close()


class LocalTransaction(LocalView):
    """The writer's guard and the state that it found. Both go with this object, if it is forgotten."""

    def __init__(self, segments: Segments, guard: LockGuard, state: State, now_ms: int) -> None:
        super().__init__(segments, state, now_ms)
        self._guard = guard
        self._txn = state.txn

    def close(self) -> None:
        self._must_be_the_same_thread()
        try:
            super().close()
        finally:
            self._guard.leave()

    def _must_be_the_same_thread(self) -> None:
        # The lock of the writer's guard belongs to the thread that took it.
        if self._guard.is_held and not self._guard.is_ours and not self._txn.is_inherited:
            raise InvalidArgument("a transaction ends in the thread that began it")

    def commit(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        where = None
        self._must_be_the_same_thread()
        try:
            _ = self.state  # raises when the guard is over
            if writes:
                where = self._segments.append_batch(writes, self.now_ms)
        finally:
            self.close()
        if where is not None:
            self._segments.acknowledge_batch(where, durable)
