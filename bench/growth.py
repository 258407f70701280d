"""How the same operations fare in a store of ever more keys.

One store of so many keys, all of them where old keys live; then reads of random keys, then writes of
random keys with a TTL. There are as many operations whatever the size, but for a store of very few keys.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.ground import SEED, VALUE, Ground, Measure, make_pairs
from bench.peers import OURS, TTL_S
from bench.workloads import Workload, rate

SIZES = (1_000, 10_000, 100_000, 1_000_000)
HUGE = 10_000_000
PEERS = (OURS, "snkv", "rocksdict", "lmdb", "sqlite3", "plain-dict")
FIRST = 5
"""One part in so many of the reads is done before, and told apart: pages are not yet mapped then."""
HUGE_PEERS = (OURS, "lmdb", "plain-dict")
"""Ours, and two that tell what is the machine's: the tree below it, and what is in memory alone."""


def grown(ground: Ground) -> Measure:
    """Reads per second; the detail has the writes, and the load."""
    count = ground.scale.keys
    chosen = random.Random(SEED).choices(range(count), k=ground.scale.grown_reads)
    wanted = [b"key:%014d" % number for number in chosen]
    with ground.open() as peer:
        loaded = rate(count, lambda: peer.load(_pairs(count), TTL_S))
        peer.move_to_base()
        if peer.get(wanted[0]) != VALUE:
            raise AssertionError(f"{peer.name} lost {wanted[0]!r}")
        read = ground.sample(wanted, ground.peer.gets_share)
        first = rate(len(read) // FIRST, lambda: peer.get_all(read[: len(read) // FIRST]))
        got = rate(len(read), lambda: peer.get_all(read))
        written = ground.sample(wanted[: ground.scale.grown_writes], ground.peer.puts_share)
        put = rate(len(written), lambda: peer.put_ttl_all(written, VALUE))
    detail = {
        "first get": first.value,
        "get": got.value,
        "put": put.value,
        "load": loaded.value,
    }
    return Measure(value=got.value, unit="ops/s", n=len(read), detail=detail)


def _pairs(count: int) -> Iterator[tuple[bytes, bytes]]:
    return make_pairs(b"key:%014d" % number for number in range(count))


GROWN = Workload("grown", "ops/s", "random reads in a store of so many keys", grown)
