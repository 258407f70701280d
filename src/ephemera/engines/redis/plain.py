"""The engine on plain values: what any client of Redis stores, is read here, and the other way round.

Redis alone decides what is dead, by its own clock, and the whole database is one family. There are no write
times and no idle times. So a program can share its keys, or leave embedded mode for `ephemera serve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument, UnsupportedOperation
from ephemera.core.keyvalue import Capability, CheckReport, unsupported
from ephemera.core.options import Options
from ephemera.engines.redis.families import DEFAULT_ID, RedisFamily, RedisFamilyEntry
from ephemera.engines.redis.layout import Plain
from ephemera.engines.redis.operations import Operations
from ephemera.engines.redis.routing import Request
from ephemera.engines.redis.settings import read_url


class PlainEngine(Operations[Plain]):
    """A database of Redis as it is, with `?values=plain`."""

    def __init__(self, url: str, options: Options) -> None:
        settings = read_url(url)
        if options.clock is not None:
            raise InvalidArgument(
                "with values=plain Redis alone tells the time: leave the clock away"
            )
        super().__init__(settings, options, Plain())
        try:
            self.clock: Clock = self.time_of_day()
        except BaseException:
            self.router.close()
            raise
        self._family = RedisFamily(DEFAULT_FAMILY, RedisFamilyEntry(DEFAULT_ID, DEFAULT_ID, None))

    def native(self, family: RedisFamily, key: bytes) -> bytes:
        return key

    def named(self, family: RedisFamily) -> Iterator[tuple[bytes, bytes]]:
        return ((name, name) for name in sorted(self.walk.names()))

    def count(self, family: RedisFamily, now_ms: int) -> int:
        self.check_open()
        return len(self.walk.names())

    def delete_many(
        self, family: RedisFamily, keys: Sequence[bytes], *, durable: bool | None
    ) -> int:
        self.check_writable()
        if not keys:
            return 0
        groups = [(key,) for key in keys] if self.settings.is_cluster else [tuple(keys)]
        requests = [
            Request(group[0], ((b"UNLINK", *group),), is_write=True, is_repeatable=False)
            for group in groups
        ]
        return sum(count for (count,) in self.router.run(requests))

    def begin(self) -> NoReturn:
        self.check_not_read_only()
        raise unsupported(
            f"{self.name} (values=plain)",
            Capability.TRANSACTIONS,
            "others change deadlines unseen; compare_and_set one key, or leave values=plain away",
        )

    # --- the one family -----------------------------------------------------------------------

    def family(self, name: str, *, create: bool) -> RedisFamily | None:
        self.check_open()
        if create and name != DEFAULT_FAMILY:
            self._refuse_families()
        return self._family if name == DEFAULT_FAMILY else None

    def families(self) -> list[str]:
        self.check_open()
        return [DEFAULT_FAMILY]

    def set_default_ttl(self, family: RedisFamily, ttl_ms: int | None) -> None:
        self.check_writable()
        self._refuse_families()

    def drop_family(self, name: str) -> bool:
        self.check_writable()
        return False

    def clear(self, family: RedisFamily) -> None:
        """Take every string of the database away, some at a time."""
        self.check_writable()
        self.walk.unlink(list(self.walk.names()))

    def _refuse_families(self) -> NoReturn:
        raise UnsupportedOperation(
            "redis with values=plain has the one family 'default', without a TTL of its own: "
            "open another database (redis://host/1), or the store without values=plain"
        )

    # --- housekeeping -------------------------------------------------------------------------

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        """Redis removes the dead by itself: there are none to be found."""
        self.check_writable()
        return 0

    def stats(self) -> dict[str, Any]:  # Any: numbers and names
        self.check_open()
        return {
            "engine": self.name,
            "families": 1,
            "servers": len(self.router.nodes()),
            "retries": self.router.retries,
        }

    def check(self) -> CheckReport:
        self.check_open()
        return CheckReport(len(self.walk.names()), 0, 0, ())

    def repair(self) -> int:
        self.check_writable()
        return 0
