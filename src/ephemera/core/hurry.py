"""Whether this thread may wait for the writer's turn: an event loop's may not.

A write inside `hurried` that would have to wait raises StoreBusy at once and has changed nothing; its caller
makes it again where it may wait. Only who meets a turn that is taken asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Here(threading.local):
    is_hurried = False


_here = _Here()


def hurried(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call it without waiting for a turn. Raises StoreBusy where it would have to.

    >>> hurried(is_hurried), is_hurried()
    (True, False)
    """
    _here.is_hurried = True
    try:
        return function(*given, **named)
    finally:
        _here.is_hurried = False


def is_hurried() -> bool:
    """Whether the caller must not wait."""
    return _here.is_hurried
