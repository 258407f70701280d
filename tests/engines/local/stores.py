"""How these tests open stores, copy them as a crash leaves them, and run other processes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera.core.options import Options
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import Files
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]
SEGMENT_BYTES = 64 * 1024
THOUSAND = b"x" * 1_000


def open_local(
    path: Path, clock: ephemera.Clock | None = None, files: Files | None = None, **options: Any
) -> ephemera.Store:
    """A store with small segments that does nothing by itself unless it is told to."""
    settled = {"segment_bytes": SEGMENT_BYTES, "maintenance": "manual", **options}
    # Any: the options of `ephemera.open`; Options checks them itself.
    engine: Any = LocalEngine(str(path), Options(clock=clock, **settled), files)
    return ephemera.Store(engine, str(path), None)


def engine_of(store: ephemera.Store) -> Any:
    """The engine behind a store. Any: the tests look into its parts."""
    return store._engine


def keys_of(events: list[ephemera.Expired]) -> list[bytes]:
    return [event.key for event in events]


def is_free(path: Path) -> bool:
    """Whether nobody has the store open."""
    try:
        open_local(path, exclusive=True).close()
    except ephemera.StoreLocked:
        return False
    return True


def crash_copy(path: Path, to: Path) -> Path:
    """The files of an open store as a death of all its processes would leave them."""
    shutil.copytree(path, to, ignore=_vanished)
    return to


def _vanished(_directory: str, names: list[str]) -> list[str]:
    # The locks belong to living processes; LMDB makes its own anew.
    return [name for name in names if name.endswith("-lock")]


def contents(view: ephemera.Store | ephemera.Snapshot | ephemera.Family) -> dict[bytes, bytes]:
    return dict(view.scan())


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*.seg"))


def base_file(path: Path) -> Path:
    return max((path / "base").glob("*.mdb"))


def open_files_of(path: Path) -> list[str]:
    """The files of a store that this process has open."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(str(path))]


def python(code: str) -> list[str]:
    """The command that runs a piece of Python, with its stacks printed should it crash."""
    return [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]


def run_python(code: str, *given: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python to its end."""
    return subprocess.run(
        [*python(code), *map(str, given)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )


def start_python(code: str, *given: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*python(code), *map(str, given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def in_a_thread(work: Callable[[], object]) -> list[BaseException]:
    """Run something in another thread to its end; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "stuck"
    return raised


def write_until(error: type[ephemera.EphemeraError], store: ephemera.Store) -> tuple[str, int]:
    """Put keys `0`, `1`, … of a thousand bytes until that is raised: its words, and how many it took."""
    for number in range(10_000):
        try:
            store.put(b"%d" % number, THOUSAND)
        except error as refusal:
            return str(refusal), number
    raise AssertionError("it was never refused")


def wait_until_forgotten(engine: Callable[[], object], path: Path) -> None:
    """Return when an engine, of which this is a weak reference, was collected and has closed its store."""

    def is_gone() -> bool:
        # A worker in the middle of its step holds on until that ends, and closes it then.
        gc.collect()
        return engine() is None and is_free(path)

    wait_until(is_gone)
