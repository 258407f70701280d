"""What waits in CLIENT PAUSE WRITE, and what does not: the same on both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from select import select

import pytest

from tests.wire.pair import Pair
from tests.wire.resp import Reply, Wire, request

HELD_SECONDS = 0.2
"""For how long nothing may come of a request that waits."""
READS = "#!lua flags=no-writes\nreturn 1"
WRITES = "#!lua flags=allow-stale\nreturn 1"
PLAIN = "return 1"
SCRIPTS = (READS, WRITES, PLAIN)

Request = tuple[str, ...]


def by_hash(script: str) -> Request:
    return ("EVALSHA", sha1(script.encode()).hexdigest(), "0")


HELD: list[Request] = [
    ("SET", "k", "v"),
    ("PUBLISH", "channel", "message"),
    ("SPUBLISH", "channel", "message"),
    ("EVAL", PLAIN, "0"),
    ("EVAL", WRITES, "0"),
    ("EVAL", "#!lua flags=bogus\nreturn 1", "0"),
    ("EVAL", "#!lua flags=no-writes", "0"),
    by_hash(PLAIN),
    by_hash(WRITES),
    by_hash("no such script"),
]
FREE: list[Request] = [
    ("GET", "k"),
    ("SUBSCRIBE", "channel"),
    ("PUBSUB", "NUMPAT"),
    ("EVAL_RO", PLAIN, "0"),
    ("EVAL", READS, "0"),
    ("EVAL", "#!lua flags=no-writes,allow-oom\nreturn 2", "0"),
    by_hash(READS),
    ("EVALSHA_RO", *by_hash(READS)[1:]),
]


@contextmanager
def paused(wire: Wire) -> Iterator[None]:
    assert wire("CLIENT", "PAUSE", 60_000, "WRITE").value == b"OK"
    try:
        yield
    finally:
        assert wire("CLIENT", "UNPAUSE").value == b"OK"


def held(client: Wire, other: Wire, *asked: str) -> Reply:
    """The reply to a request that waits for the end of a pause."""
    with paused(other):
        client.send(request(*asked))
        assert not select([client.socket], [], [], HELD_SECONDS)[0], asked
    return client.read()


def free(client: Wire, other: Wire, *asked: str) -> Reply:
    """The reply to a request that does not."""
    with paused(other):
        return client(*asked)


Way = Callable[..., Reply]
WAYS = [*((held, asked) for asked in HELD), *((free, asked) for asked in FREE)]
NAMES = [f"{way.__name__}: {' '.join(asked)[:40]!r}" for way, asked in WAYS]


@pytest.mark.parametrize(("way", "asked"), WAYS, ids=NAMES)
def test_a_pause_of_writes_holds_the_same(
    connect: Callable[[], Pair], way: Way, asked: Request
) -> None:
    first, second = connect(), connect()
    for script in SCRIPTS:
        first("SCRIPT", "LOAD", script)
    assert way(first.ours, second.ours, *asked) == way(first.theirs, second.theirs, *asked)


@pytest.mark.parametrize(("way", "asked"), WAYS, ids=NAMES)
def test_a_pause_of_writes_holds_the_same_transactions(
    connect: Callable[[], Pair], way: Way, asked: Request
) -> None:
    first, second = connect(), connect()
    for script in SCRIPTS:
        first("SCRIPT", "LOAD", script)
    first("MULTI")
    first(*asked)
    assert way(first.ours, second.ours, "EXEC") == way(first.theirs, second.theirs, "EXEC")
