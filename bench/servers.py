"""The servers that are measured, how each is started, and what their parts of the benchmark do to them alike.

Redis is as durable as we are by default: it syncs its log once a second. Beside it stands one that keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera, start_redis

OURS, THEIRS, UNKEPT = "ephemera", "redis", "redis (in memory)"
STORE = "bench.eph"

DAY_MS = 24 * 60 * 60 * 1000
BATCH = 5_000

Name = TypeVar("Name")


def start_ours(place: Path) -> Process:
    """As a user starts it, but that it may be told to checkpoint."""
    allowed = ("--set", "enable-debug-command=local")
    return start_ephemera(place / STORE, "--durability", "interval", *allowed)


def start_theirs(place: Path) -> Process:
    return start_redis(place, "--appendonly", "yes", "--appendfsync", "everysec")


STARTS: dict[str, Callable[[Path], Process]] = {
    OURS: start_ours,
    THEIRS: start_theirs,
    UNKEPT: start_redis,
}


@contextmanager
def started(name: str, place: Path) -> Iterator[tuple[Process, Path]]:
    """A fresh server, and the directory that is its own."""
    own = place / name.replace(" ", "-")
    own.mkdir(parents=True)
    with running(STARTS[name](own)) as server:
        yield server, own


def in_turns(names: Sequence[Name], turn: int) -> Sequence[Name]:
    """Forwards, then backwards: a machine that warms up or tires must not always hit the same one."""
    return names if turn % 2 == 0 else names[::-1]


def checkpoint(server: Process) -> None:
    """Have ours do now what it owes for the writes: by itself it may leave a segment alone for a minute."""
    with Wire(server) as wire:
        reply = wire("DEBUG", "RELOAD")
        assert not reply.is_error, reply


def fill(server: Process, waiting: int) -> None:
    """Keys with a lifetime of days, so that all of them wait."""
    with Wire(server) as wire:
        for start in range(0, waiting, BATCH):
            numbers = range(start, min(start + BATCH, waiting))
            wire.pipeline([("SET", f"waits:{n}", "v", "PX", DAY_MS + n) for n in numbers])
