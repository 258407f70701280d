"""SlateDB, an LSM tree on object storage: here on a directory, through its asynchronous binding."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from bench.peers.base import TTL_S, Mode, Operations, Pairs, Peer

BATCH_KEYS = 10_000
SCAN_KEYS = 512

T = TypeVar("T")


class Slatedb(Peer):
    """Every operation is awaited by itself. What is written is durable when the next flush has ended,
    a tenth of a second later; nobody waits for that, since a flush for each put would be all there is
    to measure."""

    name = "slatedb"
    package = "slatedb"
    killed = "at most the last flush interval (0.1 s)"
    unpowered = "what the system had not yet written back"
    puts_share = 0.02
    gets_share = 0.02

    def open(self, mode: Mode = "default") -> None:
        self._api = import_module("slatedb.uniffi")
        self._loop = asyncio.new_event_loop()
        place = str(self.directory.absolute()).lstrip("/")
        builder = self._api.DbBuilder(place, self._api.ObjectStore.resolve("file:///"))
        self._db = self._run(builder.build())

    def close(self) -> None:
        self._run(self._db.shutdown())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio sends and throws
        return self._loop.run_until_complete(work)

    def _options(self, ttl_s: float | None) -> Any:  # Any: the binding has no types
        ttl = self._api.Ttl
        life = ttl.NO_EXPIRY() if ttl_s is None else ttl.EXPIRE_AFTER_MILLIS(round(ttl_s * 1000))
        return self._api.PutOptions(ttl=life)

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        options, rest = self._options(ttl_s), iter(pairs)
        while part := list(islice(rest, BATCH_KEYS)):
            batch = self._api.WriteBatch()
            for key, value in part:
                batch.put_with_options(key, value, options)
            self._run(self._db.write(batch))
        # The last of it too: whoever kills the process next finds what was loaded.
        self._run(self._db.flush())

    def move_to_base(self) -> None:
        kind = self._api.FlushType.MEM_TABLE
        self._run(self._db.flush_with_options(self._api.FlushOptions(flush_type=kind)))

    def get(self, key: bytes) -> object:
        return self._run(self._db.get(key))

    def get_all(self, keys: Sequence[bytes]) -> None:
        async def read() -> None:
            for key in keys:
                await self._db.get(key)

        self._run(read())

    def put_all(self, keys: Sequence[bytes], value: bytes) -> None:
        async def write() -> None:
            for key in keys:
                await self._db.put(key, value)

        self._run(write())

    def put_ttl(self, key: bytes, value: bytes, ttl_s: float) -> None:
        options, write_options = self._options(ttl_s), self._api.WriteOptions()
        self._run(self._db.put_with_options(key, value, options, write_options))

    def put_ttl_all(self, keys: Sequence[bytes], value: bytes) -> None:
        options, write_options = self._options(TTL_S), self._api.WriteOptions()

        async def write() -> None:
            for key in keys:
                await self._db.put_with_options(key, value, options, write_options)

        self._run(write())

    def mix_all(self, operations: Operations, value: bytes) -> None:
        options, write_options = self._options(TTL_S), self._api.WriteOptions()

        async def work() -> None:
            for key, is_written in operations:
                if is_written:
                    await self._db.put_with_options(key, value, options, write_options)
                else:
                    await self._db.get(key)

        self._run(work())

    def scan(self) -> Iterator[object]:
        everything = self._api.KeyRange(
            start=None, start_inclusive=False, end=None, end_inclusive=False
        )
        found = self._run(self._db.scan(everything))
        while part := self._run(found.next_batch(SCAN_KEYS)):
            yield from part
