"""Waiting for a condition, with a bound; and tasks that descend from none."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_S = 0.005
LOOKS_MAX = 4_000


def until(condition: Callable[[], object], what: str) -> None:
    pause = threading.Event()
    for _ in range(LOOKS_MAX):
        if condition():
            return
        pause.wait(LOOK_S)
    raise AssertionError(f"it never came to be that {what}")


def outside(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that does not descend from this one, and so is not inside its transactions."""
    return asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context())
