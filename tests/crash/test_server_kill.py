"""The server dies, by `kill -9` or by SIGTERM, while clients write: what was acknowledged is there again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ephemera.core.clock import elapsed_ns
from tests.wire.resp import Closed, Reply, Wire
from tests.wire.servers import Process, running, start_ephemera

WRITERS = 4
PATIENCE_SECONDS = 60
RESTART_SECONDS_MAX = 15.0
"""A start takes a fraction of a second; the rest is for machines that do much else."""
LIFETIME_SECONDS = 100_000
LOGS_LOOKED_AT = 10
durabilities = pytest.mark.parametrize("durability", ["interval", "commit"])


class Writer:
    """A client that writes as long as it is answered, and knows what must be there afterwards.

    Each round writes number n in four ways: a key with a lifetime, a counter, a pair of keys in a
    transaction, and a key that comes and goes. `acknowledged` is the last round that was answered
    in full; the one after it may be there or not, in part, but never half a transaction.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.acknowledged = start
        self.thread: threading.Thread | None = None

    def start(self, server: Process, enough: threading.Semaphore) -> None:
        self.thread = threading.Thread(target=self._write, args=(server, enough))
        self.thread.start()

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "a writer is stuck"

    def _write(self, server: Process, enough: threading.Semaphore) -> None:
        try:
            with Wire(server) as wire:
                while True:
                    self._round(wire, self.acknowledged + 1)
                    self.acknowledged += 1
                    enough.release()
        except (Closed, OSError):
            enough.release(1_000)  # whoever waits for more of us need not

    def _round(self, wire: Wire, number: int) -> None:
        name = self.name
        replies = wire.pipeline(
            [
                ("SET", f"{name}:life", number, "EX", LIFETIME_SECONDS),
                ("INCR", f"{name}:count"),
                ("MULTI",),
                ("SET", f"{name}:left", number),
                ("SET", f"{name}:right", number),
                ("EXEC",),
                ("SET", f"{name}:log:{number}", number),
                ("DEL", f"{name}:log:{number - 3}"),
            ]
        )
        assert not any(reply.is_error for reply in replies), replies

    def verify(self, wire: Wire) -> None:
        """What is there is what was acknowledged, or one round further."""
        done = self.acknowledged
        allowed = {done, done + 1}
        life, count, left, right = map(number_of, wire("MGET", *self._keys()).members)
        assert {life, count, left, right} <= allowed
        assert left == right
        if done:
            assert 0 < wire("TTL", f"{self.name}:life").number <= LIFETIME_SECONDS
        logs = range(max(1, done - LOGS_LOOKED_AT), done + 1)
        there = [number for number in logs if wire("EXISTS", f"{self.name}:log:{number}").number]
        # The deletion that the unfinished round began with may have been done.
        assert set(logs[-2:]) <= set(there) <= set(logs[-3:])
        self.acknowledged = life

    def level(self, wire: Wire) -> None:
        """Make all four ways stand at the same round again, whatever the last one left undone."""
        first = max(1, self.acknowledged - LOGS_LOOKED_AT)
        logs = [f"{self.name}:log:{number}" for number in range(first, self.acknowledged + 3)]
        wire("DEL", *logs)
        for _ in range(3):
            self._round(wire, self.acknowledged + 1)
            self.acknowledged += 1
        wire("SET", f"{self.name}:count", self.acknowledged)

    def _keys(self) -> list[str]:
        return [f"{self.name}:{way}" for way in ("life", "count", "left", "right")]


def number_of(reply: Reply) -> int:
    return 0 if reply.value is None else int(reply.data)


@contextmanager
def restarted(path: Path, durability: str) -> Iterator[Process]:
    began_ns = elapsed_ns()
    with running(start_ephemera(path, "--durability", durability)) as server:
        assert (elapsed_ns() - began_ns) / 1e9 < RESTART_SECONDS_MAX
        yield server


def attack(path: Path, durability: str, cycles: int, seed: int, *, is_kill: bool) -> None:
    """Let writers write, end the server at a random moment, and look at what the next one has."""
    chance = random.Random(seed)
    writers = [Writer(f"writer{number}", 0) for number in range(WRITERS)]
    for _ in range(cycles):
        enough = threading.Semaphore(0)
        with restarted(path, durability) as server:
            with Wire(server) as wire:
                for writer in writers:
                    writer.verify(wire)
                    writer.level(wire)
            for writer in writers:
                writer.start(server, enough)
            for _ in range(chance.randrange(20, 200)):
                assert enough.acquire(timeout=PATIENCE_SECONDS), "nobody is answered"
            if is_kill:
                server.kill()
            else:
                assert server.stop() == 0
            for writer in writers:
                writer.join()
    with restarted(path, durability) as server, Wire(server) as wire:
        for writer in writers:
            writer.verify(wire)


@durabilities
def test_a_killed_server_has_every_acknowledged_write(tmp_path: Path, durability: str) -> None:
    seed = random.randrange(2**32)
    attack(tmp_path / "kill.eph", durability, cycles=3, seed=seed, is_kill=True)


@durabilities
def test_a_server_that_is_asked_to_stop_has_every_acknowledged_write(
    tmp_path: Path, durability: str
) -> None:
    seed = random.randrange(2**32)
    attack(tmp_path / "stop.eph", durability, cycles=2, seed=seed, is_kill=False)


@pytest.mark.soak
@durabilities
@pytest.mark.parametrize("is_kill", [True, False])
def test_two_hundred_deaths_lose_nothing(tmp_path: Path, durability: str, is_kill: bool) -> None:
    attack(tmp_path / "soak.eph", durability, cycles=200, seed=1, is_kill=is_kill)


def test_stopping_does_not_wait_for_clients_that_do_nothing(tmp_path: Path) -> None:
    with (
        running(start_ephemera(tmp_path / "idle.eph")) as server,
        Wire(server) as idle,
        Wire(server) as half,
        Wire(server) as listener,
    ):
        assert idle("SET", "k", "v").value == b"OK"
        half.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nx")
        listener("SUBSCRIBE", "ch")
        assert server.stop() == 0
        assert all(wire.is_closed() for wire in (idle, half, listener))
    with running(start_ephemera(tmp_path / "idle.eph")) as server, Wire(server) as wire:
        assert wire("GET", "k").value == b"v"


def test_deadlines_outlive_a_killed_server(tmp_path: Path) -> None:
    path = tmp_path / "deadlines.eph"
    far_ms = 33_177_117_420_000
    with running(start_ephemera(path)) as server, Wire(server) as wire:
        wire("SET", "far", "v", "PXAT", far_ms)
        wire("SET", "brief", "v", "PX", 1)
        wire("SET", "permanent", "v")
        server.kill()
    with running(start_ephemera(path)) as server, Wire(server) as wire:
        assert wire("PEXPIRETIME", "far").number == far_ms
        assert wire("EXISTS", "brief").number == 0
        assert wire("TTL", "permanent").number == -1
