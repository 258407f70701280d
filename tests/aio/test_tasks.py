"""Many tasks on one store: nothing is lost, nothing overlaps that must not, the loop goes on."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import ephemera
from ephemera import InvalidArgument, ManualClock, aio
from ephemera.aio import keyspace, runners
from ephemera.engines.local.files import FileLock
from ephemera.engines.local.layout import Layout
from tests.aio.conftest import Run
from tests.aio.tasks import outside

TASKS = 1_000


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_a_thousand_tasks_lose_no_increment(run: Run, url: str, durability: str) -> None:
    async def task(store: aio.Store, number: int) -> None:
        own = b"task:%d" % number
        await store.put(own, b"%d" % number, ttl=600)
        await store.incr(b"total")
        assert await store.get(own) == b"%d" % number
        assert await store.incr(b"total", 2) >= 3

    async def main() -> None:
        async with aio.open(url, durability=durability) as store:
            await asyncio.gather(*(task(store, number) for number in range(TASKS)))
            assert await store.get(b"total") == b"%d" % (3 * TASKS)
            assert await store.count() == TASKS + 1

    run(main())


def test_transactions_of_many_tasks_do_not_lose_each_others_writes(run: Run, url: str) -> None:
    moves = 200
    assert moves > runners.LANES_MAX

    async def move(store: aio.Store) -> None:
        async with store.transaction() as txn:
            left, right = int(await txn.get(b"left", b"")), int(await txn.get(b"right", b""))
            await asyncio.sleep(0)
            await txn.put(b"left", b"%d" % (left - 1))
            await txn.put(b"right", b"%d" % (right + 1))

    async def main() -> dict[bytes, bytes]:
        async with aio.open(url, lock_timeout=60) as store:
            await store.put_many({b"left": b"%d" % moves, b"right": b"0"})
            await asyncio.gather(*(move(store) for _ in range(moves)))
            return await store.get_many([b"left", b"right"])

    assert run(main()) == {b"left": b"0", b"right": b"%d" % moves}


def test_tasks_inside_one_transaction_take_turns(run: Run, url: str) -> None:
    async def main() -> bytes | None:
        async with aio.open(url) as store:
            async with store.transaction() as txn:
                await asyncio.gather(*(txn.incr(b"n") for _ in range(50)), txn.count(), txn.count())
            return await store.get(b"n")

    assert run(main()) == b"50"


def test_reads_and_walks_of_one_snapshot_do_not_disturb_each_other(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as store:
            await store.put_many({b"%04d" % n: b"%d" % n for n in range(1_000)})
            async with store.snapshot() as snap:
                await store.clear()

                async def walk() -> int:
                    return len([key async for key in snap])

                found = await asyncio.gather(
                    *(snap.count() for _ in range(5)),
                    *(walk() for _ in range(5)),
                    *(snap.get(b"%04d" % n) for n in range(100)),
                )
        assert found[:10] == [1_000] * 10
        assert found[10:] == [b"%d" % n for n in range(100)]

    run(main())


def test_the_loop_goes_on_while_a_write_waits_for_its_turn(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as store:
            async with store.transaction() as txn:
                await txn.put(b"a", b"1")
                # Not a task of this one: that would be inside the transaction too, and refused.
                waiting = outside(store.put(b"a", b"2"))
                for _ in range(1_000):
                    await asyncio.sleep(0)
                assert not waiting.done()
                assert await store.get(b"a") is None
            await waiting
            assert await store.get(b"a") == b"2"

    run(main())


def test_the_loop_goes_on_while_a_write_waits_for_a_checkpoint(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "s.eph")
    ephemera.open(path).close()

    async def main(maintenance: ExitStack) -> None:
        async with aio.open(path, segment_bytes=64 * 1024, lock_timeout=60) as store:
            await store.put(b"a", b"1")
            while not (await store.stats())["writers_wait"]:
                await store.put(b"filler", b"x" * 1_000)
            waiting = asyncio.create_task(store.put(b"a", b"2"))
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert await store.get(b"a") == b"1"
            maintenance.close()
            await waiting
            assert await store.get(b"a") == b"2"

    with ExitStack() as maintenance:
        # Only who has this lock may checkpoint.
        maintenance.enter_context(FileLock(Layout(path).locks / "maintenance").held())
        run(main(maintenance))


def test_a_task_that_never_waits_leaves_room_for_others(run: Run, url: str) -> None:
    async def busy(store: aio.Store) -> None:
        while True:
            await store.put(b"a", b"1")
            await store.get(b"a")
            async with store.transaction() as txn:
                while True:
                    await txn.incr(b"n")
                    await txn.get(b"n")

    async def main() -> None:
        async with aio.open(url) as store:
            task = outside(busy(store))
            for _ in range(100):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    run(main())


def test_a_task_that_is_inside_a_transaction_is_refused_a_plain_write_at_once(
    run: Run, url: str
) -> None:
    async def main() -> None:
        async with aio.open(url, lock_timeout=3600) as store:
            async with store.transaction() as txn:
                await txn.put(b"a", b"1")
                with pytest.raises(InvalidArgument, match="inside a transaction"):
                    await store.put(b"a", b"2")
                with pytest.raises(InvalidArgument, match="inside a transaction"):
                    await asyncio.gather(store.incr(b"n"), store.put(b"b", b"2"))
                with pytest.raises(InvalidArgument, match="inside a transaction"):
                    await store.transaction()
            await store.put(b"b", b"3")
            assert [pair async for pair in store.scan()] == [(b"a", b"1"), (b"b", b"3")]

    run(main())


def test_a_store_is_used_by_several_loops_at_once(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(_opened(tmp_path / "s.eph"))
        threads = [threading.Thread(target=asyncio.run, args=(_count(store),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert runner.run(store.get(b"n")) == b"%d" % (4 * 50)
        runner.run(store.close())


async def _opened(path: Path) -> aio.Store:
    return await aio.open(path)


async def _count(store: aio.Store) -> None:
    async def add() -> None:
        async with store.transaction() as txn:
            await txn.incr(b"n")

    await asyncio.gather(*(add() for _ in range(50)))


# --- scans ----------------------------------------------------------------------------------------


def test_a_scan_over_many_chunks_is_the_plain_one(run: Run, url: str) -> None:
    rng = random.Random(7)
    pairs = {
        rng.randbytes(rng.randrange(1, 20)): rng.randbytes(rng.randrange(50)) for _ in range(2_000)
    }
    assert len(pairs) > 3 * keyspace.CHUNK_ROWS

    async def main() -> None:
        async with aio.open(url) as store:
            await store.put_many(pairs)
            assert [pair async for pair in store.scan()] == sorted(pairs.items())
            assert [key async for key in store] == sorted(pairs)
            back = [key async for key, _ in store.scan(reverse=True, limit=300)]
            assert back == sorted(pairs, reverse=True)[:300]
            assert [value async for value in store.values()] == [
                v for _, v in sorted(pairs.items())
            ]

    run(main())


def test_what_dies_after_it_was_read_ahead_is_not_served(run: Run, url: str) -> None:
    clock = ManualClock()

    async def main() -> list[bytes]:
        async with aio.open(url, clock=clock, maintenance="manual") as store:
            await store.put_many({b"a": b"", b"c": b"", b"e": b""})
            await store.put_many({b"b": b"", b"d": b""}, ttl=60)
            seen = []
            async for key, entry in store.entries(limit=3):
                seen.append(key)
                clock.advance(60)
                assert entry.deadline is None
            return seen

    assert run(main()) == [b"a", b"c", b"e"]


def test_a_scan_that_is_left_lets_go_of_what_it_held(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "s.eph") as store:
            await store.put_many({b"%04d" % n: b"" for n in range(500)})
            for _ in range(300):  # more than the readers that a base tier has
                async for _key in store:
                    break
            await store.checkpoint()
            assert (await store.check()).is_clean

    run(main())


def test_values_that_are_large_are_read_ahead_a_few_at_a_time(run: Run, url: str) -> None:
    async def main() -> list[int]:
        async with aio.open(url) as store:
            for number in range(5):
                await store.put(b"%d" % number, bytes(keyspace.CHUNK_BYTES // 2))
            return [len(value) async for value in store.values()]

    assert run(main()) == [keyspace.CHUNK_BYTES // 2] * 5


def test_the_plain_store_sees_what_was_awaited(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "s.eph") as store:
            await store.put(b"a", b"1", ttl=60)
            await (await store.family("codes", default_ttl=300)).put(b"b", b"2")

    run(main())
    with ephemera.open(tmp_path / "s.eph") as plain:
        assert plain.get(b"a") == b"1"
        assert plain.family("codes").default_ttl == 300
        assert plain.family("codes").get(b"b") == b"2"
