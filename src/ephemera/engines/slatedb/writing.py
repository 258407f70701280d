"""Writes: batches, updates of one key, and commits, each as safe as it was asked to be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from ephemera.core.clock import Clock
from ephemera.core.errors import EngineUnavailable, TransactionConflict
from ephemera.core.keyvalue import Change, FamilyRef, Write
from ephemera.core.row import Row
from ephemera.engines.slatedb import library
from ephemera.engines.slatedb._calls import Handle, LibraryCall, Method, WriteBatch
from ephemera.engines.slatedb.families import CLOCK_KEY
from ephemera.engines.slatedb.library import load, wait
from ephemera.engines.slatedb.reading import ReadHandle

UPDATE_TRIES = 100
"""How often keys are read and written anew because somebody wrote them in between."""
STRIPES = 64
"""So many keys can be updated at the same time; those of one stripe wait for each other."""
CLOCK_STEP_MS = 1_000
"""How far the stored time may lie behind: it goes with the first write after so long."""
SERIALIZABLE = (2).to_bytes(4, "big")
"""As the library numbers the levels of isolation."""
EVER_MS = -(2**63)
"""An instant at which nothing is dead yet."""


class Soon:
    """A batch on its way: into memory, where everybody reads it, and if it is to be durable on from there."""

    def __init__(self, written: LibraryCall, until_durable: Method | None) -> None:
        self._written: LibraryCall | None = written
        self._call = written
        self._until_durable = until_durable
        self._is_over = False

    def go_on(self) -> bool:
        """Whether it has arrived. Raises what has become of it otherwise."""
        while not self._is_over:
            self._call.go_on()
            if not self._call.is_done:
                return False
            self._step()
        return True

    def notify(self, callback: Callable[[], object]) -> None:
        """Have `callback` called when `go_on` has something to do; where it has already, at once."""
        if self._is_over or not self._call.notify(callback):
            callback()

    def settle(self) -> None:
        """Return when it is in memory."""
        if self._written is not None:
            if not self._written.block(library.ANSWER_S):
                raise EngineUnavailable(
                    f"SlateDB has not taken a write within {library.ANSWER_S:g} s: its memory is full of writes that "
                    "the object store has not taken; try again later"
                )
            self._step()

    def _step(self) -> None:
        handle = self._call.result()
        if self._written is not None and self._until_durable is not None:
            self._call = self._until_durable(handle)
        else:
            self._is_over = True
        self._written = None


class Writer:
    """Whatever writes to an open store. `has_deadlines` tells SlateDB when rows die."""

    def __init__(
        self,
        db: Handle,
        clock: Clock,
        *,
        is_durable: bool,
        has_deadlines: bool,
        stored_ms: int,
        flush_interval_s: float,
    ) -> None:
        bound = load()
        methods = bound.methods
        self._db = db
        self._clock = clock
        self._is_durable = is_durable
        self._has_deadlines = has_deadlines
        self._stored_ms = stored_ms
        self._flush_interval_s = flush_interval_s
        self._stripes = [threading.Lock() for _ in range(STRIPES)]
        self._batch_kind = bound.kinds["writebatch"]
        self._handle_kind = bound.kinds["writehandle"]
        self._write, self._begin = methods["db_write"], methods["db_begin"]
        self._put, self._delete = (
            methods["dbtransaction_put_with_options"],
            methods["dbtransaction_delete"],
        )
        self._commit = methods["dbtransaction_commit"]
        self._until_durable = methods["writehandle_await_durable"]

    def batch(self) -> WriteBatch:
        return WriteBatch(self._batch_kind, has_deadlines=self._has_deadlines)

    def write(self, batch: WriteBatch, now_ms: int, durable: bool | None) -> None:
        """Let a batch happen, all of it or nothing."""
        if now_ms - self._stored_ms >= CLOCK_STEP_MS:
            self.stamp(batch, now_ms)
        self._wait_for(wait(self._write(self._db, batch.handle)), durable)

    def stamp(self, batch: WriteBatch, now_ms: int) -> None:
        """Store the time too, so that no later opening goes back behind it."""
        batch.put_plain(CLOCK_KEY, now_ms.to_bytes(8, "big"))
        self._stored_ms = now_ms

    def touch(self) -> None:
        """Store the time and nothing else."""
        now_ms = self._clock.now_ms()
        batch = self.batch()
        self.stamp(batch, now_ms)
        self.write(batch, now_ms, durable=False)

    def put(
        self, prefix: bytes, key: bytes, row: tuple[bytes, int, int, int, int], durable: bool | None
    ) -> None:
        """Store one row."""
        batch = self.batch()
        batch.put(prefix, key, *row)
        self.write(batch, row[1], durable)

    def write_soon(
        self, writes: Sequence[tuple[FamilyRef, bytes, Row | None]], *, durable: bool
    ) -> Soon:
        """Begin to write, after everything that was begun before."""
        now_ms = self._clock.now_ms()
        batch = self.batch()
        batch.add(writes)
        if not writes or now_ms - self._stored_ms >= CLOCK_STEP_MS:
            self.stamp(batch, now_ms)
        return Soon(self._write(self._db, batch.handle), self._until_durable if durable else None)

    def write_all(self, writes: Iterable[Write], durable: bool | None) -> None:
        """Store or delete several rows of families, all or none."""
        batch = self.batch()
        batch.add(writes)
        self.write(batch, self._clock.now_ms(), durable)

    # --- reading, then writing ----------------------------------------------------------------

    def begin(self) -> ReadHandle:
        """A serializable transaction: its commit fails if anybody wrote what it read."""
        return ReadHandle("dbtransaction", wait(self._begin(self._db, SERIALIZABLE)))

    def commit(
        self,
        transaction: ReadHandle,
        rows: Sequence[tuple[bytes, bytes, Row | None]],
        durable: bool | None,
    ) -> None:
        """Write rows (None: delete) under their prefixes and keys. Raises TransactionConflict."""
        for prefix, key, row in rows:
            if row is None:
                wait(self._delete.of_key(transaction.of, prefix, key))
            else:
                wait(self._put.of_row(transaction.of, prefix, key, row, self._has_deadlines))
        answer: bytes = wait(self._commit(transaction.of))
        if answer[0]:
            number = int.from_bytes(answer[1:9], "big")
            handle = Handle(self._handle_kind, number, database=self._db)
            self._wait_for(handle, durable)

    def update(self, prefix: bytes, key: bytes, change: Change, durable: bool | None) -> None:
        """Let `change` decide what becomes of one row, with no other write in between."""

        def attempt() -> None:
            transaction = self.begin()
            now_ms = self._clock.now_ms()
            old = transaction.row(prefix, key, now_ms)
            new = change(old, now_ms)
            if new is not old:
                self.commit(transaction, [(prefix, key, new)], durable)

        # Threads that update one key would only overtake each other: they wait instead.
        with self._stripes[hash(key) % STRIPES]:
            _until_undisturbed(attempt)

    def delete_if(
        self,
        places: Sequence[tuple[bytes, bytes]],
        is_due: Callable[[Row, int], bool],
        durable: bool | None,
    ) -> int:
        """Delete the rows at these prefixes and keys for which `is_due` holds, now, all or none;
        how many they were. It is asked about dead rows too."""
        count = 0

        def attempt() -> None:
            nonlocal count
            transaction = self.begin()
            now_ms = self._clock.now_ms()
            rows: list[tuple[bytes, bytes, None]] = []
            for prefix, key in places:
                row = transaction.row(prefix, key, EVER_MS)
                if row is not None and is_due(row, now_ms):
                    rows.append((prefix, key, None))
            count = len(rows)
            if rows:
                self.commit(transaction, rows, durable)

        _until_undisturbed(attempt)
        return count

    def _wait_for(self, written: Handle, durable: bool | None) -> None:
        if self._is_durable if durable is None else durable:
            wait(self._until_durable(written), self._flush_interval_s + library.ANSWER_S)


def _until_undisturbed(attempt: Callable[[], None]) -> None:
    for _ in range(UPDATE_TRIES):
        try:
            attempt()
        except TransactionConflict:
            continue
        return
    raise TransactionConflict(
        f"other writers came in between {UPDATE_TRIES} times: try again when there are fewer"
    )
