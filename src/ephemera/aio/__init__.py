"""The same store for programs on an event loop: every method that may wait is a coroutine.

`open`, `transaction` and `snapshot` can be awaited, or entered with `async with`; scans are async
iterators; `on_expire` takes functions and coroutine functions. Arguments, results and errors are those of
`ephemera`, whose code this is: see `ephemera.aio.runners` for where it runs, and what a cancellation does.

>>> import asyncio
>>> from ephemera import aio
>>> async def main():
...     async with aio.open("memory://") as store:
...         await asyncio.gather(*(store.incr("hits") for _ in range(100)))
...         await store.put("code:ada", "492817", ttl=300)
...         return [pair async for pair in store.scan()]
>>> asyncio.run(main())
[(b'code:ada', b'492817'), (b'hits', b'100')]
"""

from ephemera.aio.keyspace import Keyspace
from ephemera.aio.store import Family, Snapshot, Store, Transaction, open

__all__ = ["Family", "Keyspace", "Snapshot", "Store", "Transaction", "open"]
