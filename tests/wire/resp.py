"""A raw connection: requests as they are written, replies with their kinds, both protocols.

A reply is compared with what another server said, so nothing may be lost in reading: a simple string
is not a bulk string, a RESP3 map is not an array.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple, Self

from tests.wire.servers import Process

TIMEOUT_SECONDS = 30.0

Argument = bytes | str | int
Value = bytes | int | None | tuple["Reply", ...]


class Reply(NamedTuple):
    """The byte that begins a reply in the protocol, and what followed."""

    kind: str
    value: Value

    def __repr__(self) -> str:
        return f"{self.kind}{self.value!r}"

    @property
    def members(self) -> tuple[Reply, ...]:
        """Those of an array, a set, a push, or of a map as they alternate."""
        assert isinstance(self.value, tuple), self
        return self.value

    @property
    def number(self) -> int:
        assert isinstance(self.value, int), self
        return self.value

    @property
    def data(self) -> bytes:
        assert isinstance(self.value, bytes), self
        return self.value

    @property
    def is_error(self) -> bool:
        return self.kind == "-"


NULL = Reply("_", None)


class Closed(Exception):
    """The server ended the connection."""


class Wire:
    """One client's socket."""

    def __init__(self, server: Process, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.socket = socket.create_connection((server.host, server.port), timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self.socket.makefile("rb")

    def __call__(self, *args: Argument) -> Reply:
        """Send one request; its reply."""
        self.send(request(*args))
        return self.read()

    def pipeline(self, requests: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Send all of them at once; all replies."""
        self.send(b"".join(request(*each) for each in requests))
        return [self.read() for _ in requests]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Reply:
        """The next reply. Raises Closed when there is none."""
        line = self._input.readline()
        if not line.endswith(b"\r\n"):
            raise Closed(line)
        kind, rest = chr(line[0]), line[1:-2]
        if kind in "+-,#(_":
            return Reply(kind, None if kind == "_" else rest)
        number = int(rest)
        if kind == ":" or number < 0:
            return Reply(kind, number if kind == ":" else None)
        if kind in "$=":
            return Reply(kind, self._input.read(number + 2)[:-2])
        count = number * 2 if kind == "%" else number
        return Reply(kind, tuple(self.read() for _ in range(count)))

    def is_closed(self) -> bool:
        """Whether the server has ended the connection, once all replies are read."""
        try:
            return self._input.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._input.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def request(*args: Argument) -> bytes:
    """A request as clients write it."""
    parts = [_bytes(each) for each in args]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def _bytes(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
