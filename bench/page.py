"""docs/benchmarks.md and its plots, written from kept results: `python -m bench.page`.

Whoever reads the page sees what was measured, since nobody writes a figure by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import kept, plots, report, server_report, targets
from bench.machine import ROOT
from bench.runner import Results
from bench.server_targets import Figures

RESULTS = Path(__file__).parent / "results"
KEPT, KEPT_SERVER = "kept.json", "kept-server.json"
DOCS = ROOT / "docs"
PAGE = "benchmarks.md"
PLOTS = "benchmarks"
PLOTTED_RATES = ("put_ttl", "get_ttl", "get_ttl_base", "scan")
PLOTTED_LATENCIES = ("put_latency", "get_latency")
KEEP = "keep the figures over those kept before, and write the page of benchmarks"

INTRODUCTION = """\
# Benchmarks

Written from what `bench/results` keeps; each part says of which run it is. `make bench ARGS=--keep` and
`make bench-server ARGS=--keep` measure anew, every peer and workload there is, and write this page;
`python -m bench --check --huge` holds the figures against the targets below.

Every peer does the same work in its own process, with the same keys and values, in alternating rounds; the
figure is the median. What is read was loaded with a value object of its own for each key, which has to be fetched from
memory; puts give the same object each time. Read ratios, not rates: a rate belongs to this machine and to what else it
did at that moment. Peers differ in what a crash can cost them, and a table below says how. A store that loses
nothing when its process is killed and at most the last second when the power fails (Ephemera) stands beside
stores that promise less and stores that promise more: compare within a class.

Which instructions an operation takes is guarded apart: `make bench-guard` counts them and fails when a
workload takes 5 % more than is kept in `bench/guard.json`. [Decision 25](decisions/0025-embedded-profile.md)
says where the time of a `get` and a `put` goes.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page goes")
    write(parser.parse_args(arguments).docs)
    return 0


def keep(run: Results) -> None:
    """Keep a run of the stores, and write the page."""
    _keep(KEPT, run, kept.merge)


def keep_server(run: Figures) -> None:
    """Keep a run of the server, and write the page."""
    _keep(KEPT_SERVER, run, kept.merge_server)


def _keep(name: str, run: Results, merge: Callable[[Results, Results], Results]) -> None:
    merged = merge(_read(name), run)
    (RESULTS / name).write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n")
    write(DOCS)


def read_kept() -> tuple[Results, Figures]:
    """What is held against the targets, and what the server did."""
    return _read(KEPT), _read(KEPT_SERVER)


def _read(name: str) -> Results:
    path = RESULTS / name
    found: Results = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(docs: Path) -> None:
    for name, text in render(*read_kept()).items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path, file=sys.stderr)


def render(results: Results, server: Figures) -> dict[str, str]:
    """Every file of the page by its name below docs/; what was not measured is not in it."""
    files: dict[str, str] = {}
    sections = [INTRODUCTION]
    if results:
        files |= _plots(results)
        verdicts = "\n".join(line for _, line in targets.check(results))
        met = f"## Targets\n\n```\n{verdicts}\n```"
        sections = [INTRODUCTION + _shown(files), met, report.render(results)]
    if server:
        sections.append(server_report.render(server))
    if "rates" in server:
        plot = {f"{PLOTS}/server.svg": server_report.plot_rates(server)}
        sections.append(_shown(plot))
        files |= plot
    files[PAGE] = "\n\n".join(sections) + "\n"
    return files


def _plots(results: Results) -> dict[str, str]:
    files = {}
    if set(PLOTTED_RATES) & set(results["medians"]):
        files[f"{PLOTS}/rates.svg"] = plots.rates(results, PLOTTED_RATES)
    if set(PLOTTED_LATENCIES) & set(results["medians"]):
        files[f"{PLOTS}/latencies.svg"] = plots.latencies(results, PLOTTED_LATENCIES)
    for operation in ("get", "put") if results["growth"] else ():
        files[f"{PLOTS}/growth-{operation}.svg"] = plots.growth(results, operation)
    return files


def _shown(files: dict[str, str]) -> str:
    return "\n\n".join(f"![{Path(name).stem}]({name})" for name in files)


if __name__ == "__main__":
    sys.exit(main())
