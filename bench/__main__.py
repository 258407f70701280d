"""The command line: `python -m bench` from the root of the repository."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from bench import growth, machine, page, report, runner, targets
from bench.ground import Scale
from bench.peers import PEERS
from bench.runner import Cell, Plan, Results
from bench.workloads import WORKLOADS

PARTS = ("workloads", "growth")
TINY_KEYS = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure (or read kept results), report, and check; 1 when something failed."""
    options = _parse(arguments)
    if options.read:
        results: Results = json.loads(options.read.read_text())
    else:
        results = _measure(options)
    if options.keep:
        page.keep(results)
    print(report.render(results))
    has_errors = any(
        cell["state"] == "error"
        for table in (results["medians"], results["growth"])
        for cells in table.values()
        for cell in cells.values()
    )
    if not options.check:
        return int(has_errors)
    verdicts = targets.check(results)
    print("\n## Targets\n", *(line for _, line in verdicts), sep="\n")
    return int(has_errors or any(is_met is False for is_met, _ in verdicts))


def _measure(options: argparse.Namespace) -> Results:
    parts = _chosen(options.parts, PARTS, PARTS, options.check)
    workloads = _chosen(options.workloads, WORKLOADS, targets.workloads(), options.check)
    plan = Plan(
        workloads=workloads if "workloads" in parts else (),
        peers=_chosen(options.peers, PEERS, targets.peers(), options.check),
        keys=options.keys or (TINY_KEYS if options.tiny else Scale().keys),
        rounds=options.rounds or (1 if options.tiny else 5),
        growth=_sizes(options) if "growth" in parts else (),
        directory=str(options.dir),
        is_tiny=options.tiny,
    )
    out: Path = options.out or page.RESULTS / f"{machine.stamp()}.json"
    for results in runner.run(plan, _show):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"kept in {out}", file=sys.stderr)
    return results


def _sizes(options: argparse.Namespace) -> Sequence[int]:
    if options.growth is not None:
        return tuple(options.growth)
    if options.tiny:
        return (TINY_KEYS // 10, TINY_KEYS)
    return (*growth.SIZES, growth.HUGE) if options.huge else growth.SIZES


def _chosen(
    given: str | None, known: Collection[str], of_targets: Collection[str], is_check: bool
) -> list[str]:
    """The names asked for, in the order in which they are known."""
    names = set(given.split(",")) if given else set(of_targets if is_check else known)
    unknown = names - set(known)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def _show(cell: Cell) -> None:
    figure = f"{cell['value']:,.2f} {cell['unit']}" if "value" in cell else cell["state"]
    print(
        f"{cell['round'] + 1}  {cell['workload']:<16} {cell['peer']:<16} {figure}", file=sys.stderr
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--workloads", help=f"some of {','.join(WORKLOADS)}")
    parser.add_argument("--peers", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--keys", type=_count, help=f"how many (default {Scale().keys})")
    parser.add_argument(
        "--growth", type=_count, nargs="*", metavar="KEYS", help="sizes of stores to compare"
    )
    parser.add_argument(
        "--huge", action="store_true", help=f"also a store of {growth.HUGE:,} keys: minutes"
    )
    parser.add_argument("--rounds", type=_count, help="how many (default 5)")
    parser.add_argument("--tiny", action="store_true", help="a quick run that shows it all works")
    parser.add_argument("--check", action="store_true", help="hold the figures against the targets")
    parser.add_argument("--read", type=Path, metavar="FILE", help="report a former run again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the results of this run go")
    parser.add_argument("--keep", action="store_true", help=page.KEEP)
    parser.add_argument(
        "--dir", type=Path, default=tempfile.gettempdir(), help="where the stores are made"
    )
    options = parser.parse_args(arguments)
    if options.tiny and options.keep:
        parser.error("the figures of a tiny run are worth nothing: --keep those of a full one")
    return options


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {count}")
    return count


if __name__ == "__main__":
    sys.exit(main())
