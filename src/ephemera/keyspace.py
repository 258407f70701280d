"""The operations on a map with deadlines: argument checks and the rules about TTLs, each once.

A keyspace stands on an `Access`: the engine itself (a family), the pending writes of a transaction,
or the view of a snapshot. What it hands down was checked; what it gets back is alive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar, overload

from ephemera._keyspace import OneKey, pairs_of
from ephemera.core._counter import Addition
from ephemera.core.arguments import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    BytesLike,
    check_durable,
    count_at_least,
    encode_bound,
    encode_key,
    encode_value,
)
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import (
    FOREVER,
    AtLike,
    Lifetime,
    Seconds,
    TtlLike,
    lifetime,
    renewed,
    show,
    to_datetime,
)
from ephemera.core.keyvalue import Bulk, BulkPuts, Change, Range, Write, prefix_range
from ephemera.core.row import NEVER_MS, Row

T = TypeVar("T")
KeyT = TypeVar("KeyT", bound=BytesLike)

COUNTER_MIN = -(2**63)
COUNTER_MAX = 2**63 - 1

_NOT_GIVEN: Any = object()  # Any: stands for "no default" where a default may be of any type


class Entry(NamedTuple):
    """A value with its times: when it was written, when it dies, and the seconds left until then."""

    value: bytes
    written_at: datetime
    deadline: datetime | None
    ttl: float | None


class Keyspace(OneKey):
    """A map from keys to values in which every key may carry a deadline.

    Keys and values are bytes; `str` is encoded as UTF-8 on the way in. Where a lifetime is taken,
    `ttl` is seconds, a timedelta, `Ttl.DEFAULT` or `Ttl.NEVER`; `at` is an aware datetime or epoch
    seconds; `idle` is how long the key may go without a touch, with `ttl` or `at` as the hard cap.
    `durable` is True or False to differ from what the store was opened with.

    Every method raises InvalidArgument for arguments it cannot take, and StoreClosed after the end
    of its store, transaction or snapshot; every method that writes raises ReadOnly where nothing
    can be written, and StoreBusy when the writer lock is not free in time. A method that raises
    has changed nothing.
    """

    __slots__ = ()

    # --- one key: reading; `get` and `put` are in `_keyspace.pyx` ------------------------------

    def entry(self, key: BytesLike) -> Entry | None:
        """Value, write time, deadline and seconds left in one read; None when the key is absent.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock(0))
        >>> store.put("code", "492817", ttl=60)
        >>> entry = store.entry("code")
        >>> entry.value, entry.deadline.isoformat(), entry.ttl
        (b'492817', '1970-01-01T00:01:00+00:00', 60.0)
        """
        now_ms = self._now_ms()
        row = self._access.row(self._ref, encode_key(key), now_ms)
        return None if row is None else entry_of(row, now_ms)

    def ttl(self, key: BytesLike) -> float | None:
        """The seconds left until the deadline, None without one. Raises KeyError when absent.

        >>> import ephemera
        >>> clock = ephemera.ManualClock()
        >>> store = ephemera.open("memory://", clock=clock)
        >>> store.put("code", "492817", ttl=60)
        >>> clock.advance(15)
        >>> store.ttl("code")
        45.0
        """
        now_ms = self._now_ms()
        row = self._access.row(self._ref, encode_key(key), now_ms)
        if row is None:
            raise KeyError(key)
        return _seconds_left(row, now_ms)

    # --- one key: writing ---------------------------------------------------------------------

    def touch(
        self,
        key: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> bool:
        """Give the key a new lifetime and leave its value; whether it was there.

        Without a lifetime, a key that dies of idleness starts its idle time again; another gets the
        family's default, and where there is none its deadline stays.

        >>> import ephemera
        >>> clock = ephemera.ManualClock()
        >>> store = ephemera.open("memory://", clock=clock)
        >>> store.put("session", "{}", idle=60)
        >>> clock.advance(59)
        >>> store.touch("session"), store.ttl("session")
        (True, 60.0)
        """
        is_renewal = ttl is None and at is None and idle is None
        is_there = False

        def change(row: Row | None, now_ms: int) -> Row | None:
            nonlocal is_there
            is_there = row is not None
            # Before the row is looked at: a bad lifetime is refused for an absent key too.
            life = None if is_renewal else self._lifetime(now_ms, ttl, at, idle)
            if row is None:
                return None
            if life is None:
                life = renewed(row, now_ms, default_ttl_ms=self._default_ttl_ms())
            return _with_lifetime(row, life)

        self._update(key, change, durable)
        return is_there

    def persist(self, key: BytesLike, *, durable: bool | None = None) -> bool:
        """Take the key's deadline away and leave its value; whether the key was there.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("code", "492817", ttl=60)
        >>> store.persist("code"), store.ttl("code")
        (True, None)
        """
        is_there = False

        def change(row: Row | None, now_ms: int) -> Row | None:
            nonlocal is_there
            is_there = row is not None
            return None if row is None else _with_lifetime(row, FOREVER)

        self._update(key, change, durable)
        return is_there

    def delete(self, key: BytesLike, *, durable: bool | None = None) -> bool:
        """Take the key away; whether it was there.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("name", "ada")
        >>> store.delete("name"), store.delete("name")
        (True, False)
        """
        return self._access.delete(self._ref, encode_key(key), durable=check_durable(durable))

    @overload
    def pop(self, key: BytesLike, *, durable: bool | None = None) -> bytes: ...
    @overload
    def pop(self, key: BytesLike, default: T, *, durable: bool | None = None) -> bytes | T: ...
    def pop(
        self, key: BytesLike, default: object = _NOT_GIVEN, *, durable: bool | None = None
    ) -> object:
        """Take the key away and return its value; `default`, or else KeyError, when it is absent.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("code", "492817")
        >>> store.pop("code"), store.pop("code", None)
        (b'492817', None)
        """
        popped: bytes | None = None

        def change(row: Row | None, now_ms: int) -> None:
            nonlocal popped
            popped = None if row is None else row.value

        self._update(key, change, durable)
        if popped is not None:
            return popped
        if default is _NOT_GIVEN:
            raise KeyError(key)
        return default

    # --- one key: only if it is as believed ---------------------------------------------------

    def put_if_absent(
        self,
        key: BytesLike,
        value: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> bool:
        """Store the value unless the key is there; whether it was stored.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_if_absent("lock", "me", ttl=30), store.put_if_absent("lock", "you", ttl=30)
        (True, False)
        """
        return self.compare_and_set(key, None, value, ttl=ttl, at=at, idle=idle, durable=durable)

    def compare_and_set(
        self,
        key: BytesLike,
        expected: BytesLike | None,
        value: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> bool:
        """Store the value if the key holds `expected` (None: is absent); whether it was stored.

        Without a lifetime the key keeps the one it has.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock())
        >>> store.put("state", "draft", ttl=60)
        >>> store.compare_and_set("state", "draft", "sent"), store.ttl("state")
        (True, 60.0)
        """
        keeps_lifetime = ttl is None and at is None and idle is None
        wanted = None if expected is None else encode_value(expected)
        data = encode_value(value)
        is_stored = False

        def change(row: Row | None, now_ms: int) -> Row | None:
            nonlocal is_stored
            # Before the row is looked at: a bad lifetime is refused whatever the key holds.
            life = self._lifetime(now_ms, ttl, at, idle)
            is_stored = (None if row is None else row.value) == wanted
            if not is_stored:
                return row
            if row is not None and keeps_lifetime:
                return row._replace(value=data, written_ms=now_ms)
            return Row(data, now_ms, *life)

        self._update(key, change, durable)
        return is_stored

    def incr(
        self,
        key: BytesLike,
        by: int = 1,
        *,
        ttl: TtlLike = None,
        durable: bool | None = None,
    ) -> int:
        """Add to the number that the key holds, and return the sum; an absent key counts as 0.

        The TTL applies when the counter is created and is kept from then on. Raises InvalidArgument
        when the value is no decimal number, or the sum leaves the signed 64 bits.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.incr("hits", ttl=60), store.incr("hits", 41, ttl=60)
        (1, 42)
        """
        _check_step(by)
        if type(key) is not bytes or not key or len(key) > KEY_BYTES_MAX:
            key = encode_key(key)

        def life(now_ms: int) -> Lifetime:
            return self._lifetime(now_ms, ttl, None, None)

        if ttl is not None and not (type(ttl) is int and 0 < ttl <= 1_000_000_000):
            life(self._now_ms())  # what is not usual may be wrong, and is refused in any case
        addition = Addition(by, life=life)
        self._access.update(self._ref, key, addition, durable=check_durable(durable))
        if addition.is_no_number or addition.is_out_of_range:
            raise self._not_countable(key, addition)
        return addition.total

    def _not_countable(self, key: bytes, addition: Addition) -> InvalidArgument:
        # Read again, for this message alone: another writer may have been there since.
        held = f"the key {show(key)} holds {show(self.get(key))}"
        if addition.is_no_number:
            return InvalidArgument(
                f"{held}: incr counts on decimal digits within signed 64 bits alone; put a number first"
            )
        return InvalidArgument(
            f"{held}: the sum with {addition.by} would leave the signed 64 bits that a counter has"
        )

    # --- many keys ----------------------------------------------------------------------------

    def get_many(self, keys: Iterable[BytesLike]) -> dict[bytes, bytes]:
        """The values of those keys that are there.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"a": "1", "b": "2"})
        >>> store.get_many(["b", "absent"])
        {b'b': b'2'}
        """
        wanted = encode_keys(keys)
        now_ms = self._now_ms()
        if isinstance(self._access, Bulk):
            return self._access.get_many(self._ref, wanted, now_ms)
        get = self._access.get
        found = ((key, get(self._ref, key, now_ms)) for key in wanted)
        return {key: value for key, value in found if value is not None}

    def put_many(
        self,
        pairs: Mapping[KeyT, BytesLike] | Iterable[tuple[BytesLike, BytesLike]],
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> None:
        """Store every pair of a mapping or an iterable, or none of them.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"a": "1", "b": "2"}, ttl=60)
        >>> store.count()
        2
        """
        values = _encode_pairs(pairs)
        now_ms = self._now_ms()
        life = self._lifetime(now_ms, ttl, at, idle)
        durable = check_durable(durable)
        if isinstance(self._access, BulkPuts):
            self._access.put_many(self._ref, values, now_ms, *life, durable=durable)
            return
        writes = [Write(self._ref, key, Row(value, now_ms, *life)) for key, value in values.items()]
        self._access.write(writes, durable=durable)

    def delete_many(self, keys: Iterable[BytesLike], *, durable: bool | None = None) -> int:
        """Take all these keys away at once, or none of them; how many of them were there.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"a": "1", "b": "2"})
        >>> store.delete_many(["a", "absent"])
        1
        """
        durable = check_durable(durable)
        return sum(
            self._access.delete(self._ref, key, durable=durable) for key in encode_keys(keys)
        )

    def scan(
        self,
        prefix: BytesLike = b"",
        *,
        start: BytesLike | None = None,
        end: BytesLike | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in the order of their bytes: those with the prefix, from `start` up to
        but not including `end`. One consistent state; what dies on the way is left out.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"a:1": "x", "a:2": "y", "b:1": "z"})
        >>> list(store.scan("a:", reverse=True))
        [(b'a:2', b'y'), (b'a:1', b'x')]
        """
        count = check_limit(limit)
        return _first_of(count, pairs_of(self._rows(prefix, start, end, reverse)))

    def entries(
        self,
        prefix: BytesLike = b"",
        *,
        start: BytesLike | None = None,
        end: BytesLike | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[bytes, Entry]]:
        """What `scan` visits, with each key's times beside its value.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock())
        >>> store.put("code", "492817", ttl=60)
        >>> [(key, entry.value, entry.ttl) for key, entry in store.entries()]
        [(b'code', b'492817', 60.0)]
        """
        rows = _first_of(check_limit(limit), self._rows(prefix, start, end, reverse))
        return ((key, entry_of(row, self._now_ms())) for key, row in rows)

    def _rows(
        self, prefix: object, start: object, end: object, reverse: object
    ) -> Iterator[tuple[bytes, Row]]:
        if not isinstance(reverse, bool):
            raise InvalidArgument(f"reverse must be True or False, not {reverse!r}")
        bounds = prefix_range(
            encode_bound(prefix, name="prefix"),
            b"" if start is None else encode_bound(start, name="start"),
            None if end is None else encode_bound(end, name="end"),
            is_reverse=reverse,
        )
        return self._access.scan(self._ref, bounds, None)

    def count(self) -> int:
        """How many keys are alive.

        >>> import ephemera
        >>> clock = ephemera.ManualClock()
        >>> store = ephemera.open("memory://", clock=clock)
        >>> store.put("a", "1")
        >>> store.put("b", "2", ttl=60)
        >>> clock.advance(60)
        >>> store.count()
        1
        """
        return self._access.count(self._ref, self._now_ms())

    def next_deadlines(self, limit: int) -> list[tuple[bytes, datetime]]:
        """The keys that die next, at most `limit` of them, with their deadlines; the earliest first.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock(0))
        >>> store.put("later", "1", ttl=60)
        >>> store.put("sooner", "2", ttl=30)
        >>> store.put("never", "3")
        >>> [(key, deadline.isoformat()) for key, deadline in store.next_deadlines(1)]
        [(b'sooner', '1970-01-01T00:00:30+00:00')]
        """
        count_at_least(limit, 0, name="limit")
        rows = self._access.scan(self._ref, Range(), self._now_ms())
        mortal = ((row.deadline_ms, key) for key, row in rows if row.deadline_ms != NEVER_MS)
        return [(key, to_datetime(instant)) for instant, key in heapq.nsmallest(limit, mortal)]

    def clear(self) -> None:
        """Take every key away.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("name", "ada")
        >>> store.clear()
        >>> store.count()
        0
        """
        self._access.clear(self._ref)

    # --- the same as a mapping ----------------------------------------------------------------

    def keys(self) -> Iterator[bytes]:
        """The keys in order.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"b": "2", "a": "1"})
        >>> list(store.keys())
        [b'a', b'b']
        """
        return (key for key, _ in self.scan())

    def values(self) -> Iterator[bytes]:
        """The values in the order of their keys.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"b": "2", "a": "1"})
        >>> list(store.values())
        [b'1', b'2']
        """
        return (value for _, value in self.scan())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """The pairs in the order of their keys: `scan` of everything.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put_many({"b": "2", "a": "1"})
        >>> dict(store.items())
        {b'a': b'1', b'b': b'2'}
        """
        return self.scan()

    def __getitem__(self, key: BytesLike) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: BytesLike, value: BytesLike) -> None:
        self.put(key, value)

    def __delitem__(self, key: BytesLike) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: BytesLike) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Always true: asking a store whether it is there must not count its keys."""
        return True

    # --- shared steps -------------------------------------------------------------------------

    def _update(self, key: BytesLike, change: Change, durable: bool | None) -> None:
        self._access.update(self._ref, encode_key(key), change, durable=check_durable(durable))

    def _lifetime(self, now_ms: int, ttl: object, at: object, idle: object) -> Lifetime:
        return lifetime(now_ms, ttl=ttl, at=at, idle=idle, default_ttl_ms=self._default_ttl_ms())

    def _default_ttl_ms(self) -> int | None:
        own_ms = self._ref.default_ttl_ms
        return self._store_ttl_ms if own_ms is None else own_ms or None


def _first_of(count: int | None, scanned: Iterator[T]) -> Iterator[T]:
    return scanned if count is None else islice(scanned, count)


def check_limit(limit: object) -> int | None:
    """How many pairs a scan yields at most, or None for all."""
    return None if limit is None else count_at_least(limit, 0, name="limit")


def encode_keys(keys: Iterable[BytesLike]) -> list[bytes]:
    """The bytes of several keys, each once. Raises InvalidArgument when one of them is none."""
    if isinstance(keys, (bytes, bytearray, memoryview, str)) or not isinstance(keys, Iterable):
        raise InvalidArgument(f"keys must be an iterable of keys, not {type(keys).__name__}")
    return list(dict.fromkeys(encode_key(key) for key in keys))


def _encode_pairs(
    pairs: Mapping[KeyT, BytesLike] | Iterable[tuple[BytesLike, BytesLike]],
) -> dict[bytes, bytes]:
    if isinstance(pairs, (bytes, bytearray, memoryview, str)) or not isinstance(pairs, Iterable):
        raise InvalidArgument(
            f"pairs must be a mapping or an iterable of (key, value), not {type(pairs).__name__}"
        )
    encoded: dict[bytes, bytes] = {}
    for pair in pairs.items() if isinstance(pairs, Mapping) else pairs:
        # The usual pair, looked at in place. All others, and all that is wrong, go the long way below.
        if type(pair) is tuple and len(pair) == 2:
            key, value = pair
            if (
                type(key) is bytes
                and type(value) is bytes
                and 0 < len(key) <= KEY_BYTES_MAX
                and len(value) <= VALUE_BYTES_MAX
            ):
                encoded[key] = value
                continue
        key, value = _encode_pair(pair)
        encoded[key] = value
    return encoded


def _encode_pair(pair: object) -> tuple[bytes, bytes]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InvalidArgument(f"each pair must be a (key, value), not {type(pair).__name__}")
    return encode_key(pair[0]), encode_value(pair[1])


def _with_lifetime(row: Row, life: Lifetime) -> Row:
    """The same row object when nothing changes, so that nothing is written."""
    if (row.deadline_ms, row.idle_ms, row.hard_ms) == life:
        return row
    return Row(row.value, row.written_ms, *life)


def entry_of(row: Row, now_ms: int) -> Entry:
    """A row as its reader sees it at this instant."""
    return Entry(
        row.value,
        to_datetime(row.written_ms),
        None if row.deadline_ms == NEVER_MS else to_datetime(row.deadline_ms),
        _seconds_left(row, now_ms),
    )


def _seconds_left(row: Row, now_ms: int) -> float | None:
    return None if row.deadline_ms == NEVER_MS else (row.deadline_ms - now_ms) / 1000


def _check_step(by: object) -> None:
    if not isinstance(by, int) or isinstance(by, bool) or not COUNTER_MIN <= by <= COUNTER_MAX:
        raise InvalidArgument(f"by must be a whole number of signed 64 bits, not {show(by)}")
