"""The local engine: segments over a base tier, put together.

    put ─► segment ─► (full or aged: frozen) ─► checkpoint ─► base tier
    get ─► segments, newest first ─► base tier
    sweeper, announcer ─► deadlines of both

The parts do the work; what stands here is how they are opened, how they fit, and how they are closed.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ephemera.core._access import CompiledAccess
from ephemera.core._block import BoundedLock, HeldLock, block
from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.clock import Clock, SteadyClock, elapsed_ns, never_before
from ephemera.core.errors import (
    CorruptStore,
    EphemeraError,
    InvalidArgument,
    ReadOnly,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreLocked,
)
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import (
    Capability,
    CheckReport,
    Expired,
    Range,
    Waits,
    family_dropped,
)
from ephemera.core.nonblocking import is_nonblocking
from ephemera.core.options import Options
from ephemera.engines.local import families as family_table
from ephemera.engines.local import maintenance
from ephemera.engines.local._control import CLOCK_OFFSET_AT, CONTROL_BYTES, Control
from ephemera.engines.local._lock_file import close_inherited
from ephemera.engines.local._scan import Scan
from ephemera.engines.local._segment import Segment
from ephemera.engines.local._segment_set import FamilyRef
from ephemera.engines.local.attachment import Attachment
from ephemera.engines.local.backup import copy_state
from ephemera.engines.local.base_tier import (
    BaseFile,
    BaseTier,
    BaseWrite,
    map_bytes_for,
    remove_generation,
    sole_generation,
)
from ephemera.engines.local.check import check_state
from ephemera.engines.local.checkpoint import apply_segments, note_time
from ephemera.engines.local.expiry import Expiry
from ephemera.engines.local.families import Families
from ephemera.engines.local.files import Files, Mapped, create_file, system_errors
from ephemera.engines.local.layout import Layout
from ephemera.engines.local.maintenance import Worker
from ephemera.engines.local.namespaces import record_namespaces, require_same_namespaces
from ephemera.engines.local.recovery import recover
from ephemera.engines.local.segments import KEPT_BYTES, Segments
from ephemera.engines.local.views import LocalTransaction, LocalView, OpenStates, State, take_state

_log = logging.getLogger("ephemera")

SEGMENT_AGE_MS_MAX = 60_000
"""A segment this old is checkpointed even if it is not full, so that its dead really leave."""
SEGMENTS_TOGETHER = 2
"""How many are checkpointed at once: what is written again and again, as counters are, goes to the base tier once.
With more of them, writers that wait for a checkpoint would wait for longer."""
BASE_ROOM = 4
"""How much room there must be for that, in what the segments hold: the base tier writes new pages before it frees
the old ones."""
GATHER_NS = 2_000_000_000
"""How long a full segment waits for a second one."""
SWEEP_BUDGET_NS = 50_000_000
GIVEN_UP_KEYS = 10_000
"""How many rows of a dropped family are removed at once."""
SWEEP_GRACE_MS = 1_000
"""How long the sweeper leaves the dead to those who tell of them."""
ASLEEP_MS = -(2**63)
ANNOUNCE_SECONDS = 0.05
"""How often to look for deadlines that other processes wrote; this one's own end the wait."""
CLOCK_STEP_SECONDS = 1.0
"""How often to look whether the system's clock was set forward."""
FOREIGN_CLOCK_SECONDS = 0.005
"""How often to ask a clock that is not the system's."""
WAIT_SECONDS = 0.01
CLOSE_PATIENCE = 1.0
EXIT_PATIENCE = 0.1
"""How many seconds closing waits for each lock that another process holds, which may be stopped."""
RELEASE_SECONDS = 1.0
"""How long a process that does nothing keeps a state of the base tier ready to be read."""
IDLE_SECONDS = 3_600.0
OLD_READER_MS = 60_000
"""How long a process may read an old state before the log warns of it."""

_open_engines: weakref.WeakSet[LocalEngine] = weakref.WeakSet()


class LocalEngine:
    """A store in a directory, for any number of threads and processes."""

    name = "local"
    capabilities = frozenset(Capability)
    waits = Waits.FOR_WRITERS

    def __init__(self, path: str, options: Options, files: Files | None = None) -> None:
        # They may be of this very path, and keep it: one that a thread is closing now is awaited.
        maintenance.close_forgotten(CLOSE_PATIENCE)
        self._options = options
        self._files = files or Files()
        self._layout = Layout(path)
        self._layout.prepare(self._files, create=not options.read_only, mode=options.mode)
        self.is_read_only = options.read_only
        self._steady = SteadyClock()
        self.clock: Clock = options.clock or self._steady
        self._families = Families()
        self._families_version = 0
        self._is_manual = options.maintenance == "manual"
        self._workers: list[Worker] = []
        self._announcer: Worker | None = None
        self._states = OpenStates()
        self._has_pinned = False
        self._warned_of = 0
        # Held by whoever checkpoints, sweeps or compacts in this process.
        self._tending = BoundedLock("maintenance", options.lock_timeout)
        self._gathers_until_ns = 0
        # Whoever opened the store has a moment to say what it listens to.
        self._sweeps_from_ns = elapsed_ns() + SWEEP_GRACE_MS * 1_000_000
        self._is_closed = True  # until it is open
        self._is_collected = False
        self._attachment = self._new_attachment()
        # What fails leaves nothing open, at once and not when it is collected: whoever handles it may
        # open the store again.
        try:
            with (
                system_errors(self._layout.root),
                self._attachment.attaching(opened := ExitStack()) as is_first,
            ):
                self._open(opened, is_first=is_first)
        except BaseException:
            self._attachment.close()
            raise
        self.compiled: CompiledAccess = self._segments
        self.get = self._segments.get
        self.row = self._segments.row
        self.put = self._segments.put
        self.update = self._segments.update
        self.delete = self._segments.delete
        self.write = self._segments.write
        self._is_closed = False
        try:
            self._start_workers()
        except BaseException:
            with suppress(EphemeraError, OSError):
                self.close()
            raise
        _open_engines.add(self)

    # -- opening

    def _new_attachment(self) -> Attachment:
        return Attachment(
            self._layout,
            is_exclusive=self._options.exclusive,
            lock_timeout=self._options.lock_timeout,
            mode=self._files.mode,
        )

    def _open(self, opened: ExitStack, *, is_first: bool) -> None:
        """Open the files; `opened` closes them again."""
        if is_first:
            self._layout.remove_temporaries()
            self._check_base()
        # The page needs no descriptor: nothing of it is ever synced.
        memory = self._map_control(is_first=is_first).memory
        self._control = Control(
            memory,
            is_first=is_first,
            lock_fds=self._attachment.lock_fds,
            hash_seed=int.from_bytes(os.urandom(8), "little"),
            size_limit=self._options.size_limit,
        )
        if is_first:
            record_namespaces(memory)
        else:
            require_same_namespaces(memory, self._layout.root)
        self._steady.share(memory, CLOCK_OFFSET_AT, is_first=is_first)
        if is_first:
            self._control.map_bytes = map_bytes_for(self._layout, self._control.size_limit)
            self._control.base, others = sole_generation(self._layout, self._control.map_bytes)
            for generation in others:
                remove_generation(self._layout, generation, self._files)
        self._base = BaseTier(
            self._layout,
            self._control,
            self._files,
            lock_timeout=self._options.lock_timeout,
        )
        opened.callback(self._base.close)
        if is_first:
            self._recover()
        self._segments = self._make_segments()
        opened.callback(self._segments.close)
        self._segments.refresh()
        if not is_first:
            # The table may have a change whose author died before it published it: what this process
            # has seen, the others must see.
            self._control.publish_families()
        self._expiry = Expiry(self._segments, self._base, self._families, self._control.publish)

    def _check_base(self) -> None:
        """A store that was ever open has a base tier: it is made before the control page is."""
        generations = self._layout.base_generations() or [1]
        path = self._layout.base_file(generations[0])
        if self._layout.control.exists() or self._layout.segment_numbers():
            if not path.exists() or path.stat().st_size == 0:
                raise CorruptStore(path, 0, "the base tier is missing or empty")
        elif not path.exists():
            self._make_base(path)

    def _make_base(self, path: Path) -> None:
        with self._files.made_whole(path) as temporary:
            with system_errors(path):
                os.close(create_file(temporary, os.O_RDWR, self._files.mode))
            file = BaseFile(temporary, 1)
            try:
                file.open(self._options.size_limit, creates=True)
            finally:
                file.close()
                self._files.remove(temporary.with_name(temporary.name + "-lock"))

    def _map_control(self, *, is_first: bool) -> Mapped:
        if is_first:
            return self._files.create_mapped(self._layout.control, CONTROL_BYTES, lambda _: None)
        return self._files.map_existing(self._layout.control)

    def _recover(self) -> None:
        found = recover(
            self._layout, self._files, self._base.file, hash_seed=self._control.hash_seed
        )
        self._control.applied = found.applied
        self._control.newest = found.newest
        self._control.families = 1
        self._steady.never_before(found.latest_ms)
        if self.clock is not self._steady:
            self.clock = never_before(self.clock, found.latest_ms)
        self._base.file.clear_dead_readers()
        with self._base.write() as txn:
            family_table.ensure_default(txn)

    def _make_segments(self) -> Segments:
        segments = Segments(
            self._control,
            self._layout,
            self._files,
            self._base,
            clock=self.clock,
            lock_timeout=self._options.lock_timeout,
            is_read_only=self.is_read_only,
            syncs_each=self._options.durability == "commit",
            segment_bytes=self._options.segment_bytes,
            kept_bytes=KEPT_BYTES if self._options.exclusive else 0,
        )
        segments.on_refresh = self._look_at_families
        segments.on_behind = self._wait_for_checkpoint
        return segments

    def _look_at_families(self) -> None:
        """Follow the table of families; every refresh of the segments asks."""
        version = self._control.families
        if version != self._families_version:
            file = self._base.file
            with file.reading() as txn:
                self._families.load(file, txn)
            self._families_version = version

    # -- reads

    def scan(self, family: FamilyRef, bounds: Range, now_ms: int | None) -> Scan:
        state = self._take_state()
        try:
            return state.scan(state.id_of(family), bounds, now_ms, self.clock, ends_state=True)
        except BaseException:
            state.close()
            raise

    def _take_state(self) -> State:
        state = take_state(self._segments, self._base, self._families)
        self._states.add(state, self.clock.now_ms())
        return state

    def count(self, family: FamilyRef, now_ms: int) -> int:
        return sum(1 for _ in self.scan(family, Range(), now_ms).pairs())

    def snapshot(self) -> LocalView:
        state = self._take_state()
        now_ms = self.clock.now_ms()
        if self._options.snapshot_max_age_ms is not None:
            state.deadline_ms = now_ms + self._options.snapshot_max_age_ms
            self._note_pin()
        return LocalView(self._segments, state, now_ms)

    def begin(self) -> LocalTransaction:
        guard = self._segments.enter()
        try:
            state = self._take_state()
            return LocalTransaction(self._segments, guard, state, self.clock.now_ms())
        except BaseException:
            # At once, and not only when the last traceback that leads here is gone.
            guard.leave()
            raise

    # -- families

    def family(self, name: str, *, create: bool) -> FamilyRef | None:
        self._segments.refresh()
        ref = self._families.get(name)
        if ref is None and create:
            with self._changing_families() as txn:
                if not family_table.exists(txn, name):
                    family_table.create(txn, name)
            ref = self._families.get(name)
            if ref is None and name == DEFAULT_FAMILY:
                raise CorruptStore(
                    self._base.file.path, None, f"the table of families does not show {name!r}"
                )
            if ref is None:
                raise family_dropped(name)  # by another process, just now
        return ref

    def set_default_ttl(self, family: FamilyRef, ttl_ms: int | None) -> None:
        if family.default_ttl_ms != ttl_ms:
            with self._changing_families() as txn:
                family_table.set_default_ttl(txn, family.name, ttl_ms)

    def families(self) -> list[str]:
        self._segments.refresh()
        return self._families.names()

    def drop_family(self, name: str) -> bool:
        with self._changing_families() as txn:
            return family_table.drop(txn, name)

    def clear(self, family: FamilyRef) -> None:
        with self._changing_families() as txn:
            family_table.clear(txn, family)

    @block
    def _changing_families(self) -> Iterator[BaseWrite]:
        """Change the table while nobody writes, so that no write goes to an id that was given up."""
        self._must_write()
        self._segments.refresh()
        # The writer lock last: writers wait for the commit, but never for another process that is
        # inside the base tier, or for its sync.
        with self._base.locked() as file, self._segments.writer_lock():
            # The change is durable at once: what was written before it must not be lost after it.
            self._segments.sync_alone()
            try:
                with file.write() as txn:
                    yield txn
            finally:
                # Also after an interrupt, which may have come when all was committed.
                self._control.publish_families()
            self._segments.refresh()

    # -- maintenance

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        self._must_write()
        self._segments.refresh()
        now_ms = self.clock.now_ms()
        if self._announcer is not None and self._expiry.has_callbacks:
            self._expiry.announce(now_ms)
        return self._expiry.purge(now_ms, limit=limit, batch=batch)

    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        self._segments.refresh()
        unsubscribe = self._expiry.subscribe(callback)
        if not self._is_manual:
            try:
                self._start_announcer()
            except BaseException:
                unsubscribe()
                raise
        return unsubscribe

    def _start_announcer(self) -> None:
        if self._announcer is None:
            self._announcer = Worker(self, "announce", LocalEngine._announce)
            self._segments.on_earlier = self._announcer.kick
        self._announcer.kick()

    def checkpoint(self) -> None:
        self._must_write()
        self._segments.freeze()
        self._apply_waiting()
        self._warn_of_old_reader()

    def sync(self) -> None:
        self._segments.sync()

    def compact(self) -> None:
        """Write the base tier anew without its free pages, and go on with that."""
        try:
            self.checkpoint()
        except StoreFull:
            # Free pages that no value fits in, or that somebody reads: without them there is room.
            self._rewrite_base()
            self.checkpoint()
        self._rewrite_base()

    def _rewrite_base(self) -> None:
        with self._tending:
            self._clear_given_up()
            self._base.compact(self._segments.writer_lock)
            self._segments.refresh()

    def announce(self, url: str) -> None:
        """Let processes that are refused this exclusive store know where it is served."""
        self._attachment.announce(url)

    def backup(self, path: str) -> None:
        if Layout(path).root.resolve().is_relative_to(self._layout.root.resolve()):
            raise InvalidArgument(f"{path} lies inside the store: a backup goes elsewhere")
        state = self._take_state()
        try:
            copy_state(state, path, self._files)
        finally:
            state.close()

    def check(self) -> CheckReport:
        state = self._take_state()
        try:
            return check_state(state)
        finally:
            state.close()

    def repair(self) -> int:
        self._must_write()
        self._segments.refresh()
        with self._tending, self._base.locked() as file:
            if file.page_problems():
                raise CorruptStore(
                    file.path, None, "pages are damaged: nothing is written to such a file"
                )
            with file.write() as txn:
                mended = txn.mend_index()
        self._control.publish()
        return mended

    def stats(self) -> dict[str, Any]:  # Any: numbers, words and None
        self._segments.refresh()
        return {
            "engine": self.name,
            "path": str(self._layout.root),
            "durability": self._options.durability,
            "families": len(self._families.names()),
            "segments": len(self._segments.segments),
            "segments_waiting": self._segments.waiting_count,
            "writers_wait": self.is_behind,
            "is_full": bool(self._segments.is_full),
            "segment_bytes": self._segments.records_bytes,
            "written_bytes": self._segments.retired_bytes + self._segments.records_bytes,
            **self._base.file.sizes(),
            **self._reader_stats(),
            "next_deadline_ms": self._base.file.next_deadline_ms(),
            "expired": self._expiry.delivered,
            "expiry_lag_ms": self._expiry.lag_ms,
            "expiry_lag_max_ms": self._expiry.lag_max_ms,
            "syncs": self._segments.syncs,
            "has_failed": self._control.failed,
            "background_error": next((w.words for w in self._threads if w.words), None),
        }

    def _reader_stats(self) -> dict[str, int | None]:
        """Who keeps pages and segments from being reused: all processes' oldest reader, this one's views."""
        now_ms = self.clock.now_ms()
        oldest = self._base.oldest_reader(now_ms)
        began_ms = list(self._states.began().values())
        return {
            "oldest_reader_pid": None if oldest is None else oldest.pid,
            "oldest_reader_age_ms": 0 if oldest is None else oldest.age_ms,
            "oldest_reader_commits": 0 if oldest is None else oldest.commits,
            "oldest_reader_bytes": 0 if oldest is None else self._base.file.unused_bytes(),
            "views": len(began_ms),
            "oldest_view_age_ms": max(0, now_ms - min(began_ms, default=now_ms)),
        }

    @property
    def _threads(self) -> list[Worker]:
        """The announcer first."""
        return [*([self._announcer] if self._announcer else []), *self._workers]

    # -- background work

    def _start_workers(self) -> None:
        has_sync = not self.is_read_only and self._options.durability == "interval"
        has_tend = not self.is_read_only and not self._is_manual
        if not (has_sync or has_tend) or self._options.snapshot_max_age_ms is not None:
            # No other thread follows the epoch, and so releases what reads have pinned.
            self._releaser = Worker(self, "release", LocalEngine._release)
            self._workers.append(self._releaser)
            self._base.on_pin = self._note_pin
        if self.is_read_only:
            return
        if self._options.durability == "interval" or not self._is_manual:
            self._workers.append(Worker(self, "sync", LocalEngine._sync))
        if not self._is_manual:
            self._workers.append(Worker(self, "tend", LocalEngine._tend))
            workers = tuple(self._workers)
            self._segments.on_frozen = lambda: _kick(workers)
            self._segments.frees_later = True

    def _note_pin(self) -> None:
        if not self._has_pinned:
            self._has_pinned = True
            self._releaser.kick()

    def _release(self) -> float:
        """Release what was pinned by reads, unless it was just now, and snapshots that are too old."""
        now_ms = self.clock.now_ms()
        # All of them: the first that stays must not keep the others.
        are_over = [s.expire(now_ms) for s in self._states.began() if s.deadline_ms is not None]
        if self._has_pinned:
            self._has_pinned = False
            return RELEASE_SECONDS
        self._base.release()
        return IDLE_SECONDS if all(are_over) else RELEASE_SECONDS

    def _sync(self) -> float:
        if self._options.durability == "interval":
            self._segments.sync()
        if not self._is_manual:
            self._segments.prepare()
        return maintenance.SYNC_SECONDS

    def _tend(self) -> float:
        self._segments.refresh()
        if self._is_maintained_elsewhere():
            return maintenance.RETRY_SECONDS
        # Not awaited: a thread that checkpoints or compacts may take long, or may be waiting for this one to end.
        hold = HeldLock(self._tending, 0)
        try:
            return self._maintain() if hold.is_held else maintenance.TEND_SECONDS
        finally:
            hold.leave()

    def _maintain(self) -> float:
        lock = self._attachment.maintenance
        with lock.returned():
            # Held for one step only: a process that is stopped between two of them keeps nobody from the work.
            if not lock.try_take():
                return maintenance.RETRY_SECONDS
            self._base.file.clear_dead_readers()
            self._warn_of_old_reader()
            try:
                self._freeze_aged()
                if self._is_worth_applying():
                    self._apply_waiting()
                self._sweep()
                self._clear_given_up()
            except StoreFull:
                self._segments.give_up_spare()
                raise
            self._control.note_maintenance(elapsed_ns())
        return maintenance.TEND_SECONDS

    def _is_maintained_elsewhere(self) -> bool:
        """Whether another process did the maintenance lately, and nothing waits for more of it."""
        pid, at_ns = self._control.maintained
        is_late = elapsed_ns() - at_ns > maintenance.RETRY_SECONDS * 1e9
        return pid != os.getpid() and not is_late and not self._segments.waiting_count

    def _warn_of_old_reader(self) -> None:
        oldest = self._base.oldest_reader(self.clock.now_ms())
        if oldest is None or oldest.age_ms < OLD_READER_MS:
            self._warned_of = 0
        elif oldest.pid != self._warned_of:
            self._warned_of = oldest.pid
            _log.warning(
                "process %d has read an old state of %s for %d s, and %d bytes cannot be reused: close"
                " its snapshot, scan or transaction (snapshot_max_age ends snapshots by itself)",
                oldest.pid,
                self._layout.root,
                oldest.age_ms // 1000,
                self._base.file.unused_bytes(),
            )

    def _freeze_aged(self) -> None:
        """Freeze a segment that is old, or that has the deletions which a full base tier waits for."""
        self._segments.refresh()
        if self._control.active:
            active = self._segments.segments[0]
            is_old = is_dead(active.created_ms + SEGMENT_AGE_MS_MAX, self.clock.now_ms())
            if active.records_bytes and (is_old or self._segments.is_full):
                self._segments.freeze()

    def _is_worth_applying(self) -> bool:
        """Whether several segments wait, or one waited in vain for another to be applied together with it."""
        waiting = self._segments.waiting_count
        if waiting == 1 and self._control.active and not self._segments.is_full:
            now_ns = elapsed_ns()
            self._gathers_until_ns = self._gathers_until_ns or now_ns + GATHER_NS
            if now_ns < self._gathers_until_ns:
                return False
        self._gathers_until_ns = 0
        return waiting > 0

    def _apply_waiting(self) -> None:
        # Alone among all processes: of two that apply different segments, the one with the older rows could
        # store them over those of the other.
        lock = self._control.checkpoint
        with self._tending, lock.take(self._options.lock_timeout):
            if self._is_manual:
                # The background does it otherwise. Pages that a dead process reads are not reused, and a
                # full base tier would stay full.
                self._base.file.clear_dead_readers()
            waiting = self._segments.waiting()
            while waiting:
                together = self._fitting(waiting[:SEGMENTS_TOGETHER])
                self._apply(together)
                self._segments.retire(together[-1].number)
                waiting = waiting[len(together) :]

    def _fitting(self, segments: list[Segment]) -> list[Segment]:
        """All of these, or only the first where there may be no room for all: it gives its own back."""
        size = sum(segment.records_bytes for segment in segments)
        return segments if self._base.file.has_room(BASE_ROOM * size) else segments[:1]

    def _apply(self, segments: list[Segment]) -> None:
        """Move what frozen segments hold, oldest first, to the base tier; together, so that a key which
        was written in several of them is written there once."""
        now_ms = self.clock.now_ms()
        if self._is_manual:
            with self._expiry.leaving_out(segments, now_ms) as dropped:
                apply_segments(self._base, segments, now_ms, dropped)
            return
        if self._announcer is not None and self._expiry.has_callbacks:
            # What died in the segments is collected before the checkpoint leaves it out, and not delivered
            # here: a callback may write, and so wait for this checkpoint. What is damaged the announcer says.
            with suppress(CorruptStore):
                self._expiry.collect(now_ms)
            self._announcer.kick()
        apply_segments(self._base, segments, now_ms)

    def _sweep(self) -> None:
        if elapsed_ns() < self._sweeps_from_ns:
            return
        now_ms = self.clock.now_ms() - SWEEP_GRACE_MS
        until_ns = elapsed_ns() + SWEEP_BUDGET_NS
        if is_dead(self._base.file.next_deadline_ms(), now_ms):
            while self._expiry.sweep(now_ms) and elapsed_ns() < until_ns:
                pass

    def _clear_given_up(self) -> None:
        file = self._base.file
        with file.reading() as read:
            given_up = family_table.given_up(file, read)
        if given_up:
            # Whoever gave them up may have died before it published that. Nobody may look for rows of
            # these families once the first is removed: those in segments would still be found.
            self._control.publish_families()
        for family_id in given_up:
            is_more = True
            while is_more:
                with self._base.write() as txn:
                    prefix = family_id.to_bytes(4, "big")
                    is_more = txn.remove_family(prefix, GIVEN_UP_KEYS) == GIVEN_UP_KEYS
                    if not is_more:
                        family_table.forget(txn, family_id)
                self._control.publish()

    def _announce(self) -> float:
        if not self._expiry.has_callbacks:
            self._segments.wake_before_ms = ASLEEP_MS
            self._expiry.stop_announcing()
            return maintenance.RETRY_SECONDS
        # Every deadline that is written from here on ends the wait, until the next one is known.
        self._segments.wake_before_ms = 2**63 - 1
        now_ms = self.clock.now_ms()
        next_ms = self._expiry.announce(now_ms)
        self._segments.wake_before_ms = next_ms
        return min(max(0, next_ms - self.clock.now_ms()) / 1000, self._announce_seconds)

    @property
    def _announce_seconds(self) -> float:
        """How often to look what dies, if nothing does before."""
        if self.clock is not self._steady:
            return FOREIGN_CLOCK_SECONDS
        return CLOCK_STEP_SECONDS if self._options.exclusive else ANNOUNCE_SECONDS

    # -- writers that wait for a checkpoint

    def _wait_for_checkpoint(self, grows: bool) -> None:
        """Too many segments wait, or the base tier is full: do a checkpoint here, or wait for the one
        under way. Raises StoreFull where none can make room."""
        self._segments.refresh()
        is_full = grows and self._segments.is_full
        if is_full and not self._can_shrink():
            self._segments.refuse_growth()
        if self._is_manual and not is_nonblocking():
            self._shrink()
            return
        waited = 0.0
        pause = threading.Event()
        while self._must_wait(grows):
            _kick(tuple(self._workers))
            full = self._fullness
            if full is not None:
                # A new one: raised, the worker's would keep the frames that it came through.
                raise StoreFull(str(full))
            if is_nonblocking() or waited > self.patience:
                if is_full:
                    self._segments.refuse_growth()
                raise StoreBusy(
                    f"{len(self._segments.segments)} segments wait for a checkpoint, and none came"
                    f" within {self.patience:g} s (lock_timeout){self._checkpoint_holder}"
                )
            pause.wait(WAIT_SECONDS)
            waited += WAIT_SECONDS
            self._segments.refresh()

    def _can_shrink(self) -> bool:
        """Whether a full base tier may get smaller by what the background, or `_shrink`, has to do."""
        if self._segments.has_records:
            return True
        file = self._base.file
        with file.reading() as txn:
            if family_table.given_up(file, txn):
                return True
        due_ms = self.clock.now_ms() - SWEEP_GRACE_MS
        return not self._is_manual and is_dead(file.next_deadline_ms(), due_ms)

    def _shrink(self) -> None:
        if self._segments.is_full:
            self._segments.freeze()
        self._apply_waiting()
        if self._segments.is_full:
            with self._tending:
                self._clear_given_up()

    def _must_wait(self, grows: bool) -> bool:
        segments = self._segments
        segments.look()
        return bool(segments.has_backlog or (grows and segments.is_full and self._can_shrink()))

    @property
    def _checkpoint_holder(self) -> str:
        """Which other process keeps this one from a checkpoint, as the end of a message."""
        control = self._control
        for name in ("LMDB", "base-tier", "checkpoint"):
            lock = control.locks[name]
            if lock.owner != os.getpid() and not lock.is_free():
                return f": {lock.describe_owner()} holds the {name} lock"
        return ""

    @property
    def is_behind(self) -> bool:
        return self._must_wait(grows=True)

    @property
    def patience(self) -> float:
        return self._options.lock_timeout

    def hasten(self) -> bool:
        _kick(tuple(self._workers))
        return self._fullness is None

    @property
    def _fullness(self) -> StoreFull | None:
        """What keeps the background from checkpointing, where that is a lack of room."""
        return next((w.error for w in self._workers if isinstance(w.error, StoreFull)), None)

    def go_on_here(self) -> bool:
        if self._is_manual or self.is_read_only:
            return False
        self._segments.asking.goes_on = True
        return True

    # -- fork: the child attaches by itself, at its first use of the store

    def _after_fork_in_child(self) -> None:
        """Keep nothing that threads of the parent may have left half done: locks, queues, the base tier."""
        self._workers, self._announcer = [], None
        self._states, self._has_pinned = OpenStates(), False
        self._tending.fork()
        self._expiry.fork()
        self._segments.wake_before_ms = ASLEEP_MS
        self._base.abandon()
        self._segments.fork(self._attach_child)
        self._control.detach()

    def _attach_child(self) -> None:
        if self._is_closed:
            raise StoreClosed(
                "the store was closed"
            )  # or was being closed, by a thread of the parent
        former = self._attachment
        if not former.is_held:
            raise StoreLocked(
                f"{self._layout.root} was opened by the parent of this process with exclusive=True, and is"
                " the parent's alone: open it after the fork"
            )
        former.stay_shared()
        attachment = self._new_attachment()
        try:
            with attachment.attaching(ExitStack()):
                require_same_namespaces(self._control.memory, self._layout.root)
                self._control.reattach(attachment.lock_fds)
        except BaseException:
            attachment.close()
            raise
        # Not before: should another thread fork meanwhile, its child is attached by the former one.
        self._attachment = attachment
        former.close()
        self._base.wake()
        self._segments.on_first_use = None
        self._start_workers()
        if self._expiry.has_callbacks and not self._is_manual:
            self._start_announcer()

    def _must_write(self) -> None:
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")

    # -- closing

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._close()
        finally:
            # Not before: if another thread forks meanwhile, the child lets go of what is still open.
            _open_engines.discard(self)

    def _close(self) -> None:
        # Whoever holds a lock may be stopped: nobody here waits for that any longer.
        self._limit_waits(CLOSE_PATIENCE)
        # The announcer first: a callback under way may write, and so need a checkpoint.
        for worker in self._threads:
            worker.stop(self.patience + CLOSE_PATIENCE)
        if self._segments.on_first_use is not None:
            # The child of a fork that never used the store: all of it is the parent's.
            self._segments.close()
            self._expiry.close()
            self._attachment.close()
        elif self._is_collected:
            # The base tier may be closed: its file was collected too.
            self._let_go()
            self._attachment.close()
        else:
            with self._attachment.detaching() as is_last:
                try:
                    self._settle(is_last=is_last)
                except (EphemeraError, OSError) as error:
                    # Nothing is lost by this: what was written is in the segments. Its words alone: whoever
                    # keeps the record would keep those mapped, by the error's frames.
                    _log.warning("closing %s: %s", self._layout.root, str(error))
                finally:
                    self._let_go()
            self._expiry.deliver_collected(self.clock.now_ms())

    def _limit_waits(self, seconds: float) -> None:
        """Let no wait for another process or thread last longer, also of those that are under way."""
        segments, base, expiry = self._segments, self._base, self._expiry
        for lock in (
            self._tending,
            segments.refreshing,
            segments.making,
            base._renewing,
            expiry.collecting,
        ):
            lock.limit_waits(seconds)
        self._control.limit_waits(seconds)
        self._attachment.lock_timeout = min(self._attachment.lock_timeout, seconds)

    def _let_go(self) -> None:
        try:
            self._segments.close()
            self._expiry.close()
            self._base.close()
            self._steady.unshare()
        finally:
            self._attachment.leave_open(self._control.retire())

    def _settle(self, *, is_last: bool) -> None:
        """Leave everything on the disk; the last one out leaves nothing but the base tier."""
        if self.is_read_only:
            return
        self._segments.sync()
        if is_last and not self._is_manual:
            self.checkpoint()
        with self._base.write() as txn:
            note_time(txn, self.clock.now_ms())

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # none yet: an option was refused
            self._is_collected = True
            maintenance.forgotten.append(self)
            _kick(tuple(self._threads))  # one of them closes it, and some sleep for long


def _kick(workers: tuple[Worker, ...]) -> None:
    for worker in workers:
        worker.kick()


@atexit.register
def _close_all() -> None:
    maintenance.close_forgotten(CLOSE_PATIENCE)
    for engine in list(_open_engines):
        engine._limit_waits(EXIT_PATIENCE)
        engine.close()


def _after_fork_in_child() -> None:
    maintenance.after_fork_in_child()
    # Of a store that a thread of the parent was opening or closing, nothing.
    open_engines = [engine for engine in _open_engines if not engine._is_closed]
    close_inherited([file for one in open_engines for file in one._attachment.inherited])
    for engine in [*_open_engines, *maintenance.forgotten]:
        engine._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
