"""A database: the keyspace of one number, with deadlines in milliseconds and writes that are told.

Every write of every command goes through the methods here, so that counting it and telling who
listens stands in one place. Reads go to the store as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ephemera import Family, InvalidArgument, Ttl
from ephemera.core._counter import Addition
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import KeyValue
from ephemera.server._direct import Keys
from ephemera.server.events import (
    DEL,
    EXPIRE,
    EXPIRED,
    FLUSHED,
    INCRBY,
    KEYMISS,
    NEW,
    PERSIST,
    SET,
    Event,
)

if TYPE_CHECKING:
    from ephemera.server.server import Server

ABSENT = -2
PERMANENT = -1


class StoredValue(NamedTuple):
    """What a key holds: the value, its deadline (or PERMANENT), and when it was written."""

    value: bytes
    deadline_ms: int
    written_ms: int


class MovedFrom(NamedTuple):
    """Where a key goes away because another takes its value, and the event of that."""

    database: Database
    key: bytes
    event: Event


class Database(Keys):
    """One of the databases: `space` on an engine, or inside a transaction, with none.

    `get`, `peek`, `put` and `add` stand in `_direct.pyx`, for speed.
    """

    __slots__ = ("now_ms", "scan")

    def __init__(self, server: Server, number: int, space: Family, engine: KeyValue | None) -> None:
        super().__init__(server, number, space, engine)
        self.scan = space.scan
        # A transaction judges deadlines by one instant: a deadline reckoned from a later one would
        # show a TTL larger than the one that was given.
        self.now_ms = space._now_ms

    # --- reading ------------------------------------------------------------------------------

    def has(self, key: bytes) -> bool:
        return self.get(key) is not None

    def count_read(self, key: bytes, *, is_hit: bool, tells_miss: bool = True) -> None:
        """Count a question about a key as `get` counts reading it."""
        if is_hit:
            self.counters.hits += 1
            return
        self.counters.misses += 1
        if tells_miss and self.counters.tells_misses:
            self.counters.tell(self.number, key, KEYMISS)

    def ttl_ms(self, key: bytes) -> int:
        """The milliseconds left, or ABSENT, or PERMANENT."""
        try:
            seconds = self.space.ttl(key)
        except KeyError:
            return ABSENT
        return PERMANENT if seconds is None else round(seconds * 1000)

    def deadline_ms(self, key: bytes) -> int:
        """The instant of death, or ABSENT, or PERMANENT."""
        stored = self.stored(key)
        return ABSENT if stored is None else stored.deadline_ms

    def stored(self, key: bytes) -> StoredValue | None:
        """Value and times in one read, or None."""
        entry = self.space.entry(key)
        if entry is None:
            return None
        deadline_ms = PERMANENT if entry.deadline is None else _milliseconds(entry.deadline)
        return StoredValue(entry.value, deadline_ms, _milliseconds(entry.written_at))

    def all_stored(self) -> Iterator[tuple[bytes, StoredValue]]:
        """Every key with what it holds."""
        for key, _ in self.scan():
            stored = self.stored(key)
            if stored is not None:
                yield key, stored

    def count(self) -> int:
        return self.space.count()

    # --- writing ------------------------------------------------------------------------------

    def put_by_rule(self, key: bytes, value: bytes, ttl_ms: int | None) -> None:
        """Store what `put` does not give to the engine at once."""
        if ttl_ms is None:
            self._put(key, value)
        else:
            self._put(key, value, ttl=ttl_ms / 1000)

    def add_by_rule(self, key: bytes, addition: Addition) -> None:
        """Add where `add` does not leave it to the engine."""
        old = self.peek(key)
        digits = addition.on(old)
        if digits is not None:
            self.replace(key, old, digits, INCRBY)

    def put_until(self, key: bytes, value: bytes, deadline_ms: int, event: Event = SET) -> None:
        """Store the value up to an instant; where that has passed, it is told of and gone at once."""
        is_new = self._is_new(key)
        is_alive = self._put_at(key, value, deadline_ms)
        if not is_alive:
            self.space.delete(key)
        if is_new:
            self.counters.tell(self.number, key, NEW)
        self._changed(key, event)
        self._changed(key, EXPIRE)
        if not is_alive:
            self.counters.changes += 1
            self.counters.tell(self.number, key, EXPIRED)

    def place(
        self, key: bytes, stored: StoredValue, event: Event, *, source: MovedFrom | None = None
    ) -> None:
        """Store what another key or store held, its deadline included; a source goes.

        The key is new even where another one was replaced, and told of before the source, as in Redis.
        """
        is_alive = self._put_at(key, stored.value, stored.deadline_ms)
        if is_alive and self.counters.tells_new_keys:
            self.counters.tell(self.number, key, NEW)
        if source is not None:
            source.database.delete(source.key, source.event)
        if is_alive:
            self._changed(key, event)
        else:
            self.delete(key)

    def _put_at(self, key: bytes, value: bytes, deadline_ms: int) -> bool:
        """Store it and tell nobody; whether it was stored, which it is not where its time is over."""
        if deadline_ms == PERMANENT:
            self.space.put(key, value, ttl=Ttl.NEVER)
            return True
        try:
            self.space.put(key, value, at=deadline_ms / 1000)
        except InvalidArgument:
            if not is_dead(deadline_ms, self.now_ms()):
                raise
            return False
        return True

    def replace(self, key: bytes, old: bytes | None, value: bytes, event: Event = SET) -> None:
        """Store the value in place of the one just read (None: there was none); the deadline stays."""
        if old is not None and self.ttl_ms(key) == PERMANENT:
            self._put(key, value, ttl=Ttl.NEVER)  # the same as below, and much quicker
        elif old is None or not self.space.compare_and_set(key, old, value):
            self._put(key, value)  # it was not there, or died since it was read
        self._changed(key, event)

    def put_many(self, pairs: dict[bytes, bytes]) -> None:
        """Store all pairs, or none."""
        is_new = [self._is_new(key) for key in pairs]
        self.space.put_many(pairs)
        for key, tells_new in zip(pairs, is_new, strict=True):
            if tells_new:
                self.counters.tell(self.number, key, NEW)
            self._changed(key, SET)

    def expire(self, key: bytes, deadline_ms: int) -> bool:
        """Let the key live until an instant, and no longer if that has passed; whether it was there."""
        if is_dead(deadline_ms, self.now_ms()):
            return self.delete(key)
        try:
            is_there = self.space.touch(key, at=deadline_ms / 1000)
        except InvalidArgument:
            if not is_dead(deadline_ms, self.now_ms()):
                raise
            return self.delete(key)
        if is_there:
            self._changed(key, EXPIRE)
        return is_there

    def persist(self, key: bytes) -> bool:
        """Take the deadline away; whether there was one."""
        has_deadline = self.ttl_ms(key) >= 0 and self.space.persist(key)
        if has_deadline:
            self._changed(key, PERSIST)
        return has_deadline

    def delete(self, key: bytes, event: Event = DEL) -> bool:
        is_there = self.space.delete(key)
        if is_there:
            self._changed(key, event)
        return is_there

    def delete_many(self, keys: Iterable[bytes]) -> int:
        """Take all these keys away, or none; how many were there."""
        found = [key for key in dict.fromkeys(keys) if self.peek(key) is not None]
        self.space.delete_many(found)
        for key in found:
            self._changed(key, DEL)
        return len(found)

    def clear(self) -> None:
        """Take every key away."""
        if next(self.scan(limit=1), None) is not None:
            self.space.clear()
            self._changed(None, FLUSHED)

    def refill(self, rows: Iterable[tuple[bytes, StoredValue]]) -> None:
        """HeldLock these keys and no others."""
        self.space.clear()
        for key, stored in rows:
            self._put_at(key, stored.value, stored.deadline_ms)
        self._changed(None, FLUSHED)

    def _put(self, key: bytes, value: bytes, **life: Any) -> None:  # Any: as `space.put`
        is_new = self._is_new(key)
        self.space.put(key, value, **life)
        if is_new:
            self.counters.tell(self.number, key, NEW)

    def _is_new(self, key: bytes) -> bool:
        """Whether writing this key has to be told as the making of it."""
        return self.counters.tells_new_keys and self.peek(key) is None

    def _changed(self, key: bytes | None, event: Event) -> None:
        self.counters.changes += 1
        if self.counters.listeners:
            self.counters.tell(self.number, key, event)


def _milliseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
