"""The engine in memory: the same semantics as every other, for tests and pure caches.

One lock guards every change for the moment that it takes; a transaction does not hold it but
the writer lock, which other writers wait for. `get` and `row` take no lock: a batch of several keys is
announced as a whole in `_publishing` before its first row is placed, so no reader meets half of it.
Scans and snapshots copy what they will visit under the lock, and never wait for the writer lock.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ephemera.core._block import WakeEvent, block
from ephemera.core.clock import Clock, SteadyClock, elapsed_ns
from ephemera.core.errors import (
    EphemeraError,
    InvalidArgument,
    ReadOnly,
    ResourcesExhausted,
    StoreBusy,
    StoreClosed,
)
from ephemera.core.expiry import duration_ms, is_dead
from ephemera.core.keyvalue import (
    Capability,
    Change,
    CheckReport,
    Expired,
    Range,
    Waits,
    Write,
    family_dropped,
    living,
    unsupported,
)
from ephemera.core.nonblocking import is_nonblocking
from ephemera.core.options import Options
from ephemera.core.row import NEVER_MS, Row
from ephemera.core.threads import start_thread

SWEEP_KEYS_MAX = 1_000
SWEEP_PAUSE_S_MAX = 1.0
"""How long the sweeper sleeps at most: the clock may have been set forward meanwhile."""
FOREIGN_CLOCK_PAUSE_S = 0.002
"""How often the sweeper looks at a clock that it cannot sleep by."""
STALE_ENTRIES_MIN = 1_024
WRITER_PAUSE_S = 0.05

log = logging.getLogger("ephemera")


class Rows(dict[bytes, Row]):
    """The rows of a family, and their keys in order once somebody asked for them."""

    __slots__ = ("ordered",)

    def __init__(self, rows: Mapping[bytes, Row] | None = None) -> None:
        super().__init__(rows or {})
        self.ordered: list[bytes] | None = None

    def copy(self) -> Rows:
        copy = Rows(self)
        copy.ordered = self.ordered
        return copy

    def select(self, bounds: Range) -> list[tuple[bytes, Row]]:
        """The rows within the bounds, in their order."""
        if self.ordered is None:
            self.ordered = sorted(self)
        low = bisect_left(self.ordered, bounds.start)
        high = None if bounds.end is None else bisect_left(self.ordered, bounds.end)
        keys = self.ordered[low:high]
        if bounds.is_reverse:
            keys.reverse()
        return [(key, self[key]) for key in keys]


class GoneRows(Rows):
    """In the place of rows that nobody may read any more, so that reading needs no check."""

    __slots__ = ("reason",)

    def __init__(self, reason: EphemeraError) -> None:
        super().__init__()
        self.reason = reason

    def refuse(self) -> NoReturn:
        raise type(self.reason)(*self.reason.args)

    def get(self, *_: object) -> NoReturn:
        self.refuse()


class MemoryFamily:
    """A family and its rows. It gets a new id when it is cleared, and ids are never reused."""

    __slots__ = ("default_ttl_ms", "id", "mortal_count", "name", "rows")

    def __init__(self, name: str, id: int) -> None:
        self.name = name
        self.default_ttl_ms: int | None = None
        self.reset(id)

    def reset(self, id: int) -> None:
        self.id = id
        self.rows = Rows()
        self.mortal_count = 0

    def readable(self) -> Rows:
        if isinstance(self.rows, GoneRows):
            self.rows.refuse()
        return self.rows


class Deadlines:
    """Who dies next: a heap of (deadline, family id, key).

    The row is the truth. An entry that no longer agrees with its row is stale: it is skipped when
    its time comes, and all stale ones are thrown out when they are more than half of the heap.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, bytes]] = []
        self.families: dict[int, MemoryFamily] = {}
        self.mortal_count = 0

    def adopt(self, family: MemoryFamily) -> None:
        self.families[family.id] = family

    def forget(self, family: MemoryFamily) -> None:
        del self.families[family.id]
        self.mortal_count -= family.mortal_count

    def move(self, family: MemoryFamily, key: bytes, old_ms: int, new_ms: int) -> bool:
        """Follow a row to its new deadline; whether it is now the next of all to die."""
        if old_ms == new_ms:
            return False
        change = (new_ms != NEVER_MS) - (old_ms != NEVER_MS)
        family.mortal_count += change
        self.mortal_count += change
        if new_ms != NEVER_MS:
            heapq.heappush(self.heap, (new_ms, family.id, key))
        if len(self.heap) > 2 * self.mortal_count + STALE_ENTRIES_MIN:
            self.compact()
        return new_ms != NEVER_MS and self.heap[0][0] == new_ms

    def compact(self) -> None:
        self.heap = [entry for entry in set(self.heap) if self.is_current(entry)]
        heapq.heapify(self.heap)

    def rebuild(self, families: Iterable[MemoryFamily]) -> None:
        """Begin anew from the rows themselves."""
        self.families = {family.id: family for family in families}
        heap = []
        for family in self.families.values():
            entries = [
                (row.deadline_ms, family.id, key)
                for key, row in family.rows.items()
                if row.deadline_ms != NEVER_MS
            ]
            family.mortal_count = len(entries)
            heap += entries
        heapq.heapify(heap)
        self.heap, self.mortal_count = heap, len(heap)

    def is_current(self, entry: tuple[int, int, bytes]) -> bool:
        deadline_ms, family_id, key = entry
        family = self.families.get(family_id)
        row = None if family is None else family.rows.get(key)
        return row is not None and row.deadline_ms == deadline_ms

    def has_due(self, now_ms: int) -> bool:
        return bool(self.heap) and is_dead(self.heap[0][0], now_ms)

    @property
    def next_ms(self) -> int:
        """The earliest deadline, NEVER_MS when there is none."""
        while self.heap and not self.is_current(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else NEVER_MS

    def take_due(self, now_ms: int) -> tuple[int, MemoryFamily, bytes] | None:
        """The deadline, family and key of the row that died first, off the heap."""
        while self.has_due(now_ms):
            entry = heapq.heappop(self.heap)
            if self.is_current(entry):
                return entry[0], self.families[entry[1]], entry[2]
        return None


class MemoryView:
    """A copy of every family at one instant. Any thread may close it, also while others read."""

    def __init__(self, engine: MemoryEngine, rows: dict[MemoryFamily, Rows], now_ms: int) -> None:
        self._engine = engine
        self._rows: dict[MemoryFamily, Rows] | None = rows
        self.now_ms = now_ms

    def row(self, family: MemoryFamily, key: bytes) -> Row | None:
        row = self._open_rows()[family].get(key)
        return None if row is None or is_dead(row.deadline_ms, self.now_ms) else row

    def family(self, name: str) -> MemoryFamily | None:
        return next((family for family in self._open_rows() if family.name == name), None)

    def scan(self, family: MemoryFamily, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        rows = self._open_rows()[family].select(bounds)
        return living(rows, lambda: self.now_ms, self._engine.check_open)

    def close(self) -> None:
        self._rows = None

    def _open_rows(self) -> dict[MemoryFamily, Rows]:
        self._engine.check_open()
        rows = self._rows  # read once: another thread may close the view at any moment
        if rows is None:
            raise StoreClosed("the snapshot was closed")
        return rows


class MemoryTransaction:
    """The writer lock. Nobody else writes meanwhile, so the rows themselves are its view.

    The engine knows it by a weak reference: a transaction that was forgotten ends with this object.
    """

    def __init__(self, engine: MemoryEngine, now_ms: int) -> None:
        self._engine = engine
        self.now_ms = now_ms
        self.thread_id = threading.get_ident()

    def family(self, name: str) -> MemoryFamily | None:
        return self._engine.family(name, create=False)

    def row(self, family: MemoryFamily, key: bytes) -> Row | None:
        return self._engine.row(family, key, self.now_ms)

    def scan(self, family: MemoryFamily, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        return self._engine.scan(family, bounds, self.now_ms)

    def commit(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        self._engine.end_transaction(self, writes)

    def close(self) -> None:
        self._engine.end_transaction(self, ())


class MemoryEngine:
    """Rows in dictionaries, deadlines in a heap, and a thread that removes what is dead."""

    name = "memory"
    capabilities = frozenset(
        {
            Capability.ORDERED_SCAN,
            Capability.TRANSACTIONS,
            Capability.SNAPSHOTS,
            Capability.EXPIRY_EVENTS,
        }
    )
    waits = Waits.FOR_WRITERS

    def __init__(self, options: Options) -> None:
        self.clock: Clock = SteadyClock() if options.clock is None else options.clock
        self.is_read_only = options.read_only
        self._is_background = options.maintenance == "background"
        self._wait_ns = duration_ms(options.lock_timeout, name="lock_timeout") * 1_000_000
        self._lock = threading.RLock()
        self._writer_released = WakeEvent()
        self._writer: Callable[[], MemoryTransaction | None] = _nobody
        self._is_closed = False
        self._is_free = not options.read_only  # whether a write may go ahead at once
        self._publishing: dict[tuple[MemoryFamily, bytes], Row | None] | None = None
        self._families: dict[str, MemoryFamily] = {}
        self._next_id = 0
        self._deadlines = Deadlines()
        self._callbacks: dict[object, Callable[[Expired], object]] = {}
        # Not announced yet, with their family's ids: a heap by deadline, then by number.
        self._deaths: list[tuple[int, int, int, Expired]] = []
        self._expired_count = 0
        self._expiry_lag_ms = 0
        self._sweeper: threading.Thread | None = None
        self._wake = WakeEvent()
        self._add_family("default")
        _engines.add(self)

    # --- reading ------------------------------------------------------------------------------

    def get(self, family: MemoryFamily, key: bytes, now_ms: int, /) -> bytes | None:
        row = family.rows.get(key) if self._publishing is None else self._row_of(family, key)
        return None if row is None or is_dead(row.deadline_ms, now_ms) else row.value

    def row(self, family: MemoryFamily, key: bytes, now_ms: int) -> Row | None:
        row = self._row_of(family, key)
        return None if row is None or is_dead(row.deadline_ms, now_ms) else row

    def _row_of(self, family: MemoryFamily, key: bytes) -> Row | None:
        publishing = self._publishing
        if publishing is not None and (family, key) in publishing:
            return publishing[family, key]
        return family.rows.get(key)

    def scan(
        self, family: MemoryFamily, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        with self._lock:
            rows = family.readable().select(bounds)
        now = self.clock.now_ms if now_ms is None else lambda: now_ms
        return living(rows, now, self.check_open)

    def count(self, family: MemoryFamily, now_ms: int) -> int:
        with self._lock:
            rows = family.readable()
            if not self._deadlines.has_due(now_ms):
                return len(rows)
            return sum(not is_dead(row.deadline_ms, now_ms) for row in rows.values())

    def snapshot(self) -> MemoryView:
        with self._lock:
            self.check_open()
            rows = {family: family.rows.copy() for family in self._families.values()}
            return MemoryView(self, rows, self.clock.now_ms())

    # --- writing ------------------------------------------------------------------------------

    def put(
        self,
        family: MemoryFamily,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            row = Row(value, written_ms, deadline_ms, idle_ms, hard_ms)
            self._place(family, key, row, written_ms)

    def delete(self, family: MemoryFamily, key: bytes, *, durable: bool | None) -> bool:
        is_there = False

        def change(row: Row | None, now_ms: int) -> None:
            nonlocal is_there
            is_there = row is not None

        self.update(family, key, change, durable=durable)
        return is_there

    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            self._publish(writes, self.clock.now_ms())

    def update(
        self, family: MemoryFamily, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            now_ms = self.clock.now_ms()
            old = self.row(family, key, now_ms)
            new = change(old, now_ms)
            if new is not old:
                self._place(family, key, new, now_ms)

    def begin(self) -> MemoryTransaction:
        transaction = None
        try:
            with self._lock:
                if not self._is_free:
                    self._await_writer_lock()
                transaction = MemoryTransaction(self, self.clock.now_ms())
                self._writer, self._is_free = weakref.ref(transaction), False
            return transaction
        except BaseException:
            # At once, and not only when the last traceback that leads here is gone.
            if transaction is not None:
                transaction.close()
            raise

    def end_transaction(self, transaction: MemoryTransaction, writes: Sequence[Write]) -> None:
        """Publish the writes of a transaction and release the writer lock."""
        with self._lock:
            if self._writer() is not transaction:
                if writes:
                    raise StoreClosed("the store was closed")
                return
            try:
                self._publish(writes, transaction.now_ms)
            finally:
                self._writer, self._is_free = _nobody, True
                self._writer_released.set()

    def _await_writer_lock(self) -> None:
        """Return when a write may go ahead; the lock is held before and after, not meanwhile."""
        self._check_writable()
        until_ns = elapsed_ns() + self._wait_ns
        while (transaction := self._writer()) is not None:
            if transaction.thread_id == threading.get_ident():
                raise InvalidArgument(
                    "this thread is inside a transaction: write through it, or after its block"
                )
            left_s = (until_ns - elapsed_ns()) / 1e9
            if left_s <= 0 or is_nonblocking():
                raise StoreBusy(
                    f"the writer lock was not free within {self._wait_ns / 1e9:g} s (lock_timeout)"
                )
            # Not kept alive from here; and looked for again now and then, for it may be forgotten.
            del transaction
            self._writer_released.wait_without(self._lock, min(WRITER_PAUSE_S, left_s))
            self._check_writable()
        self._is_free = True
        self._writer_released.set()  # for others who wait

    def _publish(self, writes: Sequence[Write], now_ms: int) -> None:
        families: list[MemoryFamily] = [write.family for write in writes]  # type: ignore[misc]  # our own
        for family in families:
            family.readable()
        rows = {
            (family, write.key): write.row for family, write in zip(families, writes, strict=True)
        }
        self._publishing = rows
        try:
            self._place_all(rows, now_ms)
        except BaseException:
            # An interrupt: readers have seen all of it already.
            self._place_all(rows, now_ms)
            raise
        finally:
            self._publishing = None

    def _place_all(self, rows: dict[tuple[MemoryFamily, bytes], Row | None], now_ms: int) -> None:
        for (family, key), row in rows.items():
            self._place(family, key, row, now_ms)

    def _place(self, family: MemoryFamily, key: bytes, row: Row | None, now_ms: int) -> None:
        """Put a row (None: nothing) where the old one is, and its deadline into the heap."""
        rows = family.rows
        old = rows.get(key)
        old_ms = NEVER_MS if old is None else old.deadline_ms
        new_ms = NEVER_MS if row is None else row.deadline_ms
        try:
            if old is None or row is None:
                rows.ordered = None
            if row is not None:
                rows[key] = row
            elif old is not None:
                del rows[key]
            if old is not None and is_dead(old_ms, now_ms):
                self._note_death(family, Expired(family.name, key, old.value, old_ms))
            if self._deadlines.move(family, key, old_ms, new_ms) and self._is_background:
                self._wake_sweeper()
        except BaseException:
            # An interrupt, between the row and its deadline perhaps: the row is the truth.
            self._deadlines.rebuild(self._families.values())
            raise

    # --- families -----------------------------------------------------------------------------

    def family(self, name: str, *, create: bool) -> MemoryFamily | None:
        with self._lock:
            self.check_open()
            if name not in self._families and create:
                if not self._is_free:
                    self._await_writer_lock()
                self._add_family(name)
            return self._families.get(name)

    def _add_family(self, name: str) -> None:
        with self._changing_families():
            family = self._families[name] = MemoryFamily(name, self._new_id())
            self._deadlines.adopt(family)

    @block
    def _changing_families(self) -> Iterator[None]:
        """Let the heap know the families that there are, also after an interrupt."""
        try:
            yield
        except BaseException:
            self._deadlines.rebuild(self._families.values())
            raise

    def set_default_ttl(self, family: MemoryFamily, ttl_ms: int | None) -> None:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            family.readable()
            family.default_ttl_ms = ttl_ms

    def families(self) -> list[str]:
        with self._lock:
            self.check_open()
            return sorted(self._families)

    def drop_family(self, name: str) -> bool:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            family = self._families.get(name)
            if family is None:
                return False
            gone = GoneRows(family_dropped(name))
            with self._changing_families():
                del self._families[name]
                family.rows = gone
                self._deadlines.forget(family)
            return True

    def clear(self, family: MemoryFamily) -> None:
        with self._lock:
            if not self._is_free:
                self._await_writer_lock()
            family.readable()
            with self._changing_families():
                self._deadlines.forget(family)
                family.reset(self._new_id())
                self._deadlines.adopt(family)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- expiry -------------------------------------------------------------------------------

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        now_ms = self.clock.now_ms()
        purged = 0
        while limit is None or purged < limit:
            size = batch if limit is None else min(batch, limit - purged)
            count = self._purge_batch(now_ms, size)
            purged += count
            if count < size:
                break
        return purged

    def _purge_batch(self, now_ms: int, size: int) -> int:
        count = 0
        with self._lock:
            self._check_writable()
            if self._deadlines.has_due(now_ms) and not self._is_free:
                self._await_writer_lock()
            until_ms = now_ms
            while count < size and (due := self._deadlines.take_due(now_ms)) is not None:
                until_ms, family, key = due
                if count == 0:
                    self._expiry_lag_ms = now_ms - until_ms
                self._place(family, key, None, now_ms)
                count += 1
            deaths = self._take_deaths(until_ms if count == size else now_ms)
            callbacks = list(self._callbacks.values())
        _announce(deaths, callbacks)
        return count

    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        token = object()
        with self._lock:
            self.check_open()
            self._callbacks[token] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(token, None)

        return unsubscribe

    def _note_death(self, family: MemoryFamily, death: Expired) -> None:
        """A dead row is about to go: swept, or overwritten before the sweeper came."""
        self._expired_count += 1
        if self._callbacks:
            entry = (death.deadline_ms, self._expired_count, family.id, death)
            heapq.heappush(self._deaths, entry)
            self._wake.set()

    def _take_deaths(self, until_ms: int) -> list[Expired]:
        """What died up to an instant and was not announced, in order; not of families that are gone."""
        deaths = []
        while self._deaths and is_dead(self._deaths[0][0], until_ms):
            _, _, family_id, death = heapq.heappop(self._deaths)
            if family_id in self._deadlines.families:
                deaths.append(death)
        return deaths

    def _wake_sweeper(self) -> None:
        if self._sweeper is None:
            sweeper = threading.Thread(
                target=_sweep,
                args=(weakref.ref(self), self._wake),
                name="ephemera-sweeper",
                daemon=True,
            )
            try:
                start_thread(sweeper)
            except ResourcesExhausted as error:
                # The write that asked for it has happened; a later one tries again.
                log.warning("expired keys stay in memory until a purge: %s", error)
                return
            self._sweeper = sweeper
        self._wake.set()

    def sweep(self) -> float | None:
        """Remove what is dead; the seconds until the next look, None when there will be none."""
        try:
            self.purge_expired(limit=None, batch=SWEEP_KEYS_MAX)
        except StoreClosed:
            return None
        except (
            EphemeraError
        ):  # a transaction holds the writer lock: the wait for it was pause enough
            return 0.0
        with self._lock:
            if not self._deadlines.heap:
                return SWEEP_PAUSE_S_MAX
            if not isinstance(self.clock, SteadyClock):
                return FOREIGN_CLOCK_PAUSE_S
            pause_ms = self._deadlines.heap[0][0] - self.clock.now_ms()
        return min(max(0.0, pause_ms / 1000), SWEEP_PAUSE_S_MAX)

    # --- housekeeping -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:  # Any: numbers and names
        with self._lock:
            self.check_open()
            heap, now_ms = self._deadlines.heap, self.clock.now_ms()
            waiting_ms = now_ms - heap[0][0] if self._deadlines.has_due(now_ms) else 0
            return {
                "engine": self.name,
                "families": len(self._families),
                "keys": sum(len(family.rows) for family in self._families.values()),
                "next_deadline_ms": self._deadlines.next_ms,
                "deadline_entries": self._deadlines.mortal_count,
                "stale_deadline_entries": len(heap) - self._deadlines.mortal_count,
                "expired": self._expired_count,
                "expiry_lag_ms": max(self._expiry_lag_ms, waiting_ms),
            }

    def check(self) -> CheckReport:
        with self._lock:
            self.check_open()
            entries = set(self._deadlines.heap)
            problems = [
                problem
                for family in self._families.values()
                for problem in _disagreements(family, entries)
            ]
            mortal_count = sum(family.mortal_count for family in self._families.values())
            if mortal_count != self._deadlines.mortal_count:
                problems.append(
                    f"{mortal_count} rows have a deadline, {self._deadlines.mortal_count} are counted"
                )
            row_count = sum(len(family.rows) for family in self._families.values())
            return CheckReport(row_count, mortal_count, 0, tuple(problems))

    def repair(self) -> int:
        with self._lock:
            self._check_writable()
        return 0

    def backup(self, path: str) -> None:
        with self._lock:
            self.check_open()
        raise unsupported(self.name, Capability.BACKUP, "export it, or open a store at a path")

    def compact(self) -> None:
        with self._lock:
            self._check_writable()
            self._deadlines.compact()

    def checkpoint(self) -> None:
        with self._lock:
            self._check_writable()

    def sync(self) -> None:
        with self._lock:
            self.check_open()

    def after_fork_in_child(self) -> None:
        """Go on with a copy of the rows. Threads of the parent, with the locks that
        they held, do not exist here."""
        self._lock = threading.RLock()
        self._writer_released, self._wake = WakeEvent(), WakeEvent()
        self._sweeper = None
        self._writer, self._is_free = _nobody, not (self._is_closed or self.is_read_only)
        if not self._is_closed:
            publishing, self._publishing = self._publishing, None
            # One of them may have been between a row and its deadline, or in the middle of a batch.
            for (family, key), row in (publishing or {}).items():
                family.rows.ordered = None
                if row is None:
                    family.rows.pop(key, None)
                else:
                    family.rows[key] = row
            self._deadlines.rebuild(self._families.values())
            if self._is_background and self._deadlines.heap:
                self._wake_sweeper()

    def close(self) -> None:
        with self._lock:
            self._is_closed, self._is_free, self._writer = True, False, _nobody
            for family in self._families.values():
                family.rows = GoneRows(StoreClosed("the store was closed"))
            self._deadlines = Deadlines()
            self._writer_released.set()
            self._wake.set()
            sweeper = self._sweeper
        # So that no callback runs once the store is closed; one of them may be the caller.
        if sweeper is not None and sweeper is not threading.current_thread():
            sweeper.join(SWEEP_PAUSE_S_MAX)

    def check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store was closed")

    def _check_writable(self) -> None:
        self.check_open()
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")


def _nobody() -> None:
    """The transaction of a writer lock that is free."""


def _sweep(engine_ref: weakref.ref[MemoryEngine], wake: WakeEvent) -> None:
    """Until the store is closed, or nobody has it any more."""
    while True:
        engine = engine_ref()
        pause_s = None if engine is None else engine.sweep()
        if pause_s is None:
            return
        del engine
        wake.wait(pause_s)


def _announce(deaths: list[Expired], callbacks: list[Callable[[Expired], object]]) -> None:
    for death in deaths:
        for callback in callbacks:
            try:
                callback(death)
            except Exception:
                log.exception("an on_expire callback failed for the key %r", death.key)


def _disagreements(family: MemoryFamily, entries: set[tuple[int, int, bytes]]) -> Iterator[str]:
    mortals = {key: row for key, row in family.rows.items() if row.deadline_ms != NEVER_MS}
    for key, row in mortals.items():
        if (row.deadline_ms, family.id, key) not in entries:
            yield f"{family.name}: the deadline of {key!r} is not in the heap"
    if len(mortals) != family.mortal_count:
        yield f"{family.name}: {len(mortals)} rows have a deadline, {family.mortal_count} are counted"
    if family.rows.ordered not in (None, sorted(family.rows)):
        yield f"{family.name}: the ordered keys are not the keys of the rows"


_engines: weakref.WeakSet[MemoryEngine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
