"""Peers that keep their keys in the memory of one process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from importlib import import_module

from bench.peers.base import Mode, Pairs, Peer, PeerWithoutTtl

CACHE_KEYS_MAX = 1 << 24


class _InProcess(Peer):
    killed = "everything"
    unpowered = "everything"
    is_persistent = False

    def close(self) -> None:
        pass

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        ttl_s = math.inf if ttl_s is None else ttl_s
        for key, value in pairs:
            self.put_ttl(key, value, ttl_s)


class Cachetools(_InProcess):
    """A `TLRUCache` whose values carry their TTL; it needs a lock to be shared, and gets none."""

    name = "cachetools"
    package = "cachetools"

    def open(self, mode: Mode = "default") -> None:
        self._passed_s = 0.0
        # Each write removes what is dead; a measured purge must find it all.
        timer = (lambda: self._passed_s) if mode == "purge" else time.monotonic
        self._cache = import_module("cachetools").TLRUCache(
            CACHE_KEYS_MAX, ttu=lambda _key, value, now: now + value[1], timer=timer
        )

    def pass_time(self, seconds: float) -> None:
        self._passed_s += seconds

    def put(self, key: bytes, value: bytes) -> None:
        self._cache[key] = (value, math.inf)

    def put_ttl(self, key: bytes, value: bytes, ttl_s: float) -> None:
        self._cache[key] = (value, ttl_s)

    def get(self, key: bytes) -> object:
        held = self._cache.get(key)
        return None if held is None else held[0]

    def purge(self) -> int:
        return len(self._cache.expire())

    def scan(self) -> Iterable[object]:
        return sorted(self._cache.items())


class Dict(_InProcess):
    """The floor: a dict behind methods, with each value's deadline beside it."""

    name = "dict"
    package = "builtins"

    def open(self, mode: Mode = "default") -> None:
        self._rows: dict[bytes, tuple[bytes, float]] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._rows[key] = (value, math.inf)

    def put_ttl(self, key: bytes, value: bytes, ttl_s: float) -> None:
        self._rows[key] = (value, time.time() + ttl_s)

    def get(self, key: bytes) -> object:
        row = self._rows.get(key)
        return None if row is None or row[1] <= time.time() else row[0]

    def touch(self, key: bytes, ttl_s: float) -> None:
        self._rows[key] = (self._rows[key][0], time.time() + ttl_s)

    def purge(self) -> int:
        now = time.time()
        dead = [key for key, row in self._rows.items() if row[1] <= now]
        for key in dead:
            del self._rows[key]
        return len(dead)

    def scan(self) -> Iterable[object]:
        now = time.time()
        return [(key, row[0]) for key, row in sorted(self._rows.items()) if row[1] > now]


class PlainDict(PeerWithoutTtl):
    """What a look-up costs at the least: a dict behind a method, and nothing else."""

    name = "plain-dict"
    package = "builtins"
    killed = "everything"
    unpowered = "everything"
    is_persistent = False
    workloads = frozenset({"put", "get", "grown"})

    def open(self, mode: Mode = "default") -> None:
        self._values: dict[bytes, bytes] = {}

    def close(self) -> None:
        pass

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        self._values.update(pairs)

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: bytes) -> object:
        return self._values.get(key)
