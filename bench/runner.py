"""Runs workloads × peers in alternating rounds, each cell in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench import growth, machine
from bench.peers import PEERS
from bench.workloads import WORKLOADS

CELL_SECONDS_MAX = 900

Cell = dict[str, Any]  # Any: a line of JSON, as bench.one printed it
Results = dict[str, Any]  # Any: the JSON document that is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    workloads: Sequence[str]
    peers: Sequence[str]
    keys: int
    rounds: int
    directory: str
    growth: Sequence[int] = ()
    """The sizes of stores to compare, if any."""
    is_tiny: bool = False
    """One process per peer instead of one per cell: quick, and worthless as a figure."""


def run(plan: Plan, progress: Callable[[Cell], None]) -> Iterator[Results]:
    """The results after every round, first of the workloads, then of the growth: a run takes long, and may be cut short."""
    present = [name for name in plan.peers if PEERS[name].is_installed()]
    made = machine.made()
    cells: list[Cell] = []
    for number in range(plan.rounds):
        # A machine that warms up or tires during a round must not always hit the same peer.
        order = present if number % 2 == 0 else present[::-1]
        for group in _groups(plan):
            for peer in order:
                for cell in _run_cells(plan, peer, group, plan.keys):
                    cell["round"] = number
                    cells.append(cell)
                    progress(cell)
                _settle_disk(plan)
        results = _results(plan, cells, made | {"keys": plan.keys, "rounds": number + 1})
        yield results
    grown: dict[int, dict[str, list[Cell]]] = {keys: {} for keys in plan.growth}
    made = machine.made()
    for number in range(plan.rounds if grown else 0):
        for keys, cells_of in grown.items():
            for cell in _grow(plan, _growing(present, keys), keys, number):
                progress(cell)
                cells_of.setdefault(cell["peer"], []).append(cell)
        results["growth"] = {
            str(keys): {peer: _median(found) | {"made": made} for peer, found in cells_of.items()}
            for keys, cells_of in grown.items()
        }
        yield results


def _results(plan: Plan, cells: Sequence[Cell], made: machine.Made) -> Results:
    """The rounds, their medians, and what is needed to make sense of them later."""
    return {
        "made": dict.fromkeys(plan.workloads, made),
        "packages": machine.versions(PEERS[name] for name in plan.peers),
        "peers": {name: _describe_peer(name) for name in plan.peers},
        "workloads": {name: _describe_workload(name) for name in plan.workloads},
        "medians": medians(cells, plan),
        "rounds": cells,
        "growth": {},
    }


def _growing(present: Sequence[str], keys: int) -> list[str]:
    """Who takes part with stores of so many keys: a huge one is for those that are quick to fill it."""
    peers = growth.HUGE_PEERS if keys >= growth.HUGE else growth.PEERS
    return [peer for peer in present if peer in peers]


def _grow(plan: Plan, peers: Sequence[str], keys: int, number: int) -> Iterator[Cell]:
    """A round with stores of so many keys."""
    for peer in peers if number % 2 == 0 else peers[::-1]:
        (cell,) = _run_cells(plan, peer, [growth.GROWN.name], keys)
        yield cell | {"round": number, "workload": f"{keys:,} keys"}
        _settle_disk(plan)


def _groups(plan: Plan) -> list[list[str]]:
    """The workloads that share a process."""
    if plan.is_tiny and plan.workloads:
        return [list(plan.workloads)]
    return [[name] for name in plan.workloads]


def _run_cells(plan: Plan, peer: str, workloads: Sequence[str], keys: int) -> list[Cell]:
    command = [sys.executable, "-m", "bench.one", peer, ",".join(workloads)]
    try:
        done = subprocess.run(
            [*command, str(keys), plan.directory],
            cwd=machine.ROOT,
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        return [_failed(peer, name, f"took over {CELL_SECONDS_MAX} s") for name in workloads]
    sys.stderr.write(done.stderr)
    cells: list[Cell] = [json.loads(line) for line in done.stdout.splitlines()]
    ended = f"the process ended with {done.returncode}"
    return cells + [_failed(peer, name, ended) for name in workloads[len(cells) :]]


def _failed(peer: str, workload: str, error: str) -> Cell:
    return {"workload": workload, "peer": peer, "state": "error", "error": error}


def _settle_disk(plan: Plan) -> None:
    """What one cell left to be written back must not slow the next."""
    if not plan.is_tiny:
        os.sync()


def medians(cells: Sequence[Cell], plan: Plan) -> dict[str, dict[str, Cell]]:
    """By workload and peer: the median round, or why there is none."""
    return {
        workload: {
            peer: _median(
                [cell for cell in cells if (cell["workload"], cell["peer"]) == (workload, peer)]
            )
            for peer in plan.peers
        }
        for workload in plan.workloads
    }


def _median(cells: Sequence[Cell]) -> Cell:
    if not cells:
        return {"state": "missing"}
    unmeasured = [cell for cell in cells if cell["state"] != "measured"]
    if unmeasured:
        return {key: unmeasured[0][key] for key in ("state", "error") if key in unmeasured[0]}
    values = [cell["value"] for cell in cells]
    middle: Cell = {"state": "measured", "value": statistics.median(values)}
    middle |= {"unit": cells[0]["unit"], "n": cells[0]["n"], "rounds": values}
    if cells[0].get("detail"):
        details = [cell["detail"] for cell in cells]
        names = details[0]
        middle["detail"] = {
            name: statistics.median(detail[name] for detail in details) for name in names
        }
    return middle


def _describe_peer(name: str) -> dict[str, object]:
    peer = PEERS[name]
    return {
        "package": peer.package,
        "is_installed": peer.is_installed(),
        "has_ttl": peer.has_ttl,
        "killed": peer.killed,
        "unpowered": peer.unpowered,
    }


def _describe_workload(name: str) -> dict[str, object]:
    workload = WORKLOADS[name]
    return {"unit": workload.unit, "about": workload.about, "has_ttl": workload.has_ttl}
