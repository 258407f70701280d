"""The kernel and the namespaces of a process: all processes that share a store must agree on them.

The writer lock and LMDB's reader table name their holders by pid and thread id, and the shared clock
is an offset to the boot-time clock. Both mean something in one PID namespace and one time namespace
of one running kernel only. The first opener leaves its own in the control page; later ones compare.
A part that the system does not tell (macOS; no /proc) is not compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ephemera.core.errors import StoreLocked
from ephemera.engines.local._control import NAMESPACES_AT, NAMESPACES_BYTES

_REMEDY = "let one process serve the store (ephemera serve) and connect to that"


def record_namespaces(memory: memoryview) -> None:
    """Leave this process's namespaces in a control page that was just formatted."""
    stored = "\n".join(_namespaces()).encode()[:NAMESPACES_BYTES]
    memory[NAMESPACES_AT : NAMESPACES_AT + len(stored)] = stored


def require_same_namespaces(memory: memoryview, root: Path) -> None:
    """Raise StoreLocked unless this process may share the store with the first opener."""
    stored = bytes(memory[NAMESPACES_AT : NAMESPACES_AT + NAMESPACES_BYTES]).rstrip(b"\0")
    theirs = stored.decode(errors="replace").split("\n")
    refusals = (_other_kernel, _other_pid_namespace, _other_boot_time)
    for refuse, their, our in zip(refusals, theirs, _namespaces(), strict=False):
        if their and our and their != our:
            raise StoreLocked(f"{root} is open {refuse(their, our)}, or {_REMEDY}")


def _namespaces() -> list[str]:
    return [
        _told(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip()),
        _told(lambda: os.readlink("/proc/self/ns/pid")),
        _told(_boot_time_offset),
    ]


def _told(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except OSError:
        return ""


def _boot_time_offset() -> str:
    lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    return next((" ".join(line.split()[1:]) for line in lines if line.startswith("boottime")), "")


def _other_kernel(their: str, our: str) -> str:
    return (
        f"on another machine, virtual machine or sandbox (boot id {their}, here {our}):"
        " a store is shared by processes of one kernel. Close it there first"
    )


def _other_pid_namespace(their: str, our: str) -> str:
    return (
        f"in another PID namespace ({their}, here {our}), as another container has one: its locks know"
        " processes by their pids. Share the PID namespace (docker run --pid=container:NAME or"
        " --pid=host, shareProcessNamespace: true in a Kubernetes pod)"
    )


def _other_boot_time(their: str, our: str) -> str:
    return (
        f"in another time namespace (its boot-time clock is shifted by {their} s, here {our} s):"
        " processes of a store share one clock. Share the time namespace"
    )
