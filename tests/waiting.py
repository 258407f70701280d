"""Waiting for a condition that something in the background makes true, with a bound.

`wait_until` blocks its thread; `until` yields to the event loop. Both look again and again, and fail with the
words of `what` when the condition does not hold within `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ephemera.core.clock import elapsed_ns

PATIENCE_S = 60.0
"""Longer than anything takes on a busy machine: a test that waits so long is stuck."""
POLL_S = 0.01
LOOP_POLL_S = 0.001
"""On an event loop, conditions are cheap, and some hold for a few milliseconds only."""


def wait_until(is_so: Callable[[], object], *, what: str = "the condition") -> None:
    """Return when `is_so()` is true."""
    deadline_ns = _deadline_ns()
    pause = threading.Event()
    while not is_so():
        _check_patience(deadline_ns, what)
        pause.wait(POLL_S)


async def until(is_so: Callable[[], object], *, what: str = "the condition") -> None:
    """Return when `is_so()` is true; other tasks of the event loop run meanwhile."""
    deadline_ns = _deadline_ns()
    while not is_so():
        _check_patience(deadline_ns, what)
        await asyncio.sleep(LOOP_POLL_S)


def _deadline_ns() -> int:
    return elapsed_ns() + int(PATIENCE_S * 1e9)


def _check_patience(deadline_ns: int, what: str) -> None:
    assert elapsed_ns() < deadline_ns, f"{what}: not within {PATIENCE_S:g} s"
