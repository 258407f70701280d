"""Fixed work for counting its instructions: `python -m bench.counted WORKLOAD OPERATIONS`.

One process, one thread, no sync: whatever is counted is the operation. `bench.guard` runs this twice
with different numbers of operations, and the difference is theirs alone.
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
BASE_BYTES_MAX = 256 * 1024 * 1024
"""As much as valgrind lets a process map at once."""

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
        server_set,
        server_get,
        server_incr,
        server_cut,
    )
}


def main(workload: str, count: str) -> None:
    keys = make_keys(LOADED_KEYS)
    with (
        tempfile.TemporaryDirectory(prefix="counted-") as place,
        ephemera.open(
            Path(place, "store.eph"),
            maintenance="manual",
            durability="none",
            size_limit=BASE_BYTES_MAX,
        ) as store,
    ):
        for key in keys:
            store.put(key, VALUE, ttl=3600.0)
        WORK[workload](store, keys, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
