"""The server beside others: `python -m bench.server` from the root of the repository.

Redis is as durable as we are by default (it syncs its log once a second). What is measured on both, in
alternating rounds, and compared by medians:

- the rate of `redis-benchmark`, alone and pipelined; beside them a Redis that keeps nothing;
- the processor time of an operation, until the server rests again: where the client is the slower part, the
  rate says nothing; for memcached too, whose load is a client of our own;
- the memory of many small keys with deadlines;
- the delay of reads at a fixed rate beside steady writes, with checkpoints and without;
- the delay from a key's deadline to the arrival of its `expired` event, while many other keys wait.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import machine, memcached, server_report, stalls
from bench.footprint import cpu_seconds, memory, settled_cpu_seconds
from bench.server_report import CPU_PIPELINED, OURS, RATIOS_AT_LEAST, THEIRS, UNKEPT, Figures
from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera, start_redis

COMMANDS = ("SET", "GET", "INCR")
UNPIPELINED_PARTS = 4
"""With one request at a time each round is in so many parts, the servers taking turns: what else the machine does
for a second or two then falls on all of them."""
PIPELINED_REQUESTS = 5
"""How many times more requests a pipelined round has: it takes as long as another then, and what a server does
once in a while, such as a checkpoint, has the share of a steady load."""
LOAD = ("-c", "50", "-d", "100", "-r", "200000")
RESULTS = Path(__file__).parent / "results"

DAY_MS = 24 * 60 * 60 * 1000
BATCH = 5_000
HEAD_START_MS = 500
"""What setting up may take before the first deadline."""
PATIENCE_SECONDS = 30.0
"""How long after the last deadline events are waited for."""


class Round(NamedTuple):
    """Of one command on one server: requests a second, and microseconds of processor time for each."""

    rate: float
    cpu_us: float


def main() -> int:
    """Measure and hold the figures against what they must reach; 1 when one does not."""
    options = _parse()
    results: Figures = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "settings": {name: value for name, value in vars(options).items() if name not in ("dir", "out")},
    }  # fmt: skip
    out: Path = options.out or RESULTS / f"server-{results['date'].replace(':', '')[:17]}.json"
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        parts: tuple[tuple[str, Callable[[], Figures]], ...] = (
            ("rates", lambda: compare_rates(Path(place), options.rounds, options.requests)),
            ("memory", lambda: compare_memory(Path(place), options.waiting)),
            ("stalls", lambda: compare_stalls(Path(place), options.rounds, options.reading)),
            ("delays", lambda: compare_delays(Path(place), options.waiting, options.expiring,
                                              options.seconds)),
        )  # fmt: skip
        for name, compare in parts:
            if name in options.parts.split(","):
                results[name] = {"made": machine.made()} | compare()
                _keep(results, out)
    print(server_report.render(results))
    return int(not all(is_met for is_met, _ in server_report.check(results)))


def _keep(results: Figures, out: Path) -> None:
    """After every part: a run takes a quarter of an hour, and may be cut short."""
    out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"kept in {out}", file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("--parts", default="rates,memory,stalls,delays", help="some of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200_000, help="of each command in a round")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="keys with far deadlines")
    parser.add_argument(
        "--reading", type=float, default=20.0, help="seconds of reads at a fixed rate"
    )
    parser.add_argument("--expiring", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="over which those expire")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="where to keep the figures (bench/results)")
    return parser.parse_args()


def start_both(place: Path) -> dict[str, Callable[[], Process]]:
    """How each server is started, its files in a directory that the other does not use."""
    theirs = place / "redis"
    theirs.mkdir(exist_ok=True)
    return {
        OURS: lambda: start_ephemera(place / "bench.eph", "--durability", "interval"),
        THEIRS: lambda: start_redis(theirs, "--appendonly", "yes", "--appendfsync", "everysec"),
    }


# --- rates and processor time ---------------------------------------------------------------------


def compare_rates(place: Path, rounds: int, requests: int) -> Figures:
    """What `redis-benchmark` finds on each server, and what that cost them."""
    starts = start_both(place) | {UNKEPT: lambda: start_redis(place)}
    figures: Figures = {}
    with ExitStack() as ended:
        servers = {name: ended.enter_context(running(start())) for name, start in starts.items()}
        for pipelined in RATIOS_AT_LEAST:
            parts = UNPIPELINED_PARTS if pipelined == 1 else 1
            asked = requests // parts if pipelined == 1 else requests * PIPELINED_REQUESTS
            for turn in range(rounds * parts):
                names = list(servers) if turn % 2 == 0 else list(servers)[::-1]
                for command in COMMANDS:
                    found = figures.setdefault(
                        f"{command} -P {pipelined}", {name: [] for name in servers}
                    )
                    for name in names:
                        found[name].append(benchmark(servers[name], command, asked, pipelined))
    figures["memcached cpu_us"] = (
        memcached.cpu_us(requests, CPU_PIPELINED) if memcached.is_installed() else {}
    )
    return figures


def benchmark(server: Process, command: str, requests: int, pipelined: int) -> Round:
    """One command by `redis-benchmark`."""
    program = shutil.which("redis-benchmark")
    assert program is not None, "redis-benchmark is missing: .ci/system installs it"
    asked = ["-p", str(server.port), "-n", str(requests), "-P", str(pipelined), *LOAD]
    before = cpu_seconds(server)
    done = subprocess.run(
        [program, *asked, "-t", command.lower(), "--csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    spent = settled_cpu_seconds(server, requests) - before
    (line,) = csv.DictReader(done.stdout.splitlines())
    return Round(float(line["rps"]), spent / requests * 1e6)


# --- memory ---------------------------------------------------------------------------------------


def compare_memory(place: Path, waiting: int) -> Figures:
    """What so many small keys with deadlines take in memory, beside an empty server too. Files that held other
    keys before would count as well, where they are mapped."""
    figures: Figures = {"keys": waiting}
    with tempfile.TemporaryDirectory(dir=place) as fresh:
        for name, start in start_both(Path(fresh)).items():
            with running(start()) as server:
                empty = memory(server)
                fill(server, waiting)
                settled_cpu_seconds(server, waiting)
                figures[name] = {"empty": empty._asdict(), "full": memory(server)._asdict()}
    return figures


# --- stalls ---------------------------------------------------------------------------------------


def compare_stalls(place: Path, rounds: int, seconds: float) -> Figures:
    """How long reads wait beside writes, with checkpoints and without: the median of the rounds."""

    def read(name: str) -> list[float]:
        with (
            tempfile.TemporaryDirectory(dir=place) as fresh,
            running(starts[name](Path(fresh))) as server,
        ):
            return stalls.read_delays_ms(server, seconds)

    starts: dict[str, Callable[[Path], Process]] = {
        "with checkpoints": lambda place: start_both(place)[OURS](),
        "without": lambda place: stalls.start_uncheckpointed(place / "unchecked.eph"),
        THEIRS: lambda place: start_both(place)[THEIRS](),
    }
    delays: dict[str, list[tuple[list[float], float]]] = {name: [] for name in starts}
    for turn in range(rounds):
        for name in starts if turn % 2 == 0 else reversed(starts):
            delays[name].append(machine.undisturbed(partial(read, name)))
    return {
        name: {
            f"p{rank:g}_ms": statistics.median(percentile(each, rank) for each, _ in found)
            for rank in (50, 99, 99.9, 100)
        }
        | {"stolen": max(share for _, share in found)}
        for name, found in delays.items()
    }


# --- expiry ---------------------------------------------------------------------------------------


def compare_delays(place: Path, waiting: int, expiring: int, seconds: float) -> Figures:
    """How late `expired` events arrive on both."""

    def expire(start: Callable[[], Process]) -> list[float]:
        # A server of its own each time: what is dead and not told of yet would be taken for what dies now.
        with running(start()) as server:
            fill(server, waiting)
            return expiry_delays_ms(server, expiring, seconds)

    figures: Figures = {}
    for name, start in start_both(place).items():
        delays, stolen = machine.undisturbed(partial(expire, start))
        figures[name] = {f"p{rank:g}_ms": percentile(delays, rank) for rank in (50, 99)}
        figures[name] |= {"missing": delays.count(math.inf), "stolen": stolen}
    return figures


def fill(server: Process, waiting: int) -> None:
    """Keys with a lifetime of days, so that all of them wait."""
    with Wire(server) as wire:
        wire("FLUSHALL")
        for start in range(0, waiting, BATCH):
            numbers = range(start, min(start + BATCH, waiting))
            wire.pipeline([("SET", f"waits:{n}", "v", "PX", DAY_MS + n) for n in numbers])


def expiry_delays_ms(server: Process, expiring: int, seconds: float) -> list[float]:
    """How long after its deadline the event of each of so many keys arrived; infinite if it did not."""
    with Wire(server, seconds + PATIENCE_SECONDS) as listener, Wire(server) as wire:
        wire("CONFIG", "SET", "notify-keyspace-events", "Ex")
        listener("SUBSCRIBE", "__keyevent@0__:expired")
        first_ms = time.time() * 1000 + HEAD_START_MS
        deadlines = {
            b"dies:%d" % n: int(first_ms + n * seconds * 1000 / expiring) for n in range(expiring)
        }
        replies = wire.pipeline([("SET", k, "v", "PXAT", at) for k, at in deadlines.items()])
        assert not any(reply.is_error for reply in replies), replies[0]
        delays = dict.fromkeys(deadlines, math.inf)
        last_ms = first_ms + (seconds + PATIENCE_SECONDS) * 1000
        with suppress(TimeoutError):
            for _ in deadlines:
                listener.socket.settimeout(max(0.001, last_ms / 1000 - time.time()))
                key = listener.read().members[2].data
                delays[key] = time.time() * 1000 - deadlines[key]
    return list(delays.values())


def percentile(values: list[float], rank: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))]


if __name__ == "__main__":
    sys.exit(main())
