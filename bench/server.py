"""The server beside Redis: `python -m bench.server` from the root of the repository.

Two things are measured on both, in alternating rounds, and compared by their medians. The rate of
`redis-benchmark`, alone and pipelined, with Redis as durable as we are by default (it syncs its log
once a second). And the delay from a key's deadline to the arrival of its `expired` event, while many
other keys wait for theirs.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera, start_redis

COMMANDS = ("SET", "GET", "INCR")
RATIOS_AT_LEAST = {1: 0.8, 16: 0.35}
"""By how many requests a client sends at once."""
DELAY_MS_AT_MOST = 20.0
LOAD = ("-c", "50", "-d", "100", "-r", "200000")

DAY_MS = 24 * 60 * 60 * 1000
BATCH = 5_000
HEAD_START_MS = 500
"""What setting up may take before the first deadline."""
PATIENCE_SECONDS = 30.0
"""How long after the last deadline events are waited for."""

Rates = dict[str, float]


def main() -> int:
    """Measure and hold the figures against what they must reach; 1 when one does not."""
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200_000, help="of each command in a round")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="keys with far deadlines")
    parser.add_argument("--expiring", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="over which those expire")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        are_rates_met = compare_rates(Path(place), options.rounds, options.requests)
        is_delay_met = compare_delays(
            Path(place), options.waiting, options.expiring, options.seconds
        )
    return int(not (are_rates_met and is_delay_met))


def start_both(place: Path) -> dict[str, Callable[[], Process]]:
    """How each server is started, its files in a directory that the other does not use."""
    theirs = place / "redis"
    theirs.mkdir(exist_ok=True)
    return {
        "ephemera": lambda: start_ephemera(place / "bench.eph", "--durability", "interval"),
        "redis": lambda: start_redis(theirs, "--appendonly", "yes", "--appendfsync", "everysec"),
    }


# --- rates ----------------------------------------------------------------------------------------


def compare_rates(place: Path, rounds: int, requests: int) -> bool:
    """Print what `redis-benchmark` finds on both; whether we are as fast as we must be."""
    starts = start_both(place)
    with running(starts["ephemera"]()) as ours, running(starts["redis"]()) as theirs:
        is_met = True
        for pipelined, wanted in RATIOS_AT_LEAST.items():
            found: list[tuple[Rates, Rates]] = []
            for turn in range(rounds):
                order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
                rates = {server: benchmark(server, requests, pipelined) for server in order}
                found.append((rates[ours], rates[theirs]))
            for command in COMMANDS:
                is_met &= _tell_ratio(command, pipelined, found, wanted)
    return is_met


def benchmark(server: Process, requests: int, pipelined: int) -> Rates:
    """Requests a second of each command, by `redis-benchmark`."""
    program = shutil.which("redis-benchmark")
    assert program is not None, "redis-benchmark is missing: .ci/system installs it"
    asked = ["-p", str(server.port), "-n", str(requests), "-P", str(pipelined), *LOAD]
    done = subprocess.run(
        [program, *asked, "-t", ",".join(COMMANDS).lower(), "--csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = csv.DictReader(done.stdout.splitlines())
    return {line["test"]: float(line["rps"]) for line in lines}


def _tell_ratio(
    command: str, pipelined: int, found: list[tuple[Rates, Rates]], wanted: float
) -> bool:
    ours = statistics.median(mine[command] for mine, _ in found)
    theirs = statistics.median(other[command] for _, other in found)
    ratios = [mine[command] / other[command] for mine, other in found]
    ratio = statistics.median(ratios)
    print(
        f"{command:<5} -P {pipelined:<3} {ratio:5.2f} × Redis (at least {wanted:g}; "
        f"rounds {min(ratios):.2f} to {max(ratios):.2f}; {ours:,.0f}/s and {theirs:,.0f}/s)",
        flush=True,
    )
    return ratio >= wanted


# --- expiry ---------------------------------------------------------------------------------------


def compare_delays(place: Path, waiting: int, expiring: int, seconds: float) -> bool:
    """Print how late `expired` events arrive on both; whether ours are early enough."""
    is_met = True
    for name, start in start_both(place).items():
        with running(start()) as server:
            fill(server, waiting)
            delays = expiry_delays_ms(server, expiring, seconds)
        p99 = percentile(delays, 99)
        is_met &= name != "ephemera" or p99 <= DELAY_MS_AT_MOST
        print(
            f"{name:<9} {waiting:,} keys waiting, {expiring:,} expiring over {seconds:g} s: p50 "
            f"{percentile(delays, 50):.1f} ms, p99 {p99:.1f} ms, most {max(delays):.1f} ms late"
            f"{_tell_missing(delays)}",
            flush=True,
        )
    print(f"ephemera's p99 must be at most {DELAY_MS_AT_MOST:g} ms")
    return is_met


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


def percentile(values: list[float], rank: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * rank // 100)]


if __name__ == "__main__":
    sys.exit(main())
