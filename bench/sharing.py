"""What sharing costs and what it saves: `python -m bench.sharing` from the root of the repository.

Three ratios, each the median of alternating rounds: readers beside a writer against the same readers
beside a process that is just as busy; a store that may be shared against an exclusive one; and
`durability="commit"` in many threads against one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import ephemera
from ephemera import Store

READERS = 4
THREADS = 16
KEYS = 20_000
VALUE = b"v" * 100
SECONDS = 1.0
READERS_AT_LEAST = 0.7
SHARED_AT_LEAST = 0.8
COMMIT_AT_LEAST = 8.0

_processes = multiprocessing.get_context("spawn")


def main() -> int:
    """Measure and hold the figures against what they must reach; 1 when one does not."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    is_met = True
    for name, wanted, measure in (
        (f"{READERS} readers beside a writer", READERS_AT_LEAST, readers_beside_a_writer),
        ("put, shared against exclusive", SHARED_AT_LEAST, puts_shared),
        ("get, shared against exclusive", SHARED_AT_LEAST, gets_shared),
        (f"{THREADS} committing threads against one", COMMIT_AT_LEAST, commits),
    ):
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.dir) as directory:
                rounds.append(measure(Path(directory) / "store.eph"))
        ratio = statistics.median(rounds)
        is_met &= ratio >= wanted
        print(f"{name:<40} {ratio:6.2f} × (at least {wanted:g}; rounds {_spread(rounds)})")
    return int(not is_met)


def _spread(rounds: list[float]) -> str:
    return f"{min(rounds):.2f} to {max(rounds):.2f}"


# -- readers beside a writer


def readers_beside_a_writer(path: Path) -> float:
    with ephemera.open(path) as store:
        fill(store)
    with ephemera.open(path):
        alone = _readers_rate(path, busy)
        beside = _readers_rate(path, write)
    return beside / alone


def _readers_rate(path: Path, beside: Callable[[Path, Event], None]) -> float:
    """What one of the readers does in a second, with one more process beside them."""
    stop = _processes.Event()
    rates: multiprocessing.Queue[float] = _processes.Queue()
    other = _processes.Process(target=beside, args=(path, stop))
    readers = [_processes.Process(target=read, args=(path, rates)) for _ in range(READERS)]
    for process in (other, *readers):
        process.start()
    found = [rates.get() for _ in readers]
    stop.set()
    for process in (other, *readers):
        process.join()
    return statistics.median(found)


def read(path: Path, rates: multiprocessing.Queue[float]) -> None:
    with ephemera.open(path, maintenance="manual") as store:
        rates.put(rate_of_gets(store))


def write(path: Path, stop: Event) -> None:
    with ephemera.open(path) as store:
        while not stop.is_set():
            for number in range(1_000):
                store.put(key_of(number), VALUE, ttl=3600)


def busy(_path: Path, stop: Event) -> None:
    kept: dict[bytes, bytes] = {}
    while not stop.is_set():
        for number in range(1_000):
            kept[key_of(number)] = VALUE


# -- the cost of sharing, with nobody else there


def puts_shared(path: Path) -> float:
    return _shared_against_exclusive(path, rate_of_puts)


def gets_shared(path: Path) -> float:
    return _shared_against_exclusive(path, rate_of_gets)


def _shared_against_exclusive(path: Path, rate: Callable[[Store], float]) -> float:
    rates = []
    for is_exclusive in (True, False):
        with ephemera.open(f"{path}-{is_exclusive}", exclusive=is_exclusive) as store:
            fill(store)
            rates.append(rate(store))
    return rates[1] / rates[0]


# -- group commit


def commits(path: Path) -> float:
    with ephemera.open(path, durability="commit") as store:
        fill(store)
        one = _rate_of_threads(store, 1)
        many = _rate_of_threads(store, THREADS)
    return many / one


def _rate_of_threads(store: Store, threads: int) -> float:
    rates: list[float] = []
    started = [
        threading.Thread(target=lambda: rates.append(rate_of_puts(store))) for _ in range(threads)
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(rates)


# -- the parts


def key_of(number: int) -> bytes:
    return b"key:%014d" % number


def fill(store: Store) -> None:
    store.put_many({key_of(number): VALUE for number in range(KEYS)}, ttl=3600)


def rate_of_puts(store: Store) -> float:
    return _rate(lambda key: store.put(key, VALUE, ttl=3600))


def rate_of_gets(store: Store) -> float:
    return _rate(store.get)


def _rate(step: Callable[[bytes], object]) -> float:
    """Calls in a second, of keys in random order."""
    keys = [key_of(number) for number in random.sample(range(KEYS), 1_000)]
    calls, started = 0, time.perf_counter()
    while (took := time.perf_counter() - started) < SECONDS:
        # A slow step looks at the clock often enough: one key at a time would measure the clock.
        part = keys if calls / max(took, 1e-9) > 10_000 else keys[:10]
        for key in part:
            step(key)
        calls += len(part)
    return calls / took


if __name__ == "__main__":
    sys.exit(main())
