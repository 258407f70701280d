"""A transaction: the writer's transaction, its own writes over a consistent view, one commit at the end."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from ephemera.core._block import InterruptSafeContext
from ephemera.core.arguments import check_durable
from ephemera.core.errors import InvalidArgument
from ephemera.core.keyvalue import Change, FamilyRef, KeyValue, Range, Write, WriteTransaction
from ephemera.core.row import Row
from ephemera.keyspace import Keyspace
from ephemera.snapshot import Frozen

_KEY = itemgetter(0)


class Pending(Frozen, InterruptSafeContext):
    """The access of a transaction: what it wrote so far, over the view of its transaction.

    Its own writes are alive by construction: their deadlines lie after the one instant of the transaction.
    """

    end = "the transaction has ended"

    def __init__(self, transaction: WriteTransaction, *, durable: bool | None) -> None:
        super().__init__(transaction)
        self._transaction = transaction
        self._durable = durable
        self._writes: dict[str, dict[bytes, Write]] = {}  # by the family's name, then by key

    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None:
        view = self.open_view()
        write = self._writes.get(family.name, {}).get(key)
        return view.row(family, key) if write is None else write.row

    def scan(
        self, family: FamilyRef, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        below = super().scan(family, bounds, now_ms)
        writes = self._writes.get(family.name, {})
        # Copied first: another thread may write meanwhile, also where making pairs collects garbage.
        own = [(key, write.row) for key, write in writes.copy().items() if bounds.holds(key)]
        own.sort(key=_KEY, reverse=bounds.is_reverse)
        return _merge(own, below, is_reverse=bounds.is_reverse)

    def put(
        self,
        family: FamilyRef,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None:
        row = Row(value, written_ms, deadline_ms, idle_ms, hard_ms)
        self.write([Write(family, key, row)], durable=durable)

    def delete(self, family: FamilyRef, key: bytes, *, durable: bool | None) -> bool:
        is_there = self.row(family, key, self.now_ms()) is not None
        self.write([Write(family, key, None)] if is_there else [], durable=durable)
        return is_there

    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        self.open_view()
        if durable is not None:
            raise InvalidArgument(
                "durable is for the transaction as a whole: store.transaction(durable=...)"
            )
        for write in writes:
            self._writes.setdefault(write.family.name, {})[write.key] = write

    def update(
        self, family: FamilyRef, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        now_ms = self.now_ms()
        old = self.row(family, key, now_ms)
        new = change(old, now_ms)
        self.write([] if new is old else [Write(family, key, new)], durable=durable)

    def clear(self, family: FamilyRef) -> None:
        seen = list(self.scan(family, Range(), None))
        self.write([Write(family, key, None) for key, _ in seen], durable=None)

    def commit(self) -> None:
        """Write everything at once and end the transaction, which a failure ends too."""
        self.open_view()
        writes = [
            write for family in list(self._writes.values()) for write in list(family.values())
        ]
        try:
            if writes:
                self._transaction.commit(writes, durable=self._durable)
        finally:
            self.close()

    def rollback(self) -> None:
        self.open_view()
        self.close()

    def _begin(self) -> None:
        self.open_view()

    def _end(self, *, is_well: bool) -> None:
        if not self.is_open:
            return
        if is_well:
            self.commit()
        else:
            self.close()

    def _give_up(self) -> None:
        self.close()


def begin(engine: KeyValue, *, durable: bool | None) -> Pending:
    """Take the writer's transaction."""
    transaction = engine.begin()
    try:
        return Pending(transaction, durable=durable)
    except BaseException:
        transaction.close()
        raise


class Transaction(Keyspace, InterruptSafeContext):
    """Reads and writes that happen all together or not at all, made by `store.transaction()`.

    It holds the writer's transaction until its block ends, so keep the block short: other writers wait.
    It reads its own writes, and one instant is "now" for all of it. It works on the `default`
    family; `family(name)` gives another in the same transaction.

    >>> import ephemera
    >>> store = ephemera.open("memory://")
    >>> with store.transaction() as txn:
    ...     txn.put("ada", "70")
    ...     txn.put("bob", "130")
    >>> store.get_many(["ada", "bob"])
    {b'ada': b'70', b'bob': b'130'}
    """

    __slots__ = ("__weakref__", "_pending")

    def __init__(
        self,
        engine: KeyValue,
        ref: FamilyRef,
        store_ttl_ms: int | None,
        *,
        durable: bool | None,
    ) -> None:
        check_durable(durable)  # before the transaction is taken, which nobody would end
        self._pending = begin(engine, durable=durable)
        try:
            super().__init__(self._pending, ref, self._pending, store_ttl_ms)
        except BaseException:
            self._pending.close()
            raise

    def family(self, name: str) -> Keyspace:
        """Another family in the same transaction. Raises InvalidArgument when there is none.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> sessions = store.family("sessions")
        >>> with store.transaction() as txn:
        ...     txn.put("last", "ada")
        ...     txn.family("sessions").put("ada", "{}")
        >>> sessions.get("ada")
        b'{}'
        """
        ref = self._pending.family(name)
        return Keyspace(self._pending, ref, self._pending, self._store_ttl_ms)

    def commit(self) -> None:
        """Write everything at once and end the transaction; the end of the block does the same.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> txn = store.transaction()
        >>> txn.put("name", "ada")
        >>> txn.commit()
        >>> store.get("name")
        b'ada'
        """
        self._pending.commit()

    def rollback(self) -> None:
        """Forget everything and end the transaction; an exception in the block does the same.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> with store.transaction() as txn:
        ...     txn.put("name", "ada")
        ...     txn.rollback()
        >>> store.get("name") is None
        True
        """
        self._pending.rollback()

    def _begin(self) -> None:
        self._pending.open_view()

    def _end(self, *, is_well: bool) -> None:
        self._pending._end(is_well=is_well)

    def _give_up(self) -> None:
        self._pending.close()


def _merge(
    own: list[tuple[bytes, Row | None]],
    below: Iterator[tuple[bytes, Row]],
    *,
    is_reverse: bool,
) -> Iterator[tuple[bytes, Row]]:
    """Both in key order; where both have a key, what was written here hides what lies below."""
    merged = heapq.merge(own, below, key=_KEY, reverse=is_reverse)
    for _, versions in groupby(merged, key=_KEY):
        key, row = next(versions)  # the merge is stable, so the first is our own
        if row is not None:
            yield key, row
