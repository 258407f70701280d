"""What a running server costs: processor time and memory, as the kernel accounts for them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from tests.wire.servers import Process

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.1
QUIET_LOOKS = 30
"""Longer than a server may put off what it owes."""
OPERATIONS_MIN = 10_000
"""Fewer leave nothing to put off."""
SETTLING_SECONDS = 30.0


class Memory(NamedTuple):
    """`private` is what only this process holds (anonymous, its share); `resident` counts every page that
    it has mapped and touched, those of files too, which the system may take back at any time."""

    private: int
    resident: int


def cpu_seconds(server: Process) -> float:
    """The processor time of all its threads so far, in user and kernel mode."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def settled_cpu_seconds(server: Process, operations: int) -> float:
    """The same once the server rests after so many operations: what it does later for a write counts as
    the write's."""
    quiet, before = 0, cpu_seconds(server)
    if operations < OPERATIONS_MIN:
        return before
    until = time.perf_counter() + SETTLING_SECONDS
    while quiet < QUIET_LOOKS and time.perf_counter() < until:
        time.sleep(LOOK_SECONDS)
        now = cpu_seconds(server)
        quiet = quiet + 1 if now - before <= 1 / TICKS_A_SECOND else 0
        before = now
    return before


def memory(server: Process) -> Memory:
    sizes = {}
    for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) * 1024
    return Memory(private=sizes["Pss_Anon"], resident=sizes["Rss"])
