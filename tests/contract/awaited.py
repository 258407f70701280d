"""A plain store in front of an `ephemera.aio` one: each call is awaited on an event loop in a thread of its own.

So the contract suite runs on the coroutines too. A thread that calls stays one task's world: its calls share
a context, as the steps of one task would.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import cache
from typing import Any, Self, TypeVar, cast

import ephemera
from ephemera import aio

T = TypeVar("T")

PATIENCE_S = 60.0
ITERATORS = {"scan", "entries", "keys", "values", "items"}


class _World(threading.local):
    """The context of whichever thread calls."""

    def __init__(self) -> None:
        self.context = contextvars.copy_context()


_world = _World()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="contract-loop", daemon=True).start()
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine comes to on the loop; KeyboardInterrupt and the like pass through."""
    done: Future[T] = Future()
    context = _world.context

    def start() -> None:
        task = _loop().create_task(coroutine, context=context)
        task.add_done_callback(finish)

    def finish(task: asyncio.Task[T]) -> None:
        error = task.exception()
        if error is None:
            done.set_result(task.result())
        else:
            done.set_exception(error)

    _loop().call_soon_threadsafe(start)
    return done.result(PATIENCE_S)


class AwaitedStore:
    """Stands before a Store, Family, Transaction or Snapshot of `aio` and behaves like the plain one."""

    def __init__(self, inner: Any) -> None:  # Any: one of four classes, passed through
        self._inner = inner

    @classmethod
    def open(cls, url: Any, **options: Any) -> ephemera.Store:
        async def begin() -> aio.Store:
            return await aio.open(url, **options)

        return cast(ephemera.Store, cls(run(begin())))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute
        if name in ITERATORS:
            return lambda *given, **named: self._walk(attribute, *given, **named)

        def call(*given: Any, **named: Any) -> Any:
            async def step() -> Any:
                return await attribute(*given, **named)

            result = run(step())
            is_ours = isinstance(result, aio.Keyspace)
            return AwaitedStore(result) if is_ours else result

        return call

    def on_expire(self, callback: Any) -> Callable[[], None]:
        async def tell(expired: ephemera.Expired) -> None:
            # In a thread, for it may call the store, and this loop would wait for itself.
            await asyncio.to_thread(callback, expired)

        unsubscribe = run(self._inner.on_expire(tell if callable(callback) else callback))
        return lambda: run(unsubscribe())

    def _walk(
        self, begin: Callable[..., AsyncIterator[T]], *given: Any, **named: Any
    ) -> Iterator[T]:
        # A plain scan refuses at the call, an awaited one at its first step: so it takes one to nowhere.
        limit = named.get("limit")
        if begin.__name__ in ("scan", "entries"):
            nowhere = 0 if limit is None or (type(limit) is int and limit >= 0) else limit
            run(_all(begin(*given, **{**named, "limit": nowhere})))
        return _steps(begin(*given, **named))

    def __enter__(self) -> Self:
        run(self._inner.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        run(self._inner.__aexit__(*raised))

    def __getitem__(self, key: Any) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return cast(bytes, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[bytes]:
        return cast(Iterator[bytes], self.keys())

    def __len__(self) -> int:
        return cast(int, self.count())

    def __bool__(self) -> bool:
        return bool(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


async def _all(steps: AsyncIterator[T]) -> list[T]:
    return [step async for step in steps]


def _steps(steps: AsyncIterator[T]) -> Iterator[T]:
    async def step() -> T | None:
        return await anext(steps, None)

    while (item := run(step())) is not None:
        yield item
