"""A store, its families, transactions and snapshots, as coroutines over the plain ones."""

from __future__ import annotations

import asyncio
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from ephemera import family as plain_family
from ephemera import snapshot as plain_snapshot
from ephemera import store as plain_store
from ephemera import transaction as plain_transaction
from ephemera.aio.keyspace import Keyspace
from ephemera.aio.runners import InLane, Pool, StoreRunners
from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import TtlLike
from ephemera.core.keyvalue import Capability, CheckReport, Expired, KeyValue

CALLBACK_LOOK_S = 1.0
"""How often a thread that waits for a callback looks whether its loop still runs."""


class _Ended(Protocol):
    """What a block ends."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


E_co = TypeVar("E_co", bound=_Ended, covariant=True)


class NotAwaited(InvalidArgument, AttributeError):
    """What is to be awaited was used as if it had been."""


class EnteredWithAsync:
    """What `async with` enters, and `with` does not."""

    def __enter__(self) -> NoReturn:
        name = type(self).__name__
        what = (
            "what aio.open(), transaction() or snapshot() returns" if name == "Beginning" else name
        )
        raise NotAwaited(f"{what} is entered with `async with`, not `with`")

    def __exit__(self, *raised: object) -> None:
        raise AssertionError("it was never entered")


class Beginning(EnteredWithAsync, Generic[E_co]):
    """What `open`, `transaction` and `snapshot` return: `await` it for the thing itself, which is then
    yours to end, or let `async with` end it."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, E_co]]) -> None:
        self._begin = begin

    def __await__(
        self,
    ) -> Generator[Any, None, E_co]:  # Any: what a loop is told is its own business
        return self._begin().__await__()

    def __getattr__(self, name: str) -> Any:  # Any: never returned
        if name.startswith("__"):  # asked by Python itself
            raise AttributeError(name)
        raise NotAwaited(
            f"{name!r} was asked of what is not open yet: write `async with … as store`, or"
            " `store = await …`"
        )

    async def __aenter__(self) -> E_co:
        self._begun = await self._begin()
        return await self._begun.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._begun.__aexit__(kind, error, trace)


def open(url: str | os.PathLike[str], **options: Any) -> Beginning[Store]:  # Any: see ephemera.open
    """Open the store at a path or URL as `ephemera.open` does, with the same options and errors.

      default_ttl=None           seconds or timedelta that keys live where nothing else is said
      durability="interval"      sync once a second; "commit": each write; "none": at checkpoints
      read_only=False            True: refuse writes
      exclusive=False            True: keep every other opener out
      maintenance="background"   "manual": checkpoint, sweep and deliver events by calls alone
      clock=None                 an object with now_ms(); None: the system's clock, made steady
      size_limit=68_719_476_736  bytes (64 GiB) of rows and index; puts beyond raise StoreFull
      lock_timeout=10.0          seconds to wait for another process or thread, then StoreBusy
      segment_bytes=33_554_432   bytes (32 MiB) written before a checkpoint moves them
      snapshot_max_age=None      seconds or timedelta after which a snapshot ends; None: never
      mode=None                  permissions of the files; None: 0o600, or those that they have

    >>> import asyncio, ephemera.aio
    >>> async def main():
    ...     async with ephemera.aio.open("memory://", default_ttl=3600) as store:
    ...         await store.put("name", "ada")
    ...         return await store.get("name")
    >>> asyncio.run(main())
    b'ada'
    """
    return Beginning(partial(_open, url, options))


async def _open(url: str | os.PathLike[str], options: dict[str, Any]) -> Store:
    pool = Pool()
    try:
        inner = await pool.obtain(lambda: plain_store.open(url, **options), plain_store.Store.close)
    except BaseException:
        pool.close()
        raise
    is_durable = options.get("durability") == "commit"
    return Store(inner, StoreRunners(pool, inner.engine.waits, is_durable=is_durable))


class Family(Keyspace):
    """One of the store's maps, made by `await store.family(name)`."""

    _inner: plain_family.Family

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def default_ttl(self) -> float | None:
        """The seconds that keys live when nothing is said; None: they are permanent."""
        return self._inner.default_ttl

    def __repr__(self) -> str:
        return f"<aio.Family {self.name!r}>"


class Store(EnteredWithAsync, Family):
    """An open store: the `default` family, and the way to everything else. See `ephemera.aio.open`.

    Any number of tasks may use it, on any number of loops. `async with` closes it.
    """

    _inner: plain_store.Store

    def __init__(self, inner: plain_store.Store, runners: StoreRunners) -> None:
        super().__init__(inner, runners.pool, inner._open_engine)
        self._runners = runners
        self._closing: Future[None] = Future()  # done when `close` has begun

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the engine behind this store can do."""
        return self._inner.capabilities

    @property
    def clock(self) -> Clock:
        """The clock that decides what is dead."""
        return self._inner.clock

    @property
    def engine(self) -> KeyValue:
        """What keeps the rows: plain calls, which take what they are given unchecked."""
        return self._inner.engine

    # --- families -----------------------------------------------------------------------------

    async def family(self, name: str, default_ttl: TtlLike = None) -> Family:
        """The family of this name, created when it is not there."""
        inner = await self._runner.call(self._inner.family, name, default_ttl)
        return Family(inner, self._runner, self._must_be_open)

    async def families(self) -> list[str]:
        """The names of all families."""
        return await self._runner.call(self._inner.families)

    async def drop_family(self, name: str) -> bool:
        """Take a family away with all its keys; whether it was there."""
        return await self._runner.call(self._inner.drop_family, name)

    # --- several operations as one ------------------------------------------------------------

    def transaction(self, *, durable: bool | None = None) -> Beginning[Transaction]:
        """Acquire the writer lock for reads and writes that happen all together or not at all.

        >>> import asyncio, ephemera.aio
        >>> async def main():
        ...     async with ephemera.aio.open("memory://") as store:
        ...         async with store.transaction() as txn:
        ...             if await txn.get("seat:7") is None:
        ...                 await txn.put("seat:7", "ada", ttl=600)
        ...         return await store.get("seat:7")
        >>> asyncio.run(main())
        b'ada'
        """
        return Beginning(partial(self._begin, durable))

    async def _begin(self, durable: bool | None) -> Transaction:
        runner = await self._runners.for_transaction()
        try:
            inner = await runner.obtain(
                partial(self._inner.transaction, durable=durable),
                plain_transaction.Transaction.rollback,
            )
        except BaseException:
            runner.end()
            raise
        runner.enter()
        return Transaction(inner, runner, self._must_be_open)

    def snapshot(self) -> Beginning[Snapshot]:
        """The store as it is now, for consistent reads whatever is written meanwhile.

        >>> import asyncio, ephemera.aio
        >>> async def main():
        ...     async with ephemera.aio.open("memory://") as store:
        ...         await store.put("name", "ada")
        ...         async with store.snapshot() as snap:
        ...             await store.clear()
        ...             return [key async for key in snap]
        >>> asyncio.run(main())
        [b'name']
        """
        return Beginning(self._take_snapshot)

    async def _take_snapshot(self) -> Snapshot:
        runner = self._runner.in_order()
        inner = await runner.obtain(self._inner.snapshot, plain_snapshot.Snapshot.close)
        return Snapshot(inner, runner, self._must_be_open)

    # --- expiry -------------------------------------------------------------------------------

    async def purge_expired(self, limit: int | None = None, batch: int = 1000) -> int:
        """Remove dead keys, at most `limit` of them, the longest dead first; how many it removed."""
        return await self._runner.call(self._inner.purge_expired, limit, batch)

    async def on_expire(
        self, callback: Callable[[Expired], object]
    ) -> Callable[[], Awaitable[None]]:
        """Have `callback` called for every key that dies; returns a coroutine function that ends it.

        It is called on this loop, one key after the other; what it returns is awaited if it can be,
        before the next key is told. What it raises is logged. It ends with the loop.

        >>> import asyncio, ephemera.aio
        >>> async def tell(expired):
        ...     print(expired.family, expired.key)
        >>> async def main():
        ...     clock = ephemera.ManualClock()
        ...     async with ephemera.aio.open("memory://", clock=clock, maintenance="manual") as store:
        ...         unsubscribe = await store.on_expire(tell)
        ...         await store.put("code", "492817", ttl=60)
        ...         clock.advance(60)
        ...         await store.purge_expired()
        ...         await unsubscribe()
        >>> asyncio.run(main())
        default b'code'
        """
        loop = asyncio.get_running_loop()
        told = _Telling(callback, loop, self._closing) if callable(callback) else callback
        unsubscribe = await self._runner.call(self._inner.on_expire, told)
        return partial(self._runner.call, unsubscribe)

    # --- housekeeping -------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:  # Any: each engine reports what it has to tell
        """Numbers about the store; which ones depends on the engine."""
        return await self._runner.call(self._inner.stats)

    async def check(self) -> CheckReport:
        """Walk everything and report every disagreement."""
        return await self._runner.call(self._inner.check)

    async def repair(self) -> int:
        """Let the index of deadlines say what the rows say; how many entries were wrong or missing."""
        return await self._runner.call(self._inner.repair)

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the store to a new place, while it goes on being used."""
        await self._runner.call(self._inner.backup, path)

    async def compact(self) -> None:
        """Give back the space that removed keys left behind, and erase what is left of them."""
        await self._runner.call(self._inner.compact)

    async def checkpoint(self) -> None:
        """Move what was written into the base tier now; engines without one do nothing."""
        await self._runner.call(self._inner.checkpoint)

    async def sync(self) -> None:
        """Return when everything written so far would survive a power loss."""
        await self._runner.call(self._inner.sync)

    async def close(self) -> None:
        """Let the store go, and its threads; everything but another close raises StoreClosed from then
        on. A close that is cancelled goes on."""
        if not self._closing.done():
            self._closing.set_result(None)
        await self._runners.close(self._inner.close)

    async def __aenter__(self) -> Self:
        self._must_be_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Store", "<aio.Store", 1)


class Snapshot(EnteredWithAsync, Keyspace):
    """The store as it was at one instant, made by `store.snapshot()`; close it when done."""

    _inner: plain_snapshot.Snapshot

    async def family(self, name: str) -> Keyspace:
        """Another family at the same instant. Raises InvalidArgument when there was none."""
        inner = await self._runner.read(self._inner.family, name)
        return Keyspace(inner, self._runner, self._must_be_open)

    async def close(self) -> None:
        """Let the snapshot go. Closing twice is fine."""
        await self._runner.read(self._inner.close)

    async def __aenter__(self) -> Self:
        await self._runner.read(self._inner.__enter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self.close())


class Transaction(EnteredWithAsync, Keyspace):
    """Reads and writes that happen all together or not at all, made by `store.transaction()`.

    It holds the writer lock until its block ends, so await nothing slow in it: other writers wait.
    An exception in the block, a cancellation too, rolls it back. A cancelled commit may or may not
    have happened.
    """

    _inner: plain_transaction.Transaction
    _runner: InLane

    def __init__(
        self,
        inner: plain_transaction.Transaction,
        runner: InLane,
        must_be_open: Callable[[], object],
    ) -> None:
        super().__init__(inner, runner, must_be_open)
        # A transaction that is forgotten must not keep the turn.
        self._forgotten = weakref.finalize(self, _forget, inner, runner)
        self._forgotten.atexit = False

    async def family(self, name: str) -> Keyspace:
        """Another family in the same transaction. Raises InvalidArgument when there is none."""
        inner = await self._runner.read(self._inner.family, name)
        return Keyspace(inner, self._runner, self._must_be_open)

    async def commit(self) -> None:
        """Write everything at once and end the transaction; the end of the block does the same."""
        await self._end(self._inner.commit)

    async def rollback(self) -> None:
        """Forget everything and end the transaction; an exception in the block does the same."""
        await self._end(self._inner.rollback)

    async def __aenter__(self) -> Self:
        await self._runner.read(self._inner._begin)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(partial(self._inner.__exit__, kind, error, trace))

    async def _end(self, step: Callable[[], object]) -> None:
        # Given to the thread before anything is awaited: it happens, whoever is cancelled.
        ended = asyncio.wrap_future(self._runner.submit(step))
        self._runner.end()
        self._forgotten.detach()
        await asyncio.shield(ended)


def _forget(inner: plain_transaction.Transaction, runner: InLane) -> None:
    runner.submit(inner._give_up)
    runner.end()


class _Telling:
    """A callback of `on_expire`, called on its loop by whichever thread removes the key."""

    def __init__(
        self,
        callback: Callable[[Expired], object],
        loop: asyncio.AbstractEventLoop,
        closing: Future[None],
    ) -> None:
        self._callback = callback
        self._loop = loop
        self._closing = closing

    def __call__(self, expired: Expired) -> None:
        """Return when the callback is done, so that keys are told in order and none is lost.

        Closing waits for this thread, and a callback may wait for closing: so then it is not waited for.
        """
        if not self._loop.is_running():
            raise RuntimeError(f"the loop that wants to hear of {expired.key!r} has stopped")
        told = asyncio.run_coroutine_threadsafe(self._tell(expired), self._loop)
        while not told.done() and not self._closing.done():
            wait({told, self._closing}, CALLBACK_LOOK_S, FIRST_COMPLETED)
            if not self._loop.is_running():
                told.cancel()
        if told.done():
            told.result()

    async def _tell(self, expired: Expired) -> None:
        result = self._callback(expired)
        if inspect.isawaitable(result):
            await result
