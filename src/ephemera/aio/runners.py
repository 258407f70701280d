"""Where the plain calls of a store run while a coroutine awaits them.

    an engine that waits   a read of a key     a write of a key        other calls   inside a transaction
    FOR_WRITERS              in the coroutine    in the coroutine, if    a thread      in the coroutine
                                               it need not wait
    FOR_REPLIES            a thread            a thread                a thread      its own thread

A write goes to a thread when its turn is not free at that moment, or when it waits for the disk (`durable`).
A transaction is begun and ended in a thread of its own, its lane: a writer's turn belongs to the thread that
took it. What may take long (a count, a walk) leaves the coroutine there too. Calls of one scan or
snapshot never overlap.

**A cancelled call.** What has not begun does not happen. What has begun goes on to its own end in its
thread, and nobody hears of it: a cancelled write may or may not have happened. What a cancelled call
would have returned and somebody has to end (a transaction, a snapshot, a store) is ended there.

The threads are the store's own, end with it, and are made anew in the child of a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ephemera.core.errors import StoreBusy
from ephemera.core.keyvalue import Waits
from ephemera.core.nonblocking import nonblocking
from ephemera.core.threads import explain_no_thread, start_thread

T = TypeVar("T")
P = ParamSpec("P")

POOL_THREADS = 64
"""So many calls of a store wait for replies or turns at once; threads are made as they are needed."""
STREAK_CALLS = 64
"""After so many calls that ran in coroutines, which then awaited nothing, the loop gets a turn."""
LANES_MAX = 32
"""So many transactions of a store are begun at once; the next one waits until one of them has ended."""


class CallRunner(ABC):
    """Where the calls of one object run: right in the coroutine, or in a thread that it awaits."""

    _streak = 0

    @property
    def reads_here(self) -> bool:
        return False

    @property
    def writes_here(self) -> bool:
        return False

    def is_due(self) -> bool:
        """Whether so much ran in coroutines that other tasks should have a moment now."""
        self._streak += 1
        return self._streak % STREAK_CALLS == 0

    async def read(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """A call that is quick wherever reads are."""
        if self.reads_here:
            if self.is_due():
                await asyncio.sleep(0)
            return function(*given, **named)
        return await asyncio.wrap_future(self.submit(partial(function, *given, **named)))

    async def write(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """A call that is quick wherever writes are."""
        if self.writes_here:
            if self.is_due():
                await asyncio.sleep(0)
            return function(*given, **named)
        return await asyncio.wrap_future(self.submit(partial(function, *given, **named)))

    async def write_key(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """A write of one key, which can be made twice if the first attempt was refused."""
        return await self.write(function, *given, **named)

    async def call(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """A call that may take its time."""
        return await asyncio.wrap_future(self.submit(partial(function, *given, **named)))

    async def obtain(self, make: Callable[[], T], undo: Callable[[T], object]) -> T:
        """What `make` makes; if the caller is cancelled meanwhile, it is undone once it is there."""
        made = self.submit(make)
        try:
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            # Here if it is there already, else in the thread that makes it.
            made.add_done_callback(partial(self._undo, undo))
            raise

    def _undo(self, undo: Callable[[T], object], made: Future[T]) -> None:
        if not made.cancelled() and made.exception() is None:
            self.submit(partial(undo, made.result()))

    @abstractmethod
    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it in a thread."""

    def in_order(self) -> CallRunner:
        """Return a runner for calls that must not overlap."""
        return self


class Pool(CallRunner):
    """The threads of a store, for calls in any order."""

    def __init__(self) -> None:
        self.runs_reads_here = False
        self.is_durable = False
        self._is_closed = False
        self._make_threads()
        _with_threads.add(self)

    def _make_threads(self) -> None:
        self._threads = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="ephemera-aio")

    @property
    def reads_here(self) -> bool:
        return self.runs_reads_here

    @property
    def writes_here(self) -> bool:
        return self._is_closed

    async def write_key(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        durable = named.get("durable")
        if self.runs_reads_here and not (self.is_durable if durable is None else durable):
            if self.is_due():
                await asyncio.sleep(0)
            try:
                return nonblocking(function, *given, **named)
            except StoreBusy:
                pass  # nothing was done; it waits in a thread, and no longer than it may
        return await self.write(function, *given, **named)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        lane = lane_of_this_task(self)
        if lane is not None:
            return lane.submit(call)
        try:
            return self._threads.submit(call)
        except RuntimeError as error:
            if "start new thread" in str(error):
                raise explain_no_thread(error) from error
            if not self._is_closed:
                raise
            return _done(call)

    def in_order(self) -> CallRunner:
        return Strand(self, runs_here=self.runs_reads_here)

    def close(self) -> None:
        """The store refuses everything, and so waits for nothing: calls run where they are made. A
        thread ends when the call that it is in has ended."""
        self._is_closed = self.runs_reads_here = True
        self._threads.shutdown(wait=False)

    def after_fork(self) -> None:
        self._make_threads()


class Strand(CallRunner):
    """Calls one after the other, each in whichever thread of the pool is free."""

    def __init__(self, pool: Pool, *, runs_here: bool) -> None:
        self._pool = pool
        self._runs_here = runs_here
        self._guard = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False
        _with_threads.add(self)

    @property
    def reads_here(self) -> bool:
        return self._runs_here and not self._is_running

    @property
    def writes_here(self) -> bool:
        return self.reads_here

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            self._waiting.append(partial(_settle, future, call))
            is_first, self._is_running = not self._is_running, True
        if is_first:
            self._pool.submit(self._run)
        return future

    def _run(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._is_running = False
                    return
                call = self._waiting.popleft()
            call()

    def after_fork(self) -> None:
        self._guard = threading.Lock()
        self._waiting.clear()
        self._is_running = False


# --- lanes: a writer's turn belongs to the thread that took it --------------------------------------


class Lane:
    """A thread that does one thing after the other. `submit` may be called from a finalizer."""

    def __init__(self) -> None:
        self.is_gone = False
        self._last: Future[Any] | None = None  # Any: only asked whether it is done
        # A queue whose `put` may be interrupted by another `put`; that of other queues may not.
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Not waited for at exit: what it holds then is handed on to other processes by the system.
        start_thread(
            threading.Thread(
                target=_work, args=(self._calls,), name="ephemera-aio-transaction", daemon=True
            )
        )
        _with_threads.add(self)

    @property
    def is_idle(self) -> bool:
        last = self._last
        return last is None or last.done()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        if self.is_gone:
            return _done(call)
        future: Future[T] = Future()
        self._last = future
        self._calls.put(partial(_settle, future, call))
        return future

    def end(self) -> None:
        """Let the thread go after what it has been given."""
        self._calls.put(None)

    def __del__(self) -> None:
        self.end()

    def after_fork(self) -> None:
        self.is_gone = True


class Lanes:
    """The lanes of a store: made when they are needed, kept for the next, first come, first served."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._free: list[Lane] = []
        self._count = 0
        self._queue: deque[Future[Lane]] = deque()
        self._is_closed = False
        _with_threads.add(self)

    async def take(self) -> Lane:
        with self._guard:
            if self._free:
                return self._free.pop()
            if self._count < LANES_MAX:
                lane = Lane()
                self._count += 1
                return lane
            waiter: Future[Lane] = Future()
            self._queue.append(waiter)
        try:
            return await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it had come at that very moment
                self.give(waiter.result())
            raise

    def give(self, lane: Lane) -> None:
        with self._guard:
            while self._queue:
                waiter = self._queue.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(lane)
                    return
            if not self._is_closed and not lane.is_gone:
                self._free.append(lane)
                return
        lane.end()

    def close(self) -> None:
        """Let the threads go: those in use when they are given back."""
        with self._guard:
            self._is_closed = True
            free, self._free = self._free, []
        for lane in free:
            lane.end()

    def after_fork(self) -> None:
        self._guard = threading.Lock()
        self._queue.clear()
        self._free.clear()
        self._count = 0


class InLane(CallRunner):
    """The runner of a transaction that needs one thread for its whole life."""

    def __init__(self, pool: Pool, lane: Lane, give_back: Callable[[Lane], None]) -> None:
        self.pool = pool
        self._lane: Lane | None = lane
        self._give_back = give_back
        self._runs_here = pool.runs_reads_here

    @property
    def reads_here(self) -> bool:
        return self._lane is None or (self._runs_here and self._lane.is_idle)

    @property
    def writes_here(self) -> bool:
        return self.reads_here

    @property
    def lane(self) -> Lane | None:
        """The thread, until the transaction is over."""
        return None if self._lane is None or self._lane.is_gone else self._lane

    def submit(self, call: Callable[[], T]) -> Future[T]:
        return _done(call) if self._lane is None else self._lane.submit(call)

    def enter(self) -> None:
        """Until the end, plain calls of this task go the same way: so the engine refuses at once what
        would wait for this very transaction, as it does in a thread."""
        _turns.set((*(turn for turn in _turns.get() if turn.lane is not None), self))

    def end(self) -> None:
        """The transaction is over; the thread is free when it has done what it was given before."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.submit(partial(self._give_back, lane))


_turns: ContextVar[tuple[InLane, ...]] = ContextVar("ephemera_turns", default=())
"""The transactions that this task, or one it descends from, is inside."""


def lane_of_this_task(pool: Pool) -> Lane | None:
    """The thread of the transaction on this store that the task is inside."""
    for turn in _turns.get():
        if turn.pool is pool and turn.lane is not None:
            return turn.lane
    return None


# --- the runners of one store -----------------------------------------------------------------------


class StoreRunners:
    """All the runners of one store, by how its engine waits."""

    def __init__(self, pool: Pool, waits: Waits, *, is_durable: bool) -> None:
        pool.runs_reads_here = waits is Waits.FOR_WRITERS
        pool.is_durable = is_durable
        self.pool = pool
        self._lanes = Lanes()
        self._closed: Future[None] | None = None

    async def for_transaction(self) -> InLane:
        """Return a runner to begin a transaction in; its `end` must be called."""
        around = lane_of_this_task(self.pool)
        if around is not None:
            return InLane(self.pool, around, give_back=_keep)
        return InLane(self.pool, await self._lanes.take(), give_back=self._lanes.give)

    async def close(self, close_store: Callable[[], None]) -> None:
        """Close the store in a thread that waits for no other call, and let all threads go.

        Whoever closes again returns when it is closed.
        """
        if self._closed is None:
            inside = lane_of_this_task(self.pool)
            lane = inside or Lane()
            self._closed = lane.submit(close_store)
            self._closed.add_done_callback(self._let_go)
            if inside is None:
                lane.end()
        await asyncio.shield(asyncio.wrap_future(self._closed))

    def _let_go(self, _closed: Future[None]) -> None:
        self.pool.close()
        self._lanes.close()


def _keep(lane: Lane) -> None:
    """A transaction inside another: the thread stays with the outer one."""


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # nothing is kept alive by a thread that waits


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Run the call, unless it was cancelled before, and let the future know."""
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            # The error leads to this frame, and this frame to it: what it holds would stay for a while.
            del future, call
        else:
            future.set_result(result)


def _done(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    _settle(future, call)
    return future


_with_threads: weakref.WeakSet[Pool | Strand | Lane | Lanes] = weakref.WeakSet()


def _after_fork() -> None:
    """No thread but the one that forked is there in the child."""
    for each in list(_with_threads):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
