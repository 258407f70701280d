"""The engine on SlateDB: `python -m bench.slatedb` from the root of the repository.

Three figures, each held against what it must reach. `put_many` into a directory. Single puts that wait for
the object store, of many threads against one: they share each flush, so many threads wait as long as one.
And `redis-benchmark` on a server whose store is there, with requests pipelined.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import ephemera
from tests.wire.servers import running, start_ephemera

PUT_MANY_AT_LEAST = 200_000
THREADS = 64
THREADS_RATIO_AT_LEAST = 20
SERVER_SETS_AT_LEAST = 50_000
PIPELINED = 16
VALUE = b"v" * 100


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when a figure is not what it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench.slatedb", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000, help="in one put_many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of single puts")
    parser.add_argument("--requests", type=int, default=200_000, help="to the server, in a round")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        met = [
            report("put_many, keys/s", put_many(place, options), PUT_MANY_AT_LEAST),
            report(f"{THREADS} threads / 1", threads(place, options), THREADS_RATIO_AT_LEAST),
            report(f"server, SET/s, -P {PIPELINED}", sets(place, options), SERVER_SETS_AT_LEAST),
        ]
    return int(not all(met))


def report(name: str, figures: list[float], wanted: float) -> bool:
    """Print the median of the rounds beside what is wanted of it."""
    median = statistics.median(figures)
    spread = f"{min(figures):,.0f} to {max(figures):,.0f}"
    print(f"{name:<24} {median:>12,.0f}   ({spread}; wanted {wanted:,})")
    return median >= wanted


def url(place: str, name: str) -> str:
    return f"file://{place}/{name}?engine=slatedb"


def put_many(place: str, options: argparse.Namespace) -> list[float]:
    """Keys a second, in each round keys of their own."""
    rates = []
    with ephemera.open(url(place, "many")) as store:
        for number in range(options.rounds):
            pairs = {b"key:%d:%08d" % (number, key): VALUE for key in range(options.keys)}
            began = time.perf_counter()
            store.put_many(pairs, ttl=3600)
            rates.append(options.keys / (time.perf_counter() - began))
    return rates


def threads(place: str, options: argparse.Namespace) -> list[float]:
    """How many times as many durable puts many threads do as one, in alternating rounds."""
    ratios = []
    with ephemera.open(url(place, "threads"), durability="commit") as store:
        for number in range(max(1, options.rounds // 2)):
            alone = puts_a_second(store, 1, options.seconds)
            together = puts_a_second(store, THREADS, options.seconds)
            print(f"  round {number}: {alone:,.1f}/s alone, {together:,.1f}/s of {THREADS} threads")
            ratios.append(together / alone)
    return ratios


def puts_a_second(store: ephemera.Store, count: int, seconds: float) -> float:
    done = [0] * count
    began = time.perf_counter()

    def put(number: int) -> None:
        while time.perf_counter() - began < seconds:
            store.put(b"key:%d:%d" % (number, done[number]), VALUE, ttl=3600)
            done[number] += 1

    workers = [threading.Thread(target=put, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def sets(place: str, options: argparse.Namespace) -> list[float]:
    """SET requests a second, to keys at random."""
    program = shutil.which("redis-benchmark")
    if program is None:
        raise SystemExit("redis-benchmark is missing: .ci/system installs it")
    rates = []
    with running(start_ephemera(url(place, "served"))) as server:
        command = [program, "-p", str(server.port), "-P", str(PIPELINED), "-t", "set", "--csv"]
        command += ["-n", str(options.requests), "-r", "200000", "-d", str(len(VALUE))]
        for _ in range(options.rounds):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows = list(csv.DictReader(done.stdout.splitlines()))
            rates.append(float(rows[0]["rps"]))
    return rates


if __name__ == "__main__":
    raise SystemExit(main())
