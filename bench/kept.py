"""What is kept of several runs: the newest figures of each part, and of each what it was made of.

A part is what is compared with each other, and so comes of one run: a workload with all its peers, or a part of the
server's benchmark. Stores of a size are compared with themselves: of the growth each cell is a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.peers import PEERS
from bench.runner import Results
from bench.workloads import WORKLOADS

Figures = dict[str, Any]  # Any: what `json` writes

OF_WORKLOADS = ("made", "workloads", "medians")


def merge(kept: Results, run: Results) -> Results:
    """The results of a run over those that were kept, in the order in which everything is known."""
    merged: Results = {
        name: _ordered(kept.get(name, {}) | run[name], WORKLOADS) for name in OF_WORKLOADS
    }
    shown = {peer for cells in merged["medians"].values() for peer in cells}
    peers = {
        name: peer for name, peer in (kept.get("peers", {}) | run["peers"]).items() if name in shown
    }
    grown: dict[str, Any] = {}  # Any: what `json` writes
    for sizes in (kept.get("growth", {}), run["growth"]):
        for keys, cells in sizes.items():
            grown[keys] = grown.get(keys, {}) | cells
    return merged | {
        "packages": kept.get("packages", {}) | run["packages"],
        "peers": _ordered(peers, PEERS),
        "growth": {keys: _ordered(grown[keys], PEERS) for keys in sorted(grown, key=int)},
    }


def merge_server(kept: Figures, run: Figures) -> Figures:
    return kept | run


def _ordered(named: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """What is no longer known has no place."""
    return {name: named[name] for name in order if name in named}
