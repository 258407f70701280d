"""`get_many` and `put_many` of a store on Redis beside the same keys through redis-py's own pipeline.

    python -m bench.redis_engine [--keys 1000] [--rounds 30] [--url redis://127.0.0.1:6379]

Both take turns, round by round, so that what else the machine does meets both. The ratio is that of the
medians. Without a URL a Redis is started for the occasion.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import redis

import ephemera
from bench.machine import commit, describe
from ephemera.core.clock import elapsed_ns
from tests.wire.servers import running, start_redis

VALUE_BYTES = 100
RATIO_MAX = 1.3
"""What `get_many` may take at most, in times of the raw pipeline."""


def measure(url: str, *, keys: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a call by name: the median of redis-py's pipeline, and that of the store."""
    names = [b"key:%06d" % number for number in range(keys)]
    pairs = dict.fromkeys(names, b"v" * VALUE_BYTES)
    with ephemera.open(url + "?prefix=bench") as store, redis.Redis.from_url(url) as client:
        contests: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "put_many": (lambda: _set_all(client, pairs), lambda: store.put_many(pairs, ttl=3600)),
            "get_many": (lambda: _get_all(client, names), lambda: store.get_many(names)),
        }
        return {name: _alternate(*pair, rounds=rounds) for name, pair in contests.items()}


def _get_all(client: redis.Redis, names: list[bytes]) -> object:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.get(name)
    return pipeline.execute()


def _set_all(client: redis.Redis, pairs: dict[bytes, bytes]) -> object:
    """In one transaction, as `put_many` is."""
    pipeline = client.pipeline(transaction=True)
    for name, value in pairs.items():
        pipeline.set(name, value, px=3_600_000)
    return pipeline.execute()


def _alternate(
    raw: Callable[[], object], ours: Callable[[], object], *, rounds: int
) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for spent, call in zip(times, (raw, ours), strict=True):
            began_ns = elapsed_ns()
            call()
            if number:  # the first round connects and warms up
                spent.append((elapsed_ns() - began_ns) / 1e6)
    return median(times[0]), median(times[1])


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        running(start_redis(Path(directory))) as process,
    ):
        yield f"redis://127.0.0.1:{process.port}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--url")
    given = parser.parse_args()
    print({**describe(), "commit": commit()})
    with _server(given.url) as url:
        results = measure(url, keys=given.keys, rounds=given.rounds)
    for name, (raw_ms, ours_ms) in results.items():
        print(
            f"{name:9} of {given.keys:,} keys: redis-py {raw_ms:.2f} ms, the store {ours_ms:.2f} ms, "
            f"ratio {ours_ms / raw_ms:.2f}"
        )
    print(f"get_many is to take at most {RATIO_MAX} times the raw pipeline")


if __name__ == "__main__":
    main()
