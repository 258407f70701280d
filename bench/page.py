"""docs/benchmarks.md and its plots, written from kept results: `python -m bench.page`.

Whoever reads the page sees what was measured, since nobody writes a figure by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import plots, report, server_report, targets
from bench.machine import ROOT
from bench.runner import Results

RESULTS = Path(__file__).parent / "results"
KEPT, KEPT_SERVER = RESULTS / "kept.json", RESULTS / "kept-server.json"
DOCS = ROOT / "docs"
PAGE = "benchmarks.md"
PLOTS = "benchmarks"
PLOTTED_RATES = ("put_ttl", "get_ttl", "get_ttl_base", "scan")
PLOTTED_LATENCIES = ("put_latency", "get_latency")

INTRODUCTION = """\
# Benchmarks

Written by `make bench-page` from what `bench/results` keeps of several runs: of the stores, of their growth (one round; ours with
100,000 and 10,000,000 keys in five, by turns), of the server, and of its delays. Each says when it was, and of which commit.
`make bench` measures anew, every peer and workload there is; `python -m bench --check --huge` holds the figures
against the targets below.

Every peer does the same work in its own process, with the same keys and values, in alternating rounds; the
figure is the median. What is read was loaded with a value object of its own for each key; `plain-dict` used to share one among all keys,
which it then never had to fetch from memory (puts still give the same object each time). Read ratios, not rates: a rate belongs to this machine and to what else it did at that
moment. Peers differ in what a crash can cost them, and a table below says how. A store that loses
nothing when its process is killed and at most the last second when the power fails (Ephemera) stands beside
stores that promise less and stores that promise more: compare within a class.

Which instructions an operation takes is guarded apart: `make bench-guard` counts them and fails when a
workload takes 5 % more than is kept in `bench/guard.json`. [Decision 25](decisions/0025-embedded-profile.md)
says where the time of a `get` and a `put` goes.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page goes")
    options = parser.parse_args(arguments)
    for name, text in render(*read_kept()).items():
        path: Path = options.docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def read_kept() -> tuple[Results, server_report.Figures]:
    """What is held against the targets, and what the server did."""
    return json.loads(KEPT.read_text()), json.loads(KEPT_SERVER.read_text())


def render(results: Results, server: server_report.Figures) -> dict[str, str]:
    """Every file of the page by its name below docs/; what was not measured has no plot."""
    files = {f"{PLOTS}/rates.svg": plots.rates(results, PLOTTED_RATES)}
    if set(PLOTTED_LATENCIES) & set(results["medians"]):
        files[f"{PLOTS}/latencies.svg"] = plots.latencies(results, PLOTTED_LATENCIES)
    for operation in ("get", "put") if results.get("growth") else ():
        files[f"{PLOTS}/growth-{operation}.svg"] = plots.growth(results, operation)
    shown = "\n\n".join(f"![{Path(name).stem}]({name})" for name in files)
    verdicts = "\n".join(line for _, line in targets.check(results))
    met = f"## Targets\n\n```\n{verdicts}\n```"
    files[f"{PLOTS}/server.svg"] = server_report.plot(server)
    of_server = f"{server_report.render(server)}\n\n![server]({PLOTS}/server.svg)\n"
    files[PAGE] = "\n\n".join([INTRODUCTION + shown, met, report.render(results), of_server])
    return files


if __name__ == "__main__":
    sys.exit(main())
