"""A bad network: stands between a store and its server, and lets answers get lost when told to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK = 65_536


class Proxy:
    """Passes bytes on to a server; after `lose_answers(n)` the next n requests arrive, and their answers never do."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._to_lose = 0
        self._trigger = b""
        self._sockets: list[socket.socket] = []
        self._losing: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self, count: int, *, to: bytes) -> None:
        """Cut the connection after passing on each of the next requests that hold these bytes."""
        with self._lock:
            self._to_lose, self._trigger = count, to

    @property
    def answers_left_to_lose(self) -> int:
        return self._to_lose

    def wait_carried_out(self) -> None:
        """Return when the server has done all whose answers were lost: the client went on before."""
        for thread in self._losing:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.close()
        for each in self._sockets:
            _shut(each)

    def _accept(self) -> None:
        with suppress(OSError):  # closed: the test is over
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._requests, args=(near, far), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        """Requests that end with their last byte in one piece: the client sends and then waits."""
        answers = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        answers.start()
        with suppress(OSError):
            while data := near.recv(CHUNK):
                if self._loses(data):
                    # First deaf to the answer, then the request: it is carried out all the same.
                    _shut(near)
                far.sendall(data)
        _finish(far)
        answers.join()
        _shut(far)
        _shut(near)

    def _loses(self, data: bytes) -> bool:
        with self._lock:
            is_lost = self._to_lose > 0 and self._trigger in data
            self._to_lose -= is_lost
            if is_lost:
                self._losing.append(threading.current_thread())
            return is_lost


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    _shut(target)


def _finish(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_WR)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
