"""Ephemera itself: the default store, the same with a sync per commit, and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from bench.peers.base import TTL_S, Mode, Operations, Pairs, Peer


class Ephemera(Peer):
    name = "ephemera"
    package = "ephemera"
    killed = "nothing"
    unpowered = "at most the last second"
    has_tiers = True
    options: ClassVar[dict[str, Any]] = {}  # Any: keyword arguments of ephemera.open

    def open(self, mode: Mode = "default") -> None:
        import ephemera

        self._clock = ephemera.ManualClock() if mode == "purge" else None
        maintenance = "background" if mode == "default" else "manual"
        self._store = ephemera.open(
            self._url(), clock=self._clock, maintenance=maintenance, **self.options
        )
        self.get = self._store.get
        self.put = self._store.put

    def _url(self) -> str:
        return str(self.directory / "store.eph")

    def close(self) -> None:
        self._store.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        put = self._store.put
        for key, value in pairs:
            put(key, value, ttl=ttl_s)

    def move_to_base(self) -> None:
        self._store.checkpoint()

    def pass_time(self, seconds: float) -> None:
        if self._clock is None:
            super().pass_time(seconds)
        else:
            self._clock.advance(seconds)

    def purge(self) -> int:
        return self._store.purge_expired()

    def scan(self) -> Iterable[object]:
        return self._store.scan()

    def on_expire(self, callback: Callable[[int], object]) -> None:
        self._store.on_expire(lambda expired: callback(expired.deadline_ms))

    def put_ttl_all(self, keys: Sequence[bytes], value: bytes) -> None:
        put, ttl_s = self._store.put, TTL_S
        for key in keys:
            put(key, value, ttl=ttl_s)

    def touch_all(self, keys: Sequence[bytes]) -> None:
        touch, ttl_s = self._store.touch, TTL_S
        for key in keys:
            touch(key, ttl=ttl_s)

    def mix_all(self, operations: Operations, value: bytes) -> None:
        get, put, ttl_s = self._store.get, self._store.put, TTL_S
        for key, is_written in operations:
            if is_written:
                put(key, value, ttl=ttl_s)
            else:
                get(key)


class EphemeraCommit(Ephemera):
    name = "ephemera-commit"
    unpowered = "nothing"
    workloads = frozenset({"put", "put_ttl"})
    puts_share = 0.01
    options: ClassVar[dict[str, Any]] = {"durability": "commit"}  # Any: as above


class EphemeraMemory(Ephemera):
    name = "ephemera-memory"
    killed = "everything"
    unpowered = "everything"
    has_tiers = False
    is_persistent = False

    def _url(self) -> str:
        return "memory://"
