"""On what, and with what, the figures were made, and how much of the machine others had meanwhile."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from bench.peers import Peer

ROOT = Path(__file__).parent.parent
Measured = TypeVar("Measured")

STOLEN_MAX = 0.01
"""The share of the processors that the host may give to other machines while a delay is measured."""
TRIES = 4


def describe() -> dict[str, str | int]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


Made = dict[str, Any]  # Any: what `json` writes


def made() -> Made:
    """When, of which commit, and on what: each part of a result says so itself, since those that are kept may
    come of several runs."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "commit": commit(), "machine": describe()}


def told(made: Made) -> str:
    facts = made["machine"]
    return (
        f"{made['date']}, commit {made['commit']}, on {facts['cpu']}, {facts['cores']} cores, "
        f"Linux {facts['kernel']}, Python {facts['python']}, SQLite {facts['sqlite']}"
    )


def stamp() -> str:
    """The present second, as a part of a file's name."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"


def commit() -> str:
    """The commit that is checked out, with a mark where files differ from it; "unknown" outside a repository.

    What a benchmark keeps is no difference: one run after the other is of the same commit.
    """
    found = _git("describe", "--always", "--exclude=*") or "unknown"
    kept = (":!docs", ":!bench/results")
    is_dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *kept))
    return found + "-dirty" * is_dirty


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def undisturbed(measure: Callable[[], Measured]) -> tuple[Measured, float]:
    """The outcome that the host disturbed least, and what share of the processors it took away meanwhile.

    It is measured again, a few times at most, while that share is too large: a delay of milliseconds cannot be
    seen where a virtual machine stands still for a tenth of a second.
    """
    best: tuple[Measured, float] | None = None
    for _ in range(TRIES):
        before = _ticks()
        outcome = measure()
        total, stolen = (now - then for now, then in zip(_ticks(), before, strict=True))
        share = stolen / total if total else 0.0
        if best is None or share < best[1]:
            best = outcome, share
        if share <= STOLEN_MAX:
            break
    assert best is not None
    return best


def _ticks() -> tuple[int, int]:
    """Of all processors since the start: the time that there was, and what the host gave to others."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times), times[7]


def versions(peers: Iterable[type[Peer]]) -> dict[str, str | None]:
    """The version of each package; None when it is not installed."""
    return {peer.package: _version(peer) for peer in peers}


def _version(peer: type[Peer]) -> str | None:
    if not peer.is_installed():
        return None
    try:
        return metadata.version(peer.package)
    except metadata.PackageNotFoundError:  # part of Python, or run from the source tree
        return "source" if peer.package == "ephemera" else platform.python_version()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
