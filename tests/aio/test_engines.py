"""Coroutines on engines that wait for replies: a Redis, a cluster, and SlateDB."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ephemera import aio
from tests.aio.conftest import Run
from tests.engines.redis import servers
from tests.engines.slatedb import buckets

TASKS = 200


def redis(_place: Path) -> str:
    servers.flush(servers.single())
    return servers.url_of(servers.single())


def cluster(_place: Path) -> str:
    servers.cluster().flush()
    return servers.cluster().url


def slatedb(place: Path) -> str:
    return buckets.file_url(place / "objects")


@pytest.fixture(params=[redis, cluster, slatedb], ids=lambda each: each.__name__)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return str(request.param(tmp_path))


@pytest.fixture(params=[redis, slatedb], ids=lambda each: each.__name__)
def transacting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that has transactions."""
    return str(request.param(tmp_path))


def test_many_tasks_lose_no_increment(run: Run, far: str) -> None:
    async def task(store: aio.Store, number: int) -> None:
        await store.put(b"task:%d" % number, b"%d" % number, ttl=600)
        await store.incr(b"total:%d" % (number % 10))
        assert await store.get(b"task:%d" % number) == b"%d" % number

    async def main() -> None:
        async with aio.open(far) as store:
            await asyncio.gather(*(task(store, number) for number in range(TASKS)))
            totals = await store.get_many(b"total:%d" % digit for digit in range(10))
            assert sum(map(int, totals.values())) == TASKS
            assert len([key async for key in store]) == TASKS + 10

    run(main())


def test_a_family_gives_its_default(run: Run, far: str) -> None:
    async def main() -> None:
        async with aio.open(far) as store:
            sessions = await store.family("sessions", default_ttl=600)
            await sessions.put(b"ada", b"{}")
            assert 500 < (await sessions.ttl(b"ada") or 0) <= 600

    run(main())


def test_a_transaction_spans_families_and_is_rolled_back_by_an_error(
    run: Run, transacting: str
) -> None:
    async def fail(store: aio.Store) -> None:
        async with store.transaction() as txn:
            await txn.put(b"a", b"2")
            raise KeyError("inside")

    async def main() -> None:
        async with aio.open(transacting) as store:
            sessions = await store.family("sessions")
            async with store.transaction() as txn:
                await txn.put(b"a", b"1")
                await (await txn.family("sessions")).put(b"bob", b"{}")
            assert await store.get(b"a") == b"1"
            assert await sessions.count() == 1
            with pytest.raises(KeyError, match="inside"):
                await fail(store)
            assert await store.get(b"a") == b"1"

    run(main())


def test_a_cancelled_transaction_leaves_the_turn_free(run: Run, transacting: str) -> None:
    async def block(store: aio.Store, inside: asyncio.Event) -> None:
        async with store.transaction() as txn:
            await txn.put(b"a", b"half")
            inside.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with aio.open(transacting) as store:
            inside = asyncio.Event()
            task = asyncio.create_task(block(store, inside))
            await inside.wait()
            task.cancel()
            await asyncio.wait([task])
            assert await store.get(b"a") is None
            async with store.transaction() as txn:
                await txn.put(b"a", b"whole")
            assert await store.get(b"a") == b"whole"

    run(main())


def test_transactions_of_many_tasks_take_turns(run: Run, transacting: str) -> None:
    async def add(store: aio.Store) -> None:
        async with store.transaction() as txn:
            await txn.incr(b"n")

    async def main() -> None:
        async with aio.open(transacting, lock_timeout=60) as store:
            await asyncio.gather(*(add(store) for _ in range(50)))
            assert await store.get(b"n") == b"50"

    run(main())
