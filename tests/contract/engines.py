"""The engines that the contract suite runs on. A new engine joins by one entry in ENGINES.

An entry is a function from an empty directory of its own to an `EngineUnderTest`. What an engine
cannot do, it says through `store.capabilities`, and tests that need it skip with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ephemera
from tests.contract.awaited import AwaitedStore
from tests.contract.checkpointing import CheckpointingStore
from tests.engines.redis import servers
from tests.engines.slatedb import buckets

TINY_SEGMENT_BYTES = 64 * 1024
SMALL_SEGMENT_BYTES = 1024 * 1024


class Opener(Protocol):
    """Opens a store that tells the time by `clock`; None is the real one."""

    # Any: the options of `ephemera.open`, which checks them itself.
    def __call__(self, clock: ephemera.Clock | None, **options: Any) -> ephemera.Store: ...


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """How to open an empty store, and the same one again; `reopen` is None when nothing survives."""

    name: str
    open: Opener
    reopen: Opener | None = None


def memory(_place: Path) -> EngineUnderTest:
    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        return ephemera.open("memory://", clock=clock, **options)

    return EngineUnderTest("memory", open_store)


def local(place: Path, **settings: Any) -> EngineUnderTest:
    """The embedded engine: everything is read from its segments until a test says otherwise."""

    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        settled = {"segment_bytes": SMALL_SEGMENT_BYTES, **settings, **options}
        return ephemera.open(place / "contract.eph", clock=clock, **settled)

    return EngineUnderTest("local", open_store, open_store)


def local_tiny_segments(place: Path) -> EngineUnderTest:
    """Segments rotate all the time, and ordinary values need one of their own."""
    return local(place, segment_bytes=TINY_SEGMENT_BYTES)


def local_checkpointed(place: Path) -> EngineUnderTest:
    """Everything is read from the base tier."""
    return _checkpointing(local(place, segment_bytes=SMALL_SEGMENT_BYTES), every=1)


def local_mixed(place: Path) -> EngineUnderTest:
    """Some is read from the base tier, and some from the segments over it."""
    return _checkpointing(local(place, segment_bytes=SMALL_SEGMENT_BYTES), every=3)


def redis_at(name: str, url: str) -> EngineUnderTest:
    """A store on servers that hold nothing else."""

    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        return ephemera.open(url, clock=clock, **options)

    return EngineUnderTest(name, open_store, open_store)


def redis_single(_place: Path) -> EngineUnderTest:
    servers.flush(servers.single())
    return redis_at("redis", servers.url_of(servers.single()))


def redis_cluster(_place: Path) -> EngineUnderTest:
    """Three masters and three replicas."""
    servers.cluster().flush()
    return redis_at("redis-cluster", servers.cluster().url)


def ephemera_server(_place: Path) -> EngineUnderTest:
    """`ephemera serve` in a process of its own."""
    servers.flush(servers.own_server())
    return redis_at("ephemera-server", servers.url_of(servers.own_server()))


def slatedb_file(place: Path) -> EngineUnderTest:
    return slatedb_at("slatedb-file", buckets.file_url(place / "objects"))


def slatedb_s3(_place: Path) -> EngineUnderTest:
    return slatedb_at("slatedb-s3", buckets.s3_url())


def slatedb_at(name: str, url: str) -> EngineUnderTest:
    """A store on object storage that holds nothing yet."""

    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        return ephemera.open(url, clock=clock, **options)

    return EngineUnderTest(name, open_store, open_store)


def aio_memory(_place: Path) -> EngineUnderTest:
    return awaited("aio-memory", "memory://")


def aio_local(place: Path) -> EngineUnderTest:
    return awaited("aio-local", place / "contract.eph", segment_bytes=SMALL_SEGMENT_BYTES)


def aio_redis(_place: Path) -> EngineUnderTest:
    servers.flush(servers.single())
    return awaited("aio-redis", servers.url_of(servers.single()))


def aio_slatedb(place: Path) -> EngineUnderTest:
    return awaited("aio-slatedb", buckets.file_url(place / "objects"))


def awaited(name: str, url: str | Path, **settings: Any) -> EngineUnderTest:
    """The coroutines of `ephemera.aio`, each awaited where the suite makes a plain call."""

    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        return AwaitedStore.open(url, clock=clock, **{**settings, **options})

    return EngineUnderTest(name, open_store, None if name == "aio-memory" else open_store)


ENGINES: dict[str, Callable[[Path], EngineUnderTest]] = {
    "memory": memory,
    "aio-memory": aio_memory,
    "aio-local": aio_local,
    "local": local,
    "local-tiny-segments": local_tiny_segments,
    "local-checkpointed": local_checkpointed,
    "local-mixed": local_mixed,
    "redis": redis_single,
    "redis-cluster": redis_cluster,
    "ephemera-server": ephemera_server,
    "slatedb-file": slatedb_file,
    "slatedb-s3": slatedb_s3,
    "aio-redis": aio_redis,
    "aio-slatedb": aio_slatedb,
}


def _checkpointing(engine: EngineUnderTest, *, every: int) -> EngineUnderTest:
    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        store = engine.open(clock, **options)
        return CheckpointingStore.over(store, every=every)

    return EngineUnderTest(engine.name, open_store, open_store)
