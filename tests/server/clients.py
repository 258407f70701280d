"""A client without sockets: what it sends and gets are the bytes of a session."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hiredis

from ephemera.resp.replies import Reply
from ephemera.server.server import Server
from ephemera.server.session import Call, Session
from ephemera.server.table import Handler

Argument = bytes | str | int


def wire(*args: Argument) -> bytes:
    """A request as clients send it."""
    encoded = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in encoded)


class Client:
    """Sends commands to a session of its own and reads replies as hiredis does."""

    def __init__(self, server: Server) -> None:
        self.session = Session(server)
        self.session.transmit = self._get
        self.pushed: list[Any] = []  # Any: replies of every kind
        self._reader = hiredis.Reader()

    def __call__(self, *args: Argument) -> Any:  # Any: replies of every kind
        """The reply to one command; an error is returned, not raised."""
        self._reader.feed(self.session.feed(wire(*args)))
        return self._reader.gets()

    def go_on(self) -> Any:  # Any: as above
        """One more step of what waits; the reply to it, or False where there is none yet."""
        self._reader.feed(self.session.go_on())
        return self._reader.gets()

    def line(self, text: str) -> Any:  # Any: as above
        """The reply to an inline command."""
        self._reader.feed(self.session.feed(text.encode() + b"\r\n"))
        return self._reader.gets()

    def error(self, *args: Argument) -> str:
        """The text of the error that a command is refused with."""
        reply = self(*args)
        assert isinstance(reply, hiredis.ReplyError), reply
        return str(reply)

    def _get(self, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        self.pushed.append(reader.gets())


def count_handled(server: Server) -> Counter[str]:
    """How often the handler of each command is called from now on."""
    handled: Counter[str] = Counter()

    def counting(name: str, handler: Handler) -> Handler:
        def handle(call: Call) -> Reply:
            handled[name] += 1
            return handler(call)

        return handle

    for name, command in server.commands.all.items():
        command.handler = counting(name, command.handler)
    return handled
