"""What dies when, among the keys in segments and in the base tier; telling of it; and removing it.

Two things happen to the dead. They are *delivered*: counted, and reported to the `on_expire` callbacks,
once. And they are *removed*: rows of the base tier in batches, keys in segments by the checkpoint
that leaves them out. Reading depends on neither, since the predicate hides the dead.

Who tells: in the background a thread (`announce`), which only reads, so that no commit can delay an
event; `sweep` removes, no further than what was delivered. With manual maintenance `purge` tells what
it removes, exactly; what a checkpoint leaves out before is kept for it in the tree `untold`.
"""

from __future__ import annotations

import heapq
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ephemera.core._block import BoundedLock, block
from ephemera.core.errors import CorruptStore, EphemeraError
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import Expired
from ephemera.core.row import NEVER_MS
from ephemera.engines.local._base import entry_of, pack_key, unpack_deadline, unpack_row
from ephemera.engines.local._segment import BELOW, Segment, SegmentDeadlines, SegmentSnapshot
from ephemera.engines.local.base_tier import (
    APPLIED,
    BaseFile,
    BaseTier,
    ReadTransaction,
    Undelivered,
    family_of,
)
from ephemera.engines.local.families import Families
from ephemera.engines.local.segments import Segments

_log = logging.getLogger("ephemera")

BULK_KEYS = 50_000
"""How many rows go from the base tier at once. Keys that die together are spread over its pages, and each
commit writes every page that it touched: with ten times smaller batches a purge took four times as long.
Whoever writes to segments does not wait for this."""
LOOKS_AT_ONCE = 2_000
"""How many records of segments are looked at in one go: other threads wait for so long."""

Delivered = tuple[int, int, int]
"""How far the deaths in segments were delivered: a deadline, the segment and the position of its record."""


class Dead(NamedTuple):
    """A key that died, with the last it held. One that was written again since is delivered, but there
    is nothing of it to remove."""

    deadline_ms: int
    family_id: int
    key: bytes
    value: bytes
    is_gone: bool

    @property
    def base_key(self) -> bytes:
        return pack_key(self.family_id, self.key)


class DroppedByCheckpoint(NamedTuple):
    """The undelivered dead that a checkpoint leaves out: those of its segments, and in the order of keys those of the base
    tier whose rows it takes away."""

    above: list[Dead]
    below: list[Dead]


class SegmentExpiryQueue:
    """The deadlines of the keys in segments, in one order over all of them: deadline, segment, position.

    How far they were delivered is kept in the newest segment that they came from: it lives as long as any of them.
    """

    def __init__(self, segments: Segments, families: Families) -> None:
        self._segments = segments
        self._families = families
        self._heaps: dict[int, SegmentDeadlines] = {}
        self.applied = 0
        self.delivered = self.reached = self._kept = self._delivered_in_segments()
        # A record may come after its deadline, at the end of a long transaction, and is not among
        # what was delivered by then. So this stays where it was while `delivered` advances.
        self._delivered_by_others = self.delivered

    def follow(self) -> None:
        """Take in what was written, let go what moved to the base tier."""
        self._segments.refresh()
        heaps = {}
        for segment in reversed(self._segments.segments):
            heap = self._heaps.get(segment.number)
            if heap is None:
                heap = SegmentDeadlines(segment)
            while heap.follow(LOOKS_AT_ONCE):
                pass
            heaps[segment.number] = heap
        self._heaps = heaps

    def leave_applied(self, number: int) -> None:
        """Let go of segments up to this one, whose rows are in the base tier: not all of them may be retired yet."""
        self.applied = number
        if any(n <= number for n in self._heaps):
            self._heaps = {n: heap for n, heap in self._heaps.items() if n > number}

    @property
    def newest(self) -> int:
        """What came after the segment of this number is not followed yet."""
        return max(self._heaps, default=self.applied)

    @block
    def popping(self) -> Iterator[None]:
        """What is popped in the block counts as delivered, up to where it `reached`; but if it raises before this is
        noted in `delivered`, it will be found again."""
        try:
            yield
        except BaseException:
            self.rewind()
            raise
        self.delivered = self.reached

    def rewind(self) -> None:
        """What was popped and does not count as delivered is in no other place than the segments: they are followed from their
        beginning, past what was delivered."""
        self._heaps = {}
        self.reached = self._delivered_by_others = self.delivered

    @property
    def followed(self) -> list[Segment]:
        """The segments as of the last `follow`, newest first."""
        return [heap.segment for heap in reversed(self._heaps.values())]

    def forget_retired(self) -> None:
        """Let go of what nobody may come to follow any more: else it stays in memory, and on the disk."""
        numbers = {segment.number for segment in self._segments.segments}
        self._heaps = {n: heap for n, heap in self._heaps.items() if n in numbers}

    def forget(self) -> None:
        """Let go of every segment."""
        self._heaps = {}

    def pass_over_delivered(self) -> None:
        """Leave out what another store object has delivered since."""
        delivered = self._delivered_in_segments()
        if delivered > self._kept:
            self._kept = self._delivered_by_others = delivered
            self.delivered = self.reached = max(self.delivered, delivered)

    @property
    def is_delivered_kept(self) -> bool:
        return self.delivered == self._kept

    def keep_delivered(self) -> None:
        """What was delivered stays delivered for others, and after a death. One at a time, of all processes."""
        if self._heaps and self.delivered > self._delivered_in_segments():
            self._heaps[max(self._heaps)].segment.delivered = self.delivered
        if self._heaps or not self._segments.segments:
            self._kept = self.delivered

    def _delivered_in_segments(self) -> Delivered:
        return max((segment.delivered for segment in self._segments.segments), default=(-1, 0, 0))

    @property
    def next_ms(self) -> int:
        return min((heap.next_ms for heap in self._heaps.values()), default=NEVER_MS)

    def pop_dead(
        self, until_ms: int, *, keys_max: int = sys.maxsize, segments: list[Segment] | None = None
    ) -> Iterator[list[Dead]]:
        """Take up to `keys_max` keys that died up to `until_ms`, of some segments or of all, in slices:
        between two of them other threads may go on. Inside `popping`."""
        # Another process may have applied a segment already: then it is not followed any more.
        numbers = self._heaps if segments is None else {segment.number for segment in segments}
        heaps = [heap for number, heap in self._heaps.items() if number in numbers]
        for dead, _, delivered in self._slices(heaps, until_ms, keys_max, is_counting=False):
            if segments is None:
                # How far it went in some segments says nothing of the others.
                self.reached = max(self.reached, delivered)
            yield [Dead._make(one) for one in dead]

    def count_dead(self, until_ms: int, keys_max: int) -> int:
        """Take as `pop_dead` does, and only say how many are gone."""
        total = 0
        heaps = list(self._heaps.values())
        for _, gone, delivered in self._slices(heaps, until_ms, keys_max, is_counting=True):
            self.reached = max(self.reached, delivered)
            total += gone
        return total

    def _slices(
        self, heaps: list[SegmentDeadlines], until_ms: int, keys_max: int, *, is_counting: bool
    ) -> Iterator[tuple[list[tuple[int, int, bytes, bytes, bool]], int, Delivered]]:
        """The dead, how many of them are gone, and how far that went."""
        while keys_max > 0 and any(is_dead(heap.next_ms, until_ms) for heap in heaps):
            found = self._segments.pop_dead(
                heaps,
                self.followed,
                self.newest,
                self._delivered_by_others,
                until_ms,
                keys_max,
                LOOKS_AT_ONCE,
                self._families.live_ids,
                is_counting,
            )
            keys_max -= found[1]
            yield found


class Removal(NamedTuple):
    """What went from the base tier: keys that were still there for readers, and index entries, in
    one commit, whose state this is."""

    keys: int
    entries: int
    state: int


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
        self._queue = SegmentExpiryQueue(segments, families)
        self._callbacks: dict[object, Callable[[Expired], object]] = {}
        self._collected: list[Dead] = []  # to be delivered
        # Held while the dead are collected and, with manual maintenance, until that is committed; never while
        # callbacks run, nor in the background, where there are any, for a commit.
        self.collecting = BoundedLock("expiry", segments.lock_timeout)
        self._announced_ms: int | None = None
        self._announces_from = 0  # the state of the base tier in which the first were collected
        self.delivered = 0
        self.lag_ms = 0
        self.lag_max_ms = 0

    def close(self) -> None:
        self._queue.forget()

    def fork(self) -> None:
        """In the child: what was collected is the parent's to tell."""
        self.collecting.fork()
        self._collected = []
        self._queue.rewind()
        if not self._callbacks:
            self._announced_ms = None  # as the parent's thread was about to say

    # -- callbacks

    def subscribe(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        token = object()
        self._callbacks[token] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(token, None)

        return unsubscribe

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    # -- in the background: telling on time, by reading only

    def announce(self, now_ms: int) -> int:
        """Tell of all that died since the last call; returns when the next key will."""
        try:
            return self.collect(now_ms)
        finally:
            self.deliver_collected(now_ms)

    def collect(self, now_ms: int) -> int:
        """Note who died since the last call, to be delivered; returns when the next key will."""
        with self.collecting:
            after_ms = -1 if self._announced_ms is None else self._announced_ms
            queue = self._queue
            with queue.popping():
                with self._following() as (file, txn):
                    above = [one for some in queue.pop_dead(now_ms) for one in some]
                    below, announced_ms, damage = self._below(file, txn, after_ms, now_ms)
                    state = txn.id()
                # Both are in order. To sort them would keep other threads waiting.
                dead = list(heapq.merge(above, below, key=_deadline_ms))
                # No call stands between these notes: an interrupt comes before all of them, or after.
                self._collected += dead
                if self._announced_ms is None:
                    self._announces_from = state
                self._announced_ms = announced_ms
                queue.delivered = queue.reached
            if damage is not None:
                raise damage
            next_below_ms = self._base.file.next_deadline_ms(self._announced_ms)
            return min(self._queue.next_ms, next_below_ms)

    def _below(
        self, file: BaseFile, txn: ReadTransaction, after_ms: int, now_ms: int
    ) -> tuple[list[Dead], int, CorruptStore | None]:
        """Who died in the base tier after one instant and up to another, or to the damage that was met: what
        died before it, and in segments, is delivered all the same."""
        found: list[Dead] = []
        try:
            for one in self._all_below(txn, file.entries(txn, after_ms, now_ms)):
                found.append(one)  # noqa: PERF402  # it is kept when the next one cannot be read
        except CorruptStore as damage:
            # Of the last one's instant there may be more.
            until_ms = found[-1].deadline_ms - 1 if found else after_ms
            return [one for one in found if one.deadline_ms <= until_ms], until_ms, damage
        return found, max(after_ms, now_ms), None

    @block
    def _following(self) -> Iterator[tuple[BaseFile, ReadTransaction]]:
        """Follow the segments, and read the base tier as it was below them: of one moment, so that what a checkpoint
        moves meanwhile is neither found twice nor without what replaced it. Also of one generation: another
        may count before the block has ended."""
        is_one_moment = False
        while not is_one_moment:
            epoch = self._segments.control.epoch
            self._queue.follow()
            file = self._base.file
            with file.reading() as txn:
                is_one_moment = self._segments.is_at(epoch)
                if is_one_moment:
                    self._queue.leave_applied(file.number(APPLIED, txn))
                    yield file, txn

    def _all_below(
        self, txn: ReadTransaction, entries: Iterable[tuple[int, bytes]]
    ) -> Iterator[Dead]:
        """The keys of the base tier that these index entries speak for."""
        for entry in entries:
            found = self._find_below(txn, *entry)
            if found is not None:
                yield found

    def deliver_collected(self, now_ms: int) -> None:
        dead: list[Dead] = []
        delivered = 0
        try:
            with self.collecting:
                dead, self._collected = self._collected, []
            if dead:
                self._count(len(dead), now_ms, dead[0].deadline_ms)
            for one in dead if self._callbacks else ():
                delivered += 1
                self._deliver(one)
        except BaseException:
            # An interrupt in a callback: the next call tells of the rest.
            with self.collecting:
                self._collected = dead[delivered:] + self._collected
                self.delivered -= len(dead) - delivered
            raise

    def stop_announcing(self) -> None:
        with self.collecting:
            if self._callbacks:
                return  # somebody began to listen meanwhile
            self._announced_ms = None
            self._collected = []
            self._queue.forget_retired()

    def sweep(self, now_ms: int) -> bool:
        """One batch of removal from the base tier; whether more is dead there."""
        # Without `collecting`: what was announced is never collected again, so nobody has to wait for the commit.
        announced_ms = self._announced_ms
        if announced_ms is not None:
            now_ms = min(now_ms, announced_ms)
        elif self._callbacks:
            return False  # listeners come first
        removed = self._remove_due(now_ms, BULK_KEYS)
        if announced_ms is None:
            self._count_swept(removed, now_ms)
        return removed.entries == BULK_KEYS

    def _count_swept(self, removed: Removal, now_ms: int) -> None:
        """Count what was delivered to nobody; but for somebody who came meanwhile and still saw it there."""
        with self.collecting:
            if self._announced_ms is None or self._announces_from >= removed.state:
                self._count(removed.keys, now_ms, now_ms)

    def _remove_due(self, now_ms: int, keys_max: int) -> Removal:
        """Remove from the base tier alone."""
        base = self._base.file
        with base.reading() as txn:
            entries = base.due(txn, now_ms, keys_max)
        if not entries:
            return Removal(0, 0, 0)
        with self._base.write() as write:
            removed, state, applied = write.remove(entries), write.txn.id(), write.number(APPLIED)
        self._on_removed()
        prefixes = self._families.live_prefixes
        gone = [base_key for base_key in removed if base_key[:4] in prefixes]
        if self._segments.segments:
            gone = [k for k in gone if not self._segments.knows(family_of(k), k[4:], applied)]
        return Removal(len(gone), len(entries), state)

    # -- with manual maintenance: exactly, by purging

    @block
    def leaving_out(self, segments: list[Segment], now_ms: int) -> Iterator[DroppedByCheckpoint]:
        """What is dead and undelivered and will be left out, or replaced in the base tier, when the block applies these
        segments at `now_ms`."""
        with self.collecting, self._queue.popping():
            yield self._collect(segments, now_ms)

    def _collect(self, segments: list[Segment], now_ms: int) -> DroppedByCheckpoint:
        with self._following() as (file, txn):
            self._queue.pass_over_delivered()
            popped = self._queue.pop_dead(now_ms, segments=segments)
            above = [one for some in popped for one in some]
            snapshot = SegmentSnapshot.whole(segments)

            def is_written(base_key: bytes) -> bool:
                return snapshot.row(family_of(base_key), base_key[4:]) is not BELOW

            entries = (one for one in file.entries(txn, -1, now_ms) if is_written(one[1]))
            below = sorted(self._all_below(txn, entries), key=_base_key)
            for deadline_ms, base_key, value, is_gone in file.undelivered(txn, now_ms):
                # Written again since it was left out: its next death will count, not this one.
                if is_gone and value is not None and is_written(base_key):
                    above.append(Dead(deadline_ms, family_of(base_key), base_key[4:], value, False))
            return DroppedByCheckpoint(above, below)

    def purge(self, now_ms: int, *, limit: int | None, batch: int) -> int:
        """Remove the dead, earliest first, and commit per batch; returns how many there were."""
        total = 0
        with self.collecting:
            self._segments.refresh()
            self._queue.pass_over_delivered()
        while limit is None or total < limit:
            left = sys.maxsize if limit is None else limit - total
            removed, is_more = self._purge_batch(now_ms, left, batch)
            total += removed
            if not is_more:
                break
        return total

    def _keep_delivered(self) -> None:
        if not self._queue.is_delivered_kept:
            # The transaction changes nothing, and so syncs nothing: it lets one at a time do this.
            with self._base.write():
                self._queue.keep_delivered()

    def _purge_batch(self, now_ms: int, want: int, batch: int) -> tuple[int, bool]:
        """How many keys went, and whether there may be more. What goes from one place alone, with
        nobody to tell, goes in bulk."""
        bulk = min(BULK_KEYS, want)
        announced_ms = self._announced_ms
        if announced_ms is not None:
            # All that is dead was delivered already, on time.
            swept = self._remove_due(min(now_ms, announced_ms), bulk)
            return swept.keys, swept.entries == bulk
        with self.collecting:
            if self._announced_ms is not None:
                return 0, True  # somebody began to listen meanwhile
            with self._queue.popping():
                done = None if self._callbacks else self._purge_uniform(now_ms, bulk)
                if done is not None:
                    self._count(done[0], now_ms, now_ms)
                else:
                    done = self._purge_merged(now_ms, min(batch, want), batch)
            self._keep_delivered()
        self.deliver_collected(now_ms)
        return done

    def _purge_uniform(self, now_ms: int, bulk: int) -> tuple[int, bool] | None:
        """When nobody listens and the dead are all in one place they go in bulk; else None."""
        with self._following() as (base, txn):
            if next(base.undelivered(txn, now_ms), None) is not None:
                return None
            is_below = bool(base.due(txn, now_ms, 1))
        if not is_dead(self._queue.next_ms, now_ms):
            # An entry whose key was written again since goes, and counts for nothing.
            swept = self._remove_due(now_ms, bulk) if is_below else Removal(0, 0, 0)
            return swept.keys, swept.entries == bulk
        if is_below:
            return None
        counted = self._queue.count_dead(now_ms, bulk)
        return counted, counted == bulk

    def _purge_merged(self, now_ms: int, want: int, entries_max: int) -> tuple[int, bool]:
        """Pick the next dead, and remove them; how many of them are gone, and whether there may be more."""
        collect = _Collection(self, self._queue, now_ms)
        with self._following() as (file, txn):
            entries, undelivered = file.entries(txn, -1, now_ms), file.undelivered(txn, now_ms)
            is_more = collect.run(txn, entries, undelivered, want, entries_max)
        is_written = is_removed = False
        try:
            if collect.entries or collect.undelivered:
                with self._base.write() as write:
                    write.remove([entry_of(*entry) for entry in collect.entries])
                    write.remove_undelivered(collect.undelivered)
                    is_written = True
            is_removed = True
        finally:
            # An interrupt that comes during the commit is raised after it. No call stands between the two
            # notes, nor before them: none can come there.
            if is_removed or (is_written and self._is_removed(collect)):
                self._collected += collect.dead
                self._queue.delivered = self._queue.reached
        if collect.entries or collect.undelivered:
            self._on_removed()
        return sum(one.is_gone for one in collect.dead), is_more

    def _is_removed(self, collect: _Collection) -> bool:
        """Whether that was committed: all of it goes at once."""
        file = self._base.file
        with suppress(EphemeraError), file.reading() as txn:
            if collect.entries:
                return not file.has_entry(txn, *collect.entries[0])
            return bool(collect.undelivered) and not file.has_undelivered(
                txn, *collect.undelivered[0]
            )
        return False

    # -- where the dead are

    def _find_below(self, txn: ReadTransaction, deadline_ms: int, base_key: bytes) -> Dead | None:
        """The key that an index entry speaks for; None when the entry is stale, the key was written
        again while it lived, its family is gone, or the row or what replaced it is damaged: that is said, and other
        deaths are delivered."""
        family_id, key = family_of(base_key), base_key[4:]
        stored = txn.get(base_key)
        if (
            stored is None
            or unpack_deadline(stored) != deadline_ms
            or self._families.name_of(family_id) is None
        ):
            return None
        try:
            is_gone = self._segments.outlived_below(
                self._queue.followed, self._queue.newest, family_id, key, deadline_ms
            )
            if is_gone is None:
                return None
            value = unpack_row(base_key, stored).value
        except CorruptStore as error:
            _log.error("the expiration of a key is not delivered: %s", str(error))
            return None
        return Dead(deadline_ms, family_id, key, value, is_gone)

    def _find_undelivered(
        self, deadline_ms: int, base_key: bytes, value: bytes | None, is_gone: bool
    ) -> Dead | None:
        """A key that a checkpoint left out, as it stands now; None when its family is gone, or what was kept
        of it is damaged."""
        family_id, key = family_of(base_key), base_key[4:]
        if value is None:
            _log.error(
                "the expiration of a key is not delivered: what was kept of %r is damaged", base_key
            )
            return None
        if self._families.name_of(family_id) is None:
            return None
        return Dead(deadline_ms, family_id, key, value, is_gone and not self._is_there(base_key))

    def _is_there(self, base_key: bytes) -> bool:
        """Whether there is a row of this key, alive or not."""
        try:
            snapshot = self._segments.snapshot(after=self._queue.applied)
            row = snapshot.row(family_of(base_key), base_key[4:])
            return (self._base.reader.get(base_key) if row is BELOW else row) is not None
        except CorruptStore:
            return True  # of which nothing more is known

    # -- telling: outside every lock

    def _deliver(self, dead: Dead) -> None:
        family = self._families.name_of(dead.family_id)
        if family is not None:
            event = Expired(family, dead.key, dead.value, dead.deadline_ms)
            for callback in tuple(self._callbacks.values()):
                _call(callback, event)

    def _count(self, dead: int, now_ms: int, earliest_ms: int) -> None:
        self.delivered += dead
        self.lag_ms = now_ms - earliest_ms
        self.lag_max_ms = max(self.lag_max_ms, self.lag_ms)


class _Collection:
    """The next dead keys of index, segments and the tree `untold`, merged in deadline order."""

    def __init__(self, expiry: Expiry, queue: SegmentExpiryQueue, now_ms: int) -> None:
        self._expiry = expiry
        self._queue = queue
        self._now_ms = now_ms
        self.dead: list[Dead] = []
        self.entries: list[tuple[int, bytes]] = []
        self.undelivered: list[tuple[int, bytes]] = []

    def run(
        self,
        txn: ReadTransaction,
        entries: Iterator[tuple[int, bytes]],
        undelivered: Iterator[Undelivered],
        want: int,
        entries_max: int,
    ) -> bool:
        """Pick until `want` keys are to be removed, or so many entries; whether there may be more that is dead."""
        entry, kept = next(entries, None), next(undelivered, None)
        gone = 0
        while gone < want and len(self.entries) + len(self.undelivered) < entries_max:
            entry_ms = NEVER_MS if entry is None else entry[0]
            kept_ms = NEVER_MS if kept is None else kept[0]
            until_ms = min(entry_ms - 1, kept_ms - 1, self._now_ms)
            found: list[Dead | None]
            if is_dead(self._queue.next_ms, until_ms):
                slices = self._queue.pop_dead(until_ms, keys_max=want - gone)
                found = [one for some in slices for one in some]
            elif entry is not None and entry_ms <= kept_ms:
                found = [self._expiry._find_below(txn, *entry)]
                self.entries.append(entry)
                entry = next(entries, None)
            elif kept is not None:
                found = [self._expiry._find_undelivered(*kept)]
                self.undelivered.append(kept[:2])
                kept = next(undelivered, None)
            else:
                return False
            self.dead += [one for one in found if one is not None]
            gone += sum(one.is_gone for one in found if one is not None)
        return True


def _deadline_ms(dead: Dead) -> int:
    return dead.deadline_ms


def _base_key(dead: Dead) -> bytes:
    return dead.base_key


def _call(callback: Callable[[Expired], object], event: Expired) -> None:
    try:
        callback(event)
    except Exception:
        _log.exception("an on_expire callback failed for key %r", event.key)
