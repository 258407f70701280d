"""The writer gate: the writer lock among the threads that share one store.

The gate admits any number of plain writes at once, or one transaction alone. A transaction holds the gate
through a `TransactionToken`, to which the gate keeps only a weak reference: a transaction that is dropped
without commit or close releases the gate with its token.

The Redis and SlateDB engines detect a conflict with another process at the commit, which then fails. The
threads of one store wait for each other instead, as on every other engine, so that a block that works
there works here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

from ephemera.core._block import block
from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import InvalidArgument, StoreBusy

POLL_S = 0.05
"""How often a waiting thread checks whether the token that holds the gate was dropped."""


class TransactionToken:
    """The right to write alone, until it is released or dropped."""

    __slots__ = ("__weakref__", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


class WriterGate:
    """Admit plain writes, or one transaction. A wait ends with StoreBusy after `timeout_ms`."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ns = timeout_ms * 1_000_000
        self._changed = threading.Condition(threading.Lock())
        self._writers: dict[int, int] = {}  # by thread; a write may contain another of its thread
        self._holder: weakref.ref[TransactionToken] | None = None

    def wait_until_free(self) -> None:
        """Return once no transaction holds the gate, without keeping later ones out.

        Raises StoreBusy after the timeout, InvalidArgument if this thread's transaction holds it.
        """
        if self._holder is not None:
            with self._changed:
                self._wait_for(self._is_free)

    @block
    def writing(self) -> Iterator[None]:
        """Keep transactions out while the block writes; other plain writes may run beside it.

        Raises StoreBusy after the timeout, InvalidArgument if this thread's transaction holds it.
        """
        me = threading.get_ident()
        with self._changed:
            if self._holder is not None:
                self._wait_for(self._is_free)
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

    def acquire(self) -> TransactionToken:
        """Return the token of a new transaction, once no thread writes and none holds the gate.

        Raises StoreBusy after the timeout, InvalidArgument if this thread's transaction holds it.
        """
        token = TransactionToken()
        with self._changed:
            self._wait_for(lambda: self._is_free() and not self._writers)
            self._holder = weakref.ref(token)
        return token

    def release(self, token: TransactionToken) -> None:
        """Release the gate if this token holds it."""
        with self._changed:
            if self._holder is not None and self._holder() is token:
                self._holder = None
                self._changed.notify_all()

    def release_any(self) -> None:
        """Release the gate from any token: the store is closed, and each waiting thread finds that out."""
        with self._changed:
            self._holder = None
            self._changed.notify_all()

    def _is_free(self) -> bool:
        token = None if self._holder is None else self._holder()
        if token is None:
            self._holder = None
            return True
        if token.thread_id == threading.get_ident():
            raise InvalidArgument(
                "this thread is inside a transaction: write through it, or after its block"
            )
        return False

    def _wait_for(self, is_admitted: Callable[[], bool]) -> None:
        until_ns = elapsed_ns() + self._timeout_ns
        while not is_admitted():
            left_s = (until_ns - elapsed_ns()) / 1e9
            if left_s <= 0:
                raise StoreBusy(
                    f"the writer lock was not free within {self._timeout_ns / 1e9:g} s (lock_timeout)"
                )
            self._changed.wait(min(POLL_S, left_s))
