"""The named workloads. Each prepares its ground untimed, then times one loop of the peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import costs, latency
from bench.ground import VALUE, Ground, Measure, Unit, make_pairs
from bench.peers import TTL_S, Mode, NotOffered, Peer

READS_PER_WRITE = 9


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload's name, what its figure means, and how to run it."""

    name: str
    unit: Unit
    about: str
    run: Callable[[Ground], Measure]
    has_ttl: bool = True
    """Whether its keys carry a TTL; for a peer without one it is then another, easier workload."""


def rate(count: int, work: Callable[[], object]) -> Measure:
    """Operations per second, and the processor's time for each, threads of the library included."""
    started, cpu_started = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    cpu_us = cpu_seconds / count * 1e6
    return Measure(value=count / seconds, unit="ops/s", n=count, detail={"cpu_us": cpu_us})


def put(ground: Ground) -> Measure:
    keys = ground.sample(ground.keys(), ground.peer.puts_share)
    with ground.open() as peer:
        measure = rate(len(keys), lambda: peer.put_all(keys, VALUE))
        expect_value(peer, keys[-1])
    return measure


def put_ttl(ground: Ground) -> Measure:
    keys = ground.sample(ground.keys(), ground.peer.puts_share)
    with ground.open() as peer:
        measure = rate(len(keys), lambda: peer.put_ttl_all(keys, VALUE))
        expect_value(peer, keys[-1])
    return measure


def get(ground: Ground) -> Measure:
    return _get(ground, ttl_s=None)


def get_ttl(ground: Ground) -> Measure:
    return _get(ground, ttl_s=TTL_S)


def get_ttl_base(ground: Ground) -> Measure:
    return _get(ground, ttl_s=TTL_S, mode="default", is_old=True)


def _get(
    ground: Ground, *, ttl_s: float | None, mode: Mode = "still", is_old: bool = False
) -> Measure:
    keys = ground.keys()
    wanted = ground.sample(ground.shuffled(keys), ground.peer.gets_share)
    with ground.open(mode) as peer:
        peer.load(make_pairs(keys), ttl_s)
        if is_old:
            peer.move_to_base()
        expect_value(peer, wanted[0])
        return rate(len(wanted), lambda: peer.get_all(wanted))


def get_missing(ground: Ground) -> Measure:
    keys = ground.keys()
    missing = [
        b"mis" + key[3:] for key in ground.sample(ground.shuffled(keys), ground.peer.gets_share)
    ]
    with ground.open() as peer:
        peer.load(make_pairs(keys), TTL_S)
        if peer.get(missing[0]) is not None:
            raise AssertionError(f"{peer.name} found a key that was never written")
        return rate(len(missing), lambda: peer.get_all(missing))


def mixed_90_10(ground: Ground) -> Measure:
    keys = ground.keys()
    operations = [
        (key, number % (READS_PER_WRITE + 1) == READS_PER_WRITE)
        for number, key in enumerate(ground.sample(ground.shuffled(keys), ground.peer.gets_share))
    ]
    with ground.open() as peer:
        peer.load(make_pairs(keys), TTL_S)
        return rate(len(operations), lambda: peer.mix_all(operations, VALUE))


def scan(ground: Ground) -> Measure:
    return _scan(ground, is_old=False)


def scan_base(ground: Ground) -> Measure:
    return _scan(ground, is_old=True)


def _scan(ground: Ground, *, is_old: bool) -> Measure:
    keys = ground.keys()
    with ground.open() as peer:
        peer.load(make_pairs(keys), TTL_S)
        if is_old:
            peer.move_to_base()
        counts: list[int] = []
        measure = rate(len(keys), lambda: counts.append(peer.scan_all()))
        if counts != [len(keys)]:
            raise AssertionError(f"{peer.name} scanned {counts} keys of {len(keys)}")
    return measure


def touch(ground: Ground) -> Measure:
    keys = ground.keys()
    wanted = ground.sample(ground.shuffled(keys), ground.peer.puts_share)
    with ground.open() as peer:
        peer.load(make_pairs(keys), TTL_S)
        return rate(len(wanted), lambda: peer.touch_all(wanted))


def purge(ground: Ground) -> Measure:
    return _purge(ground, is_old=False)


def purge_base(ground: Ground) -> Measure:
    if not ground.peer.has_tiers:
        raise NotOffered
    return _purge(ground, is_old=True)


def _purge(ground: Ground, *, is_old: bool) -> Measure:
    dead = round(ground.scale.dead * ground.peer.purges_share)
    return costs.purge(ground, live=dead, dead=dead, is_old=is_old, place="store")


def expect_value(peer: Peer, key: bytes) -> None:
    """A figure for reads that find nothing, or writes that keep nothing, would be worthless."""
    if peer.get(key) != VALUE:
        raise AssertionError(f"{peer.name} lost {key!r}")


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("put", "ops/s", "write keys without a deadline, one by one", put, has_ttl=False),
        Workload("put_ttl", "ops/s", "write keys with a TTL, one by one", put_ttl),
        Workload(
            "get", "ops/s", "read recent keys without a deadline, at random", get, has_ttl=False
        ),
        Workload("get_ttl", "ops/s", "read recent keys with a TTL, at random", get_ttl),
        Workload("get_ttl_base", "ops/s", "the same, moved to the base tier before", get_ttl_base),
        Workload("get_missing", "ops/s", "read keys that do not exist", get_missing),
        Workload("mixed_90_10", "ops/s", "nine reads to one write with a TTL", mixed_90_10),
        Workload("scan", "ops/s", "all pairs with a TTL, in key order", scan),
        Workload("scan_base", "ops/s", "the same, moved to the base tier before", scan_base),
        Workload("touch", "ops/s", "renew a key's TTL, at random", touch),
        Workload("purge", "ops/s", "dead keys removed, as many live between them", purge),
        Workload("purge_base", "ops/s", "the same, moved to the base tier before", purge_base),
        Workload(
            "purge_growth",
            "×",
            "cost per dead key among ten times more live keys ÷ among as many as before",
            costs.purge_growth,
        ),
        Workload(
            "purge_growth_base",
            "×",
            "the same, the dead moved to the base tier before",
            costs.purge_growth_base,
        ),
        Workload(
            "open_after_crash",
            "ms",
            "open after kill -9 of the writer, read first and last key",
            costs.open_after_crash,
        ),
        Workload("put_latency", "µs", "one put with a TTL: p50 / p99 / max", latency.put_latency),
        Workload(
            "get_latency", "µs", "one get of a recent key: p50 / p99 / max", latency.get_latency
        ),
        Workload("disk", "B/key", "bytes on disk for each key, once closed", costs.disk),
        Workload(
            "memory",
            "MB",
            "private memory, without mapped files, that the keys cost",
            costs.memory,
        ),
        Workload(
            "expiry_lag",
            "ms",
            "from a key's deadline to its expiry event (p99)",
            costs.expiry_lag,
        ),
    )
}
