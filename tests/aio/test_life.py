"""How stores that are awaited begin and end: opening, closing, forks, loops that go, expiry callbacks."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ephemera import (
    Expired,
    InvalidArgument,
    ManualClock,
    ResourcesExhausted,
    StoreClosed,
    aio,
)
from tests.aio.conftest import Run, own_threads
from tests.aio.tasks import outside
from tests.conftest import NoThreadsLeft
from tests.waiting import PATIENCE_S, wait_until


def test_a_store_can_be_awaited_or_entered(run: Run, url: str) -> None:
    async def main() -> None:
        store = await aio.open(url)
        assert repr(store) == f"<aio.Store {url!r}, open>"
        async with store as same:
            assert same is store
        assert "closed" in repr(store)
        with pytest.raises(StoreClosed):
            async with store:
                pytest.fail("it was entered")

    run(main())


def test_what_was_not_awaited_says_so(url: str) -> None:
    opening = aio.open(url)
    with pytest.raises(InvalidArgument, match="await"):
        opening.get("name")
    with pytest.raises(InvalidArgument, match="async with"), opening:
        pytest.fail("it was entered")
    assert not hasattr(opening, "put")


def test_what_is_open_is_entered_with_async_with_alone(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as store, store.snapshot() as snapshot:
            async with store.transaction() as txn:
                for opened in (store, snapshot, txn):
                    with pytest.raises(InvalidArgument, match="async with"), opened:
                        pytest.fail("it was entered")
                await txn.put("name", "ada")
            assert await store.get("name") == b"ada"

    run(main())


def test_a_lack_of_threads_is_an_error_of_the_stores_own(
    run: Run, url: str, no_threads_left: NoThreadsLeft
) -> None:
    async def main() -> None:
        async with aio.open(url) as store:
            with no_threads_left():
                with pytest.raises(ResourcesExhausted, match="ulimit -u"):
                    await aio.open(url)
                with pytest.raises(ResourcesExhausted, match="ulimit -u"):
                    await store.transaction()
            async with store.transaction() as txn:
                await txn.put("name", "ada")
            assert await store.get("name") == b"ada"

    run(main())


def test_bad_options_are_refused_as_by_the_plain_open(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match="no option 'ttl'"):
            await aio.open("memory://", ttl=3)
        with pytest.raises(InvalidArgument, match="a store is opened by"):
            async with aio.open("nowhere://"):
                pytest.fail("it was opened")

    run(main())


def test_after_close_everything_is_refused_at_once(run: Run, url: str) -> None:
    async def main() -> None:
        store = await aio.open(url)
        family = await store.family("one")
        await store.close()
        await store.close()
        for call in (
            store.get(b"a"), store.put(b"a", b"1"), store.count(), store.stats(), family.incr(b"n"),
            anext(store.scan()), store.transaction().__aenter__(), store.snapshot().__aenter__(),
        ):  # fmt: skip
            with pytest.raises(StoreClosed):
                await call

    run(main())


def test_closing_while_others_write_ends_them_all(run: Run, url: str) -> None:
    async def write(store: aio.Store) -> int:
        for number in range(100_000):
            try:
                await store.put(b"k", b"%d" % number)
            except StoreClosed:
                return number
        return -1

    async def main() -> None:
        store = await aio.open(url)
        writers = [outside(write(store)) for _ in range(20)]
        while await store.get(b"k") is None:
            await asyncio.sleep(0)
        await store.close()
        assert min(await asyncio.gather(*writers)) >= 0

    run(main())


def test_a_store_that_was_forgotten_leaves_no_thread(url: str) -> None:
    async def main() -> None:
        store = await aio.open(url)
        async with store.transaction() as txn:
            await txn.put(b"a", b"1")
        await store.count()

    asyncio.run(main())
    wait_until(lambda: not own_threads(), what="no thread is left")


def test_a_program_that_closes_nothing_ends(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from ephemera import aio

async def main():
    global store, txn
    store = await aio.open(sys.argv[1])
    await store.on_expire(print)
    await store.put("a", "1", ttl=0.001)
    txn = await store.transaction()
    await txn.put("b", "1")
    print("done")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s.eph")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert "done" in done.stdout


# --- fork -----------------------------------------------------------------------------------------


def test_the_child_of_a_fork_uses_the_store_on_a_loop_of_its_own(tmp_path: Path) -> None:
    async def opened() -> aio.Store:
        store = await aio.open(tmp_path / "s.eph")
        async with store.transaction() as txn:  # there is a lane, and there are threads
            await txn.put(b"n", b"0")
        await asyncio.gather(*(store.incr(b"n") for _ in range(20)))
        return store

    async def used(store: aio.Store) -> None:
        await asyncio.gather(*(store.incr(b"n") for _ in range(20)))
        async with store.transaction() as txn:
            await txn.incr(b"n")
        assert [key async for key in store] == [b"n"]

    store = asyncio.run(opened())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(asyncio.wait_for(used(store), PATIENCE_S))
            asyncio.run(store.close())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(used(store))
    assert asyncio.run(store.get(b"n")) == b"62"
    asyncio.run(store.close())


def test_the_child_of_a_fork_is_refused_the_parents_transaction(tmp_path: Path) -> None:
    async def begun() -> tuple[aio.Store, aio.Transaction]:
        store = await aio.open(tmp_path / "s.eph")
        return store, await store.transaction()

    async def refused(txn: aio.Transaction) -> None:
        with pytest.raises(StoreClosed):
            await txn.put(b"a", b"child")
        with pytest.raises(StoreClosed):
            await txn.commit()

    store, txn = asyncio.run(begun())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(asyncio.wait_for(refused(txn), PATIENCE_S))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(txn.put(b"a", b"parent"))
    asyncio.run(txn.commit())
    assert asyncio.run(store.get(b"a")) == b"parent"
    asyncio.run(store.close())


# --- expiry ---------------------------------------------------------------------------------------


def test_callbacks_of_both_kinds_are_called_on_the_loop_in_order(run: Run, url: str) -> None:
    clock = ManualClock()

    async def main() -> None:
        home = threading.current_thread()
        told: list[tuple[str, bytes]] = []

        def plain(expired: Expired) -> None:
            assert threading.current_thread() is home
            told.append(("plain", expired.key))

        async def awaited(expired: Expired) -> None:
            assert threading.current_thread() is home
            told.append(("begins", expired.key))
            await asyncio.sleep(0)
            assert await store.get(b"other") == b"1"  # a callback may use the store
            await store.incr(b"dead")
            told.append(("ends", expired.key))

        async with aio.open(url, clock=clock, maintenance="manual") as store:
            await store.put(b"other", b"1")
            forget_plain = await store.on_expire(plain)
            await store.on_expire(awaited)
            for number in range(3):
                await store.put(b"%d" % number, b"", ttl=1 + number)
            clock.advance(10)
            assert await store.purge_expired() == 3
            assert [key for kind, key in told if kind == "plain"] == [b"0", b"1", b"2"]
            inner = [each for each in told if each[0] != "plain"]
            assert inner == [(k, b"%d" % n) for n in range(3) for k in ("begins", "ends")]
            assert await store.get(b"dead") == b"3"
            await forget_plain()
            await store.put(b"last", b"", ttl=1)
            clock.advance(1)
            await store.purge_expired()
            assert ("plain", b"last") not in told
            assert ("ends", b"last") in told

    run(main())


def test_what_a_callback_raises_is_logged_and_harms_nothing(
    run: Run, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    async def fail(expired: Expired) -> None:
        raise KeyError("from the callback")

    async def main() -> None:
        async with aio.open(url, clock=clock, maintenance="manual") as store:
            await store.on_expire(fail)
            await store.put(b"a", b"", ttl=1)
            clock.advance(1)
            with caplog.at_level(logging.ERROR, "ephemera"):
                assert await store.purge_expired() == 1
            assert await store.count() == 0

    run(main())
    assert "from the callback" in caplog.text


@pytest.mark.parametrize("callback", [None, 7, "print"])
def test_what_cannot_be_called_is_refused(run: Run, callback: object) -> None:
    async def main() -> None:
        async with aio.open("memory://") as store:
            with pytest.raises(InvalidArgument, match="a callback is a function"):
                await store.on_expire(callback)  # type: ignore[arg-type]  # that is the point

    run(main())


def test_deaths_are_told_by_the_background_on_the_real_clock(run: Run, url: str) -> None:
    async def main() -> None:
        dead = asyncio.Event()

        async def tell(expired: Expired) -> None:
            dead.set()

        async with aio.open(url) as store:
            await store.on_expire(tell)
            await store.put(b"a", b"", ttl=0.02)
            await asyncio.wait_for(dead.wait(), PATIENCE_S)

    run(main())


def test_a_callback_may_close_the_store(run: Run, url: str) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def close(expired: Expired) -> None:
            await store.close()
            closed.set()

        store = await aio.open(url)
        await store.on_expire(close)
        await store.put(b"a", b"", ttl=0.02)
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        with pytest.raises(StoreClosed):
            await store.get(b"a")

    run(main())


def test_deaths_after_the_end_of_the_loop_are_logged_and_stop_nobody(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    told: list[Expired] = []

    async def first() -> aio.Store:
        store = await aio.open(url, clock=clock, maintenance="manual")
        await store.on_expire(told.append)
        await store.put(b"a", b"", ttl=1)
        return store

    async def second(store: aio.Store) -> int:
        clock.advance(1)
        return await store.purge_expired()

    store = asyncio.run(first())
    with caplog.at_level(logging.ERROR, "ephemera"):
        assert asyncio.run(second(store)) == 1
    asyncio.run(store.close())
    assert told == []
    assert "has stopped" in caplog.text


def test_a_loop_that_stops_during_a_callback_lets_the_thread_go(tmp_path: Path) -> None:
    begun = threading.Event()

    async def main() -> aio.Store:
        store = await aio.open(tmp_path / "s.eph")

        async def endless(expired: Expired) -> None:
            begun.set()
            await asyncio.Event().wait()

        await store.on_expire(endless)
        await store.put(b"a", b"", ttl=0.01)
        while not begun.is_set():
            await asyncio.sleep(0.001)
        return store

    store = asyncio.run(main())
    asyncio.run(store.close())


def test_a_thread_is_made_for_what_waits_and_for_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "s.eph") as store:
            wait_until(
                lambda: own_threads() == ["ephemera-aio_0"], what="the opening's thread is there"
            )
            for number in range(100):
                await store.put(b"%d" % number, b"1", ttl=60)
                await store.incr(b"n", durable=False)
                assert await store.get(b"%d" % number) == b"1"
                assert await store.entry(b"n") is not None
            await asyncio.gather(*(store.incr(b"n") for _ in range(100)))
            assert own_threads() == ["ephemera-aio_0"]
            await asyncio.gather(*(store.incr(b"n", durable=True) for _ in range(20)))
            assert len(own_threads()) > 1
            assert await store.get(b"n") == b"220"

    asyncio.run(main())
