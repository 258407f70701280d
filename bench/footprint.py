"""What a running server costs: processor time, memory and room on the disk, as the kernel accounts for them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.servers import OURS, STARTS, checkpoint, fill, in_turns, started
from tests.wire.servers import Process

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.1
QUIET_LOOKS = 30
"""Longer than a server may put off what it owes, but for a checkpoint, which is asked for."""
WRITES_MIN = 10_000
"""Fewer leave nothing to put off."""
SETTLING_SECONDS = 30.0


class Memory(NamedTuple):
    """`private` is what only this process holds (anonymous, its share); `resident` counts every page that
    it has mapped and touched, those of files too, which the system may take back at any time."""

    private: int
    resident: int


def cpu_seconds(server: Process) -> float:
    """The processor time of all its threads so far, in user and kernel mode. A Redis that writes its log anew
    does so in a child, which is not counted: that is in its favour."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def settled_cpu_seconds(name: str, server: Process, writes: int) -> float:
    """The same once the server has done all that it owes for so many writes: what it does later for a write counts
    as the write's. Reads leave nothing to do."""
    if writes and name == OURS:
        checkpoint(server)
    rest(server, writes)
    return cpu_seconds(server)


def rest(server: Process, writes: int) -> None:
    """Return when the server is quiet after so many writes."""
    quiet, before = 0, cpu_seconds(server)
    until = time.perf_counter() + SETTLING_SECONDS
    while writes >= WRITES_MIN and quiet < QUIET_LOOKS and time.perf_counter() < until:
        time.sleep(LOOK_SECONDS)
        now = cpu_seconds(server)
        quiet = quiet + 1 if now - before <= 1 / TICKS_A_SECOND else 0
        before = now


def memory(server: Process) -> Memory:
    sizes = {}
    for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) * 1024
    return Memory(private=sizes["Pss_Anon"], resident=sizes["Rss"])


def disk_bytes(directory: Path) -> int:
    """What its files take on the disk, room that was set aside included."""
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*") if path.is_file())


def compare_memory(place: Path, rounds: int, waiting: int) -> dict[str, object]:
    """What so many small keys with deadlines take of fresh servers, beside what each has when it is empty."""
    found: dict[str, list[dict[str, object]]] = {name: [] for name in STARTS}
    for turn in range(rounds):
        for name in in_turns(list(STARTS), turn):
            with (
                tempfile.TemporaryDirectory(dir=place) as fresh,
                started(name, Path(fresh)) as (server, own),
            ):
                empty = memory(server)
                fill(server, waiting)
                rest(server, waiting)
                full = memory(server)
                if name == OURS:
                    checkpoint(server)
                found[name].append(
                    {"empty": empty._asdict(), "full": full._asdict(), "disk": disk_bytes(own)}
                )
    return {"keys": waiting, **found}
