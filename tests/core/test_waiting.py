"""Plain calls that wait: in a thread on a loop of their own, on a running loop without a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from ephemera import StoreBusy
from ephemera.core.waiting import Mutex, on_this_loop, wait

PATIENCE_S = 10.0


@pytest.fixture
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, as an engine has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("inside")


def test_a_plain_caller_waits_for_the_engines_own_loop(own_loop: asyncio.AbstractEventLoop) -> None:
    assert wait(thread_name(), own_loop) != threading.current_thread().name


def test_a_call_on_a_loop_awaits_there(own_loop: asyncio.AbstractEventLoop) -> None:
    def call() -> list[str]:
        return [wait(thread_name(), own_loop) for _ in range(3)]

    assert asyncio.run(on_this_loop(call)) == [threading.current_thread().name] * 3


def test_what_is_awaited_may_raise_in_both_ways(own_loop: asyncio.AbstractEventLoop) -> None:
    def call() -> str:
        try:
            wait(fail(), own_loop)
        except KeyError as error:
            return f"caught {error}"
        return "nothing raised"

    assert call() == asyncio.run(on_this_loop(call)) == "caught 'inside'"
    with pytest.raises(KeyError):
        asyncio.run(on_this_loop(lambda: wait(fail(), own_loop)))


def test_a_call_that_does_not_wait_is_just_a_call() -> None:
    assert asyncio.run(on_this_loop(lambda: 7)) == 7


def test_calls_on_one_loop_take_turns_where_they_wait(own_loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> list[str]:
        told: list[str] = []
        gates = [asyncio.Event(), asyncio.Event()]

        def call(number: int) -> None:
            told.append(f"{number} begins")
            wait(gates[number].wait(), own_loop)
            told.append(f"{number} ends")

        calls = [asyncio.create_task(on_this_loop(lambda n=n: call(n))) for n in (0, 1)]  # type: ignore[misc]  # a default keeps the number
        while len(told) < 2:
            await asyncio.sleep(0)
        gates[1].set()
        await calls[1]
        gates[0].set()
        await calls[0]
        return told

    assert asyncio.run(main()) == ["0 begins", "1 begins", "1 ends", "0 ends"]


def test_a_cancellation_arrives_where_the_call_waits(own_loop: asyncio.AbstractEventLoop) -> None:
    seen: list[str] = []

    def call() -> None:
        try:
            wait(asyncio.Event().wait(), own_loop)
        finally:
            seen.append("cleaned up")
            wait(asyncio.sleep(0), own_loop)  # also after it, the call may wait
            seen.append("and waited")

    async def main() -> None:
        task = asyncio.create_task(on_this_loop(call))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cleaned up", "and waited"]


def test_a_call_sees_the_context_of_its_task(own_loop: asyncio.AbstractEventLoop) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")

    async def main() -> str:
        who.set("ada")
        return await on_this_loop(lambda: who.get() + wait(thread_name(), own_loop)[:0] + who.get())

    assert asyncio.run(main()) == "adaada"


def test_what_a_loop_cancels_ends_the_wait_of_a_thread(own_loop: asyncio.AbstractEventLoop) -> None:
    begun = threading.Event()

    async def endless() -> None:
        task = asyncio.current_task()
        assert task is not None
        own_loop.call_soon(task.cancel)
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(CancelledError):
        wait(endless(), own_loop)
    assert begun.is_set()


# --- the mutex ------------------------------------------------------------------------------------


def test_a_mutex_is_held_across_waits_on_a_loop(own_loop: asyncio.AbstractEventLoop) -> None:
    mutex = Mutex(own_loop, seconds=PATIENCE_S)
    inside = most = 0

    def call() -> None:
        nonlocal inside, most
        with mutex.held():
            inside += 1
            most = max(most, inside)
            for _ in range(3):
                wait(asyncio.sleep(0), own_loop)
            inside -= 1

    async def main() -> None:
        await asyncio.gather(*(on_this_loop(call) for _ in range(50)))

    asyncio.run(main())
    assert most == 1


def test_threads_and_tasks_share_a_mutex(own_loop: asyncio.AbstractEventLoop) -> None:
    mutex = Mutex(own_loop, seconds=PATIENCE_S)
    total = 0

    def call() -> None:
        nonlocal total
        with mutex.held():
            before = total
            wait(asyncio.sleep(0), own_loop)
            total = before + 1

    def many() -> None:
        for _ in range(100):
            call()

    async def main() -> None:
        await asyncio.gather(*(on_this_loop(call) for _ in range(100)))

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join(PATIENCE_S)
    assert total == 400


def test_a_mutex_that_does_not_come_says_busy(own_loop: asyncio.AbstractEventLoop) -> None:
    mutex = Mutex(own_loop, seconds=0.01)

    def take() -> None:
        with mutex.held():
            pytest.fail("two are inside")

    with mutex.held():
        with pytest.raises(StoreBusy, match="lock_timeout"):
            take()
        with pytest.raises(StoreBusy, match="lock_timeout"):
            asyncio.run(on_this_loop(take))
    with mutex.held():
        pass


def test_a_cancelled_wait_for_a_mutex_passes_it_on(own_loop: asyncio.AbstractEventLoop) -> None:
    mutex = Mutex(own_loop, seconds=PATIENCE_S)

    async def main() -> None:
        gate = asyncio.Event()

        def hold() -> None:
            with mutex.held():
                wait(gate.wait(), own_loop)

        holder, second, third = (asyncio.create_task(on_this_loop(hold)) for _ in range(3))
        await asyncio.sleep(0)
        second.cancel()
        gate.set()
        await asyncio.gather(holder, third)
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(main())
    with mutex.held():
        pass
