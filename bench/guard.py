"""Instructions per operation, held against those that are kept: `python -m bench.guard`.

Times are noisy where others share the machine; the number of instructions is not. valgrind counts them
in two runs that differ in their number of operations alone, so that starting and loading fall out. What is
not seen is waiting: for memory, for the kernel, for a disk. The counts belong to a build: another version
of Python or another compiler keeps its own with `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from bench.counted import WORK
from bench.machine import ROOT
from ephemera import _keyspace

KEPT = Path(__file__).parent / "guard.json"
OPERATIONS_FEW, OPERATIONS_MANY = 2_000, 12_000
TOLERANCE = 0.05
RUN_SECONDS_MAX = 600
_TOTAL = re.compile(r"Collected\s*:\s*(\d+)")

Counts = Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and compare or keep; 1 when a workload takes more than it may, 2 when nothing is kept."""
    options = _parse(arguments)
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind counts the instructions, and is missing: .ci/system valgrind")
    names = options.workloads.split(",") if options.workloads else list(WORK)
    unknown = set(names) - set(WORK)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(WORK)}")
    if options.keep:
        counts = _kept_of_this_build(options.file) | count(names, options.many)
        ordered = {name: counts[name] for name in WORK if name in counts}
        options.file.write_text(
            json.dumps({"build": build(), "instructions": ordered}, indent=1) + "\n"
        )
        print(f"kept in {options.file}")
        return 0
    kept = json.loads(options.file.read_text())
    if kept["build"] != build():
        print(f"kept for another build: {kept['build']}, and this is {build()}; see --keep")
        return 2
    verdicts = compare(kept["instructions"], count(names, options.many), options.tolerance)
    print(*(line for _, line in verdicts), sep="\n")
    return int(not all(is_met for is_met, _ in verdicts))


def _kept_of_this_build(file: Path) -> dict[str, float]:
    kept = json.loads(file.read_text()) if file.exists() else {}
    counts: dict[str, float] = kept["instructions"] if kept.get("build") == build() else {}
    return counts


def build() -> dict[str, str]:
    """What the counts depend on besides the source."""
    return {
        "machine": platform.machine(),
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "lmdb": metadata.version("lmdb"),
        **compilers(Path(_keyspace.__file__).read_bytes()),
    }


def compilers(module: bytes) -> dict[str, str]:
    """What a compiled module says of those who made it."""
    compiler = re.search(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", module)
    cython = re.search(rb"_cython_(\d+_\d+_\d+)", module)
    return {
        "compiler": compiler[0].decode() if compiler else "unknown",
        "cython": cython[1].decode().replace("_", ".") if cython else "unknown",
    }


def compare(kept: Counts, counted: Counts, tolerance: float) -> list[tuple[bool, str]]:
    """For each workload that was counted whether it stays within its bound, and a line that says so."""
    verdicts = []
    for name, now in counted.items():
        before = kept.get(name)
        if before is None:
            verdicts.append((False, f"FAIL  {name:<12} {now:,.0f} instructions, and none are kept"))
            continue
        growth = now / before - 1
        is_met = now <= before * (1 + tolerance)
        figure = f"{now:,.0f} instructions, {growth:+.1%} on {before:,.0f}"
        verdicts.append((is_met, f"{'pass' if is_met else 'FAIL'}  {name:<12} {figure}"))
    return verdicts


def count(names: Sequence[str], many: int = OPERATIONS_MANY) -> dict[str, float]:
    """The instructions of one operation of each workload."""
    for name in names:
        _run(name, 1, [])  # leaves Python's compiled files behind, which the counted runs only read
    few = min(OPERATIONS_FEW, many // 2)
    runs = [(name, operations) for name in names for operations in (few, many)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        totals = dict(zip(runs, pool.map(lambda run: _total(*run), runs), strict=True))
    return {
        name: round((totals[name, many] - totals[name, few]) / (many - few), 1) for name in names
    }


def _total(name: str, operations: int) -> int:
    with tempfile.NamedTemporaryFile(prefix="callgrind-") as out:
        counter = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        found = _TOTAL.search(_run(name, operations, counter))
    if found is None:
        raise RuntimeError(f"valgrind said nothing of {name}")
    return int(found[1])


def _run(name: str, operations: int, counter: Sequence[str]) -> str:
    command = [*counter, sys.executable, "-m", "bench.counted", name, str(operations)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stderr


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description=__doc__)
    parser.add_argument("--workloads", help=f"some of {','.join(WORK)}")
    parser.add_argument("--keep", action="store_true", help="keep what is counted now")
    parser.add_argument("--file", type=Path, default=KEPT, help="where the counts are kept")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="share, default 0.05")
    parser.add_argument("--many", type=int, default=OPERATIONS_MANY, help="operations counted")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
