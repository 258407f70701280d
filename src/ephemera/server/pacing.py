"""Writes that wait while the store is behind its writers; all else goes on meanwhile.

Whoever writes to an embedded store then sleeps until a checkpoint has made room. Here that would be the thread of
the loop, and every client would sleep with it. So a request that would write waits in its session, and the
requests of the same client after it, as in CLIENT PAUSE (POSTPONED). One that has waited for as long as a
writer would is made all the same, in a way that never waits (`nonblocking`): the store refuses it in its own words.

Another process may be the one that checkpoints, so nobody tells when it has ended. One timer looks for all who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ephemera.core.clock import elapsed_ns
from ephemera.core.keyvalue import FallsBehind
from ephemera.core.nonblocking import is_nonblocking
from ephemera.resp.parser import Request

if TYPE_CHECKING:
    from ephemera.server.server import Server
    from ephemera.server.session import Session

LOOK_SECONDS = 0.01
CallLater = Callable[[float, Callable[[], object]], asyncio.TimerHandle]


class PostponedRequest(NamedTuple):
    """A request that waits, and since when."""

    args: Request
    since_ns: int


class Pacing:
    """Who waits. Nobody does before `begin`: a write then waits where it is made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine: FallsBehind | None = None
        self._postponed: dict[Session, PostponedRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call_later: CallLater) -> None:
        """Never wait in this thread, from which `call_later` calls back."""
        engine = self._server.store.engine
        if isinstance(engine, FallsBehind) and engine.go_on_here():
            self._engine, self._call_later = engine, call_later
            self._server.paced = engine.compiled

    def end(self) -> None:
        """Ask the store nothing more: it is about to be closed."""
        self._engine = self._server.paced = None
        self._postponed.clear()
        if self._timer is not None:
            self._timer.cancel()

    def holds(self, session: Session, args: Request, *, is_write: bool) -> bool:
        """Whether a request that is about to run has to wait."""
        known = self._postponed.get(session)
        has_waited = known is not None and known.args is args
        # Where it is nonblocking, it has waited in vain; those after it wait for as long again.
        if not (is_write and self._is_behind()) or (has_waited and is_nonblocking()):
            self.forget(session)
            return False
        if not has_waited:
            self._postponed[session] = PostponedRequest(args, elapsed_ns())
        self._look_later()
        return True

    def has(self, session: Session) -> bool:
        """Whether a request of this client waits here, so that it will be woken."""
        return session in self._postponed

    def forget(self, session: Session) -> None:
        self._postponed.pop(session, None)

    def has_lost_patience(self, session: Session) -> bool:
        """Whether what waits is to be refused."""
        request = self._postponed.get(session)
        if request is None or not self._is_behind():
            return False
        return self._waits_in_vain() or self._is_late(request)

    def _is_behind(self) -> bool:
        return self._engine is not None and self._engine.is_behind

    def _waits_in_vain(self) -> bool:
        return self._engine is not None and not self._engine.hasten()

    def _is_late(self, request: PostponedRequest) -> bool:
        return self._engine is not None and (
            elapsed_ns() - request.since_ns > self._engine.patience * 1e9
        )

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Wake who need not wait any longer."""
        self._timer = None
        if not self._postponed:
            return
        self._look_later()
        is_over = not self._is_behind() or self._waits_in_vain()
        for session, request in tuple(self._postponed.items()):
            if is_over or self._is_late(request):
                session.wake()
