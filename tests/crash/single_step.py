"""Death at any instruction: a process that executes one instruction at a time, and dies at the n-th change.

`single_step.c` does the work, in the process that is to die. A change is an instruction that alters the control page,
the active segment or, by a system call, anything else, while the process holds the writer lock.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ephemera
from ephemera.engines.local._control import CONTROL_BYTES
from tests.crash.processes import Seat
from tests.engines.local.stores import engine_of

SOURCE = Path(__file__).with_name("single_step.c")
WRITER_MUTEX_AT = 1024 + 8
"""Where the writer lock's mutex lies in the control page; it begins with the thread id of its holder."""
WATCHED_BYTES = 16 * 1024
"""Of the segment: its header, its slots and all records of these tests."""


def compile_stepper(to: Path) -> Path:
    """Compile the single-stepping library; skip the test where it cannot work."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or platform.machine() != "x86_64" or compiler is None:
        pytest.skip("single-stepping needs Linux on x86-64 and a C compiler")
    library = to / "single_step.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def step(seat: Seat, library: str, operation: Callable[[ephemera.Store], None], fatal: int) -> int:
    """In the victim: do the operation and die at the change `fatal`. Returns how many changes there were."""
    segments = engine_of(seat.store)._segments
    segments.look()
    control = _address(segments.control.memory)
    segment = _address(segments._mapped[segments.control.active][1].memory)
    stepper = ctypes.PyDLL(library)
    stepper.begin.restype, stepper.end.restype = None, ctypes.c_long
    stepper.begin.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long),
    ]
    stepper.begin(control + WRITER_MUTEX_AT, control, CONTROL_BYTES, segment, WATCHED_BYTES, fatal)
    operation(seat.store)
    changes: int = stepper.end()
    return changes


def _address(memory: object) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # type: ignore[arg-type]  # it is writable
