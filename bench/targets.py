"""What the figures must reach; `python -m bench --check` holds them against it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peers import OURS
from bench.runner import Cell, Results


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Our rate is at least `times` a peer's rate of the same workload or of `peers_workload`."""

    workload: str
    times: float
    peer: str
    peers_workload: str | None = None

    @property
    def theirs(self) -> str:
        return self.peers_workload or self.workload


@dataclass(frozen=True, slots=True)
class AtMost:
    """Our cost is at most `bound`."""

    workload: str
    bound: float


Target = AtLeast | AtMost

TARGETS: tuple[Target, ...] = (
    AtLeast("put_ttl", 25, "snkv"),
    AtLeast("put_ttl", 60, "diskcache"),
    AtLeast("put_ttl", 1.5, "rocksdict", "put"),
    AtLeast("get_ttl", 1.5, "rocksdict", "get"),
    AtLeast("get_ttl", 5, "snkv"),
    AtLeast("get_ttl_base", 2, "snkv"),
    AtLeast("get_ttl_base", 5, "diskcache"),
    AtLeast("purge", 3, "snkv"),
    AtLeast("purge_recent", 3, "snkv", "purge"),
    AtMost("purge_growth", 1.3),
    AtMost("memory", 20),
    AtMost("expiry_lag", 10),
)


def workloads() -> set[str]:
    """The workloads that the targets speak of."""
    own = {target.workload for target in TARGETS}
    return own | {target.theirs for target in TARGETS if isinstance(target, AtLeast)}


def peers() -> set[str]:
    return {OURS} | {target.peer for target in TARGETS if isinstance(target, AtLeast)}


def check(results: Results) -> list[tuple[bool, str]]:
    """For each target whether it is met, and a line that says so with the figures."""
    return [_check(results, target) for target in TARGETS]


def _check(results: Results, target: Target) -> tuple[bool, str]:
    ours = _cell(results, target.workload, OURS)
    if isinstance(target, AtMost):
        wanted = f"{target.workload} ≤ {target.bound:g}"
        if ours["state"] != "measured":
            return _verdict(False, wanted, f"{OURS}: {ours['state']}")
        figure = f"{ours['value']:.2f} {ours['unit']}"
        return _verdict(ours["value"] <= target.bound, wanted, figure)
    theirs = _cell(results, target.theirs, target.peer)
    wanted = f"{target.workload} ≥ {target.times:g} × {target.peer} {target.theirs}"
    for name, cell in ((OURS, ours), (target.peer, theirs)):
        if cell["state"] != "measured":
            return _verdict(False, wanted, f"{name}: {cell['state']}")
    ratio = ours["value"] / theirs["value"]
    figure = f"{ratio:.2f}×: {ours['value']:,.0f} against {theirs['value']:,.0f} ops/s"
    return _verdict(ratio >= target.times, wanted, figure)


def _cell(results: Results, workload: str, peer: str) -> Cell:
    cell: Cell = results["medians"].get(workload, {}).get(peer, {"state": "not run"})
    return cell


def _verdict(is_met: bool, wanted: str, figure: str) -> tuple[bool, str]:
    return is_met, f"{'pass' if is_met else 'FAIL'}  {wanted:<42} {figure}"
