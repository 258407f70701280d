"""What the server's figures must reach, as ratios to others in the same rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench import stalls, targets
from bench.servers import OURS, THEIRS
from bench.targets import Verdict

RATIOS_AT_LEAST = {
    "SET -P 1": 1.0,
    "GET -P 1": 1.0,
    "INCR -P 1": 1.0,
    "SET -P 16": 1.2,
    "GET -P 16": 1.0,
    "INCR -P 16": 1.0,
}
"""Our rate beside Redis's, by command and how many requests a client sends at once."""
CPU_AT_MOST = {"SET -P 16": 0.9, "GET -P 16": 0.9, "INCR -P 16": 0.9}
MEMORY_AT_MOST = 1.0
STALL_AT_MOST = 3.0
DELAY_MS_AT_MOST = 20.0

Figures = dict[str, Any]  # Any: what `json` writes
Rounds = Sequence[dict[str, Any]]  # Any: likewise


class Ratio(NamedTuple):
    """The median, the lowest and the highest of the rounds' ratios; and the median of each side."""

    median: float
    low: float
    high: float
    ours: float
    theirs: float

    def told(self, digits: int, unit: str) -> str:
        """Both, since the ratio of the medians is another figure."""
        of_medians = self.ours / self.theirs if self.theirs else math.nan
        return (
            f"{self.median:.2f}× ({self.low:.2f} to {self.high:.2f}); by medians {of_medians:.2f}×: "
            f"{self.ours:,.{digits}f} against {self.theirs:,.{digits}f} {unit}"
        )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    # A tiny run is over before the kernel has counted anything.
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b] or [math.nan]
    sides = statistics.median(ours), statistics.median(theirs)
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), *sides)


def column(rounds: Rounds, *path: str) -> list[float]:
    """One figure of every round; infinite where what was awaited did not come."""
    found = []
    for each in rounds:
        value: Any = each  # Any: what `json` writes
        for name in path:
            value = value[name]
        found.append(math.inf if value is None else value)
    return found


def check(results: Figures) -> list[Verdict]:
    """For each target of what was measured whether it is met, and a line that says so with the figures."""
    held = {
        "rates": _check_rates,
        "memory": _check_memory,
        "stalls": _check_stalls,
        "delays": _check_delays,
    }
    return [
        verdict
        for part, checked in held.items()
        if part in results
        for verdict in checked(results[part]["found"])
    ]


def _check_rates(found: Figures) -> Iterator[Verdict]:
    for case, least in RATIOS_AT_LEAST.items():
        ours, theirs = found[case][OURS], found[case][THEIRS]
        rate = ratio(column(ours, "rate"), column(theirs, "rate"))
        yield targets.verdict(
            rate.median >= least, f"{case} ≥ {least:g} × redis", rate.told(0, "requests/s")
        )
        if case in CPU_AT_MOST:
            most = CPU_AT_MOST[case]
            cost = ratio(column(ours, "cpu_us"), column(theirs, "cpu_us"))
            wanted = f"{case}, processor time ≤ {most:g} × redis"
            yield targets.verdict(cost.median <= most, wanted, cost.told(2, "µs"))


def _check_memory(found: Figures) -> Iterator[Verdict]:
    """All that each has in memory, pages of mapped files included."""
    mebibytes = {
        (name, kind): [size / 2**20 for size in column(found[name], "full", kind)]
        for name in (OURS, THEIRS)
        for kind in ("resident", "private")
    }
    theirs = mebibytes[THEIRS, "resident"]
    held, own = (ratio(mebibytes[OURS, kind], theirs) for kind in ("resident", "private"))
    yield targets.verdict(
        held.median <= MEMORY_AT_MOST,
        f"resident memory ≤ {MEMORY_AT_MOST:g} × redis",
        f"{held.told(1, 'MiB')} (without mapped files {own.median:.2f}×)",
    )


def _check_stalls(found: Figures) -> Iterator[Verdict]:
    for case in stalls.CASES:
        rounds = found[case]
        waits = ratio(
            column(rounds[stalls.CHECKED], "p99.9_ms"), column(rounds[stalls.UNCHECKED], "p99.9_ms")
        )
        told = ", told" if case == "told" else ""
        yield targets.verdict(
            waits.median <= STALL_AT_MOST,
            f"GET p99.9{told} ≤ {STALL_AT_MOST:g} × without checkpoints",
            waits.told(2, "ms"),
        )


def _check_delays(found: Figures) -> Iterator[Verdict]:
    late = column(found[OURS], "p99_ms")
    p99 = statistics.median(late)
    yield targets.verdict(
        p99 <= DELAY_MS_AT_MOST,
        f"`expired` events, p99 ≤ {DELAY_MS_AT_MOST:g} ms",
        f"{p99:.1f} ms, the median of {len(late)} ({min(late):.1f} to {max(late):.1f})",
    )
