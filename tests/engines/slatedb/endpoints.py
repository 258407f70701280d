"""An S3 endpoint that can be out of reach for a while, with everything in it kept."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from itertools import count

from tests.engines.slatedb.buckets import BUCKET, QUICK_S3, endpoint
from tests.wire.servers import free_port

_numbers = count()


class Endpoint:
    """A port that forwards to the tests' S3 server, until it is told not to."""

    def __init__(self) -> None:
        self._server = int(endpoint().rpartition(":")[2])
        self._port = free_port()
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Lock()
        self._resumed = threading.Event()
        self._resumed.set()
        self._last: bytes | None = None
        self.start()

    def url(self, settings: str = QUICK_S3) -> str:
        """Return the URL of a new store behind this endpoint."""
        return (
            f"s3://{BUCKET}/outage-{self._port}-{next(_numbers)}"
            f"?endpoint=http://127.0.0.1:{self._port}&region=us-east-1&{settings}"
        )

    def start(self) -> None:
        """Accept connections again after `refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Reset every connection and refuse new ones."""
        with self._accepting:
            _reset([self._listener, *self._sockets])
            self._sockets.clear()

    def stall(self) -> None:
        """Accept connections and requests, and forward nothing until `resume`."""
        self._resumed.clear()

    def stall_after(self, request: bytes) -> None:
        """Stall once a request with these bytes has reached the server, before its reply is back."""
        self._last = request

    def resume(self) -> None:
        self._resumed.set()

    def close(self) -> None:
        self.resume()
        self.refuse()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                with self._accepting:
                    if listener.fileno() == -1:  # `refuse` was called meanwhile
                        _reset([client, server])
                        return
                    self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._resumed.wait()
                if self._last is not None and self._last in data:
                    self._last = None
                    self._resumed.clear()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def _reset(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
