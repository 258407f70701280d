"""What `redis-benchmark` finds on each server: its rate and its latencies, and what that cost the server.

The processor time is that of the whole process until it rests: where the client is the slower part, the rate
says nothing.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.footprint import cpu_seconds, settled_cpu_seconds
from bench.servers import STARTS, in_turns, started
from tests.wire.servers import Process

COMMANDS = {"PING": "ping_mbulk", "SET": "set", "GET": "get", "INCR": "incr"}
"""Each with its name among the tests of `redis-benchmark`. PING is the floor: it asks nothing of the store."""
WRITES = ("SET", "INCR")
PIPELINED = (1, 16)
"""How many requests a client sends at once."""
UNPIPELINED_PARTS = 4
"""With one request at a time each round is in so many parts, the servers taking turns: what else the machine does
for a second or two then falls on all of them."""
PIPELINED_REQUESTS = 5
"""How many times more requests a pipelined round has: it takes as long as another then, and what a server does
once in a while, such as a checkpoint, has the share of a steady load."""
LOAD = ("-c", "50", "-d", "100", "-r", "200000")
PERCENTILES = ("p50", "p95", "p99", "max")

Found = dict[str, dict[str, list[dict[str, float]]]]
"""By case and server: the rounds."""


class Round(NamedTuple):
    """Of one command on one server: requests a second, microseconds of processor time for each, and how many
    milliseconds they took."""

    rate: float
    cpu_us: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def compare(place: Path, rounds: int, requests: int) -> Found:
    found: Found = {}
    with ExitStack() as ended:
        servers = {name: ended.enter_context(started(name, place))[0] for name in STARTS}
        for pipelined in PIPELINED:
            parts = UNPIPELINED_PARTS if pipelined == 1 else 1
            asked = requests // parts if pipelined == 1 else requests * PIPELINED_REQUESTS
            for turn in range(rounds * parts):
                for command in COMMANDS:
                    case = found.setdefault(
                        f"{command} -P {pipelined}", {name: [] for name in servers}
                    )
                    for name in in_turns(list(servers), turn):
                        measured = benchmark(name, servers[name], command, asked, pipelined)
                        case[name].append(measured._asdict())
    return found


def benchmark(name: str, server: Process, command: str, requests: int, pipelined: int) -> Round:
    """One command by `redis-benchmark`."""
    program = shutil.which("redis-benchmark")
    assert program is not None, "redis-benchmark is missing: .ci/system installs it"
    asked = ["-p", str(server.port), "-n", str(requests), "-P", str(pipelined), *LOAD]
    before = cpu_seconds(server)
    done = subprocess.run(
        [program, *asked, "-t", COMMANDS[command], "--csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    writes = requests if command in WRITES else 0
    spent = settled_cpu_seconds(name, server, writes) - before
    (line,) = csv.DictReader(done.stdout.splitlines())
    return Round(
        float(line["rps"]),
        spent / requests * 1e6,
        *(float(line[f"{rank}_latency_ms"]) for rank in PERCENTILES),
    )
