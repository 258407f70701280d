"""A store belongs to one PID namespace and one boot-time clock at a time: others are refused at open.

These run in real namespaces, where this system lets us make them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ephemera
from ephemera import StoreLocked
from ephemera.engines.local import namespaces
from ephemera.engines.local._control import CONTROL_BYTES
from tests.crash.processes import PATIENCE_SECONDS

PID_NAMESPACE = ["--pid", "--fork", "--mount-proc"]
TIME_NAMESPACE = ["--time", "--boottime", "86400", "--fork"]

OPEN = """
import sys, ephemera
try:
    with ephemera.open(sys.argv[1]) as store:
        print("opened", store.get("name"), store.incr("openings"))
except ephemera.EphemeraError as error:
    print(type(error).__name__, error)
"""

OPEN_TWICE = """
import subprocess, sys, ephemera
with ephemera.open(sys.argv[1]):
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]]).returncode)
"""

FORK_INTO_ANOTHER = """
import ctypes, os, sys, ephemera
with ephemera.open(sys.argv[1]) as store:
    store.put("name", "ada")
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000000):
        sys.exit(f"no PID namespace: {os.strerror(ctypes.get_errno())}")
    if os.fork() == 0:
        try:
            print("got", store.get("name"), flush=True)
        except ephemera.EphemeraError as error:
            print(type(error).__name__, error, flush=True)
        os._exit(0)
    os.wait()
    print("parent", store.get("name"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.eph"


def run_in(kind: list[str], code: str, *args: str) -> str:
    """Run a program in new namespaces of its own; what it printed."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *as_root, *kind]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no program `unshare` here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no namespaces can be made here: {error.stderr.strip()}")
    return run([*unshare, sys.executable, "-c", code, *args])


def run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_pid_namespace_is_refused_while_the_store_is_open(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("name", "ada")
        answer = run_in(PID_NAMESPACE, OPEN, str(path))
        assert answer.startswith("StoreLocked ")
        for word in (str(path), "PID namespace", "--pid=", "ephemera serve"):
            assert word in answer
        store.put("name", "eve")
        assert store.get("name") == b"eve"
        assert store.check().is_clean


def test_a_pid_namespace_opens_what_nobody_else_has_open(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("name", "ada")
    assert run_in(PID_NAMESPACE, OPEN, str(path)) == "opened b'ada' 1\n"
    assert run_in(PID_NAMESPACE, OPEN, str(path)) == "opened b'ada' 2\n"
    with ephemera.open(path) as store:
        assert store.get("openings") == b"2"


def test_processes_of_one_pid_namespace_share_a_store(path: Path) -> None:
    assert run_in(PID_NAMESPACE, OPEN_TWICE, str(path), OPEN) == "opened None 1\n"


def test_a_child_that_is_forked_into_another_pid_namespace_is_refused(path: Path) -> None:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a process with threads makes a PID namespace as root, on Linux, only")
    answer, parent = run([sys.executable, "-c", FORK_INTO_ANOTHER, str(path)]).splitlines()
    assert answer.startswith("StoreLocked ")
    assert "PID namespace" in answer
    assert parent == "parent b'ada'"


def test_another_boot_time_clock_is_refused(path: Path) -> None:
    with ephemera.open(path):
        answer = run_in(TIME_NAMESPACE, OPEN, str(path))
    assert answer.startswith("StoreLocked ")
    assert "time namespace" in answer


def test_another_kernel_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    page = memoryview(bytearray(CONTROL_BYTES))
    monkeypatch.setattr(namespaces, "_namespaces", lambda: ["boot-1", "pid:[1]", "0 0"])
    namespaces.record_namespaces(page)
    namespaces.require_same_namespaces(page, path)
    monkeypatch.setattr(namespaces, "_namespaces", lambda: ["boot-2", "pid:[1]", "0 0"])
    with pytest.raises(StoreLocked, match="another machine"):
        namespaces.require_same_namespaces(page, path)


def test_what_the_system_does_not_tell_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    page = memoryview(bytearray(CONTROL_BYTES))
    namespaces.require_same_namespaces(page, path)  # nobody left anything
    namespaces.record_namespaces(page)
    monkeypatch.setattr(namespaces, "_namespaces", lambda: ["", "", ""])
    namespaces.require_same_namespaces(page, path)
