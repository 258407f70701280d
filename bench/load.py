"""What goes on beside a measured client, in processes of their own: `python -m bench.load NAME HOST:PORT`.

`write` sets ever new keys at a steady rate. Half of them stay for an hour; of the others one half dies before it
can be checkpointed, the other half after it was, so that there is something to tell of and to sweep. `listen`
reads the `expired` events.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.wire.resp import Wire, request
from tests.wire.servers import PATIENCE_SECONDS, Process

WRITES_A_SECOND = 10_000
WRITES_AT_ONCE = 100
VALUE = b"w" * 480
"""With so many writes a second a segment is full, and checkpointed, about every six seconds."""
STAY_MS = 3_600_000
EARLY_MS = (500, 2_000)
LATE_MS = (8_000, 16_000)
EVENTS = "__keyevent@0__:expired"
OK = b"+OK\r\n"


@contextmanager
def beside(server: Process, name: str) -> Iterator[None]:
    """The process of this name works until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.load", name, f"{server.host}:{server.port}"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), f"{name} did not begin"
            yield
            assert process.poll() is None, f"{name} ended early"
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def ttl_ms(number: int) -> int:
    """The lifetime of the key of this number."""
    kind, spread = number % 4, number * 7919
    if kind < 2:
        return STAY_MS
    first, last = EARLY_MS if kind == 2 else LATE_MS
    return first + spread % (last - first)


def write(connection: socket.socket) -> None:
    began, number = time.perf_counter(), 0
    while True:
        due = began + number / WRITES_A_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        numbers = range(number, number + WRITES_AT_ONCE)
        connection.sendall(
            b"".join(request("SET", b"new:%010d" % n, VALUE, "PX", ttl_ms(n)) for n in numbers)
        )
        replies = b""
        while len(replies) < WRITES_AT_ONCE * len(OK):
            replies += connection.recv(65536)
        assert replies == WRITES_AT_ONCE * OK, replies[:100]
        number += WRITES_AT_ONCE


def listen(connection: socket.socket) -> None:
    connection.sendall(request("SUBSCRIBE", EVENTS))
    while connection.recv(65536):
        pass


def tell_of_the_dead(server: Process) -> None:
    with Wire(server) as wire:
        wire("CONFIG", "SET", "notify-keyspace-events", "Ex")


def main(name: str, place: str) -> None:
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("begun", flush=True)
        {"write": write, "listen": listen}[name](connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
