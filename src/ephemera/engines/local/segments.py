"""The segments of a store on disk: mapping what others made, making room, freezing, retiring, syncing.

Numbers count up for ever. Those after `applied` exist; the newest takes writes while it is `active`.
All changes here happen under the writer's lock and end with a new epoch, which tells every process
to look again before its next operation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from ephemera.core._block import BoundedLock, HeldLock
from ephemera.core.clock import Clock, elapsed_ns
from ephemera.core.errors import CorruptStore, EphemeraError, StoreClosed, StoreFailed, StoreFull
from ephemera.core.nonblocking import is_nonblocking
from ephemera.engines.local._commit import GroupCommit
from ephemera.engines.local._control import Control
from ephemera.engines.local._segment import Segment, format_segment, segment_bytes_for
from ephemera.engines.local._segment_set import SegmentSet
from ephemera.engines.local.base_tier import BaseTier
from ephemera.engines.local.files import Files, Mapped
from ephemera.engines.local.layout import Layout

_log = logging.getLogger("ephemera")

SEGMENTS_WAITING_MAX = 4
"""How many frozen segments may wait for a checkpoint before writers wait too."""
PREPARED_FROM = 16
"""What part of a segment is written before its rest, and the next one, are made ready."""
SPARE_ROOM = 4
"""For how many segments there must be room before one of them is set aside."""
RETRY_NS = 60_000_000_000
"""How long to leave it when something could not be made ready."""
LIMIT_SHARE = 16
"""A segment holds so small a part of `size_limit` at most: what all of them let in beyond it is bounded."""
KEPT_BYTES = 64 * 1024 * 1024
"""How much a store that nobody else has open keeps mapped of the segments that were applied."""


class Segments(SegmentSet):
    """The segment set, with the slow work that its operations need now and then."""

    def __init__(
        self,
        control: Control,
        layout: Layout,
        files: Files,
        base: BaseTier,
        *,
        clock: Clock,
        lock_timeout: float,
        is_read_only: bool,
        syncs_each: bool,
        segment_bytes: int,
        kept_bytes: int = 0,
    ) -> None:
        super().__init__(
            control,
            clock=clock,
            lock_timeout=lock_timeout,
            is_read_only=is_read_only,
            syncs_each=syncs_each,
        )
        self._layout = layout
        self._files = files
        self._base = base
        self._segment_bytes = min(segment_bytes, control.size_limit // LIMIT_SHARE or segment_bytes)
        self.commit = GroupCommit(
            control,
            now_ms=clock.now_ms,
            sync=self._sync_all,
            sync_alone=self.sync_alone,
            syncs_directly=files.syncs_directly,
            timeout=lock_timeout,
        )
        self._kept_bytes = kept_bytes
        self._kept: list[Segment] = []
        self._unused: list[Segment] = []
        self._mapped: dict[int, tuple[Segment, Mapped]] = {}
        self._made = 0  # the number of the segment that this process made last
        self._follows_full = False
        self._ready = 0
        self._spare: Mapped | None = None
        self._not_before_ns = 0
        self.refreshing = BoundedLock("refresh", lock_timeout)
        self.making = BoundedLock("segment", lock_timeout)
        self.frees_later = False
        """Whether somebody calls `free` now and then, so that nobody else waits for it."""
        self.asking = threading.local()
        """`goes_on` in a thread that asks whether the store is behind before it writes, and then never waits."""
        self.retired_bytes = 0  # of the records in segments that this process let go
        self.on_first_use: Callable[[], None] | None = None
        self.on_refresh: Callable[[], None] = _nothing
        self.on_frozen: Callable[[], None] = _nothing
        self.on_behind: Callable[[bool], None] = lambda grows: None
        self.on_earlier: Callable[[], None] = _nothing

    # -- what others did

    def refresh(self) -> None:
        """Map the segments that are new, let those go that were retired."""
        # One thread at a time, so that what is shown never goes back to an older epoch.
        with self.refreshing:
            if self.on_first_use is not None and not self.is_closed:
                self.on_first_use()
            epoch = None
            while epoch != self.control.epoch:
                self._must_be_open()
                epoch = self.control.epoch
                self._refresh_to(epoch)
        if not self.frees_later:
            self.free()
        self._base.tidy()

    def free(self) -> None:
        """Let go of the memory, and so of the blocks on the disk, of segments that are used no more."""
        # As the list goes.
        self._unused = []

    def _refresh_to(self, epoch: int) -> None:
        applied, newest, active = self.control.applied, self.control.newest, self.control.active
        if applied > newest:
            raise CorruptStore(self._layout.control, None, "the numbers of segments are damaged")
        try:
            mapped = {n: self._map(n) for n in range(newest, applied, -1)}
        except FileNotFoundError as error:
            if self.control.applied == applied:
                raise CorruptStore(error.filename, None, "the segment is missing") from error
            return
        gone = [each for n, each in self._mapped.items() if n not in mapped]
        if gone:
            self._unused += [*(segment for segment, _ in gone), *self._kept]
        self.retired_bytes += sum(segment.records_bytes for segment, _ in gone)
        kept = self._kept_with(gone)
        # Together: an interrupt in between would leave a gap, and older versions behind it.
        self._mapped, self._kept = mapped, kept
        self.has_backlog = len(mapped) - bool(active) >= SEGMENTS_WAITING_MAX
        # Before the segment set is published: a reader that misses in these segments must find in the base
        # tier all that was in those that are gone.
        self._base.renew()
        self.reader, self.generation = self._base.reader, self._base.file.generation
        self.is_full = not self.is_read_only and self._base.is_full()
        self.is_behind = self.has_backlog or self.is_full
        self.on_refresh()
        self.show(
            [segment for segment, _ in mapped.values()], epoch, bool(active and mapped), self._kept
        )

    def _kept_with(self, gone: list[tuple[Segment, Mapped]]) -> list[Segment]:
        """Where reads find what was written lately without the base tier, in so many bytes.

        Nothing is missing between what is kept and what is shown: nobody else makes segments. What nobody
        reads of it any more need not stay in this process's memory.
        """
        if self._kept_bytes:
            for _, mapped in gone:
                mapped.mapping.let_go()
        kept = sorted((segment for segment, _ in gone), key=lambda segment: -segment.number)
        kept += self._kept
        room = self._kept_bytes - sum(segment.records_bytes for segment in kept)
        while kept and room < 0:
            room += kept.pop().records_bytes
        return kept

    @property
    def waiting_count(self) -> int:
        """How many are frozen and wait for a checkpoint."""
        return len(self.segments) - bool(self.control.active)

    @property
    def has_records(self) -> bool:
        """Whether any of them holds what the base tier has not taken over."""
        return any(segment.records_bytes for segment in self.segments)

    @property
    def records_bytes(self) -> int:
        """How many bytes of records wait for a checkpoint."""
        return sum(segment.records_bytes for segment in self.segments)

    def is_at(self, epoch: int) -> bool:
        """Whether nothing changed since `epoch`."""
        return self.control.epoch == epoch

    def _map(self, number: int) -> tuple[Segment, Mapped]:
        known = self._mapped.get(number)
        if known is not None:
            return known
        path = self._layout.segment(number)
        mapped = self._files.map_existing(path)
        return Segment(mapped.memory, str(path), hash_seed=self.control.hash_seed), mapped

    # -- room for writes: the caller holds the writer lock

    def make_room(self, size: int, grows: bool) -> None:
        """Make a segment that takes writes and has room for `size` bytes of records.

        Raises StoreFull for a batch that is larger than a segment and does not fit below `size_limit`,
        unless all of it are deletions.
        """
        if grows and size > self._segment_bytes:
            self._must_fit(size)
        # Once closed, this process has no say in what the next segment is: others may have the store by now.
        # Not `refreshing`: this takes as long as the disk does, and no reader waits for a writer.
        with self.making:
            self._must_be_open()
            self._make_room(size)
        self.on_frozen()

    def _must_fit(self, size: int) -> None:
        left = self.control.size_limit - self._base.file.live()[0] - self.records_bytes
        if size > left:
            raise StoreFull(
                f"{size} bytes at once do not fit in the {max(0, left)} that are left of the size_limit"
                f" of {self.control.size_limit} bytes: delete or purge, or write less at once"
            )

    def refuse_growth(self) -> NoReturn:
        raise StoreFull(
            f"{self._layout.root} has reached its size_limit of {self.control.size_limit} bytes, which its"
            " first opener set: delete or purge, or close it in all processes and open it with a larger one"
        )

    def _make_room(self, size: int) -> None:
        # Whoever was here before may have been interrupted before it could publish what it had made.
        self.refresh()
        number = self.control.newest + 1
        previous_head = self.segments[0].position if self.segments else 0
        path = self._layout.segment(number)
        mapped = self._allocated(path, segment_bytes_for(size, self._segment_bytes))
        is_full = self.control.active != 0
        if is_full:
            # Before the next one says where this one ended: whatever happens from here on, an interrupt
            # too, nothing more is written behind that.
            self.control.active = 0
            self.control.publish()
        try:
            self._files.name_mapped(
                mapped,
                path,
                lambda memory: self._format(memory, number, previous_head),
            )
        except FileNotFoundError:
            self._must_be_open()  # else whoever opened the store since has removed what was unfinished
            raise
        except EphemeraError:
            if mapped.path == path:
                # Nobody knows whether a power loss would take it away, with all that would follow.
                self.control.fail()
            raise
        segment = Segment(mapped.memory, str(path), hash_seed=self.control.hash_seed)
        with self.refreshing:
            self._mapped = {number: (segment, mapped), **self._mapped}
            self._made, self._follows_full = number, is_full
            self.control.newest = number
            self.control.active = number
            self.control.publish()
            self.refresh()

    def _format(self, memory: memoryview, number: int, previous_head: int) -> None:
        # A signal handler may have closed the store, and another process may be making a segment of this
        # number. If the handler comes later, whoever opens the store removes the file, which has no name yet.
        self._must_be_open()
        format_segment(
            memory,
            number=number,
            previous_head=previous_head,
            salt=int.from_bytes(os.urandom(8), "little"),
            created_ms=self.clock.now_ms(),
        )

    def _must_be_open(self) -> None:
        if self.is_closed:
            raise StoreClosed("the store was closed")

    def _allocated(self, path: Path, size: int) -> Mapped:
        spare = self._spare
        if spare is not None and len(spare.memory) == size:
            self._spare = None
            with contextlib.suppress(OSError):
                self._files.name_temporarily(spare, path)
                return spare
        return self._files.allocate_mapped(path, size)

    # -- ahead of the writes: one thread may call this, at any time

    def prepare(self) -> None:
        """While this process writes much, have the rest of the segment that it made and the next one
        ready: no write waits for a page then, and no sync for blocks that were never written.

        What fails here is left for a while; who needs it will say so.
        """
        self.free()
        active = self._mapped.get(self._made)
        if active is None or self.control.active != self._made or not self._is_busy(*active):
            self.give_up_spare()
            return
        if self._not_before_ns > elapsed_ns():
            return
        try:
            if self._ready != self._made:
                self._make_ready(*active)
                self._ready = self._made
            if self._spare is None:
                self._spare = self._make_spare()
        except (EphemeraError, OSError) as error:
            _log.debug("preparing segments of %s: %s", self._layout.root, str(error))
            self._not_before_ns = elapsed_ns() + RETRY_NS

    def _is_busy(self, segment: Segment, mapped: Mapped) -> bool:
        is_usual = len(mapped.memory) == segment_bytes_for(0, self._segment_bytes)
        share = self._segment_bytes // PREPARED_FROM
        return is_usual and (self._follows_full or segment.records_bytes >= share)

    def _make_ready(self, segment: Segment, mapped: Mapped) -> None:
        start, end = segment.position, len(mapped.memory)
        mapped.mapping.populate(start)
        if self.syncs_each:
            # By a descriptor of its own: an error is reported once to each, and this is not the one that
            # writers wait for.
            self._files.sync(self._files.map_existing(mapped.path), start, end)

    def _make_spare(self) -> Mapped:
        size = segment_bytes_for(0, self._segment_bytes)
        place = os.statvfs(self._layout.segments)
        if place.f_bavail * place.f_frsize < SPARE_ROOM * size:
            raise StoreFull("no room for a spare segment")
        spare = self._files.allocate_unnamed(self._layout.segments, size)
        if self.syncs_each:
            spare.mapping.populate(0)
            self._files.sync(spare)
        return spare

    def give_up_spare(self) -> None:
        """Let others have its room."""
        self._spare = None

    def goes_on(self) -> bool:
        return getattr(self.asking, "goes_on", False) and not is_nonblocking()

    def wait_for_checkpoint(self, grows: bool) -> None:
        self.on_behind(grows)

    def wake(self) -> None:
        self.on_earlier()

    def writer_died(self) -> None:
        """Leave the segment of a writer that died inside as it is: what it had not published stays
        beyond the head, linked but unseen, and nothing may ever be written over it."""
        # It may have died while it changed the table of families.
        self.control.publish_families()
        self.refresh()
        self._freeze()

    def freeze(self) -> None:
        """Let the active segment take no more writes, so that a checkpoint can apply it."""
        with self.writer_lock():
            self.refresh()
            # None where a signal handler, or another thread, has closed the store just now.
            segments = self.segments
            if self.control.active and segments and segments[0].records_bytes:
                self._freeze()

    def _freeze(self) -> None:
        self.control.active = 0
        self.control.publish()
        self.refresh()

    # -- the base tier has taken them over

    def waiting(self) -> list[Segment]:
        """The frozen segments, oldest first, and on the disk: a checkpoint commits them in batches, and
        a power loss between two of those must find the rest here."""
        self.refresh()
        frozen = self.segments[1:] if self.control.active else self.segments
        if frozen:
            self.acknowledge(frozen[0].number, frozen[0].position)
        return frozen[::-1]

    def retire(self, number: int) -> None:
        """All rows of this segment and of those before it are in the base tier."""
        with self.writer_lock():
            retired = range(self.control.applied + 1, number + 1)
            if retired:
                self.control.applied = number
                self.control.publish()
        for old in retired:
            self._files.remove(self._layout.segment(old))
        self.refresh()
        self.free()

    # -- syncing

    def acknowledge(self, number: int, position: int) -> None:
        """Return once everything up to this position of this segment is on the disk."""
        mapped = self._mapped.get(number)
        segment = None if mapped is None else mapped[0]
        self.commit.wait(segment, number, position)

    @property
    def syncs(self) -> int:
        """How many syncs this process did."""
        return self.commit.syncs

    def sync(self) -> None:
        """Put everything that was written on the disk."""
        self.refresh()
        segments = self.segments
        if segments:
            self.acknowledge(segments[0].number, segments[0].position)

    def sync_alone(self) -> int:
        """Put everything on the disk without the sync lock; return how many syncs that took.

        Nothing is noted as synced, which only its holder may do: whoever comes next syncs again.
        """
        syncs = sum(1 for _ in self._syncing())
        if self.control.failed:
            raise StoreFailed("a sync of this store failed: close it and open it again")
        return syncs

    def _sync_all(self) -> int:
        syncs = 0
        now_ms = self.clock.now_ms()
        for segment, position in self._syncing():
            syncs += 1
            segment.stamp(position, now_ms)
            self.control.synced = (segment.number, position)
        return syncs

    def _syncing(self) -> Iterator[tuple[Segment, int]]:
        """Sync each segment that has anything new, and yield it with the position up to which it is synced."""
        self.look()
        done_number, done_position = self.control.synced
        # Oldest first: what is synced of a segment implies that all before it is.
        for segment, mapped in reversed(self._mapped.values()):
            position = segment.position
            if segment.number < done_number or (segment.number, position) == (
                done_number,
                done_position,
            ):
                continue
            # Not the slots before the records: nobody trusts them after a crash.
            done = done_position if segment.number == done_number else 0
            self._sync_mapped(mapped, done, position)
            yield segment, position

    def _sync_mapped(self, mapped: Mapped, start: int, end: int) -> None:
        try:
            self._files.sync(mapped, start, end)
        except OSError as error:
            # The kernel may have dropped the pages: a second try would lie.
            self.control.fail()
            raise StoreFailed(f"syncing {mapped.path} failed: {error}") from error

    def fork(self, on_first_use: Callable[[], None]) -> None:
        """In the child: nothing goes on before `on_first_use`, at the first use, has attached it."""
        self._made, self._spare = 0, None  # the parent's
        self.refreshing.fork()
        self.making.fork()
        self.on_first_use = on_first_use
        # The threads that wait for news, and the one that never waits, are the parent's.
        self.on_frozen = self.on_earlier = _nothing
        self.frees_later = False
        self.asking = threading.local()
        self.forget()

    def close(self) -> None:
        """Use the segments no more; what was mapped goes with the last view of it."""
        self.is_closed = True
        # Those that are inside and may not have seen it are awaited, without a bound: nobody may make a segment
        # when this has ended. They wait for nothing without one, and so end.
        for lock in (self.making, self.refreshing):
            HeldLock(lock, -1).leave()
        self.give_up_spare()
        self._kept = []
        self.free()
        self.hide()
        self._mapped = {}


def _nothing() -> None:
    """Do nothing: no callback was registered."""
