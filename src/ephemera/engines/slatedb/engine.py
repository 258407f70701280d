"""The engine on object storage: SlateDB, an LSM tree whose files are objects of a bucket.

One process writes and any number read. A row is stored under its family's id and its key, as the bytes that
every engine keeps, with its deadline told to SlateDB as well: compaction drops the dead. SlateDB still returns
them until then, so whatever is handed out is asked first whether it is alive.

    get, scan, snapshot      read the state as it is, without waiting for any writer
    put, write               one batch; threads write at the same time
    update                   a serializable transaction on one key, repeated when another write came between
    begin                    the same over all keys, alone among the threads of this store

What was written is in memory at once, and with the next flush in the object store: "commit" waits for that.
A writer that another has followed is fenced: SlateDB refuses its flushes, and it acknowledges nothing more.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from ephemera.core.clock import Clock, SteadyClock, never_before
from ephemera.core.errors import (
    EngineUnavailable,
    EphemeraError,
    ReadOnly,
    StoreClosed,
    UnsupportedOperation,
)
from ephemera.core.expiry import duration_ms, is_dead
from ephemera.core.keyvalue import (
    Capability,
    Change,
    CheckReport,
    Expired,
    FamilyRef,
    Range,
    Waits,
    Write,
    family_dropped,
    living,
    unsupported,
)
from ephemera.core.options import Options
from ephemera.core.row import Row
from ephemera.core.writer_gate import WriterGate
from ephemera.engines.slatedb import library
from ephemera.engines.slatedb._calls import plain_rows
from ephemera.engines.slatedb.checking import check_rows
from ephemera.engines.slatedb.credentials import naming_credentials, require_credentials
from ephemera.engines.slatedb.families import (
    CLOCK_KEY,
    OWNER_KEY,
    TABLE_KEY,
    SlateFamilies,
    SlateFamily,
    SlateFamilyTable,
    prefix_of,
)
from ephemera.engines.slatedb.library import CLOSED, check_threads, load
from ephemera.engines.slatedb.location import read_location
from ephemera.engines.slatedb.opening import Claim, open_reader, open_writer
from ephemera.engines.slatedb.reading import ReadHandle
from ephemera.engines.slatedb.upkeep import Background, Compactions, ExpiredRow, in_batches
from ephemera.engines.slatedb.views import SlateTransaction, SlateView
from ephemera.engines.slatedb.writing import Soon, Writer

T = TypeVar("T")

log = logging.getLogger("ephemera")

FORKED = "the store was opened before this process was forked: open it in a process of its own"


class SlateEngine:
    """A store at a URL: its one writer, or with `read_only` a reader that follows it."""

    name = "slatedb"
    waits = Waits.FOR_REPLIES
    capabilities = frozenset(
        {Capability.ORDERED_SCAN, Capability.TRANSACTIONS, Capability.SNAPSHOTS}
    )

    def __init__(self, url: str, options: Options) -> None:
        self._closed: str | None = CLOSED  # until it is open
        self._location = read_location(url)
        if options.mode is not None and self._location.scheme == "file":
            raise UnsupportedOperation(
                "SlateDB's library decides the permissions of its files: leave mode= out (the directory"
                " that is made is for its owner alone), or make the directory yourself"
            )
        self._library = load()
        check_threads()
        self.is_read_only = options.read_only
        if self.is_read_only:
            self.capabilities = self.capabilities - {Capability.SNAPSHOTS}
        self._writer_gate = WriterGate(duration_ms(options.lock_timeout, name="lock_timeout"))
        self._compactions = Compactions(self._location)
        self._background: Background | None = None
        self._is_durable = options.durability == "commit"
        # SlateDB removes the dead by the system's clock: rows that live by another are not its to remove.
        self._has_deadlines = options.clock is None
        self._reopening = threading.Lock()
        self._reopened = 0
        self._is_reopened_whole = True
        """False from the beginning of opening again until all of it has succeeded: the next call continues it."""
        self._is_left = False
        """Whether `close` did not wait for a thread that opens the database again: that one shuts it down."""
        self._shutting = threading.Lock()
        self._is_shut = False
        self._claim = Claim()
        # Not when it is opened again: what was there once is waited for.
        require_credentials(self._location)
        self._open()
        self._closed = None
        self._families = SlateFamilies(self._state.record(TABLE_KEY))
        stored_ms = int.from_bytes(self._state.record(CLOCK_KEY) or b"", "big")
        self.clock = _clock_from(options.clock, stored_ms)
        self._writer = self._new_writer(stored_ms)
        _engines.add(self)
        if not self.is_read_only:
            self._claim.owners.add(self._state.record(OWNER_KEY))
            self._begin_upkeep(options)

    def _open(self) -> None:
        """Open the database; once more, if no other writer has taken it over since."""
        with naming_credentials(self._location):
            if self.is_read_only:
                self._db = open_reader(self._location)
            else:
                self._db = open_writer(self._location, self._claim)
        self._state = ReadHandle("dbreader" if self.is_read_only else "db", self._db)

    def _new_writer(self, stored_ms: int) -> Writer:
        return Writer(
            self._db,
            self.clock,
            is_durable=self._is_durable,
            has_deadlines=self._has_deadlines,
            stored_ms=stored_ms,
            flush_interval_s=self._location.flush_interval,
        )

    def _reopen_if_closed(self) -> None:
        """After a call has failed: open the database again if SlateDB has closed it.

        It does so when one of its background tasks has failed, and answers every call with that error from then
        on. What it had in memory alone is lost. A fenced writer stays fenced.
        """
        self._await_reopening("try again later")
        try:
            failed = self._db
            reason = self._library.close_reason(failed, is_read_only=self.is_read_only)
            if self._closed is None:
                self._reopen(reason)
            failed.has_failed = False
        finally:
            self._reopening.release()
        if self._is_left:
            self._shut_down()
        if self._closed is not None:
            raise StoreClosed(self._closed)

    def _await_reopening(self, remedy: str) -> None:
        """Acquire the lock of opening again. Raises EngineUnavailable where another thread does not release it."""
        if not self._reopening.acquire(timeout=library.ANSWER_S):
            raise EngineUnavailable(
                f"another thread has been opening {self._location} again for more than {library.ANSWER_S:g} s: {remedy}"
            )

    def _reopen(self, reason: Any) -> None:  # Any: of a module without types
        """Open the database again if SlateDB has closed it for this reason, and finish what a try before began."""
        reasons = self._library.slatedb.CloseReason
        if reason in (reasons.PANIC, reasons.UNKNOWN):
            self._is_reopened_whole = False
            self._open()
            if not self.is_read_only:
                self._writer = self._new_writer(0)
            self._reopened += 1
            log.warning(
                "SlateDB had closed %s (%s): opened again, without the writes that were not durable",
                self._location,
                reason.name.lower(),
            )
        if not self._is_reopened_whole:
            if not self.is_read_only:
                self._keep_own_records(None)
            self._is_reopened_whole = True

    def _keep_own_records(self, durable: bool | None) -> None:
        """Store the owner, and the families as they were: changes of them may not have been durable."""
        batch = self._writer.batch()
        batch.put_plain(OWNER_KEY, self._claim.owner)
        if self._families.data is not None:
            batch.put_plain(TABLE_KEY, self._families.data)
        self._writer.write(batch, self.clock.now_ms(), durable)

    def _begin_upkeep(self, options: Options) -> None:
        if self._families.data is None:
            self._change_families(lambda table: None)
        self._keep_own_records(False)
        if options.maintenance == "background":
            self._background = Background(
                self._sweep, self.compact, self._location.compaction_interval
            )
            self._background.wake()

    def __del__(self) -> None:
        with suppress(EphemeraError):
            self.close()

    # --- reading ------------------------------------------------------------------------------

    def get(self, family: SlateFamily, key: bytes, now_ms: int, /) -> bytes | None:
        prefix = self._prefix(family)  # first: it may open the database again
        return self._state.value(prefix, key, now_ms)

    def row(self, family: SlateFamily, key: bytes, now_ms: int) -> Row | None:
        prefix = self._prefix(family)
        return self._state.row(prefix, key, now_ms)

    def get_many(
        self, family: SlateFamily, keys: Sequence[bytes], now_ms: int
    ) -> dict[bytes, bytes]:
        prefix = self._prefix(family)
        return self._state.values(prefix, keys, now_ms)

    def scan(
        self, family: SlateFamily, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        prefix = self._prefix(family)
        rows = self._state.rows(prefix, bounds)
        now = self.clock.now_ms if now_ms is None else lambda: now_ms
        return living(rows, now, self._check_open)

    def count(self, family: SlateFamily, now_ms: int) -> int:
        prefix = self._prefix(family)
        return self._state.count(prefix, now_ms)

    def snapshot(self) -> SlateView:
        self._check_open()
        now_ms = self.clock.now_ms()
        if self.is_read_only:
            raise unsupported(
                self.name,
                Capability.SNAPSHOTS,
                "a reader follows the writer and keeps no older state; one scan is of one state",
            )
        state = ReadHandle("dbsnapshot", self._library.run("db_snapshot", self._db))
        return SlateView(state, now_ms, self._check_open, _nothing)

    def _prefix(self, family: SlateFamily) -> bytes:
        """What the family's keys begin with now."""
        self._check_open()
        if self.is_read_only:
            self._follow()
        if family.prefix is None:
            raise family_dropped(family.name)
        return family.prefix

    def _follow(self) -> None:
        """See what the writer has done to the families."""
        data = self._state.record(TABLE_KEY)
        if data != self._families.data:
            self._families.load(data)

    # --- writing ------------------------------------------------------------------------------

    def put(
        self,
        family: SlateFamily,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None:
        self._check_writable()
        with self._writer_gate.writing():
            row = (value, written_ms, deadline_ms, idle_ms, hard_ms)
            self._writer.put(self._prefix(family), key, row, durable)

    def put_many(
        self,
        family: SlateFamily,
        values: dict[bytes, bytes],
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        *,
        durable: bool | None,
    ) -> None:
        self._check_writable()
        with self._writer_gate.writing():
            prefix = self._prefix(family)
            if values:
                batch = self._writer.batch()
                batch.put_all(prefix, values, written_ms, deadline_ms, idle_ms, hard_ms)
                self._writer.write(batch, written_ms, durable)

    def delete(self, family: SlateFamily, key: bytes, *, durable: bool | None) -> bool:
        is_there = False

        def change(row: Row | None, now_ms: int) -> None:
            nonlocal is_there
            is_there = row is not None

        self.update(family, key, change, durable=durable)
        return is_there

    def delete_many(
        self, family: SlateFamily, keys: Sequence[bytes], *, durable: bool | None
    ) -> int:
        self._check_writable()
        with self._writer_gate.writing():
            prefix = self._prefix(family)
            return self._writer.delete_if(
                [(prefix, key) for key in keys],
                lambda row, now_ms: not is_dead(row.deadline_ms, now_ms),
                durable,
            )

    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        self._check_writable()
        with self._writer_gate.writing():
            for family in {id(write.family): write.family for write in writes}.values():
                self._prefix(family)  # type: ignore[arg-type]  # one of our own
            if writes:
                self._writer.write_all(writes, durable)

    def write_soon(
        self, writes: Sequence[tuple[FamilyRef, bytes, Row | None]], *, durable: bool
    ) -> Soon:
        self._check_writable()
        with self._writer_gate.writing():
            return self._writer.write_soon(writes, durable=durable)

    def check_writer(self) -> None:
        self._check_writable()
        self._writer.begin()

    def update(
        self, family: SlateFamily, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        self._check_writable()
        with self._writer_gate.writing():
            self._writer.update(self._prefix(family), key, change, durable)

    def begin(self) -> SlateTransaction:
        self._check_writable()
        token = self._writer_gate.acquire()
        try:
            self._check_open()
            return SlateTransaction(
                self._writer.begin(),
                self.clock.now_ms(),
                self._check_open,
                partial(self._writer_gate.release, token),
                self._writer.commit,
            )
        except BaseException:
            self._writer_gate.release(token)
            raise

    # --- families -----------------------------------------------------------------------------

    def family(self, name: str, *, create: bool) -> SlateFamily | None:
        self._check_open()
        if self.is_read_only:
            self._follow()
        found = self._families.get(name)
        if found is None and create:
            self._change_families(lambda table: table.add(name))
            found = self._families.get(name)
        return found

    def set_default_ttl(self, family: SlateFamily, ttl_ms: int | None) -> None:
        self._change_families(lambda table: table.set_default_ttl(family, ttl_ms))

    def families(self) -> list[str]:
        self._check_open()
        if self.is_read_only:
            self._follow()
        return sorted(self._families.table.families)

    def drop_family(self, name: str) -> bool:
        was_there = self._change_families(lambda table: table.drop(name))
        self._wake_sweeper()
        return was_there

    def clear(self, family: SlateFamily) -> None:
        self._change_families(lambda table: table.clear(family))
        self._wake_sweeper()

    def _change_families(self, change: Callable[[SlateFamilyTable], T]) -> T:
        """Alone: once it is done, nobody writes to an id that was given up."""
        self._check_writable()
        token = self._writer_gate.acquire()
        try:
            self._check_open()
            table = self._families.table.copy()
            result = change(table)
            data = table.encode()
            if data != self._families.data:
                batch = self._writer.batch()
                batch.put_plain(TABLE_KEY, data)
                self._writer.write(batch, self.clock.now_ms(), None)
                self._families.load(data)
            return result
        finally:
            self._writer_gate.release(token)

    # --- expiry -------------------------------------------------------------------------------

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        self._check_writable()
        self._sweep()
        now_ms = self.clock.now_ms()
        purged = 0
        for dead in in_batches(self._dead(now_ms), limit=limit, batch=batch):
            places = [(prefix, key) for _, prefix, key in dead]
            with self._writer_gate.writing():
                purged += self._writer.delete_if(
                    places, lambda row, _: is_dead(row.deadline_ms, now_ms), durable=False
                )
        return purged

    def _dead(self, now_ms: int) -> Iterator[ExpiredRow]:
        """Every dead row of every family, of one state each."""
        for entry in list(self._families.table.families.values()):
            prefix = prefix_of(entry.id)
            for key, row in self._state.rows(prefix, Range()):
                self._check_open()
                if is_dead(row.deadline_ms, now_ms):
                    yield ExpiredRow(row.deadline_ms, prefix, key)

    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        self._check_open()
        raise unsupported(
            self.name,
            Capability.EXPIRY_EVENTS,
            "it keeps no order by deadline; a local store, or a server on one, tells of deaths",
        )

    def _sweep(self) -> None:
        """Delete what families left behind that were cleared or dropped."""
        while given_up := self._families.table.given_up:
            prefix = prefix_of(given_up[0])
            for answer in self._state.walk(prefix, Range()):
                batch = self._writer.batch()
                for key, _, _ in plain_rows(answer):
                    batch.delete(b"", key)
                self._check_writable()
                with self._writer_gate.writing():
                    self._writer.write(batch, self.clock.now_ms(), durable=False)
            self._change_families(partial(SlateFamilyTable.forget, family_id=given_up[0]))

    def _wake_sweeper(self) -> None:
        if self._background is not None:
            self._background.wake()

    # --- housekeeping -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:  # Any: numbers and names
        self._check_open()
        table = self._families.table
        return {
            "engine": self.name,
            "place": str(self._location),
            "families": len(table.families),
            "unswept_families": len(table.given_up),
            "flush_interval_ms": round(self._location.flush_interval * 1000),
            "cache_bytes": self._location.cache,
            "reopened": self._reopened,
        }

    def check(self) -> CheckReport:
        self._check_open()
        return check_rows(self._state, SlateFamilyTable.decode(self._state.record(TABLE_KEY)))

    def repair(self) -> int:
        self._check_writable()
        return 0

    def backup(self, path: str) -> NoReturn:
        self._check_open()
        raise unsupported(
            self.name,
            Capability.BACKUP,
            "copy the store to a path with `ephemera copy`, or its objects with the bucket's own tools",
        )

    def compact(self) -> None:
        self._check_writable()
        self._sweep()
        # SlateDB compacts as of the last write that was flushed: one of now lets it know what is dead now.
        with self._writer_gate.writing():
            self._writer.touch()
        self._flush("MEM_TABLE")
        self._compactions.rewrite()
        self._compactions.collect_garbage()

    def checkpoint(self) -> None:
        self._check_writable()
        self._flush("MEM_TABLE")

    def sync(self) -> None:
        self._check_open()
        if not self.is_read_only:
            self._flush("WAL")

    def _flush(self, what: str) -> None:
        slatedb = self._library.slatedb
        options = slatedb.FlushOptions(flush_type=slatedb.FlushType[what])
        given = self._library.lower("TypeFlushOptions", options)
        run = self._library.run if what == "WAL" else self._library.run_long
        run("db_flush_with_options", self._db, given)

    def close(self) -> None:
        if self._closed is not None:
            return
        self._closed = CLOSED
        self._writer_gate.release_any()
        if self._background is not None:
            self._background.end()
        try:
            self._await_reopening("that thread closes it then")
        except EngineUnavailable:
            self._is_left = True
            if not self._reopening.acquire(blocking=False):
                raise
        self._reopening.release()
        self._shut_down()

    def _shut_down(self) -> None:
        """Shut the database down, if that was not done yet."""
        with self._shutting:
            if self._is_shut:
                return
            self._is_shut = True
            if self.is_read_only:
                self._library.run("dbreader_shutdown", self._db)
                return
            slatedb = self._library.slatedb
            options = slatedb.CloseOptions(flush_type=slatedb.FlushType.WAL)
            given = self._library.lower("TypeCloseOptions", options)
            try:
                self._writer.touch()
            finally:
                self._library.run("db_shutdown_with_options", self._db, given)

    def forget(self) -> None:
        """This process is the child of a fork: the store is its parent's."""
        self._closed = FORKED

    def _check_open(self) -> None:
        if self._closed is not None:
            raise StoreClosed(self._closed)
        if self._db.has_failed or not self._is_reopened_whole:
            self._reopen_if_closed()

    def _check_writable(self) -> None:
        self._check_open()
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")


def _clock_from(given: Clock | None, stored_ms: int) -> Clock:
    """The clock to go by, which never stands before the latest instant that was stored."""
    if given is not None:
        return never_before(given, stored_ms)
    clock = SteadyClock()
    clock.never_before(stored_ms)
    return clock


def _nothing() -> None:
    """What ends a snapshot, whose handle ends with it."""


_engines: weakref.WeakSet[SlateEngine] = weakref.WeakSet()


def _forget_all() -> None:
    for engine in _engines:
        engine.forget()


os.register_at_fork(after_in_child=_forget_all)
