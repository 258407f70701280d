"""The table of families: names, ids and default TTLs, in one key of its own.

Each process keeps a copy and looks again once a second, so that reading a key costs no second look-up. A
clear or drop by another process is therefore noticed within that second; what is written in between goes where
the cleared rows go. The table is JSON in a string: Ephemera's own server has strings alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import CorruptStore
from ephemera.core.keyvalue import family_dropped
from ephemera.engines.redis.routing import Patience, Router, read, swap_request
from ephemera.engines.redis.swap import NOTHING, Act, Swap, exactly

FRESH_NS = 1_000_000_000
FORMAT = 1
"""Stored in Redis; never renumber."""
DEFAULT_ID = 1


class RedisFamilyEntry(NamedTuple):
    """A family in the table. `born` is the first of its ids, by which a handle knows it again."""

    born: int
    id: int
    default_ttl_ms: int | None


@dataclass(frozen=True)
class RedisFamilyTable:
    """All families, and the ids given up whose rows may still be there."""

    families: dict[str, RedisFamilyEntry] = field(
        default_factory=lambda: {DEFAULT_FAMILY: RedisFamilyEntry(DEFAULT_ID, DEFAULT_ID, None)}
    )
    given_up: frozenset[int] = frozenset()
    next_id: int = DEFAULT_ID + 1

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "next_id": self.next_id,
                "families": self.families,
                "given_up": sorted(self.given_up),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> RedisFamilyTable:
        """The table of these bytes. Raises ValueError when they are none."""
        told = json.loads(data)
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise ValueError("of another format")
        try:
            families = {name: RedisFamilyEntry(*entry) for name, entry in told["families"].items()}
            return cls(families, frozenset(told["given_up"]), int(told["next_id"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


class RedisFamily:
    """A handle: it follows its family through every clear, and ends with a drop."""

    __slots__ = ("born", "default_ttl_ms", "id", "is_dropped", "name")

    def __init__(self, name: str, entry: RedisFamilyEntry) -> None:
        self.name = name
        self.is_dropped = False
        self.born = entry.born
        self.follow(entry)

    def follow(self, entry: RedisFamilyEntry) -> None:
        self.id = entry.id
        self.default_ttl_ms = entry.default_ttl_ms


class RedisFamilies:
    """The handles of this process, over the table in Redis."""

    def __init__(self, router: Router, key: bytes) -> None:
        self._router = router
        self._key = key
        self._lock = threading.RLock()
        self._handles: dict[str, RedisFamily] = {}
        self._table = RedisFamilyTable()
        self._seen_ns = 0
        self.look_again()

    @property
    def table(self) -> RedisFamilyTable:
        return self._table

    def id_of(self, family: RedisFamily) -> int:
        """The id under which its rows are now. Raises InvalidArgument when it was dropped."""
        if elapsed_ns() - self._seen_ns > FRESH_NS:
            self.look_again()
        if family.is_dropped:
            raise family_dropped(family.name)
        return family.id

    def look_again(self) -> None:
        """Read the table, and let every handle follow it."""
        # Under the lock, as a change is: what was read before one is never believed after it.
        with self._lock:
            seen_ns = elapsed_ns()
            data = self._router.ask(read(self._key, b"GET", self._key))
            self._adopt(self._decode(data), seen_ns)

    def handle(self, name: str) -> RedisFamily | None:
        with self._lock:
            entry = self._table.families.get(name)
            if entry is None:
                return None
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = RedisFamily(name, entry)
            return handle

    def change(self, alter: Callable[[RedisFamilyTable], RedisFamilyTable]) -> RedisFamilyTable:
        """Replace the table by what `alter` makes of it, with no other change in between.

        It returns the table that was replaced; the same object leaves everything as it is.
        """
        patience = Patience(self._router)
        with self._lock:
            while (replaced := self._try_change(alter)) is None:
                patience.after_conflict("the table of families")
            return replaced

    def _try_change(
        self, alter: Callable[[RedisFamilyTable], RedisFamilyTable]
    ) -> RedisFamilyTable | None:
        """The table that was replaced, or None where another process was first."""
        seen_ns = elapsed_ns()
        data = self._router.ask(read(self._key, b"GET", self._key))
        old = self._decode(data)
        new = alter(old)
        if new is not old:
            known = NOTHING if data is None else exactly(data)
            swap = Swap(self._key, known, Act(b"set", new.encode()))
            if not self._router.ask(swap_request([swap])):
                return None
        self._adopt(new, seen_ns)
        return old

    def forget(self, ids: frozenset[int]) -> None:
        """Ids that were given up have no rows any more."""
        self.change(
            lambda table: (
                replace(table, given_up=table.given_up - ids) if table.given_up & ids else table
            )
        )

    def _adopt(self, table: RedisFamilyTable, seen_ns: int) -> None:
        self._table, self._seen_ns = table, seen_ns
        for name, handle in list(self._handles.items()):
            entry = table.families.get(name)
            if entry is not None and entry.born == handle.born:
                handle.follow(entry)
            else:
                handle.is_dropped = True
                del self._handles[name]

    def _decode(self, data: bytes | None) -> RedisFamilyTable:
        try:
            return RedisFamilyTable() if data is None else RedisFamilyTable.decode(data)
        except ValueError as error:
            raise CorruptStore(repr(self._key), None, f"no table of families: {error}") from None


def with_family(table: RedisFamilyTable, name: str) -> RedisFamilyTable:
    """The table with this family in it."""
    if name in table.families:
        return table
    entry = RedisFamilyEntry(table.next_id, table.next_id, None)
    return replace(table, families=table.families | {name: entry}, next_id=table.next_id + 1)


def without_family(table: RedisFamilyTable, name: str) -> RedisFamilyTable:
    """The table without this family, whose rows nobody reaches any more."""
    entry = table.families.get(name)
    if entry is None:
        return table
    rest = {other: kept for other, kept in table.families.items() if other != name}
    return replace(table, families=rest, given_up=table.given_up | {entry.id})


def with_new_id(table: RedisFamilyTable, name: str, born: int) -> RedisFamilyTable:
    """The table with this family empty. Raises InvalidArgument when it was dropped."""
    entry = _known(table, name, born)
    return replace(
        table,
        families=table.families | {name: entry._replace(id=table.next_id)},
        given_up=table.given_up | {entry.id},
        next_id=table.next_id + 1,
    )


def with_default_ttl(
    table: RedisFamilyTable, name: str, born: int, ttl_ms: int | None
) -> RedisFamilyTable:
    """The table with another default for this family. Raises InvalidArgument when it was dropped."""
    entry = _known(table, name, born)
    if entry.default_ttl_ms == ttl_ms:
        return table
    changed = entry._replace(default_ttl_ms=ttl_ms)
    return replace(table, families=table.families | {name: changed})


def _known(table: RedisFamilyTable, name: str, born: int) -> RedisFamilyEntry:
    entry = table.families.get(name)
    if entry is None or entry.born != born:
        raise family_dropped(name)
    return entry
