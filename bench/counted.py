"""Fixed work for counting its instructions: `python -m bench.counted WORKLOAD OPERATIONS`.

One process, one thread, no sync: whatever is counted is the operation. `bench.guard` runs this twice
with different numbers of operations, and the difference is theirs alone. What can be done only once to a
row (`checkpoint`, `purge`, `purge_base`, `server_del`) is counted together with the writing of that row.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import ephemera
from bench.ground import VALUE, make_keys
from ephemera.server.server import Server
from ephemera.server.session import Session
from tests.wire.resp import request

LOADED_KEYS = 2_000
PIPELINED = 16
READ_BYTES = 7_000
MGET_KEYS = 10
BASE_BYTES_MAX = 256 * 1024 * 1024
"""As much as valgrind lets a process map at once."""

DYING_SECONDS = 1.0

Work = Callable[[ephemera.Store, list[bytes], int], None]


def put(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    for at in range(count):
        store.put(keys[at % LOADED_KEYS], VALUE)


def put_ttl(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    for at in range(count):
        store.put(keys[at % LOADED_KEYS], VALUE, ttl=3600.0)


def get(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    for at in range(count):
        store.get(keys[at % LOADED_KEYS])


def get_base(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    store.checkpoint()
    get(store, keys, count)


def get_missing(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    get(store, [b"mis" + key[3:] for key in keys], count)


def scan(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    for start in range(0, count, LOADED_KEYS):
        for _ in islice(store.scan(), count - start):
            pass


def incr(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    for _ in range(count):
        store.incr(b"counter", ttl=3600)


def checkpoint(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _write_new(store, count)
    store.checkpoint()


def purge(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _write_new(store, count)
    _purge(store, count)


def purge_base(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    checkpoint(store, keys, count)
    _purge(store, count)


def _write_new(store: ephemera.Store, count: int) -> None:
    """Keys that die before all others."""
    for at in range(count):
        store.put(b"new:%014d" % at, VALUE, ttl=DYING_SECONDS)


def _purge(store: ephemera.Store, count: int) -> None:
    assert isinstance(store.clock, ephemera.ManualClock)
    store.clock.advance(DYING_SECONDS)
    purged = store.purge_expired()
    assert purged == count, purged


def server_set(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _serve(store, [request("SET", key, VALUE) for key in keys], count)


def server_get(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _serve(store, [request("GET", key) for key in keys], count)


def server_incr(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _serve(store, [request("INCR", b"n" + key) for key in keys], count)


def server_cut(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    """GETs in reads whose ends cut requests."""
    session = Session(Server(store))
    stream = b"".join(request("GET", key) for key in keys)
    reads = [stream[at : at + READ_BYTES] for at in range(0, len(stream), READ_BYTES)]
    for _ in range(count // LOADED_KEYS):
        for read in reads:
            session.feed(read)


def server_setex(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _serve(store, [request("SETEX", key, 3600, VALUE) for key in keys], count)


def server_mget(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    """Ten keys each."""
    wanted = (keys[at : at + MGET_KEYS] for at in range(len(keys) - MGET_KEYS + 1))
    _serve(store, [request("MGET", *some) for some in wanted], count)


def server_del(store: ephemera.Store, keys: list[bytes], count: int) -> None:
    _serve(store, [request("SET", key, VALUE) + request("DEL", key) for key in keys], count)


def _serve(store: ephemera.Store, requests: list[bytes], count: int) -> None:
    """Have a server answer that many of these requests, in pipelines, without a socket."""
    session = Session(Server(store))
    requests = requests[: LOADED_KEYS // PIPELINED * PIPELINED]
    batches = [b"".join(requests[at : at + PIPELINED]) for at in range(0, len(requests), PIPELINED)]
    for at in range(count // PIPELINED):
        session.feed(batches[at % len(batches)])


WORK: dict[str, Work] = {
    work.__name__: work
    for work in (
        put,
        put_ttl,
        get,
        get_base,
        get_missing,
        scan,
        incr,
        checkpoint,
        purge,
        purge_base,
        server_set,
        server_setex,
        server_get,
        server_mget,
        server_incr,
        server_cut,
        server_del,
    )
}


DYING = ("purge", "purge_base")
"""Where time must pass."""


def main(workload: str, count: str) -> None:
    keys = make_keys(LOADED_KEYS)
    with (
        tempfile.TemporaryDirectory(prefix="counted-") as place,
        ephemera.open(
            Path(place, "store.eph"),
            maintenance="manual",
            durability="none",
            size_limit=BASE_BYTES_MAX,
            # As a server opens it; shared, it would look twenty times a second for what others wrote.
            exclusive=workload.startswith("server_"),
            clock=ephemera.ManualClock() if workload in DYING else None,
        ) as store,
    ):
        for key in keys:
            store.put(key, VALUE, ttl=3600.0)
        WORK[workload](store, keys, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
