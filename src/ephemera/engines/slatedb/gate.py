"""The writer's turn among the threads of a store: many write at once, or one transaction alone.

SlateDB itself lets transactions run side by side and fails the later one at its commit. The threads of one
store wait for each other instead, as on every other engine, so that a block that works there works here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

from ephemera.core._block import block
from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import InvalidArgument, StoreBusy

PAUSE_S = 0.05
"""How often a waiting thread looks whether the turn's holder was forgotten."""


class Turnkey:
    """Whoever has the turn. A transaction that was forgotten has it no more."""

    __slots__ = ("__weakref__", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


class Gate:
    """Who may write now."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ns = wait_ms * 1_000_000
        self._changed = threading.Condition(threading.Lock())
        self._writers: dict[int, int] = {}  # by thread; one may write inside its own write
        self._holder: weakref.ref[Turnkey] | None = None

    @block
    def writing(self) -> Iterator[None]:
        """For a write, which others may do at the same time, but not while somebody has the turn."""
        me = threading.get_ident()
        with self._changed:
            if self._holder is not None:
                self._wait_until(self._is_free)
            self._writers[me] = self._writers.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._writers[me] -= 1
                if not self._writers[me]:
                    del self._writers[me]
                if not self._writers:
                    self._changed.notify_all()

    def take(self, holder: Turnkey) -> None:
        """Give the turn to a holder, once nobody writes. Raises StoreBusy when that does not come."""
        with self._changed:
            self._wait_until(lambda: self._is_free() and not self._writers)
            self._holder = weakref.ref(holder)

    def end(self, holder: Turnkey) -> None:
        """Take the turn back, if this one has it."""
        with self._changed:
            if self._holder is not None and self._holder() is holder:
                self._holder = None
                self._changed.notify_all()

    def open(self) -> None:
        """Let everybody go on: the store is closed, and says so."""
        with self._changed:
            self._holder = None
            self._changed.notify_all()

    def _is_free(self) -> bool:
        holder = None if self._holder is None else self._holder()
        if holder is None:
            self._holder = None
            return True
        if holder.thread_id == threading.get_ident():
            raise InvalidArgument(
                "this thread is inside a transaction: write through it, or after its block"
            )
        return False

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        until_ns = elapsed_ns() + self._wait_ns
        while not is_so():
            left_s = (until_ns - elapsed_ns()) / 1e9
            if left_s <= 0:
                raise StoreBusy(
                    f"the writer lock was not free within {self._wait_ns / 1e9:g} s (lock_timeout)"
                )
            self._changed.wait(min(PAUSE_S, left_s))
