"""A snapshot, and the writer lock with what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ephemera.core.errors import StoreClosed
from ephemera.core.keyvalue import Range, Write, living
from ephemera.core.row import Row
from ephemera.engines.slatedb.families import TABLE_KEY, SlateFamily, SlateFamilyTable, prefix_of
from ephemera.engines.slatedb.library import CLOSED
from ephemera.engines.slatedb.reading import ReadHandle

CheckOpen = Callable[[], object]


class SlateView:
    """A state of the store at one instant. `release` is called when nobody reads it any more."""

    def __init__(
        self, state: ReadHandle, now_ms: int, check_open: CheckOpen, release: Callable[[], object]
    ) -> None:
        self.now_ms = now_ms
        self._state: ReadHandle | None = state
        self._table = SlateFamilyTable.decode(state.record(TABLE_KEY))
        self._check_open = check_open
        self._release = release

    def family(self, name: str) -> SlateFamily | None:
        self._check_open()
        entry = self._table.families.get(name)
        return None if entry is None else SlateFamily(name, entry)

    def row(self, family: SlateFamily, key: bytes) -> Row | None:
        return self.state().row(prefix_of(self._table.entry(family).id), key, self.now_ms)

    def scan(self, family: SlateFamily, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        rows = self.state().rows(prefix_of(self._table.entry(family).id), bounds)
        return living(rows, lambda: self.now_ms, self._check_open)

    def close(self) -> None:
        if self._state is not None:
            self._state = None
            self._release()

    def state(self) -> ReadHandle:
        """What it reads. Raises StoreClosed after its end, and after that of the store."""
        self._check_open()
        state = self._state  # read once: another thread may close the view at any moment
        if state is None:
            raise StoreClosed(CLOSED)
        return state


Commit = Callable[[ReadHandle, Sequence[tuple[bytes, bytes, Row | None]], bool | None], None]
"""Write these rows (None: delete) under their prefixes and keys in the transaction of a state."""


class SlateTransaction(SlateView):
    """A serializable transaction of SlateDB that holds the writer gate until its commit or close."""

    def __init__(
        self,
        state: ReadHandle,
        now_ms: int,
        check_open: CheckOpen,
        release: Callable[[], object],
        commit: Commit,
    ) -> None:
        super().__init__(state, now_ms, check_open, release)
        self._commit = commit

    def commit(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        """Write everything, and release the writer gate.

        Raises TransactionConflict when somebody wrote what was read, which no thread of this store can.
        """
        try:
            rows = [
                (prefix_of(self._table.entry(write.family).id), write.key, write.row)  # type: ignore[arg-type]  # our own
                for write in writes
            ]
            self._commit(self.state(), rows, durable)
        finally:
            self.close()
