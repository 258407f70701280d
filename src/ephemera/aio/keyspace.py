"""The operations of `ephemera.keyspace` as coroutines.

Each one is the plain method of the same name and arguments, run where the runner decides. Checks and
rules are there and nowhere else; `tests/aio` holds the two against each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar, overload

from ephemera import keyspace as plain
from ephemera.aio.runners import CallRunner
from ephemera.core.arguments import BytesLike
from ephemera.core.expiry import AtLike, Seconds, TtlLike, is_dead
from ephemera.core.row import Row
from ephemera.keyspace import Entry, KeyT, check_limit, entry_of

T = TypeVar("T")

CHUNK_ROWS = 128
CHUNK_BYTES = 1 << 20
"""A scan reads so much at once, and lets other tasks run before it reads on."""

_NOT_GIVEN: Any = object()  # Any: stands for "no default" where a default may be of any type


class Keyspace:
    """A map from keys to values in which every key may carry a deadline, as coroutines.

    The arguments, the results and the errors are those of the plain methods: see `ephemera.Store`.
    """

    def __init__(
        self, inner: plain.Keyspace, runner: CallRunner, must_be_open: Callable[[], object]
    ) -> None:
        self._inner = inner
        self._runner = runner
        self._must_be_open = must_be_open

    # --- one key: reading ---------------------------------------------------------------------

    @overload
    async def get(
        self, key: BytesLike, default: None = None, max_age: Seconds | None = None
    ) -> bytes | None: ...
    @overload
    async def get(
        self, key: BytesLike, default: T, max_age: Seconds | None = None
    ) -> bytes | T: ...
    async def get(
        self, key: BytesLike, default: object = None, max_age: Seconds | None = None
    ) -> object:
        """The value, or `default` when the key is absent, dead, or written longer ago than `max_age`."""
        if self._runner.reads_here:  # as `read` does, without its cost: this is the hot path
            if self._runner.is_due():
                await asyncio.sleep(0)
            return self._inner.get(key, default, max_age)
        return await self._runner.call(self._inner.get, key, default, max_age)

    async def entry(self, key: BytesLike) -> Entry | None:
        """Value, write time, deadline and seconds left in one read; None when the key is absent."""
        return await self._runner.read(self._inner.entry, key)

    async def ttl(self, key: BytesLike) -> float | None:
        """The seconds left until the deadline, None without one. Raises KeyError when absent."""
        return await self._runner.read(self._inner.ttl, key)

    # --- one key: writing ---------------------------------------------------------------------

    async def put(
        self,
        key: BytesLike,
        value: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> None:
        """Store the value. Without a lifetime the key gets the family's default, or is permanent."""
        await self._runner.write_key(
            self._inner.put, key, value, ttl=ttl, at=at, idle=idle, durable=durable
        )

    async def touch(
        self,
        key: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> bool:
        """Give the key a new lifetime and leave its value; whether it was there."""
        return await self._runner.write_key(
            self._inner.touch, key, ttl=ttl, at=at, idle=idle, durable=durable
        )

    async def persist(self, key: BytesLike, *, durable: bool | None = None) -> bool:
        """Take the key's deadline away and leave its value; whether the key was there."""
        return await self._runner.write_key(self._inner.persist, key, durable=durable)

    async def delete(self, key: BytesLike, *, durable: bool | None = None) -> bool:
        """Take the key away; whether it was there."""
        return await self._runner.write_key(self._inner.delete, key, durable=durable)

    @overload
    async def pop(self, key: BytesLike, *, durable: bool | None = None) -> bytes: ...
    @overload
    async def pop(
        self, key: BytesLike, default: T, *, durable: bool | None = None
    ) -> bytes | T: ...
    async def pop(
        self, key: BytesLike, default: object = _NOT_GIVEN, *, durable: bool | None = None
    ) -> object:
        """Take the key away and return its value; `default`, or else KeyError, when it is absent."""
        if default is _NOT_GIVEN:
            return await self._runner.write_key(self._inner.pop, key, durable=durable)
        return await self._runner.write_key(self._inner.pop, key, default, durable=durable)

    # --- one key: only if it is as believed ---------------------------------------------------

    async def put_if_absent(
        self,
        key: BytesLike,
        value: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> bool:
        """Store the value unless the key is there; whether it was stored."""
        return await self._runner.write_key(
            self._inner.put_if_absent, key, value, ttl=ttl, at=at, idle=idle, durable=durable
        )

    async def compare_and_set(
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
        """Store the value if the key holds `expected` (None: is absent); whether it was stored."""
        return await self._runner.write_key(
            self._inner.compare_and_set,
            key,
            expected,
            value,
            ttl=ttl,
            at=at,
            idle=idle,
            durable=durable,
        )

    async def incr(
        self, key: BytesLike, by: int = 1, *, ttl: TtlLike = None, durable: bool | None = None
    ) -> int:
        """Add to the number that the key holds, and return the sum; an absent key counts as 0."""
        return await self._runner.write_key(self._inner.incr, key, by, ttl=ttl, durable=durable)

    # --- many keys ----------------------------------------------------------------------------

    async def get_many(self, keys: Iterable[BytesLike]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        return await self._runner.read(self._inner.get_many, keys)

    async def put_many(
        self,
        pairs: Mapping[KeyT, BytesLike] | Iterable[tuple[BytesLike, BytesLike]],
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> None:
        """Store every pair of a mapping or an iterable, or none of them."""
        await self._runner.write(
            self._inner.put_many, pairs, ttl=ttl, at=at, idle=idle, durable=durable
        )

    async def delete_many(self, keys: Iterable[BytesLike], *, durable: bool | None = None) -> int:
        """Take all these keys away at once, or none of them; how many of them were there."""
        return await self._runner.write(self._inner.delete_many, keys, durable=durable)

    def scan(
        self,
        prefix: BytesLike = b"",
        *,
        start: BytesLike | None = None,
        end: BytesLike | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Keys and values in the order of their bytes: those with the prefix, from `start` up to
        but not including `end`. It begins with its first step: the state is of then, and so are errors."""
        return self._walk(_pair, prefix, start, end, reverse, limit)

    def entries(
        self,
        prefix: BytesLike = b"",
        *,
        start: BytesLike | None = None,
        end: BytesLike | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[bytes, Entry]]:
        """What `scan` visits, with each key's times beside its value."""
        return self._walk(_pair_with_times, prefix, start, end, reverse, limit)

    async def _walk(
        self,
        show: Callable[[bytes, Row, int], T],
        prefix: BytesLike,
        start: BytesLike | None,
        end: BytesLike | None,
        reverse: bool,
        limit: int | None,
    ) -> AsyncIterator[T]:
        left = check_limit(limit)
        runner = self._runner.in_order()
        rows = await runner.read(self._inner._rows, prefix, start, end, reverse)
        try:
            while left != 0 and (chunk := await runner.read(_chunk, rows, left)):
                for key, row in chunk:
                    now_ms = self._now_ms()
                    # What was read a while ago may have died since.
                    if not is_dead(row.deadline_ms, now_ms):
                        yield show(key, row, now_ms)
                        left = None if left is None else left - 1
                await asyncio.sleep(0)
            self._now_ms()
        finally:
            close = getattr(rows, "close", None)
            if close is not None:
                await runner.read(close)

    def _now_ms(self) -> int:
        """The instant that counts. Raises StoreClosed when there is none any more."""
        self._must_be_open()
        return self._inner._now_ms()

    async def count(self) -> int:
        """How many keys are alive."""
        return await self._runner.call(self._inner.count)

    async def next_deadlines(self, limit: int) -> list[tuple[bytes, datetime]]:
        """The keys that die next, at most `limit` of them, with their deadlines; the earliest first."""
        return await self._runner.call(self._inner.next_deadlines, limit)

    async def clear(self) -> None:
        """Take every key away."""
        await self._runner.call(self._inner.clear)

    # --- the same as a mapping ----------------------------------------------------------------

    def keys(self) -> AsyncIterator[bytes]:
        """The keys in order."""
        return self._walk(_key, b"", None, None, False, None)

    def values(self) -> AsyncIterator[bytes]:
        """The values in the order of their keys."""
        return self._walk(_value, b"", None, None, False, None)

    def items(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """The pairs in the order of their keys: `scan` of everything."""
        return self.scan()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.keys()


def _chunk(rows: Iterator[tuple[bytes, Row]], rows_max: int | None) -> list[tuple[bytes, Row]]:
    """The next rows, bounded by number and size; none at the end."""
    chunk: list[tuple[bytes, Row]] = []
    size = 0
    for pair in islice(rows, CHUNK_ROWS if rows_max is None else min(CHUNK_ROWS, rows_max)):
        chunk.append(pair)
        size += len(pair[1].value)
        if size >= CHUNK_BYTES:
            break
    return chunk


def _key(key: bytes, row: Row, now_ms: int) -> bytes:
    return key


def _value(key: bytes, row: Row, now_ms: int) -> bytes:
    return row.value


def _pair(key: bytes, row: Row, now_ms: int) -> tuple[bytes, bytes]:
    return key, row.value


def _pair_with_times(key: bytes, row: Row, now_ms: int) -> tuple[bytes, Entry]:
    return key, entry_of(row, now_ms)
