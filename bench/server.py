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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench import machine, memcached, stalls
from bench.footprint import cpu_seconds, memory, settled_cpu_seconds
from bench.server_report import (
    CPU_AT_MOST,
    CPU_PIPELINED,
    DELAY_MS_AT_MOST,
    MEMORY_AT_MOST,
    OURS,
    RATIOS_AT_LEAST,
    STALL_AT_MOST,
    THEIRS,
    UNKEPT,
    Figures,
    beside,
    medians,
    memory_ratio,
    stall_ratio,
)
from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera, start_redis

COMMANDS = ("SET", "GET", "INCR")
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
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        parts: tuple[tuple[str, Callable[[], Figures]], ...] = (
            ("rates", lambda: compare_rates(Path(place), options.rounds, options.requests)),
            ("memory", lambda: compare_memory(Path(place), options.waiting)),
            ("stalls", lambda: compare_stalls(Path(place), options.reading)),
            ("delays", lambda: compare_delays(Path(place), options.waiting, options.expiring,
                                              options.seconds)),
        )  # fmt: skip
        for name, compare in parts:
            if name in options.parts.split(","):
                results[name] = compare()
    out: Path = options.out or RESULTS / f"server-{results['date'].replace(':', '')[:17]}.json"
    out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"kept in {out}")
    return int(not all(results[name]["is_met"] for name, _ in parts if name in results))


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
    """Tell what `redis-benchmark` finds on each server, and what that cost them."""
    starts = start_both(place) | {UNKEPT: lambda: start_redis(place)}
    figures: Figures = {"is_met": True}
    with ExitStack() as ended:
        servers = {name: ended.enter_context(running(start())) for name, start in starts.items()}
        for pipelined, wanted in RATIOS_AT_LEAST.items():
            found: dict[str, dict[str, list[Round]]] = {
                command: {name: [] for name in servers} for command in COMMANDS
            }
            asked = requests if pipelined == 1 else requests * PIPELINED_REQUESTS
            for turn in range(rounds):
                names = list(servers) if turn % 2 == 0 else list(servers)[::-1]
                for command in COMMANDS:
                    for name in names:
                        found[command][name].append(
                            benchmark(servers[name], command, asked, pipelined)
                        )
            for command in COMMANDS:
                is_met = _tell_rates(command, pipelined, found[command], wanted[command])
                figures["is_met"] &= is_met
                figures[f"{command} -P {pipelined}"] = found[command]
    figures["memcached cpu_us"] = _tell_memcached(requests)
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


def _tell_rates(command: str, pipelined: int, found: dict[str, list[Round]], wanted: float) -> bool:
    ratio, cost = beside(found)
    print(f"{command:<5} -P {pipelined:<3} {ratio:5.2f} × Redis (at least {wanted:g})")
    is_cheap = pipelined != CPU_PIPELINED or cost <= CPU_AT_MOST
    bound = f" (at most {CPU_AT_MOST:g})" if pipelined == CPU_PIPELINED else ""
    print(f"             {cost:5.2f} × its processor time{bound}")
    for name, rounds in found.items():
        rate, cpu_us = medians(rounds)
        print(f"             {name:<18} {rate:>10,.0f}/s  {cpu_us:6.2f} µs each", flush=True)
    return ratio >= wanted and is_cheap


def _tell_memcached(requests: int) -> dict[str, float]:
    """What memcached spends on an operation in a pipeline, where it is installed."""
    if not memcached.is_installed():
        print("memcached is not installed")
        return {}
    costs = memcached.cpu_us(requests, CPU_PIPELINED)
    told = ", ".join(f"{command} {cost:.2f} µs" for command, cost in costs.items())
    print(f"memcached, {CPU_PIPELINED} at once: {told} each", flush=True)
    return costs


# --- memory ---------------------------------------------------------------------------------------


def compare_memory(place: Path, waiting: int) -> Figures:
    """Tell what so many small keys with deadlines take in memory, beside an empty server too."""
    figures: Figures = {"keys": waiting}
    for name, start in start_both(place).items():
        with running(start()) as server:
            empty = memory(server)
            fill(server, waiting)
            settled_cpu_seconds(server, waiting)
            full = memory(server)
        figures[name] = {"empty": empty._asdict(), "full": full._asdict()}
        print(
            f"{name:<9} {waiting:,} keys: {full.private / 2**20:,.1f} MiB of its own, "
            f"{full.resident / 2**20:,.1f} MiB with mapped files (empty: "
            f"{empty.private / 2**20:,.1f} and {empty.resident / 2**20:,.1f})",
            flush=True,
        )
    ratio = memory_ratio(figures)
    print(
        f"memory of our own ÷ Redis's resident memory: {ratio:.2f} (at most {MEMORY_AT_MOST:g}); "
        f"with mapped files {figures[OURS]['full']['resident'] / figures[THEIRS]['full']['resident']:.2f}"
    )
    figures["is_met"] = ratio <= MEMORY_AT_MOST
    return figures


# --- stalls ---------------------------------------------------------------------------------------


def compare_stalls(place: Path, seconds: float) -> Figures:
    """Tell how long reads wait beside writes, with checkpoints and without."""
    starts: dict[str, Callable[[], Process]] = {
        "with checkpoints": lambda: start_both(place)[OURS](),
        "without": lambda: stalls.start_uncheckpointed(place / "unchecked.eph"),
        THEIRS: lambda: start_both(place)[THEIRS](),
    }
    figures: Figures = {}
    for name, start in starts.items():
        with running(start()) as server:
            delays = stalls.read_delays_ms(server, seconds)
        figures[name] = {f"p{rank:g}_ms": percentile(delays, rank) for rank in (50, 99, 99.9)}
        told = ", ".join(f"p{rank:g} {percentile(delays, rank):.2f} ms" for rank in (50, 99, 99.9))
        print(f"GET beside writes, {name}: {told}, most {max(delays):.2f} ms", flush=True)
    ratio = stall_ratio(figures)
    print(f"p99.9 with checkpoints ÷ without: {ratio:.2f} (at most {STALL_AT_MOST:g})")
    figures["is_met"] = ratio <= STALL_AT_MOST
    return figures


# --- expiry ---------------------------------------------------------------------------------------


def compare_delays(place: Path, waiting: int, expiring: int, seconds: float) -> Figures:
    """Tell how late `expired` events arrive on both."""
    figures: Figures = {"is_met": True}
    for name, start in start_both(place).items():
        with running(start()) as server:
            fill(server, waiting)
            delays = expiry_delays_ms(server, expiring, seconds)
        p99 = percentile(delays, 99)
        figures[name] = {"p50_ms": percentile(delays, 50), "p99_ms": p99}
        figures["is_met"] &= name != OURS or p99 <= DELAY_MS_AT_MOST
        print(
            f"{name:<9} {waiting:,} keys waiting, {expiring:,} expiring over {seconds:g} s: p50 "
            f"{percentile(delays, 50):.1f} ms, p99 {p99:.1f} ms, most {max(delays):.1f} ms late"
            f"{_tell_missing(delays)}",
            flush=True,
        )
    print(f"ephemera's p99 must be at most {DELAY_MS_AT_MOST:g} ms")
    return figures


def _tell_missing(delays: list[float]) -> str:
    missing = delays.count(math.inf)
    return f"; {missing:,} not within {PATIENCE_SECONDS:g} s" if missing else ""


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
