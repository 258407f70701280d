"""Tasks that descend from none."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def outside(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that does not descend from this one, and so is not inside its transactions."""
    return asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context())
