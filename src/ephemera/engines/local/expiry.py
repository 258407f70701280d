"""What dies when: among the keys in segments, and in the base tier's index; and telling of it.

Two things happen to the dead. They are *told*: counted, and reported to the `on_expire` callbacks,
on time and once. And they are *removed*: rows of the base tier in batches, keys in segments by
the checkpoint that leaves them out. Reading never depends on either, since the predicate hides them.

With callbacks and background work a thread tells (`announce`), reading only, so that no commit can
delay an event; removal then goes no further than what was told. Otherwise `purge` tells what it
removes. `sweep` is the background's removal.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import Expired
from ephemera.core.row import NEVER_MS
from ephemera.engines.local._segment import (
    BELOW,
    Cut,
    Segment,
    SegmentDeadlines,
    pack_key,
    unpack_deadline,
    unpack_row,
)
from ephemera.engines.local.base_tier import BaseTier, ReadTransaction, family_of
from ephemera.engines.local.families import Families
from ephemera.engines.local.segments import Segments

_log = logging.getLogger("ephemera")

TOLD_BEFORE = b"told-before"


class Dead(NamedTuple):
    """A key that died, with the last it held. One that was written again since is told of, but there
    is nothing of it to remove."""

    deadline_ms: int
    family_id: int
    key: bytes
    value: bytes
    is_gone: bool


class Upcoming:
    """The deadlines of the keys in segments, earliest first over all of them."""

    def __init__(self, segments: Segments, families: Families) -> None:
        self._segments = segments
        self._families = families
        self._heaps: dict[int, SegmentDeadlines] = {}
        self._peeked: SegmentDeadlines | None = None
        self.told_before_ms = -1

    def follow(self) -> None:
        """Take in what was written, let go what moved to the base tier."""
        self._segments.refresh()
        heaps = {}
        for segment in self._segments.segments:
            heap = self._heaps.get(segment.number)
            if heap is None:
                heap = SegmentDeadlines(segment)
            heap.follow()
            heaps[segment.number] = heap
        self._heaps = heaps

    @property
    def next_ms(self) -> int:
        return min((heap.next_ms for heap in self._heaps.values()), default=NEVER_MS)

    def peek_due(self, now_ms: int, segment: Segment | None = None) -> Dead | None:
        """The next key that is dead, of one segment or of all; None when there is none."""
        heaps = [
            heap
            for heap in self._heaps.values()
            if segment is None or heap.segment.number == segment.number
        ]
        while heaps:
            heap = min(heaps, key=_next_ms)
            if not is_dead(heap.next_ms, now_ms):
                return None
            if is_dead(heap.next_ms, self.told_before_ms):
                heap.pop()
                continue
            # A version that was replaced while it lived does not speak for its key.
            found = self._segments.outlived(heap.segment, heap.next_position)
            if found is not None and self._families.name_of(found[0]) is not None:
                family_id, key, row, is_gone = found
                self._peeked = heap
                return Dead(row.deadline_ms, family_id, key, row.value, is_gone)
            heap.pop()
        return None

    def drop(self) -> None:
        """Take away what `peek_due` showed."""
        if self._peeked is not None:
            self._peeked.pop()
            self._peeked = None


class Expiry:
    """The telling and the removal of the dead of one store."""

    def __init__(
        self,
        segments: Segments,
        base: BaseTier,
        families: Families,
        on_removed: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._base = base
        self._families = families
        self._on_removed = on_removed
        self._upcoming = Upcoming(segments, families)
        self._upcoming.told_before_ms = base.file.number(TOLD_BEFORE)
        self._fallen: list[Dead] = []
        self._callbacks: list[Callable[[Expired], object]] = []
        # Held while the dead are picked, never while callbacks run.
        self._picking = threading.RLock()
        self._told_ms: int | None = None
        self.told = 0
        self.lag_ms = 0
        self.lag_max_ms = 0

    # -- callbacks

    def subscribe(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    # -- on time: reading only

    def announce(self, now_ms: int) -> int:
        """Tell of all that died since the last call; returns when the next key will."""
        with self._picking:
            if self._told_ms is None:
                self._told_ms = -1
            dead = self._pop_above(now_ms)
            base = self._base.file
            with base.begin() as txn:
                for entry in base.entries(txn, self._told_ms, now_ms):
                    found = self._current_in_base(txn, *entry)
                    if found is not None:
                        dead.append(found)
            self._told_ms = max(self._told_ms, now_ms)
            next_ms = min(self._upcoming.next_ms, base.next_deadline_ms(self._told_ms))
        dead.sort()
        self._tell(dead, now_ms)
        return next_ms

    def stop_announcing(self) -> None:
        """From now on `purge` tells."""
        with self._picking:
            self._told_ms = None

    # -- before a checkpoint leaves them out

    def collect(self, segment: Segment, now_ms: int) -> None:
        """Note what is dead in a segment: the checkpoint at `now_ms` will leave it out."""
        with self._picking:
            self._upcoming.follow()
            while (dead := self._upcoming.peek_due(now_ms, segment)) is not None:
                self._upcoming.drop()
                self._fall(dead)
            self._collect_replaced(Cut([segment], [segment.position]), now_ms)

    def _collect_replaced(self, cut: Cut, now_ms: int) -> None:
        """Note the dead of the base tier whose rows the segment's newer versions will replace."""
        base = self._base.file
        after_ms = -1 if self._told_ms is None else self._told_ms
        with base.begin() as txn:
            for deadline_ms, base_key in base.entries(txn, after_ms, now_ms):
                if cut.row(family_of(base_key), base_key[4:]) is not BELOW:
                    dead = self._current_in_base(txn, deadline_ms, base_key)
                    if dead is not None:
                        self._fall(dead)

    def _fall(self, dead: Dead) -> None:
        value = dead.value if self._callbacks else b""
        heapq.heappush(self._fallen, dead._replace(value=value))

    # -- removal

    def purge(self, now_ms: int, *, limit: int | None, batch: int) -> int:
        """Remove the dead, earliest first, and commit per batch; returns how many there were."""
        total = 0
        while limit is None or total < limit:
            want = batch if limit is None else min(batch, limit - total)
            removed = self._purge_batch(now_ms, want)
            total += removed
            if removed < want:
                break
        return total

    def sweep(self, now_ms: int, keys_max: int) -> bool:
        """One batch of removal from the base tier alone; whether more is dead there."""
        with self._picking:
            until_ms = now_ms if self._told_ms is None else min(now_ms, self._told_ms)
            base = self._base.file
            with base.begin() as txn:
                entries = list(islice(base.entries(txn, -1, until_ms), keys_max))
                if self._told_ms is None:
                    found = (self._current_in_base(txn, *entry) for entry in entries)
                    self._count([dead for dead in found if dead is not None], now_ms)
            self._remove(entries, -1)
        return len(entries) == keys_max

    def _purge_batch(self, now_ms: int, want: int) -> int:
        with self._picking:
            is_told = self._told_ms is not None
            if is_told:
                now_ms = min(now_ms, self._told_ms or 0)
            dead, entries = self._pick(now_ms, want)
            self._remove(entries, self._told_before(dead))
        if not is_told:
            self._tell(dead, now_ms)
        return sum(one.is_gone for one in dead)

    def _told_before(self, dead: list[Dead]) -> int:
        """All keys in segments that died up to here will have been told of."""
        if not dead:
            return -1
        last_ms = dead[-1].deadline_ms
        # Others may share the last deadline.
        return last_ms - 1 if is_dead(self._upcoming.next_ms, last_ms) else last_ms

    def _remove(self, entries: list[tuple[int, bytes]], told_before_ms: int) -> None:
        if entries or told_before_ms > self._upcoming.told_before_ms:
            with self._base.write() as txn:
                txn.remove(entries)
                txn.set_number(TOLD_BEFORE, max(told_before_ms, txn.number(TOLD_BEFORE)))
            self._on_removed()

    def _pick(self, now_ms: int, want: int) -> tuple[list[Dead], list[tuple[int, bytes]]]:
        """Up to `want` dead keys in deadline order, and the index entries to remove with them."""
        dead: list[Dead] = []
        entries: list[tuple[int, bytes]] = []
        self._upcoming.follow()
        base = self._base.file
        with base.begin() as txn:
            below = base.entries(txn, -1, now_ms)
            entry = next(below, None)
            while want > 0:
                above = self._peek_above(now_ms)
                if entry is not None and (above is None or entry[0] <= above.deadline_ms):
                    entries.append(entry)
                    found = self._current_in_base(txn, *entry)
                    entry = next(below, None)
                elif above is not None:
                    found = self._drop_above(above)
                else:
                    break
                if found is not None:
                    dead.append(found)
                    want -= found.is_gone
        return dead, entries

    # -- where the dead are

    def _peek_above(self, now_ms: int) -> Dead | None:
        """The next dead key that a checkpoint left out or that lies in a segment."""
        upcoming = self._upcoming.peek_due(now_ms)
        if self._fallen and (upcoming is None or self._fallen[0] < upcoming):
            return self._fallen[0]
        return upcoming

    def _drop_above(self, above: Dead) -> Dead:
        """Take away what `_peek_above` showed, and say how it stands with the key now."""
        if self._fallen and self._fallen[0] is above:
            heapq.heappop(self._fallen)
            return above._replace(is_gone=not self._holds(above.family_id, above.key))
        self._upcoming.drop()
        return above

    def _holds(self, family_id: int, key: bytes) -> bool:
        """Whether there is any version of a key, dead or alive."""
        row = self._segments.cut().row(family_id, key)
        if row is BELOW:
            return self._base.get(pack_key(family_id, key)) is not None
        return row is not None

    def _pop_above(self, now_ms: int) -> list[Dead]:
        self._upcoming.follow()
        dead = []
        while (above := self._peek_above(now_ms)) is not None:
            dead.append(self._drop_above(above))
        return dead

    def _current_in_base(
        self, txn: ReadTransaction, deadline_ms: int, base_key: bytes
    ) -> Dead | None:
        """The key that an index entry speaks for; None when the entry is stale, the key was written
        again while it lived, or its family is gone."""
        family_id, key = family_of(base_key), base_key[4:]
        stored = txn.get(base_key)
        if (
            stored is None
            or unpack_deadline(stored) != deadline_ms
            or self._families.name_of(family_id) is None
        ):
            return None
        is_gone = self._segments.outlived_below(family_id, key, deadline_ms)
        if is_gone is None:
            return None
        value = unpack_row(base_key, stored).value if self._callbacks else b""
        return Dead(deadline_ms, family_id, key, value, is_gone)

    def _count(self, dead: list[Dead], now_ms: int) -> None:
        if dead:
            self.told += len(dead)
            self.lag_ms = now_ms - dead[0].deadline_ms
            self.lag_max_ms = max(self.lag_max_ms, self.lag_ms)

    # -- telling: outside every lock

    def _tell(self, dead: list[Dead], now_ms: int) -> None:
        self._count(dead, now_ms)
        if not self._callbacks:
            return
        for one in dead:
            family = self._families.name_of(one.family_id)
            if family is not None:
                event = Expired(family, one.key, one.value, one.deadline_ms)
                for callback in tuple(self._callbacks):
                    _call(callback, event)


def _call(callback: Callable[[Expired], object], event: Expired) -> None:
    try:
        callback(event)
    except Exception:
        _log.exception("an on_expire callback failed for key %r", event.key)


def _next_ms(heap: SegmentDeadlines) -> int:
    return heap.next_ms
