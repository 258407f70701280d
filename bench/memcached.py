"""memcached as a peer: what its operations cost it, under a pipelined load of our own.

`redis-benchmark` does not speak its protocol, and a client in Python is slower than the server: so its
rate is not told, only its processor time.
"""

from __future__ import annotations

import getpass
import itertools
import random
import shutil
import socket
import time
from contextlib import ExitStack

from bench.footprint import cpu_seconds, settled_cpu_seconds
from tests.wire.servers import PATIENCE_SECONDS, Process, free_port, running

KEYS_MAX = 200_000
VALUE = b"x" * 100
CLIENTS = 50
COMMANDS = {
    "SET": (b"set key:%012d 0 0 100\r\n" + VALUE + b"\r\n", 1),
    "GET": (b"get key:%012d\r\n", 3),
    "INCR": (b"incr counter:%012d 1\r\n", 1),
}
"""What is sent, and how many lines come back."""


def is_installed() -> bool:
    return shutil.which("memcached") is not None


def cpu_us(requests: int, pipelined: int) -> dict[str, float]:
    """The microseconds of processor time of a SET, a GET and an INCR, at random keys that are there."""
    with ExitStack() as ended:
        server = ended.enter_context(running(_start()))
        clients = [ended.enter_context(_connect(server)) for _ in range(CLIENTS)]
        keys = range(min(KEYS_MAX, requests))
        counters = [b"set counter:%012d 0 0 1\r\n0\r\n" % n for n in keys]
        values = [COMMANDS["SET"][0] % n for n in keys]
        _ask(clients, counters + values, pipelined, lines=1)
        costs = {}
        for command, (request, lines) in COMMANDS.items():
            chosen = [request % random.choice(keys) for _ in range(requests)]
            before = cpu_seconds(server)
            _ask(clients, chosen, pipelined, lines)
            costs[command] = (settled_cpu_seconds(server, requests) - before) / requests * 1e6
        return costs


def _start() -> Process:
    """One thread, as the others have; it says nothing when it is ready, so it is asked."""
    port = free_port()
    command = f"echo starting; exec memcached -l 127.0.0.1 -p {port} -t 1 -u {getpass.getuser()}"
    process = Process(["sh", "-c", command], "starting")
    process.port = port
    return process


def _connect(server: Process) -> socket.socket:
    until = time.perf_counter() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((server.host, server.port), PATIENCE_SECONDS)
        except ConnectionRefusedError:
            if time.perf_counter() > until or not server.is_alive:
                raise
            time.sleep(0.05)


def _ask(clients: list[socket.socket], requests: list[bytes], pipelined: int, lines: int) -> None:
    """Send all of them, so many at once on each connection, and read the replies."""
    left = iter(requests)
    is_more = True
    while is_more:
        asked = []
        for client in clients:
            batch = list(itertools.islice(left, pipelined))
            if batch:
                client.sendall(b"".join(batch))
                asked.append((client, len(batch) * lines))
        for client, awaited in asked:
            _read_lines(client, awaited)
        is_more = bool(asked)


def _read_lines(client: socket.socket, awaited: int) -> None:
    while awaited > 0:
        data = client.recv(65536)
        assert data, "memcached hung up"
        # A line end that two pieces share is counted by its second byte.
        awaited -= data.count(b"\n")
