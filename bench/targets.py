"""What the figures must reach; `python -m bench --check` holds them against it."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Keeps:
    """In a store of many keys an operation keeps at least this share of its rate in one of few."""

    operation: str
    share: float
    few: int = 100_000
    many: int = 10_000_000


Target = AtLeast | AtMost | Keeps

TARGETS: tuple[Target, ...] = (
    AtLeast("put_ttl", 50, "snkv"),
    AtLeast("put_ttl", 60, "diskcache"),
    AtLeast("put_ttl", 3, "rocksdict", "put"),
    AtLeast("get_ttl", 3, "rocksdict", "get"),
    AtLeast("get_ttl", 5, "snkv"),
    AtLeast("get_ttl_base", 4, "snkv"),
    AtLeast("get_ttl_base", 5, "diskcache"),
    AtLeast("get_ttl_base", 0.9, "lmdb"),
    AtLeast("get", 0.8, "plain-dict"),
    AtLeast("scan", 0.8, "snkv"),
    Keeps("get", 0.5),
    Keeps("put", 0.5),
    AtLeast("purge", 8, "snkv"),
    AtMost("purge_growth", 1.3),
    AtMost("memory", 20),
    AtMost("expiry_lag", 10),
)


def workloads() -> set[str]:
    """The workloads that the targets speak of."""
    own = {target.workload for target in TARGETS if not isinstance(target, Keeps)}
    return own | {target.theirs for target in TARGETS if isinstance(target, AtLeast)}


def peers() -> set[str]:
    return {OURS} | {target.peer for target in TARGETS if isinstance(target, AtLeast)}


NOT_RUN = "not run"

Verdict = tuple[bool | None, str]
"""Whether a target is met, None where nothing was measured, and a line that says so."""


def check(results: Results) -> list[Verdict]:
    """For each target whether it is met, and a line that says so with the figures."""
    return [
        _check_growth(results, target) if isinstance(target, Keeps) else _check(results, target)
        for target in TARGETS
    ]


def _check_growth(results: Results, target: Keeps) -> Verdict:
    wanted = f"{target.operation} at {target.many:,} keys ≥ {target.share:g} × at {target.few:,}"
    grown = results.get("growth", {})
    cells = [grown.get(str(keys), {}).get(OURS) for keys in (target.few, target.many)]
    if not all(cells):
        return None, f"----  {wanted:<42} not measured (--huge)"
    if any(cell["state"] != "measured" for cell in cells):
        return verdict(False, wanted, f"{OURS}: {[cell['state'] for cell in cells]}")
    ratio, figure = _kept_share(target.operation, cells)
    if target.operation == "get":
        figure += f"; the first reads {_kept_share('first get', cells)[1]}"
    if cells[0]["made"] != cells[1]["made"]:
        figure += "; of two runs"
    return verdict(ratio >= target.share, wanted, figure)


def _kept_share(operation: str, cells: Sequence[Cell]) -> tuple[float, str]:
    few, many = (cell["detail"][operation] for cell in cells)
    return many / few, f"{many / few:.2f}×: {many:,.0f} against {few:,.0f} ops/s"


def _check(results: Results, target: AtLeast | AtMost) -> Verdict:
    ours = _cell(results, target.workload, OURS)
    if isinstance(target, AtMost):
        wanted = f"{target.workload} ≤ {target.bound:g}"
        if ours["state"] == NOT_RUN:
            return None, f"----  {wanted:<42} not measured"
        if ours["state"] != "measured":
            return verdict(False, wanted, f"{OURS}: {ours['state']}")
        figure = f"{ours['value']:.2f} {ours['unit']}"
        return verdict(ours["value"] <= target.bound, wanted, figure)
    theirs = _cell(results, target.theirs, target.peer)
    wanted = f"{target.workload} ≥ {target.times:g} × {target.peer} {target.theirs}"
    if NOT_RUN in (ours["state"], theirs["state"]):
        return None, f"----  {wanted:<42} not measured"
    for name, cell in ((OURS, ours), (target.peer, theirs)):
        if cell["state"] != "measured":
            return verdict(False, wanted, f"{name}: {cell['state']}")
    ratio = ours["value"] / theirs["value"]
    figure = f"{ratio:.2f}×: {ours['value']:,.0f} against {theirs['value']:,.0f} ops/s"
    return verdict(ratio >= target.times, wanted, figure)


def _cell(results: Results, workload: str, peer: str) -> Cell:
    cell: Cell = results["medians"].get(workload, {}).get(peer, {"state": NOT_RUN})
    return cell


def verdict(is_met: bool, wanted: str, figure: str) -> Verdict:
    """A target and the figure that is held against it."""
    return is_met, f"{'pass' if is_met else 'FAIL'}  {wanted:<42} {figure}"
