"""A script that takes longer than `busy-reply-threshold`: it goes on in slices, and others are told BUSY.

A command that may run a script runs on another stack (a greenlet, which is made once: that takes longer than
most scripts). Beyond the threshold that stack is left, so that the loop serves others for a moment, and
entered again with the next slice: all of it in one thread, which is what the store's transactions and the
interpreter of Lua ask for.

Its session sees a request that has to wait and is asked again (POSTPONED), as in a pause of all clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ephemera import UnsupportedOperation
from ephemera.core.clock import elapsed_ns
from ephemera.resp.parser import Request
from ephemera.resp.replies import Reply
from ephemera.server._direct import POSTPONED

if TYPE_CHECKING:
    from ephemera.server.server import Server
    from ephemera.server.session import Session
    from ephemera.server.table import Command

INSTALL = "pip install 'ephemera-kv[server]'"
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."


class Busy:
    """The command that runs on the other stack, if there is one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack: Any = None  # Any: greenlet's types differ between its versions
        self._is_done = True
        self._session: Session | None = None
        self._args: Request = []
        self._began_ns = 0
        self.command: Command | None = None
        self.is_paused = False
        """Whether it was left in the middle: somebody else is being served."""
        self.is_ending = False
        self._is_stopping = False
        self.begun = 0
        """How many have passed the threshold."""

    @property
    def is_on(self) -> bool:
        """Whether a command has passed the threshold, so that others are told BUSY."""
        return self._session is not None

    def belongs_to(self, session: Session) -> bool:
        return self._session is session

    def run(self, session: Session, command: Command, args: Request) -> Reply:
        """What the command answers, or POSTPONED: then `go_on` does the next slice of it."""
        began_ns = elapsed_ns()
        if self._stack is None or self._stack.dead:
            self._stack = _greenlet()(self._work)
        self._is_done = False
        reply: Reply = self._stack.switch(partial(session.run, command, args))
        if self._is_done:
            return reply
        self._session, self.command, self._args = session, command, args
        self._began_ns = began_ns
        self.begun += 1
        self._server.review()
        return POSTPONED

    def _work(self, act: Callable[[], Reply]) -> None:
        """On the other stack: do what is handed over, and hand back what comes of it."""
        leave = _greenlet().getcurrent().parent.switch
        while True:
            reply = act()
            self._is_done = True
            act = leave(reply)

    def go_on(self) -> Reply:
        """Do the next slice of the command that was left; what it answers, or POSTPONED."""
        session, command = self._session, self.command
        assert session is not None
        assert command is not None
        try:
            reply: Reply = self._stack.switch()
        except BaseException:
            self._forget()
            raise
        if not self._is_done:
            return POSTPONED
        took_ns = elapsed_ns() - self._began_ns
        command.spent_ns += took_ns
        self._server.note_slow(session, command, self._args, took_ns)
        # A key that it read may have expired between two slices, before the read was remembered.
        self._server.tracking.flush_client(session)
        self._forget()
        return reply

    def pause(self) -> bool:
        """To be called on the other stack: return when the next slice begins, whether it may go on."""
        if not (self.is_ending or self._is_stopping):
            aside = self._server.set_aside()
            self.is_paused = True
            _greenlet().getcurrent().parent.switch()
            self.is_paused = False
            self._server.bring_back(aside)
        return not (self.is_ending or self._is_stopping)

    def stop(self) -> None:
        """Let no command pass the threshold from here on, and the one that has passed it end with its next slice."""
        self._is_stopping = True

    def end(self) -> None:
        """Let the command under way, if there is one, end now and be undone: nobody waits for it any more."""
        self.is_ending = True
        while self.is_on:
            self.go_on()
        self.is_ending = False

    def _forget(self) -> None:
        self._session = self.command = None
        self._args = []
        self.is_paused = False
        self._server.review()


def _greenlet() -> Any:  # Any: see `_stack`
    try:
        from greenlet import greenlet
    except ImportError:
        raise UnsupportedOperation(f"scripts need greenlet: {INSTALL}") from None
    return greenlet
