"""On what, and with what, the figures were made."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from bench.peers import Peer

ROOT = Path(__file__).parent.parent


def describe() -> dict[str, str | int]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def commit() -> str:
    """The commit that is checked out, with a mark where files differ from it; "unknown" outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


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
