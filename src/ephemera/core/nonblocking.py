"""Non-blocking calls: writes that raise StoreBusy in place of waiting for the writer lock.

An event loop must not wait for another process. It makes its writes with `nonblocking`: one that would
wait raises StoreBusy at once and has changed nothing, and the loop makes it again in a thread. Code that
is about to wait asks `is_nonblocking`; nobody else does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Here(threading.local):
    is_nonblocking = False


_here = _Here()


def nonblocking(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call a function whose waits for other writers raise StoreBusy.

    >>> nonblocking(is_nonblocking), is_nonblocking()
    (True, False)
    """
    former, _here.is_nonblocking = _here.is_nonblocking, True
    try:
        return function(*given, **named)
    finally:
        _here.is_nonblocking = former


def is_nonblocking() -> bool:
    """Return whether the calling thread must not wait."""
    return _here.is_nonblocking
