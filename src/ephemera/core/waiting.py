"""Where an engine waits for an event loop: on the one of its caller, or on one of its own.

An engine whose library speaks in coroutines is written as plain functions that call `wait` for each of
them. In a thread, `wait` hands the awaitable to the engine's own loop and blocks until it is done. In
a call that `on_this_loop` runs, it steps out of the call (a greenlet), the caller's loop awaits, and the
call goes on with the result: the same function then serves `ephemera.aio` without a thread.

    caller ── plain call ──────► engine ── wait ──► the engine's loop, in its thread; the caller blocks
    caller ── on_this_loop ────► engine ── wait ──► the caller's loop, which runs other tasks meanwhile

Between two waits of one call other calls run in the same thread. So an engine that is used this way
holds no lock of `threading` while it waits: the next call would stop the loop for good. `Mutex` is a lock
that can be held.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ephemera.core.errors import StoreBusy, UnsupportedOperation

T = TypeVar("T")


class _Here(threading.local):
    """Set while a call of `on_this_loop` runs in this thread, and at no other moment."""

    # Any: what is awaited, and what comes of it, is the engine's own business.
    step_out: Callable[[Awaitable[Any]], Any] | None = None


_here = _Here()


def wait(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """What the awaitable comes to; `loop` runs in another thread, for callers that have none.

    An interrupt of the waiting thread cancels what it waited for.
    """
    if _here.step_out is not None:
        return cast(T, _here.step_out(awaitable))
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def on_this_loop(call: Callable[[], T]) -> T:
    """Run a plain call here; wherever it waits, this loop awaits in its place.

    Raises UnsupportedOperation without the package `greenlet`.
    """
    try:
        from greenlet import getcurrent, greenlet
    except ImportError as error:
        raise UnsupportedOperation(
            "this engine needs greenlet to be awaited: pip install 'ephemera[slatedb]'"
        ) from error
    # The child's parent is what runs now; whatever the child steps out with arrives here.
    child = greenlet(call, getcurrent())
    child.gr_context = getcurrent().gr_context
    given = _enter(child.switch)
    while not child.dead:
        try:
            result = await given
        except BaseException as error:  # a cancellation too: it belongs where the call waits
            given = _enter(child.throw, error)
        else:
            given = _enter(child.switch, result)
    return cast(T, given)


def _enter(resume: Callable[..., Any], *given: object) -> Any:
    """Let the child run until it ends, or steps out with something to await."""
    from greenlet import getcurrent

    _here.step_out = getcurrent().switch
    try:
        return resume(*given)
    finally:
        _here.step_out = None


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


class Mutex:
    """A lock that a call may hold while it waits, in a thread and on a loop alike; first come, first served.

    `loop` is the engine's own, as in `wait`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._guard = threading.Lock()
        self._is_held = False
        self._queue: deque[Future[None]] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises StoreBusy when it does not come within the seconds it was made with."""
        self._take()
        try:
            yield
        finally:
            self._give()

    def _take(self) -> None:
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return
            place: Future[None] = Future()
            self._queue.append(place)
        try:
            if _here.step_out is None:
                place.result(self._seconds)
            else:
                wait(asyncio.wait_for(asyncio.wrap_future(place), self._seconds), self._loop)
        except BaseException as error:
            self._leave_queue(place)
            if isinstance(error, TimeoutError):
                raise StoreBusy(
                    f"the writer's turn did not come within {self._seconds:g} s (lock_timeout)"
                ) from None
            raise

    def _leave_queue(self, place: Future[None]) -> None:
        """Whoever stops waiting may have been given the lock at that very moment."""
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)
                return
        if not place.cancelled():
            self._give()

    def _give(self) -> None:
        with self._guard:
            while self._queue:
                place = self._queue.popleft()
                if place.set_running_or_notify_cancel():  # whoever was cancelled is passed over
                    place.set_result(None)
                    return
            self._is_held = False
