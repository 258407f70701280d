"""Workloads whose figure is a distribution: each operation timed by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.costs import percentile
from bench.ground import VALUE, Ground, Measure, make_pairs
from bench.peers import TTL_S, Peer


def put_latency(ground: Ground) -> Measure:
    keys = ground.sample(ground.keys()[: ground.scale.latencies], ground.peer.puts_share)
    with ground.open() as peer:
        return _latencies(keys, _putting(peer))


def get_latency(ground: Ground) -> Measure:
    keys = ground.keys()
    order = ground.shuffled(keys)[: ground.scale.latencies]
    wanted = ground.sample(order, ground.peer.gets_share)
    with ground.open("still") as peer:
        peer.load(make_pairs(keys), TTL_S)
        return _latencies(wanted, peer.get)


def _putting(peer: Peer) -> Callable[[bytes], object]:
    """One put with a TTL, or without where the peer has none; the loop around one key is everybody's."""
    return lambda key: peer.put_ttl_all((key,), VALUE)


def _latencies(keys: Sequence[bytes], operate: Callable[[bytes], object]) -> Measure:
    tick = time.perf_counter_ns
    taken_ns: list[int] = []
    for key in keys:
        started = tick()
        operate(key)
        taken_ns.append(tick() - started)
    taken_us = [taken / 1000 for taken in taken_ns]
    p50, p99, worst = (percentile(taken_us, share) for share in (0.5, 0.99, 1.0))
    detail = {"p50": p50, "p99": p99, "max": worst}
    return Measure(value=p99, unit="µs", n=len(keys), detail=detail)
