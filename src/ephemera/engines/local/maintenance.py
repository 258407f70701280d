"""The background: three threads that keep a store in shape while nobody looks.

`tend` checkpoints frozen segments, sweeps the dead and clears given-up families, in one process at
a time: each step holds the maintenance lock, and any process may do the next. `sync` puts what was written on the disk once a second,
and makes the next segment ready.
`announce` tells of expired keys on time, where somebody listens. None of them keeps a store alive
that was forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ephemera.core._block import HeldLock, WakeEvent
from ephemera.core.errors import EphemeraError, StoreClosed
from ephemera.core.threads import start_thread

if TYPE_CHECKING:
    from ephemera.engines.local.engine import LocalEngine

_log = logging.getLogger("ephemera")

TEND_SECONDS = 0.25
SYNC_SECONDS = 1.0
RETRY_SECONDS = 1.0
"""How long to leave a failing piece of work alone."""


forgotten: deque[LocalEngine] = deque()
"""Engines that were collected and not closed. A collection may come in the middle of anything, also of
the opening of another store, so closing waits for a moment at which nothing is held."""


_closing = threading.Lock()


def close_forgotten(seconds: float = 0.0) -> None:
    """Close them, unless another thread is doing so and does not end within `seconds`.

    Closing joins a store's threads, which come here too: of two threads that closed each other's
    stores, each would wait for the other to end.
    """
    if not (forgotten or _closing.locked()):
        return
    hold = HeldLock(_closing, seconds)
    try:
        while hold.is_held and forgotten:
            with contextlib.suppress(IndexError, EphemeraError, OSError):
                forgotten.popleft().close()
    finally:
        hold.leave()


def after_fork_in_child() -> None:
    global _closing
    _closing = threading.Lock()  # a thread that does not exist here may hold the other


class Worker:
    """A thread that does a piece of the engine's work again and again until stopped.

    `step` returns how many seconds to wait before the next one; `kick` ends the wait.
    """

    def __init__(
        self, engine: LocalEngine, name: str, step: Callable[[LocalEngine], float]
    ) -> None:
        self._engine = weakref.ref(engine)
        self._step = step
        self._wake = WakeEvent()
        self._is_stopped = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"ephemera-{name}", daemon=True)
        start_thread(self._thread)

    @property
    def words(self) -> str | None:
        """What its error says, or is, if there is one."""
        return None if self.error is None else str(self.error) or type(self.error).__name__

    def kick(self) -> None:
        self._wake.set()

    def stop(self, timeout: float) -> None:
        """Return when the step under way has ended, or after so many seconds.

        All that a step waits for itself is bounded, but not what a callback does.
        """
        self._is_stopped = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            # Python refuses to wait for longer than this, which `lock_timeout` may be.
            self._thread.join(min(timeout, threading.TIMEOUT_MAX))
            if self._thread.is_alive():
                _log.warning("%s has not ended within %g s", self._thread.name, timeout)

    def _run(self) -> None:
        while not self._is_stopped:
            pause = self._run_step()
            if pause is None:
                return
            self._wake.wait(pause)

    def _run_step(self) -> float | None:
        close_forgotten()
        engine = self._engine()
        if engine is None:
            return None
        try:
            pause = self._step(engine)
        except StoreClosed:
            return None
        except BaseException as error:
            # Also a defect, or a callback that exits: the next step may go well, and without this thread
            # nothing would.
            if self._is_stopped:
                return None
            former, self.error = self.words, _without_frames(error)
            if self.words != former:
                # Its words alone, for whoever keeps the record: its frames lead to the store.
                _log.warning("%s: %s", threading.current_thread().name, self.words)
            return RETRY_SECONDS
        self.error = None
        return pause


def _without_frames(error: BaseException) -> BaseException:
    """The same error, as it can be kept without keeping the store alive: with no trace of where it came from."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
