"""A cancelled await leaves no lock held, no transaction half, no thread behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest

from ephemera import StoreClosed, StoreLocked, aio
from ephemera.aio import runners
from tests.aio.conftest import Run
from tests.aio.tasks import outside


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def turn_is_free(store: aio.Store) -> None:
    """A write that would wait in vain if something still held the turn."""
    await outside(store.put(b"__free", b""))
    await outside(store.delete(b"__free"))


async def begin(store: aio.Store) -> aio.Transaction:
    return await store.transaction()


def test_a_cancelled_write_that_waits_gives_up_at_once_and_holds_nothing(
    run: Run, url: str
) -> None:
    async def main() -> None:
        async with aio.open(url, lock_timeout=30) as store:
            async with store.transaction() as txn:
                await txn.put(b"a", b"txn")
                writes = [outside(store.put(b"a", b"late")) for _ in range(10)]
                for _ in range(10):
                    await asyncio.sleep(0)
                for write in writes:
                    await cancel(write)
            await turn_is_free(store)
            # Those that had begun may still happen: whichever did, the value is one of the two.
            assert await store.get(b"a") in (b"txn", b"late")

    run(main())


def test_a_cancelled_beginning_ends_the_transaction_that_comes_of_it(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url, lock_timeout=30) as store:
            async with store.transaction():
                waiting = [outside(begin(store)) for _ in range(runners.LANES_MAX + 10)]
                for _ in range(10):
                    await asyncio.sleep(0)
                for each in waiting:
                    await cancel(each)
            await turn_is_free(store)
            async with store.transaction() as txn:  # the lanes are there again
                await txn.put(b"a", b"1")
            assert await store.get(b"a") == b"1"

    run(main())


def test_a_cancelled_block_is_rolled_back(run: Run, url: str) -> None:
    async def block(store: aio.Store, inside: asyncio.Event) -> None:
        async with store.transaction() as txn:
            await txn.put(b"a", b"half")
            inside.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with aio.open(url) as store:
            inside = asyncio.Event()
            task = outside(block(store, inside))
            await inside.wait()
            await cancel(task)
            await turn_is_free(store)
            assert await store.get(b"a") is None

    run(main())


def test_a_block_whose_end_is_cancelled_again_and_again_still_ends(run: Run, url: str) -> None:
    async def block(store: aio.Store, inside: asyncio.Event) -> None:
        async with store.transaction() as txn:
            await txn.put_many({b"a": b"1", b"b": b"1"})
            inside.set()

    async def main() -> None:
        async with aio.open(url, durability="commit") as store:
            for round_ in range(20):
                inside = asyncio.Event()
                task = outside(block(store, inside))
                await inside.wait()
                for _ in range(round_ % 5):
                    await asyncio.sleep(0)
                    task.cancel()
                await asyncio.wait([task])
                await turn_is_free(store)
                found = await store.get_many([b"a", b"b"])
                assert len(found) in (0, 2)  # whole, or not at all
                await store.clear()

    run(main())


def test_a_cancelled_step_inside_a_transaction_does_not_overlap_the_next(
    run: Run, url: str
) -> None:
    async def main() -> None:
        async with aio.open(url) as store:
            await store.put_many({b"%05d" % n: b"" for n in range(5_000)})
            async with store.transaction() as txn:
                counting = asyncio.create_task(txn.count())
                await asyncio.sleep(0)
                await cancel(counting)
                await txn.put(b"x", b"1")
                assert await txn.count() == 5_001
            assert await store.get(b"x") == b"1"

    run(main())


def test_a_cancelled_walk_ends(run: Run, url: str) -> None:
    async def walk(store: aio.Store, begun: asyncio.Event) -> None:
        async for _ in store.scan():
            begun.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with aio.open(url) as store:
            await store.put_many({b"%05d" % n: b"" for n in range(500)})
            begun = asyncio.Event()
            task = outside(walk(store, begun))
            await begun.wait()
            await cancel(task)
            await store.checkpoint()
            assert await store.count() == 500

    run(main())


def test_a_timeout_around_a_write_is_kept(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url, lock_timeout=30) as store:
            async with store.transaction():
                with pytest.raises(TimeoutError):
                    await outside(asyncio.wait_for(store.put(b"a", b"1"), 0.01))
            await turn_is_free(store)

    run(main())


def test_a_cancelled_opening_closes_what_it_opened(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        for steps in range(6):
            opening = asyncio.ensure_future(_open(tmp_path / "s.eph"))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                await opening.result().close()
        async with await _eventually_alone(tmp_path / "s.eph") as store:
            await store.put(b"a", b"1")

    run(main())


async def _open(path: Path, **options: bool) -> aio.Store:
    return await aio.open(path, **options)


async def _eventually_alone(path: Path) -> aio.Store:
    """Nobody else has the store open, if it can be had exclusively."""
    for _ in range(1_000):
        with contextlib.suppress(StoreLocked):
            return await _open(path, exclusive=True)
        await asyncio.sleep(0.01)
    raise AssertionError("the store was never let go")


def test_a_cancelled_close_goes_on(run: Run, url: str) -> None:
    async def main() -> None:
        store = await aio.open(url)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        await cancel(closing)
        await store.close()
        with pytest.raises(StoreClosed):
            await store.get(b"a")

    run(main())


def test_a_forgotten_transaction_gives_the_turn_back(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url, lock_timeout=30) as store:
            txn = await store.transaction()
            await txn.put(b"a", b"1")
            del txn
            gc.collect()
            await turn_is_free(store)
            assert await store.get(b"a") is None

    run(main())


def test_a_loop_that_ends_inside_a_block_rolls_it_back(tmp_path: Path) -> None:
    stores: list[aio.Store] = []
    tasks: list[asyncio.Task[None]] = []

    async def leave_running() -> None:
        store = await aio.open(tmp_path / "s.eph", lock_timeout=5)
        stores.append(store)
        inside = asyncio.Event()

        async def block() -> None:
            async with store.transaction() as txn:
                await txn.put(b"a", b"1")
                inside.set()
                await asyncio.Event().wait()

        tasks.append(asyncio.create_task(block()))
        await inside.wait()

    async def afterwards() -> None:
        await turn_is_free(stores[0])
        assert await stores[0].get(b"a") is None
        await stores[0].close()

    asyncio.run(leave_running())
    asyncio.run(afterwards())


def test_a_hundred_cancelled_tasks_leave_a_store_that_works(run: Run, url: str) -> None:
    async def busy(store: aio.Store, number: int) -> None:
        while True:
            async with store.transaction() as txn:
                await txn.incr(b"in")
            await store.incr(b"plain:%d" % (number % 7))
            [pair async for pair in store.scan(limit=3)]
            async with store.snapshot() as snap:
                await snap.count()

    async def main() -> None:
        async with aio.open(url, lock_timeout=30) as store:
            tasks = [outside(busy(store, number)) for number in range(100)]
            for task in tasks:
                for _ in range(3):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
            await turn_is_free(store)
            before = int(await store.get(b"in", b"0"))
            async with store.transaction() as txn:
                assert await txn.incr(b"in") == before + 1

    run(main())
