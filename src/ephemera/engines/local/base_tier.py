"""The base tier: rows and their deadline index in one LMDB file.

`rows`: family id and key → checksum and row. `deadlines`: deadline, family id and key → nothing, one
entry for each row that has a deadline. `untold` (undelivered expirations): deadline, family id and key → value, for keys that
died before they were written here and whose expiration was not delivered. `meta`: families, the last applied
segment, the clock's high-water mark. A row and its index entry change in the same transaction, always here, and
every commit is synced: only checkpoints, sweeps and changes of the family table commit.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import re
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import lmdb
from lmdb.verify import VerifyError, verify

from ephemera.core import forks
from ephemera.core._block import BoundedLock, HeldLock, block
from ephemera.core.errors import CorruptStore, StoreBusy, StoreClosed, StoreFull
from ephemera.core.nonblocking import is_nonblocking
from ephemera.core.options import MODE_DEFAULT, MODE_MAX
from ephemera.core.row import NEVER_MS
from ephemera.engines.local._base import (
    RowReader,
    dies_as,
    entry_of,
    pack_row,
    remove_entries,
    remove_rows,
    store_rows,
    unpack_deadline,
    unpack_row,
)
from ephemera.engines.local._branch_cache import BranchCache
from ephemera.engines.local._control import Control, LockGuard
from ephemera.engines.local._lock_file import OpenFile, write_locker
from ephemera.engines.local._mapping import Mapping
from ephemera.engines.local._pages import Tree
from ephemera.engines.local._scan import (
    Closable,
    OwnTransaction,
    ViewTransaction,
    keep_for_ever,
)
from ephemera.engines.local.files import (
    Files,
    allocate,
    create_file,
    explain,
    system_errors,
)
from ephemera.engines.local.layout import Layout

READERS_MAX = 1024
OPENING_PATIENCE = 10.0
"""How many seconds a thread waits for another one of this process that opens or closes a file."""
SETUP_PAUSE_SECONDS = 0.001
LOCK_FILE_BYTES = 128 * 1024
"""More than LMDB's lock file takes for so many readers."""
TAIL_BYTES = 256 * 1024
"""LMDB follows a damaged position in a page this far without looking: behind the last page as well
there must be something to read, or the process dies."""
MISSING_BYTES_MAX = 64 * 1024**2
"""LMDB does not write pages that came and went in one transaction, so a file may end before its last
page; but not by so much, since the transactions here are small."""
SHRINK_RESERVE_MAX = 1024**3
"""How much room above `size_limit` a commit may need to write pages anew before it frees the old ones."""
SPREAD_RESERVE_MAX = 64 * 1024**3
"""How much more there is for rows that were let in and for runs of pages that large values need."""
REOPENING_SHARE = 20
"""What part of the rows has to go before a full base tier takes others in their pages."""
REWRITE_BATCH_ROWS = 8_000
REWRITE_BATCH_BYTES = 4 * 1024**2
"""How much one commit of a rewritten file has: it keeps its pages in memory until then."""
REWRITE_SPARE_BYTES = 64 * 1024**2
"""How much larger than the former file a rewritten one may become by pages that its commits free."""
APPLIED = b"applied-segment"
"""The number of the newest segment whose rows are all here."""
_LMDB_1_0 = 1
_READER = re.compile(r"^ *(\d+) +[0-9a-fA-F]+ +(\d+)$", re.MULTILINE)
"""A line of LMDB's table of readers: pid, thread, transaction; without the last where it reads nothing."""
_DEADLINE = struct.Struct(">q")
_NUMBER = struct.Struct("<q")

ReadTransaction: TypeAlias = "lmdb.Transaction[bytes]"
SUPERSEDED_BY = b"superseded-by"

Stored = tuple[bytes, bytes | None, int]
"""A base key, the base value or None for a deletion, and the deadline."""


Undelivered = tuple[int, bytes, bytes | None, bool]
"""A deadline, a base key, the value or None if it is damaged, and whether nothing was written in its place."""


class Reader(NamedTuple):
    """A process that reads a state of the base tier, which is so many commits old."""

    pid: int
    commits: int
    age_ms: int
    """For how long that has been the oldest state that is read, as far as anybody has looked."""


class OldState(NamedTuple):
    """A state of the base tier that a process reads, by its transaction, and how many came after it."""

    pid: int
    state: int
    commits: int


class BaseTier:
    """The base tier: the generation of its file that counts now.

    Reads take the file from here and stay with it; writes make sure that it is still the one.

    LMDB's wait for its writer mutex has no bound and cannot be interrupted. So every write transaction
    holds two locks of the control page around it, and the mutex is always free: `base_writer`, held
    for every change of the base tier, a whole compaction included, and `lmdb`, held for one
    transaction, or while a file is opened or removed. A wait for either takes `lock_timeout` seconds at most.
    """

    def __init__(
        self, layout: Layout, control: Control, files: Files, *, lock_timeout: float
    ) -> None:
        self._layout = layout
        self._control = control
        self._files = files
        self._lock_timeout = lock_timeout
        # Also former generations, for as long as somebody reads them.
        self._files_open: list[weakref.ref[BaseFile]] = []
        self._renewing = BoundedLock("generation", lock_timeout)
        self.on_pin: Callable[[], None] = lambda: None
        """Called when reads of keys pin a state, which they keep until `release` or the next epoch."""
        try:
            self._open()
        except BaseException:
            self._close_files()
            raise

    def _open(self) -> None:
        # A generation is removed under the LMDB lock alone, so the current one exists while we hold it.
        # And opening it takes LMDB's writer mutex, for the handles of its trees.
        with self._opening():
            generation = self._control.base
            file = BaseFile(self._layout.base_file(generation), generation)
            self._files_open = [*map(weakref.ref, self._open_files()), weakref.ref(file)]
            file.open(self._control.map_bytes)
            self.file, self.reader = file, RowReader(partial(self._pin, file), file.ask)

    @block
    def _opening(self) -> Iterator[None]:
        """HeldLock the LMDB lock. A signal handler that reads may find that its own thread holds it."""
        if self._control.lmdb.is_held_here():
            yield
        else:
            with self._control.lmdb.take(self._lock_timeout):
                yield

    def _pin(self, file: BaseFile) -> Tree | None:
        tree = file.pin()
        self.on_pin()
        return tree

    def renew(self) -> None:
        """From now on read what is committed now, in the generation that counts now."""
        with self._renewing:
            if self._control.base != self.file.generation:
                self._open()  # views that read the former generation go on
            self.reader.renew()

    def release(self) -> None:
        """Pin no state until the next read: pages of one that is read cannot be reused."""
        self.reader.renew()

    def oldest_reader(self, now_ms: int) -> Reader | None:
        """Which process reads the oldest state; None where all read the newest one."""
        found = self.file.oldest_reader()
        state, since_ms = self._control.oldest_reader
        if found is None:
            if state != 0:
                self._control.oldest_reader = (0, 0)
            return None
        if state != found.state:
            since_ms = now_ms
            self._control.oldest_reader = (found.state, now_ms)
        return Reader(found.pid, found.commits, max(0, now_ms - since_ms))

    def tidy(self) -> None:
        """Let go of former generations that nobody reads any more."""
        _close_released()

    def is_full(self) -> bool:
        """Whether it has reached `size_limit`, and takes no more rows until some are gone.

        Deletions that are spread over its pages leave room in them and free few: once a part of the rows
        is gone, others may come in their place, unless pages have become far too many.
        """
        live_bytes, rows = self.file.live()
        size_limit, full_rows = self._control.size_limit, self._control.full_rows
        if live_bytes < size_limit:
            rows = 0
        if rows == 0 or rows > full_rows:
            self._control.full_rows = full_rows = rows
        has_room = rows + full_rows // REOPENING_SHARE < full_rows and live_bytes < 2 * size_limit
        return rows > 0 and not has_room

    @block
    def write(self) -> Iterator[BaseWrite]:
        """A synced write transaction; committed at the end of the block unless it raises."""
        with self.locked() as file, file.write() as txn:
            yield txn

    @block
    def locked(self) -> Iterator[BaseFile]:
        """Acquire the locks for a write transaction; the block is given the file that counts.

        A block that needs the writer lock too acquires it inside. A thread that has it already, inside a
        transaction of the store, does not wait here: StoreBusy is raised at once.
        """
        timeout = 0.0 if self._control.writer.is_held_here() else self._lock_timeout
        with self._control.base_writer.take(timeout):
            file = self._current_file()
            with self._control.lmdb.take(timeout):
                yield file

    def _current_file(self) -> BaseFile:
        """The generation that counts, for the holder of `base_writer`: nobody else supersedes it."""
        while True:
            file = self.file
            successor = file.number(SUPERSEDED_BY)
            if not successor:
                return file
            if self._control.base == file.generation:
                # The compacting process died before it updated the control page.
                with self._control.writer.take(self._lock_timeout):
                    self._control.supersede_base(file.generation, successor)
            self.renew()

    def compact(self, acquire_writer: Callable[[], LockGuard]) -> None:
        """Write the next generation, without free pages, and let it count. Whoever reads the former one goes on.

        Nobody changes the base tier meanwhile, but LMDB's writer mutex is not held while the file is copied:
        other processes can open it. The writer lock, by `acquire_writer`, is held for the switch alone.
        """
        with self._control.base_writer.take(self._lock_timeout):
            file = self._current_file()
            successor = file.generation + 1
            path = self._layout.base_file(successor)
            self._rewrite(file, path)
            try:
                with self._control.lmdb.take(self._lock_timeout):
                    with acquire_writer():
                        with file.write() as txn:
                            txn.set_number(SUPERSEDED_BY, successor)
                        self._control.supersede_base(file.generation, successor)
                    self._remove_before(successor)
            except StoreBusy:
                # Only the waits before the commit raise this: nobody will ever read the copy.
                self._files.remove(path)
                raise

    def _rewrite(self, file: BaseFile, path: Path) -> None:
        try:
            with self._files.made_whole(path) as temporary:
                file.rewrite(temporary)
        except FileNotFoundError:
            if not file.is_closed:
                raise
            # By a signal handler; and whoever opened the store since has removed what was unfinished.
            raise StoreClosed("the store was closed") from None

    def _remove_before(self, generation: int) -> None:
        """Remove the former generations, also those that a death in this place left."""
        for older in self._layout.base_generations():
            if older < generation:
                remove_generation(self._layout, older, self._files)

    def abandon(self) -> None:
        """In the child of a fork: the files are the parent's."""
        self._renewing.fork()
        self.reader.renew()
        self._files_open = []

    def wake(self) -> None:
        """After `abandon`: open what counts by now."""
        self._open()

    def close(self) -> None:
        self.reader.renew()
        self._close_files()
        self.tidy()

    def _close_files(self) -> None:
        for file in self._open_files():
            file.close()

    def _open_files(self) -> list[BaseFile]:
        return [file for ref in self._files_open if (file := ref()) is not None]


class BaseFile(Closable):
    """One generation of the base tier's file in this process, until `close` or until nobody has this any more."""

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation
        self._mapping: Mapping | None = None
        self._learned: BranchCache | None = None
        # No function of Python is called at the end, so no interrupt comes before its work is done.
        self._user = weakref.ref(self, _released.append)

    def open(self, map_bytes: int, *, creates: bool = False) -> None:
        """Make it ready for transactions, until `close`."""
        with lmdb_errors(self.path):
            opened = _open_environment(self.path, self._user, map_bytes, creates=creates)
        self._file, self._mapping = opened.file, opened.mapping
        self._environment, self._fork_generation = opened.env, opened.generation
        self._trees = opened.trees
        self._meta, self._rows, self._deadlines, self._undelivered = opened.trees

    @property
    def _env(self) -> lmdb.Environment:
        """The environment. Raises StoreClosed in the child of a fork, where it is not to be used."""
        self._must_be_ours()
        return self._environment

    def _must_be_ours(self) -> None:
        if self._fork_generation != forks.generation:
            raise StoreClosed(forks.INHERITED)

    # -- reads

    def begin(self) -> ViewTransaction:
        """A read transaction of one's own: a consistent state, until ended."""
        return ViewTransaction(self._begin())

    def _begin(self) -> ReadTransaction:
        """A read transaction whose state is the one that its id says.

        LMDB registers a reader under the newest transaction and then copies that one's meta page, which the
        second commit from then on overwrites. A thread that the system holds up in between gets a newer state,
        whose pages the binding takes for damage. It is registered, so nothing that it reads is reused; but we
        begin again.
        """
        with lmdb_errors(self.path):
            while True:
                txn = self._begin_registered()
                if self._env.info()["last_txnid"] <= txn.id() + 1:
                    return txn
                txn.abort()

    def _begin_registered(self) -> ReadTransaction:
        try:
            return self._env.begin(db=self._rows)
        except lmdb.ReadersFullError:
            # Those of processes that died are taken back, and then there may be room.
            self._env.reader_check()
            return self._env.begin(db=self._rows)

    def pin(self) -> Tree | None:
        """The rows as they are now, and as they stay for whoever has this; None where they are not mapped."""
        tree = self.tree(self._begin())
        if tree is not None:
            self._learned = tree.cache
        return tree

    def tree(self, txn: ReadTransaction) -> Tree | None:
        """The rows as a transaction sees them, until that ends; None where they are not mapped."""
        mapping = self._mapping
        if mapping is None:
            return None
        with lmdb_errors(self.path):
            return Tree(txn, mapping, self._file_bytes(), b"rows", self._learned)

    def _file_bytes(self) -> int:
        try:
            return self._file.use(os.fstat).st_size
        except StoreClosed:  # another thread has just closed it
            return 0

    def ask(self, base_key: bytes) -> bytes | None:
        """What LMDB says is stored of a key now."""
        with self.reading() as txn:
            return txn.get(base_key)

    @block
    def reading(self) -> Iterator[ReadTransaction]:
        """A read transaction for the length of a block."""
        with lmdb_errors(self.path), OwnTransaction(self._begin()) as txn:
            yield txn

    def scan(
        self, txn: ReadTransaction, start: bytes, end: bytes | None, is_reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """(base key, base value) in order, from `start` to before `end`."""
        with lmdb_errors(self.path):
            yield from (self._scan_back if is_reverse else self._scan_on)(txn, start, end)

    def _scan_on(
        self, txn: ReadTransaction, start: bytes, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        cursor = txn.cursor(self._rows)
        last = None
        if cursor.set_range(start):
            for base_key, stored in cursor.iternext():
                if end is not None and base_key >= end:
                    return
                if base_key < start or (last is not None and base_key <= last):
                    raise self.disorder(base_key)
                yield base_key, stored
                last = base_key

    def _scan_back(
        self, txn: ReadTransaction, start: bytes, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        cursor = txn.cursor(self._rows)
        last = end
        is_placed = cursor.last() if end is None or not cursor.set_range(end) else cursor.prev()
        if is_placed:
            for base_key, stored in cursor.iterprev():
                if base_key < start:
                    return
                if last is not None and base_key >= last:
                    raise self.disorder(base_key)
                yield base_key, stored
                last = base_key

    def disorder(self, base_key: bytes) -> CorruptStore:
        return CorruptStore(self.path, None, f"the row of key {base_key!r} is out of its order")

    def entries(
        self, txn: ReadTransaction, after_ms: int, until_ms: int
    ) -> Iterator[tuple[int, bytes]]:
        """(deadline, base key) of the index in order, for deadlines in (after, until]."""
        with lmdb_errors(self.path):
            cursor = txn.cursor(self._deadlines)
            if cursor.set_range(_DEADLINE.pack(after_ms + 1)):
                for entry in cursor.iternext(values=False):
                    deadline_ms, base_key = split_entry(entry)
                    if deadline_ms > until_ms:
                        return
                    yield deadline_ms, base_key

    def has_entry(self, txn: ReadTransaction, deadline_ms: int, base_key: bytes) -> bool:
        return txn.get(entry_of(deadline_ms, base_key), db=self._deadlines) is not None

    def has_undelivered(self, txn: ReadTransaction, deadline_ms: int, base_key: bytes) -> bool:
        return txn.get(entry_of(deadline_ms, base_key), db=self._undelivered) is not None

    def due(self, txn: ReadTransaction, until_ms: int, entries_max: int) -> list[bytes]:
        """The first entries of the index, as they are, with deadlines up to `until_ms`."""
        cursor = txn.cursor(self._deadlines)
        found = list(islice(cursor.iternext(values=False), entries_max))
        bound = _DEADLINE.pack(until_ms + 1)
        # They are in order; but one that is damaged must not take those before it with it, which live.
        return list(filter(bound.__gt__, found[: bisect.bisect_left(found, bound)]))

    def undelivered(self, txn: ReadTransaction, until_ms: int) -> Iterator[Undelivered]:
        """What died before it was written here, in order."""
        for entry, stored in txn.cursor(self._undelivered).iternext():
            deadline_ms, base_key = split_entry(entry)
            if deadline_ms > until_ms:
                return
            is_gone = stored[:1] in (_GONE, _SEALED_GONE)
            yield deadline_ms, base_key, _undelivered_value(entry, stored), is_gone

    def next_deadline_ms(self, after_ms: int = -1) -> int:
        """The earliest deadline of the index after this instant; NEVER_MS when there is none."""
        with self.reading() as txn:
            return next(
                (deadline for deadline, _ in self.entries(txn, after_ms, NEVER_MS)), NEVER_MS
            )

    def number(self, name: bytes, txn: ReadTransaction | None = None) -> int:
        """A number of the `meta` tree; 0 when it was never set."""
        if txn is None:
            with self.reading() as txn:
                return self.number(name, txn)
        stored = _content(txn, self._meta, name)
        return 0 if stored is None else _NUMBER.unpack(stored)[0]

    def meta(self, txn: ReadTransaction, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the `meta` tree whose names begin so, without that beginning."""
        cursor = txn.cursor(self._meta)
        if cursor.set_range(prefix):
            for name, stored in cursor.iternext():
                if not name.startswith(prefix):
                    return
                yield name[len(prefix) :], _unsealed(name, stored)

    def check_meta(self) -> None:
        """Read all of the `meta` tree. Raises CorruptStore when a part of it is damaged or gone."""
        with self.reading() as txn:
            entries = sum(1 for _ in self.meta(txn, b""))
            if entries != txn.stat(self._meta)["entries"]:
                raise CorruptStore(self.path, None, "entries of the tree meta are missing")

    def page_problems(self) -> list[str]:
        """Return what is wrong with LMDB's pages, read from outside.

        The caller has a read transaction open, which keeps the pages that are verified from being used
        again, or the locks of a writer. A commit of another process meanwhile may look like a problem,
        but not twice like the same one.
        """
        problems = self._verify()
        return [problem for problem in self._verify() if problem in problems] if problems else []

    def _verify(self) -> list[str]:
        try:
            # The binding's verifier has no types.
            return list(verify(str(self.path), subdir=False))  # type: ignore[no-untyped-call]  # see above
        except FileNotFoundError:
            # Another generation took its place, and its pages are nobody's any more.
            return []
        except VerifyError as error:
            return [str(error)]

    def has_room(self, size: int) -> bool:
        """Whether the file may grow by so many bytes, and there is room for them on the disk."""
        with lmdb_errors(self.path):
            left = self._env.info()["map_size"] - _used_bytes(self._env)
            # By its descriptor: a compaction of another process may have removed the file's name.
            place = self._file.use(os.fstatvfs)
        return size <= min(left, place.f_bavail * place.f_frsize)

    def live(self) -> tuple[int, int]:
        """The bytes of all pages that its trees use, and the number of rows."""
        with self.reading() as txn:
            stats = [txn.stat(tree) for tree in self._trees]
            pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
            return pages * stats[0]["psize"], txn.stat(self._rows)["entries"]

    def unused_bytes(self) -> int:
        """The bytes of the file that no tree uses now: free, or kept for who reads an older state."""
        with lmdb_errors(self.path):
            return max(0, _used_bytes(self._env) - self.live()[0])

    def sizes(self) -> dict[str, int]:
        with self.reading() as txn:
            return {
                "base_rows": txn.stat(self._rows)["entries"],
                "deadline_entries": txn.stat(self._deadlines)["entries"],
                "base_bytes": _used_bytes(self._env),
                "base_live_bytes": self.live()[0],
            }

    # -- writes

    @block
    def write(self) -> Iterator[BaseWrite]:
        """A synced write transaction; committed at the end of the block unless it raises."""
        with lmdb_errors(self.path), OwnTransaction(_begin_write(self._env, self._file)) as txn:
            yield BaseWrite(txn, self._meta, self._rows, self._deadlines, self._undelivered)

    def rewrite(self, path: Path) -> None:
        """Write the rows of the file, and nothing else, to a new one with its permissions.

        Not page by page as `copy_state` does: pages keep the names of removed keys, as separators and in
        the room between their nodes.
        """
        with lmdb_errors(path):
            os.close(create_file(path, os.O_RDWR, self._file.use(_mode_of)))
            with (
                _scratch_environment(path, _used_bytes(self._env) + REWRITE_SPARE_BYTES) as env,
                self.reading() as txn,
            ):
                for name, former in zip(_TREE_NAMES, self._trees, strict=True):
                    appended = self._append_rows(txn.cursor(former), env, name)
                    if appended != txn.stat(former)["entries"]:
                        raise CorruptStore(self.path, None, "rows are missing or out of order")

    def _append_rows(self, rows: lmdb.Cursor[bytes], env: lmdb.Environment, name: bytes) -> int:
        """Append what a cursor visits to a new tree, in commits that need little memory; returns how
        many rows were in order."""
        with env.begin(write=True) as txn:
            tree = env.open_db(name, txn=txn)
        pairs = rows.iternext()
        total = appended = 0
        while appended == total and (batch := _batch(pairs)):
            with OwnTransaction(env.begin(write=True)) as txn:
                self._must_be_ours()
                total += len(batch)
                appended += txn.cursor(tree).putmulti(batch, append=True)[1]
        return appended

    def copy_state(self, txn: ReadTransaction, path: Path) -> None:
        """Write the pages of a transaction's state, without those that are free, to a new file with the
        permissions of this one. The copy is a generation of its own, and never superseded."""
        with lmdb_errors(path):
            fd = create_file(path, os.O_WRONLY | os.O_TRUNC, self._file.use(_mode_of))
            try:
                self._env.copyfd(fd, compact=True, txn=txn)
            finally:
                os.close(fd)
            if self.number(SUPERSEDED_BY, txn):
                with _scratch_environment(path, _used_bytes(self._env)) as env:
                    meta = env.open_db(_TREE_NAMES[0])
                    with env.begin(write=True) as copy:
                        copy.delete(SUPERSEDED_BY, db=meta)

    def oldest_reader(self) -> OldState | None:
        """Who reads the oldest state; None where all read the newest one."""
        with lmdb_errors(self.path):
            newest, readers = self._env.info()["last_txnid"], self._env.readers()
        states = [(int(state), int(pid)) for pid, state in _READER.findall(readers)]
        if not states or min(states)[0] >= newest:
            return None
        state, pid = min(states)
        return OldState(pid, state, newest - state)

    def clear_dead_readers(self) -> None:
        """Free what processes that died while reading had pinned."""
        with lmdb_errors(self.path):
            self._env.reader_check()

    def close(self) -> None:
        self.is_closed = True
        self._mapping = self._learned = None
        _close_environment(self._user)


class BaseWrite:
    """What a write transaction of the base tier can do: row and index entry change together."""

    def __init__(
        self,
        txn: ReadTransaction,
        meta: lmdb._Database,
        rows: lmdb._Database,
        deadlines: lmdb._Database,
        undelivered: lmdb._Database,
    ) -> None:
        self.txn = txn
        self._meta = meta
        self._rows = rows
        self._deadlines = deadlines
        self._undelivered = undelivered

    def apply(self, changes: list[Stored], live_ids: frozenset[int], now_ms: int) -> None:
        """Store the rows that are alive and of a living family, in key order, with their index
        entries. A deletion, or a row that is not stored, still removes the older one below it."""
        gone, fresh = store_rows(self.txn.cursor(self._rows), changes, live_ids, now_ms)
        remove_entries(self.txn.cursor(self._deadlines), gone)
        if fresh:
            fresh.sort()
            self.txn.cursor(self._deadlines).putmulti([(entry, b"") for entry in fresh])

    def remove(self, entries: list[bytes]) -> list[bytes]:
        """Remove the index entries and the rows that they speak for; returns the base keys of those.

        An entry whose row says otherwise was stale: it goes, and the row stays.
        """
        removed = remove_rows(self.txn.cursor(self._rows), entries)
        remove_entries(self.txn.cursor(self._deadlines), entries)
        return removed

    def mend_index(self) -> int:
        """Let the index say what the rows say; how many entries were wrong or missing."""
        stale: list[bytes] = []
        missing: list[bytes] = []
        for entry in self.txn.cursor(self._deadlines).iternext(values=False):
            row = self.txn.get(entry[8:], db=self._rows)
            if row is None or not dies_as(entry, row):
                stale.append(entry)
        for base_key, stored in self.txn.cursor(self._rows):
            with contextlib.suppress(CorruptStore):  # a damaged row's deadline may be damaged too
                deadline_ms = unpack_row(base_key, stored).deadline_ms
                entry = entry_of(deadline_ms, base_key)
                if deadline_ms != NEVER_MS and self.txn.get(entry, db=self._deadlines) is None:
                    missing.append(entry)
        remove_entries(self.txn.cursor(self._deadlines), stale)
        self.txn.cursor(self._deadlines).putmulti([(entry, b"") for entry in missing])
        return len(stale) + len(missing)

    def add_undelivered(
        self, deadline_ms: int, base_key: bytes, value: bytes, *, is_gone: bool
    ) -> None:
        entry, mark = entry_of(deadline_ms, base_key), _SEALED_GONE if is_gone else _SEALED_WRITTEN
        self.txn.put(entry, mark + pack_row(entry, mark + value)[:4] + value, db=self._undelivered)

    def remove_undelivered(self, dead: Iterable[tuple[int, bytes]]) -> None:
        for deadline_ms, base_key in dead:
            self.txn.delete(entry_of(deadline_ms, base_key), db=self._undelivered)

    def remove_family(self, prefix: bytes, rows_max: int) -> int:
        """Remove up to `rows_max` rows whose base keys begin so; returns how many."""
        cursor = self.txn.cursor(self._rows)
        entries: list[bytes] = []
        removed = 0
        is_placed = cursor.set_range(prefix)
        while is_placed and removed < rows_max and cursor.key().startswith(prefix):
            deadline_ms = unpack_deadline(cursor.value())
            if deadline_ms != NEVER_MS:
                entries.append(entry_of(deadline_ms, cursor.key()))
            # Deleting moves the cursor on to the next row, if there is one.
            cursor.delete()
            removed += 1
            is_placed = cursor.key() != b""
        remove_entries(self.txn.cursor(self._deadlines), entries)
        return removed

    def number(self, name: bytes) -> int:
        stored = self.meta(name)
        return 0 if stored is None else _NUMBER.unpack(stored)[0]

    def set_number(self, name: bytes, number: int) -> None:
        self.set_meta(name, _NUMBER.pack(number))

    def meta(self, name: bytes) -> bytes | None:
        return _content(self.txn, self._meta, name)

    def metas(self, prefix: bytes) -> list[bytes]:
        """The values of the `meta` tree whose names begin so."""
        cursor = self.txn.cursor(self._meta)
        found = []
        is_placed = cursor.set_range(prefix)
        while is_placed and cursor.key().startswith(prefix):
            found.append(_unsealed(cursor.key(), cursor.value()))
            is_placed = cursor.next()
        return found

    def set_meta(self, name: bytes, stored: bytes | None) -> None:
        """Set an entry of the `meta` tree, or remove it."""
        if stored is None:
            self.txn.delete(name, db=self._meta)
        else:
            self.txn.put(name, pack_row(name, stored), db=self._meta)


@block
def _scratch_environment(path: Path, map_bytes: int) -> Iterator[lmdb.Environment]:
    """A file that nobody else has, and that its maker syncs as a whole."""
    # Not while another environment closes: the binding knows files by their inodes, and that of a removed
    # file is used again before the binding forgets it.
    with _opening:
        env = lmdb.open(
            str(path),
            subdir=False,
            map_size=map_bytes,
            max_dbs=len(_TREE_NAMES),
            lock=False,
            sync=False,
            lib_version=_LMDB_1_0,
        )
    try:
        yield env
    finally:
        with _opening:
            env.close()


def _batch(pairs: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    batch = []
    size = 0
    for pair in islice(pairs, REWRITE_BATCH_ROWS):
        batch.append(pair)
        size += len(pair[1])
        if size >= REWRITE_BATCH_BYTES:
            break
    return batch


# An entry of `meta` is sealed as a row is: a checksum of its name and its content, then the content.


def _content(txn: ReadTransaction, meta: lmdb._Database, name: bytes) -> bytes | None:
    stored = txn.get(name, db=meta)
    return None if stored is None else _unsealed(name, stored)


def _unsealed(name: bytes, stored: bytes) -> bytes:
    content = stored[4:]
    if pack_row(name, content) != stored:
        raise CorruptStore("base tier", None, f"the entry {name!r} of the tree meta is damaged")
    return content


# A value of the tree `untold` begins with a mark. Those without a checksum are of stores that were written before there was one;
# no bit turned over makes one mark of the other kind. Stored on disk; never renumber.
_GONE, _WRITTEN = b"\x01", b"\x00"
_SEALED_GONE, _SEALED_WRITTEN = b"\xa5", b"\xa4"


def _undelivered_value(entry: bytes, stored: bytes) -> bytes | None:
    mark, checksum, value = stored[:1], stored[1:5], stored[5:]
    if mark in (_GONE, _WRITTEN):
        return stored[1:]
    is_sealed = mark in (_SEALED_GONE, _SEALED_WRITTEN)
    return value if is_sealed and pack_row(entry, mark + value)[:4] == checksum else None


# LMDB must not open a file twice in one process, so the stores of a process that share a path
# share its environment and the handles of its trees.
Trees = tuple[lmdb._Database, lmdb._Database, lmdb._Database, lmdb._Database]
_User: TypeAlias = weakref.ref[BaseFile]
_TREE_NAMES = (b"meta", b"rows", b"deadlines", b"untold")


class _Environment(NamedTuple):
    env: lmdb.Environment
    file: OpenFile
    mapping: Mapping | None
    trees: Trees
    users: list[_User]
    generation: int
    """The fork generation that it was opened in."""


_environments: dict[tuple[int, int], _Environment] = {}
_being_opened: set[tuple[int, int]] = set()
_opening = BoundedLock("environment", OPENING_PATIENCE)
_released: deque[_User] = deque()
"""Users that are gone. Their end may come anywhere, with `_opening` taken too: others close what they used."""


def _open_environment(path: Path, user: _User, map_bytes: int, *, creates: bool) -> _Environment:
    with _opening:
        identity = _identity(path)
        known = _environments.get(identity)
        if known is None:
            with _opening_once(identity, path):
                known = _environments[identity] = _open_anew(path, map_bytes, creates=creates)
        known.users.append(user)
        return known


@block
def _opening_once(identity: tuple[int, int], path: Path) -> Iterator[None]:
    """Refuse to open a file that this very thread is opening: a signal handler may ask for that, and LMDB
    must not open a file twice in a process."""
    if identity in _being_opened:
        raise StoreBusy(
            f"a signal arrived while this thread was opening {path}, and its handler uses the store:"
            " try again when the handler has returned"
        )
    try:
        _being_opened.add(identity)
        yield
    finally:
        _being_opened.discard(identity)


def _close_released() -> None:
    if _released:
        # Not awaited: whoever opens or closes a file now may be waiting for this thread, and the next call
        # closes them just as well.
        hold = HeldLock(_opening, 0)
        try:
            while hold.is_held and _released:
                user = _released[0]
                _let_go(user)
                with contextlib.suppress(ValueError):  # a signal handler has come here too
                    _released.remove(user)
        finally:
            hold.leave()


def _open_anew(path: Path, map_bytes: int, *, creates: bool) -> _Environment:
    _prepare_lock_file(path)
    file = OpenFile(partial(os.open, path, os.O_RDWR | os.O_CLOEXEC))
    try:
        env = lmdb.open(
            str(path),
            subdir=False,
            map_size=map_bytes,
            max_dbs=len(_TREE_NAMES),
            max_readers=READERS_MAX,
            lib_version=_LMDB_1_0,
        )
        try:
            trees = _open_trees(env, file, creates=creates)
            mapping = _map(file, map_bytes)
            return _Environment(env, file, mapping, trees, [], forks.generation)
        except BaseException:
            # At once, and not when the traceback goes: whoever handles it may open this file again.
            env.close()
            raise
    except lmdb.MemoryError as error:
        is_too_much = _map(file, map_bytes) is None
        file.close()
        if is_too_much:
            raise
        raise CorruptStore(
            path, None, "a meta page says that it has more pages than it can"
        ) from error
    except BaseException:
        file.close()
        raise


def _map(file: OpenFile, size: int) -> Mapping | None:
    try:
        return Mapping(file.fd, size, is_writable=False)
    except OSError:  # so much room for addresses there may not be twice
        return None


def _identity(path: Path) -> tuple[int, int]:
    """What a file is, whatever its name: a store may be removed and made anew at the same path."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise CorruptStore(path, None, "the base tier is missing") from error
    return status.st_dev, status.st_ino


def _prepare_lock_file(path: Path) -> None:
    with system_errors(path):
        lock_file = path.with_name(f"{path.name}-lock")
        try:
            fd = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = create_file(lock_file, os.O_RDWR, _mode_of(path))
        try:
            # LMDB maps this file sparse: on a full disk, touching it would kill the process.
            allocate(fd, LOCK_FILE_BYTES)
            _await_setup(fd, lock_file)
        finally:
            os.close(fd)


def _await_setup(fd: int, lock_file: Path) -> None:
    """Wait until no process sets up LMDB's lock file, not even one that was killed and is not quite gone.

    LMDB write-locks the first byte meanwhile. An opener that meets that lock waits for it, and then takes the
    file for set up: what a killed process left of it is no LMDB file, or has no last transaction, and the
    pages look damaged. The system hands on the LMDB lock of such a process before it frees the locks on files.
    """
    waited = 0.0
    pause = threading.Event()
    while pid := write_locker(fd):
        if is_nonblocking() or waited >= OPENING_PATIENCE:
            raise StoreBusy(
                f"process {pid} is setting up {lock_file}, and did not end within {OPENING_PATIENCE:g} s"
            )
        pause.wait(SETUP_PAUSE_SECONDS)
        waited += SETUP_PAUSE_SECONDS


def _mode_of(place: int | Path) -> int:
    """The permissions of a data file, which what is made beside it or of it gets too."""
    return os.stat(place).st_mode & MODE_MAX | MODE_DEFAULT


def _begin_write(env: lmdb.Environment, file: OpenFile) -> ReadTransaction:
    """A write transaction, in a file with a tail."""
    txn = env.begin(write=True)
    # Nobody else makes the file longer now. What this transaction adds has a tail from the next on.
    try:
        used, size = _used_bytes(env), file.use(os.fstat).st_size
        if used > size + MISSING_BYTES_MAX:
            raise CorruptStore("base tier", size, f"the file ends here, its pages at {used}")
        if size < used + TAIL_BYTES:
            file.use(os.ftruncate, used + TAIL_BYTES)
    except BaseException:
        txn.abort()
        raise
    return txn


def _used_bytes(env: lmdb.Environment) -> int:
    """How long the file is without its tail."""
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def _open_trees(env: lmdb.Environment, file: OpenFile, *, creates: bool) -> Trees:
    # In a transaction of our own: by itself `open_db` waits for a writer and keeps the GIL. One that
    # writes: handles live on only after a commit, and the binding does not commit one that reads.
    with _begin_write(env, file) as txn:
        meta, rows, deadlines, undelivered = (
            env.open_db(name, txn=txn, create=creates) for name in _TREE_NAMES
        )
    return meta, rows, deadlines, undelivered


def _close_environment(user: _User) -> None:
    """Let go of the file, if it is open; the last user closes it."""
    hold = HeldLock(_opening, OPENING_PATIENCE)
    try:
        if hold.is_held:
            _let_go(user)
        else:
            _released.append(user)
    finally:
        hold.leave()


def _let_go(user: _User) -> None:
    # Whatever interrupts this, the next one to let go of anything finds what was left.
    for identity, known in list(_environments.items()):
        if all(one is user for one in known.users):
            known.env.close()
            known.file.close()
            # A signal handler may have done the same, and opened the file anew.
            if _environments.get(identity) is known:
                _environments.pop(identity, None)
        elif user in known.users:
            known.users.remove(user)


# -- fork: the child abandons every environment
#
# LMDB's reader slots and locks carry the parent's pid, and threads that do not exist in the child may be
# inside LMDB's calls, for which closing would wait. So the child neither uses nor closes an environment
# that it inherited, and opens the file anew (docs/decisions/0016).


def _abandon_environments() -> None:
    _opening.fork()
    for known in list(_environments.values()):
        keep_for_ever(known.env)
    _environments.clear()
    _being_opened.clear()
    _released.clear()
    _open_anew_in_child()


_Identities: TypeAlias = tuple[tuple[object, ...], ...]
_identify: Callable[[str, bool], _Identities] | None = None


def _open_anew_in_child() -> None:
    """Let the binding open files that were open at the fork.

    It asks a module of its own for the identity of a file, and refuses to open one twice in a process; its
    memory of that survives a fork. So in a child a file has other identities than in the parent.
    """
    global _identify
    identities = sys.modules.get("lmdb._envid")
    if identities is not None and _identify is None:
        _identify = vars(identities)["env_keys"]
        vars(identities).update(env_keys=_identify_in_child)


def _identify_in_child(path: str, subdir: bool) -> _Identities:
    assert _identify is not None  # it was replaced by this
    return tuple((forks.generation, *identity) for identity in _identify(path, subdir))


os.register_at_fork(after_in_child=_abandon_environments)


def map_bytes_for(layout: Layout, size_limit: int) -> int:
    """How large LMDB's map is: `size_limit`, or what is there already and waits in segments, and the
    reserve above it.

    The reserve is for what was let in before the limit was reached, and for commits that shrink: see
    docs/decisions/0031-a-reserve-above-size-limit.md.
    """
    there = max(
        (layout.base_file(one).stat().st_size for one in layout.base_generations()), default=0
    )
    waiting = sum(layout.segment(one).stat().st_size for one in layout.segment_numbers())
    size = max(size_limit, there + waiting)
    return size + min(7 * size, min(size, SPREAD_RESERVE_MAX) + SHRINK_RESERVE_MAX)


def sole_generation(layout: Layout, map_bytes: int) -> tuple[int, list[int]]:
    """The generation that counts, for the first opener, and those that do not.

    A compaction writes the next file whole, and only then commits to the former that it is
    superseded: a later file that nobody vouches for is what a death in between left. So the oldest
    counts that does not say so. The one that it names need not be there: it was superseded too.
    """
    generations = layout.base_generations() or [1]
    counts = next(
        (one for one in generations[:-1] if not _is_superseded(layout, one, map_bytes)),
        generations[-1],
    )
    return counts, [generation for generation in generations if generation != counts]


def _is_superseded(layout: Layout, generation: int, map_bytes: int) -> bool:
    file = BaseFile(layout.base_file(generation), generation)
    try:
        file.open(map_bytes)
        return file.number(SUPERSEDED_BY) != 0
    finally:
        file.close()


def remove_generation(layout: Layout, generation: int, files: Files) -> None:
    path = layout.base_file(generation)
    # In this order: a generation is what has a file, so what an interrupt leaves is removed by the next.
    files.remove(path.with_name(path.name + "-lock"))
    files.remove(path)


def split_entry(entry: bytes) -> tuple[int, bytes]:
    """The deadline and the base key of an index entry."""
    if len(entry) < _DEADLINE.size:
        raise CorruptStore("base tier", None, f"the index entry {entry!r} is damaged")
    return _DEADLINE.unpack_from(entry)[0], entry[8:]


def family_of(base_key: bytes) -> int:
    """The family id that a base key begins with."""
    return int.from_bytes(base_key[:4], "big")


_DAMAGE = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.EnvEncryptionError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.InvalidParameterError,
    lmdb.MapResizedError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
"""What LMDB raises when its pages are not what it wrote: the way it is used here gives no other cause."""


@block
def lmdb_errors(path: Path) -> Iterator[None]:
    """LMDB's errors in our words."""
    try:
        with system_errors(path):
            yield
    except lmdb.MapFullError as error:
        raise StoreFull(
            f"{path} has used up size_limit and the reserve above it: end what reads an old state"
            " (stats() has the pid of the oldest reader), then checkpoint() and compact(); or close the"
            " store in all processes and open it with a larger size_limit"
        ) from error
    except lmdb.DiskError as error:
        raise StoreFull(f"no room for {path}: {error}") from error
    except lmdb.ReadersFullError as error:
        raise StoreBusy(
            f"{READERS_MAX} snapshots, scans and transactions of {path} are open: close some"
        ) from error
    except _DAMAGE as error:
        raise CorruptStore(path, None, str(error)) from error
    except lmdb.Error as error:
        if "closed" in str(error):
            raise StoreClosed("the store was closed") from error
        if "hort write" in str(error) or "SHORT_WRITE" in str(error):
            raise StoreFull(f"no room for {path}: {error}") from error
        if error.code == errno.EFAULT:
            # A page said that there is more behind it than the file has.
            raise CorruptStore(path, None, str(error)) from error
        if explain(error.code, path) is not None:
            raise explain(error.code, path) from error  # type: ignore[misc]  # see `system_errors`
        raise
