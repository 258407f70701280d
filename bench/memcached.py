"""memcached beside ours, under a pipelined load of a client of our own: `redis-benchmark` does not speak its protocol.

The client asks both in turns and only counts the lines that come back, so that it is quicker than a server.
"""

from __future__ import annotations

import getpass
import itertools
import random
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from bench.footprint import cpu_seconds, settled_cpu_seconds
from bench.rates import WRITES, Found
from bench.servers import OURS, in_turns, started
from tests.wire.resp import request
from tests.wire.servers import PATIENCE_SECONDS, Process, free_port, running

NAME = "memcached"
KEYS_MAX = 200_000
VALUE = b"x" * 100
CLIENTS = 50
PIPELINED = 16

KEY, COUNTER = b"key:%012d", b"counter:%012d"
Spoken = dict[str, tuple[bytes, int]]
"""By command: what is sent for a key of this number, and how many lines come back."""
SPOKEN: dict[str, Spoken] = {
    OURS: {
        "SET": (request("SET", KEY % 0, VALUE).replace(KEY % 0, KEY), 1),
        "GET": (request("GET", KEY % 0).replace(KEY % 0, KEY), 2),
        "INCR": (request("INCR", COUNTER % 0).replace(COUNTER % 0, COUNTER), 1),
    },
    NAME: {
        "SET": (b"set " + KEY + b" 0 0 100\r\n" + VALUE + b"\r\n", 1),
        "GET": (b"get " + KEY + b"\r\n", 3),
        "INCR": (b"incr " + COUNTER + b" 1\r\n", 1),
    },
}
FIRST_COUNT = {
    OURS: request("SET", COUNTER % 0, b"0").replace(COUNTER % 0, COUNTER),
    NAME: b"set " + COUNTER + b" 0 0 1\r\n0\r\n",
}


def compare(place: Path, rounds: int, requests: int) -> Found:
    """Rates and processor time of both, at random keys that are there; nothing where it is not installed."""
    if shutil.which("memcached") is None:
        return {}
    with ExitStack() as ended:
        servers = {
            OURS: ended.enter_context(started(OURS, place))[0],
            NAME: ended.enter_context(running(_start())),
        }
        keys = range(min(KEYS_MAX, requests))
        clients = {
            name: [ended.enter_context(_connect(server)) for _ in range(CLIENTS)]
            for name, server in servers.items()
        }
        for name, spoken in SPOKEN.items():
            _ask(clients[name], [FIRST_COUNT[name] % n for n in keys], lines=1)
            _ask(clients[name], [spoken["SET"][0] % n for n in keys], lines=1)
        found: Found = {}
        for turn in range(rounds):
            for command in SPOKEN[OURS]:
                case = found.setdefault(f"{command} -P {PIPELINED}", {name: [] for name in servers})
                for name in in_turns(list(servers), turn):
                    asked, lines = SPOKEN[name][command]
                    chosen = [asked % random.choice(keys) for _ in range(requests)]
                    writes = requests if command in WRITES else 0
                    before = cpu_seconds(servers[name])
                    rate = requests / _ask(clients[name], chosen, lines)
                    spent = settled_cpu_seconds(name, servers[name], writes) - before
                    case[name].append({"rate": rate, "cpu_us": spent / requests * 1e6})
        return found


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


def _ask(clients: list[socket.socket], requests: list[bytes], lines: int) -> float:
    """Send all of them, so many at once on each connection, and read the replies; the seconds that took."""
    left = iter(requests)
    batches = iter(lambda: list(itertools.islice(left, PIPELINED)), [])
    ready = [(b"".join(batch), len(batch) * lines) for batch in batches]
    began = time.perf_counter()
    for at in range(0, len(ready), len(clients)):
        asked = list(zip(clients, ready[at : at + len(clients)], strict=False))
        for client, (data, _) in asked:
            client.sendall(data)
        for client, (_, awaited) in asked:
            _read_lines(client, awaited)
    return time.perf_counter() - began


def _read_lines(client: socket.socket, awaited: int) -> None:
    while awaited > 0:
        data = client.recv(65536)
        assert data, "the server hung up"
        # A line end that two pieces share is counted by its second byte.
        awaited -= data.count(b"\n")
