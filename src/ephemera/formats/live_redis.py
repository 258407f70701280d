"""A running Redis (or Valkey, or Ephemera's own server) as a source: SCAN, then DUMP and the deadline.

SCAN yields every key that is there from beginning to end, and goes on from a cursor after an
interruption: where a file is given for it, the cursor of the last page that is safely stored lies there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument, UnsupportedOperation
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats import rdb
from ephemera.formats.databases import family_of
from ephemera.formats.files import DamagedFile, replacing
from ephemera.formats.omissions import Omissions
from ephemera.formats.transfer import Record

try:
    import redis
except ImportError as error:
    raise UnsupportedOperation(
        "to read from a running Redis, install its client: pip install 'ephemera-kv[redis]'"
    ) from error

PAGE_KEYS = 1_000
VERSION_OF_INSTANTS = 7
"""From here on a server tells a deadline as an instant, exactly; before, only the time left."""
PERMANENT = -1


class LiveRedis:
    """The strings of one database, or with None of all databases, of the server at `place`.

    `connect` returns a client of redis-py for the database of a number.
    """

    def __init__(
        self,
        connect: Callable[[int], redis.Redis],
        *,
        place: str,
        database: int | None,
        clock: Clock,
        cursor_path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.skipped = Omissions()
        self.failed = Omissions()
        self.damage: DamagedFile | None = None
        self.unread_bytes = 0
        self._connect = connect
        self._database_asked = database
        self._clock = clock
        self._cursor_path = None if cursor_path is None else Path(cursor_path)
        self._address = place
        self._databases: list[int] = []
        self._at = (0, 0)
        self._is_finished = False
        self._done = 0
        self._total: int | None = None

    def progress(self) -> tuple[int, int | None]:
        return self._done, self._total

    def prepare(self, tick: Callable[[], None]) -> None:
        """Connect, and find where to go on. Raises InvalidArgument when there is no such server."""
        try:
            with closing(self._client(self._database_asked or 0)) as client:
                keys = {
                    int(name[2:]): held["keys"] for name, held in client.info("keyspace").items()
                }
                version = str(client.info("server")["redis_version"])
        except (redis.RedisError, ValueError) as error:
            raise InvalidArgument(f"no Redis can be read at {self._address}: {error}") from None
        self._tells_instants = int(version.split(".")[0]) >= VERSION_OF_INSTANTS
        asked = self._database_asked
        self._databases = sorted(keys) if asked is None else [asked]
        self._total = sum(keys.get(number, 0) for number in self._databases)
        self._resume()
        tick()

    def __iter__(self) -> Iterator[Record]:
        try:
            for number in self._databases:
                if number >= self._at[0]:
                    yield from self._database(number)
        except redis.RedisError as error:
            raise InvalidArgument(f"{self._address} was lost: {error}") from None
        self._is_finished = True

    def landed(self) -> None:
        """Note where to go on; at the end there is nothing left to note."""
        if self._cursor_path is None:
            return
        if self._is_finished:
            self._cursor_path.unlink(missing_ok=True)
            return
        number, cursor = self._at
        noted = {"server": self._address, "database": number, "cursor": str(cursor)}
        with replacing(self._cursor_path) as file:
            file.write(json.dumps(noted).encode())

    def _resume(self) -> None:
        if self._cursor_path is None or not self._cursor_path.exists():
            return
        try:
            noted = json.loads(self._cursor_path.read_bytes())
            server, number, cursor = noted["server"], noted["database"], int(noted["cursor"])
        except (KeyError, TypeError, ValueError):
            raise DamagedFile(self._cursor_path, None, "no cursor was kept in it") from None
        if server != self._address or number not in self._databases:
            raise InvalidArgument(
                f"{self._cursor_path} is about {server}, database {number}; remove it to begin anew"
            )
        self._at = (number, cursor)

    def _database(self, number: int) -> Iterator[Record]:
        # Where a page is being handed out, its own cursor is the one to go on from.
        cursor = self._at[1] if number == self._at[0] else 0
        with closing(self._client(number)) as client:
            is_first = True
            while is_first or cursor:
                is_first = False
                self._at = (number, cursor)
                cursor, keys = client.scan(cursor, count=PAGE_KEYS)
                yield from self._page(client, number, keys)

    def _page(self, client: Any, number: int, keys: list[bytes]) -> Iterator[Record]:
        """Any: the client's methods are typed for both of its kinds, awaited and not."""
        with client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.type(key)
            kinds = [kind.decode() for kind in pipeline.execute()]
            self._done += len(keys)
            strings = [key for key, kind in zip(keys, kinds, strict=True) if kind == "string"]
            for key, kind in zip(keys, kinds, strict=True):
                if kind not in ("string", "none"):
                    self.skipped.add(kind, key)
            for key in strings:
                pipeline.dump(key)
                pipeline.execute_command("PEXPIRETIME" if self._tells_instants else "PTTL", key)
            now_ms = self._clock.now_ms()
            replies = pipeline.execute(raise_on_error=False)
        for key, payload, told in zip(strings, replies[::2], replies[1::2], strict=True):
            row = self._row(key, payload, told, now_ms)
            if row is not None:
                yield Record(family_of(number), key, row)

    def _row(self, key: bytes, payload: object, told: object, now_ms: int) -> Row | None:
        """None for a key that died or went meanwhile, or cannot be read."""
        if payload is None or (isinstance(told, int) and told < PERMANENT):
            return None
        if not isinstance(payload, bytes) or not isinstance(told, int):
            self.failed.add("keys that the server refuses", key)
            return None
        try:
            value = rdb.load(payload)
        except ValueError:
            self.failed.add("values in an unknown format", key)
            return None
        if told == PERMANENT:
            return Row(value, now_ms, NEVER_MS)
        return Row(value, now_ms, told if self._tells_instants else now_ms + told)

    def _client(self, number: int) -> Any:  # Any: see `_page`
        return self._connect(number)
