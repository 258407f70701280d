"""Workloads whose figure is a cost: a purge's growth, an opening, memory, lateness."""

from __future__ import annotations

import gc
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench.ground import VALUE, Ground, Measure, make_keys, make_pairs
from bench.peers import TTL_S, NotOffered, Peer

DEAD_TTL_S = 0.01
SETTLE_SECONDS = 1.5
LAG_LEAD_S = 0.5
"""How long after the last write the first key dies."""
LAG_GRACE_S = 5.0
"""How long to wait for events that are late."""
GROWTH = 10
GROWTH_TIMES = 5


def purge(
    ground: Ground, *, live: int, dead: int, is_old: bool, place: str, times: int = 1
) -> Measure:
    """Dead keys removed per second, from random places between the live ones: the median of
    several times if they are few."""
    order = ground.shuffled(make_keys(live + dead))
    dying, living = sorted(order[:dead]), sorted(order[dead:])
    with ground.open("purge", place=place) as peer:
        peer.load(make_pairs(living), TTL_S)
        found = [_purge_once(peer, dying, is_old=is_old) for _ in range(times)]
    rate, cpu_us = (statistics.median(figures) for figures in zip(*found, strict=True))
    return Measure(value=rate, unit="ops/s", n=dead, detail={"cpu_us": cpu_us})


def _purge_once(peer: Peer, dying: Sequence[bytes], *, is_old: bool) -> tuple[float, float]:
    """Dead keys a second, and microseconds of processor time for each."""
    peer.load(make_pairs(dying), DEAD_TTL_S)
    if is_old:
        peer.move_to_base()
    peer.pass_time(2 * DEAD_TTL_S)
    started, cpu_started = time.perf_counter(), time.process_time()
    purged = peer.purge()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if purged != len(dying):
        raise AssertionError(f"{peer.name} purged {purged} of {len(dying)} dead keys")
    return purged / seconds, cpu_seconds / purged * 1e6


def purge_growth(ground: Ground) -> Measure:
    """Does a dead key cost more among ten times more live ones?"""
    return _purge_growth(ground, is_old=False)


def purge_growth_base(ground: Ground) -> Measure:
    if not ground.peer.has_tiers:
        raise NotOffered
    return _purge_growth(ground, is_old=True)


def _purge_growth(ground: Ground, *, is_old: bool) -> Measure:
    scale = ground.scale
    live, dead = scale.growth_live, scale.growth_dead_base if is_old else scale.growth_dead
    few, many = (
        purge(ground, live=count, dead=dead, is_old=is_old, place=str(count), times=GROWTH_TIMES)
        for count in (live, GROWTH * live)
    )
    rates = {"few": few.value, "many": many.value}
    return Measure(value=few.value / many.value, unit="×", n=dead, detail=rates)


def open_after_crash(ground: Ground) -> Measure:
    if not ground.peer.is_persistent:
        raise NotOffered
    _write_and_die(ground)
    keys = ground.keys()
    started = time.perf_counter()
    with ground.open() as peer:
        ends = (peer.get(keys[0]), peer.get(keys[-1]))
        seconds = time.perf_counter() - started
    if ends != (VALUE, VALUE):
        raise AssertionError(f"{peer.name} lost acknowledged keys")
    return Measure(value=seconds * 1000, unit="ms", n=len(keys))


def _write_and_die(ground: Ground) -> None:
    command = [sys.executable, "-m", "bench.victim", ground.peer.name, str(ground.directory)]
    with subprocess.Popen(
        [*command, str(ground.scale.keys)], stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None  # it is a pipe
        said = victim.stdout.readline()
        victim.kill()
    if said != "written\n":
        raise RuntimeError(f"the writer of {ground.peer.name} failed before it was killed")


def memory(ground: Ground) -> Measure:
    """How much private memory the keys cost. Keys and values are new objects, made while loading,
    so that whoever keeps them pays for them; and somebody listens for expiry, where that is
    offered, so that deadlines kept in memory are paid for too."""
    count = ground.scale.keys
    with ground.open() as peer:
        with suppress(NotOffered):
            peer.on_expire(lambda _deadline_ms: None)
        gc.collect()
        before = resident_bytes()
        peer.load(_fresh_pairs(count), TTL_S)
        time.sleep(SETTLE_SECONDS if count >= 100_000 else 0)
        gc.collect()
        after = resident_bytes()
    grown = {name: (after[name] - before[name]) / 1e6 for name in before}
    # Growth within what was already resident is not seen: a page is the least one can claim.
    least = resource.getpagesize() / 1e6
    return Measure(value=max(grown["private"], least), unit="MB", n=count, detail=grown)


def _fresh_pairs(count: int) -> Iterator[tuple[bytes, bytes]]:
    value = bytearray(VALUE)
    return ((b"key:%014d" % number, bytes(value)) for number in range(count))


def resident_bytes() -> dict[str, int]:
    """The process's resident memory: what no file backs, and what is mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines)
    names = {"private": "RssAnon", "mapped": "RssFile"}
    return {name: int(told[field].split()[0]) * 1024 for name, field in names.items()}


def disk(ground: Ground) -> Measure:
    """What the store takes on the disk once it is closed, room that it set aside included."""
    if not ground.peer.is_persistent:
        raise NotOffered
    with ground.open() as peer:
        peer.load(make_pairs(ground.keys()), TTL_S)
    files = (path.stat() for path in ground.directory.rglob("*") if path.is_file())
    taken = sum(512 * file.st_blocks for file in files)
    return Measure(value=taken / ground.scale.keys, unit="B/key", n=ground.scale.keys)


def expiry_lag(ground: Ground) -> Measure:
    """Keys die one after the other while many wait; how late are their events?"""
    scale = ground.scale
    lags_ms: list[float] = []

    def note(deadline_ms: int) -> None:
        lags_ms.append(time.time() * 1000 - deadline_ms)

    waiting = make_keys(scale.dead)
    dying = [b"dying:%012d" % number for number in range(scale.lag_keys)]
    with ground.open() as peer:
        peer.on_expire(note)
        peer.load(make_pairs(waiting), TTL_S)
        for number, key in enumerate(dying):
            ttl_s = LAG_LEAD_S + scale.lag_seconds * number / len(dying)
            peer.load([(key, VALUE)], ttl_s)
        patience = time.monotonic() + LAG_LEAD_S + scale.lag_seconds + LAG_GRACE_S
        while len(lags_ms) < len(dying) and time.monotonic() < patience:
            time.sleep(0.05)
    if len(lags_ms) != len(dying):
        raise AssertionError(f"{peer.name} told of {len(lags_ms)} of {len(dying)} dead keys")
    p50, p99, worst = (percentile(lags_ms, share) for share in (0.5, 0.99, 1.0))
    detail = {"p50": p50, "p99": p99, "max": worst}
    return Measure(value=p99, unit="ms", n=len(dying), detail=detail)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
