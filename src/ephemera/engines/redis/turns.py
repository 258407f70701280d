"""The writer's turn among the threads of this process.

Transactions of other processes are met at the commit, which fails if they changed what was read. Threads
that share a store would only get into each other's way like that, so they wait for each other instead.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import InvalidArgument, StoreBusy

PAUSE_S = 0.05
"""How often a waiting thread looks whether the turn's holder was forgotten."""


class Holder(Protocol):
    """Whoever has the turn."""

    thread_id: int


class Turns:
    """Who has the turn. A holder that was forgotten has it no more."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ns = wait_ms * 1_000_000
        self._ended = threading.Condition(threading.Lock())
        self._holder: weakref.ref[Holder] | None = None

    def wait(self) -> None:
        """Return when nobody has the turn. Raises StoreBusy when that does not come to be."""
        if self._holder is not None:
            with self._ended:
                self._await_free()

    def take(self, holder: Holder) -> None:
        """Give the turn to a holder, when it is free."""
        with self._ended:
            self._await_free()
            self._holder = weakref.ref(holder)

    def end(self, holder: Holder) -> None:
        """Take the turn back, if this one has it."""
        with self._ended:
            if self._holder is not None and self._holder() is holder:
                self._holder = None
                self._ended.notify_all()

    def _await_free(self) -> None:
        until_ns = elapsed_ns() + self._wait_ns
        while self._holder is not None and (holder := self._holder()) is not None:
            if holder.thread_id == threading.get_ident():
                raise InvalidArgument(
                    "this thread is inside a transaction: write through it, or after its block"
                )
            left_s = (until_ns - elapsed_ns()) / 1e9
            if left_s <= 0:
                raise StoreBusy(
                    f"the writer lock was not free within {self._wait_ns / 1e9:g} s (lock_timeout)"
                )
            del holder  # not kept alive from here
            self._ended.wait(min(PAUSE_S, left_s))
        self._holder = None
