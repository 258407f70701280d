"""The server beside others: `python -m bench.server` from the root of the repository.

Each part is measured in alternating rounds: rates, latencies and processor time under `redis-benchmark`
(`bench.rates`), the same beside memcached (`bench.memcached`), what keys take in memory and on the disk
(`bench.footprint`), reads beside writes (`bench.stalls`), and the delay of `expired` events (`bench.delays`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import delays, footprint, machine, memcached, page, rates, server_report, stalls
from bench.server_targets import Figures, check

FEW_ROUNDS = 3
"""Of what takes minutes, and is hardly disturbed by what else the machine does."""

Part = Callable[[Path, argparse.Namespace], Mapping[str, object]]
PARTS: dict[str, Part] = {
    "rates": lambda place, asked: rates.compare(place, asked.rounds, asked.requests),
    "memcached": lambda place, asked: memcached.compare(place, asked.rounds, asked.requests),
    "memory": lambda place, asked: footprint.compare_memory(
        place, min(FEW_ROUNDS, asked.rounds), asked.waiting
    ),
    "stalls": lambda place, asked: stalls.compare(place, asked.rounds, asked.reading),
    "delays": lambda place, asked: delays.compare(
        place, min(FEW_ROUNDS, asked.rounds), asked.waiting, asked.expiring, asked.seconds
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and hold the figures against what they must reach; 1 when one does not."""
    options = _parse(arguments)
    results: Figures = json.loads(options.read.read_text()) if options.read else _measure(options)
    if options.keep:
        page.keep_server(results)
    print(server_report.render(results))
    return int(not all(is_met for is_met, _ in check(results)))


def _measure(options: argparse.Namespace) -> Figures:
    results: Figures = {}
    out: Path = options.out or page.RESULTS / f"server-{machine.stamp()}.json"
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name, compare in PARTS.items():
        if name in options.parts.split(","):
            made = machine.made()
            with tempfile.TemporaryDirectory(dir=options.dir) as place:
                results[name] = {"made": made, "found": compare(Path(place), options)}
            # After every part: a run takes long, and may be cut short.
            out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            print(f"kept in {out}", file=sys.stderr)
    return results


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200_000, help="of each command in a round")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="keys with far deadlines")
    parser.add_argument(
        "--reading", type=float, default=22.0, help="seconds of reads at a fixed rate"
    )
    parser.add_argument("--expiring", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="over which those expire")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--read", type=Path, metavar="FILE", help="report a former run again")
    parser.add_argument("--out", type=Path, help="where the figures of this run go (bench/results)")
    parser.add_argument("--keep", action="store_true", help=page.KEEP)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
