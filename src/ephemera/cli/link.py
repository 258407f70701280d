"""Where the shell's commands go: a store in this process, or a server.

Both speak the same protocol. A store is opened without keeping others out, so each command that writes
holds the writer lock while it runs: nobody writes between what it reads and what it writes.
"""

from __future__ import annotations

import io
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Protocol

from ephemera import EphemeraError, InvalidArgument
from ephemera.cli.reader import read_reply, write_request
from ephemera.cli.stores import open_to_write
from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.resp.replies import Push, Refused, Reply
from ephemera.server.server import FAMILIES, Server
from ephemera.server.session import Session

CONNECT_SECONDS = 10.0
SCAN_COUNT = b"1000"

UNSEEN = (
    "ERR WATCH would see this shell's writes alone: serve the store (ephemera serve) "
    "and use ephemera shell --port"
)
PAUSED = "ERR commands wait for the end of CLIENT PAUSE: CLIENT UNPAUSE ends it"
PASSWORD_HINT = "; give its password by --password-file or EPHEMERA_PASSWORD"
LOST = "ERR the server closed the connection; the next command connects again"


class Link(Protocol):
    """The other end of a shell."""

    name: str
    is_over: bool

    def ask(self, args: list[bytes]) -> list[Reply]:
        """The replies to a command; most have one."""
        ...

    def listen(self, args: list[bytes]) -> Iterator[Reply]:
        """What arrives after a command that subscribes, for as long as it is read."""
        ...

    def keys(self, prefix: bytes, limit: int) -> list[bytes]:
        """Keys that begin with this."""
        ...

    def close(self) -> None: ...


class StoreLink:
    """A session on a store of this process."""

    def __init__(self, url: str, family: str) -> None:
        self._store = open_to_write(url, create=True)
        self.name = PurePath(url).name if "://" not in url else url
        self.is_over = False
        self._pushed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._handed: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        try:
            self._server = Server(self._store, families=[family])
        except BaseException:
            self._store.close()
            raise
        self._server.stop = self._stop
        self._server.hand_over = self._hand_over
        self._begin()

    def _begin(self) -> None:
        self._session = Session(self._server, address="shell:0")
        self._session.transmit = self._pushed.put
        self._session.feed(write_request([b"HELLO", b"3"]))

    def ask(self, args: list[bytes]) -> list[Reply]:
        self._take_over()
        if args[0].lower() == b"watch":
            return [Refused(UNSEEN)]
        try:
            with self._turn(args):
                out = self._session.feed(write_request(args))
        except EphemeraError as error:
            return [Refused(f"ERR {error}")]
        while self._session.has_waiting and not self._is_paused:
            out += self._session.go_on()
        self.is_over = self.is_over or self._session.is_closing
        if self._is_paused:
            self._session.close()
            self._begin()
            return [Refused(PAUSED)]
        return list(_replies(out))

    @property
    def _is_paused(self) -> bool:
        """Whether a command waits, and not only for the next slice of its own script."""
        return self._session.is_postponed and not self._server.busy.belongs_to(self._session)

    @contextmanager
    def _turn(self, args: list[bytes]) -> Iterator[None]:
        """The writer's turn around a command that writes; EXEC takes it by itself."""
        command = self._server.commands.named(args[0])
        flags = command.flags if command is not None else frozenset()
        if "write" not in flags or "no_multi" in flags or self._session.queue is not None:
            yield
            return
        try:
            with self._server.transaction():
                self._session.select(self._session.db)
                yield
        finally:
            self._session.select(self._session.db)

    def listen(self, args: list[bytes]) -> Iterator[Reply]:
        yield from self.ask(args)
        try:
            while True:
                self._handed.get()()
                while not self._pushed.empty():
                    yield from _replies(self._pushed.get())
        finally:
            self._session.close()
            self._begin()

    def keys(self, prefix: bytes, limit: int) -> list[bytes]:
        space = self._server.database(0).space
        return [key for key, _ in space.scan(prefix, limit=limit)]

    def close(self) -> None:
        self._session.close()
        self._store.close()

    def _stop(self) -> None:
        self.is_over = True

    def _hand_over(self, act: Callable[[], object]) -> None:
        """A thread of the store has something to do; the shell's own thread does it."""
        self._handed.put(act)

    def _take_over(self) -> None:
        while not self._handed.empty():
            self._handed.get()()


class ServerLink:
    """A connection to a server."""

    def __init__(self, host: str, port: int, password: str, family: str) -> None:
        self.name = f"{host}:{port}"
        self.is_over = False
        self._address = (host, port)
        self._password = password.encode(errors="surrogateescape")
        self._db = _database_number(family)
        try:
            self._connect()
        except OSError as error:
            raise InvalidArgument(
                f"no server answers at {self.name} ({error.strerror or error}): start one with"
                f" `ephemera serve STORE --port {port}`, or give the --port that it printed"
            ) from None

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, CONNECT_SECONDS)
        self._socket.settimeout(None)
        self._stream = self._socket.makefile("rb")
        self._is_connected = True
        for greeting in self._greetings():
            reply = self.ask(greeting)[-1]
            if not self._is_connected:
                raise InvalidArgument(f"{self.name} does not answer as a Redis server does")
            # A server that knows no HELLO speaks the protocol's second version from the start.
            if isinstance(reply, Refused) and greeting[0] != b"HELLO":
                self.close()
                hint = PASSWORD_HINT if greeting[0] == b"AUTH" else ""
                raise InvalidArgument(f"the server refused: {reply}{hint}")

    def _greetings(self) -> list[list[bytes]]:
        auth = [[b"AUTH", self._password]] if self._password else []
        select = [[b"SELECT", b"%d" % self._db]] if self._db else []
        return [*auth, [b"HELLO", b"3"], *select]

    def ask(self, args: list[bytes]) -> list[Reply]:
        try:
            if not self._is_connected:
                self._connect()
            self._socket.sendall(write_request(args))
            reply = read_reply(self._stream)
            while isinstance(reply, Push):
                reply = read_reply(self._stream)
        except (EOFError, OSError):
            self._drop()
            self.is_over = args[0].lower() in (b"quit", b"shutdown")
            return [] if self.is_over else [Refused(LOST)]
        except KeyboardInterrupt:
            self._drop()  # a reply that comes later must not be taken for the next one's
            raise
        self.is_over = args[0].lower() == b"quit"
        return [reply]

    def listen(self, args: list[bytes]) -> Iterator[Reply]:
        try:
            if not self._is_connected:
                self._connect()
            self._socket.sendall(write_request(args))
            while True:
                yield read_reply(self._stream)
        except (EOFError, OSError):
            yield Refused(LOST)
        finally:
            self._drop()

    def keys(self, prefix: bytes, limit: int) -> list[bytes]:
        pattern = b"".join(b"\\%c" % byte if byte in b"*?[]\\" else b"%c" % byte for byte in prefix)
        reply = self.ask([b"SCAN", b"0", b"MATCH", pattern + b"*", b"COUNT", SCAN_COUNT])[-1]
        return sorted(reply[1])[:limit] if isinstance(reply, list) else []

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self._is_connected = False
        self._stream.close()
        self._socket.close()


def _replies(data: bytes) -> Iterator[Reply]:
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        yield read_reply(stream)


def _database_number(family: str) -> int:
    if family not in FAMILIES:
        raise InvalidArgument(
            f"a server has the families {DEFAULT_FAMILY} and db1 to {FAMILIES[-1]}, not {family!r}"
        )
    return FAMILIES.index(family)
