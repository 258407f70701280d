"""Servers in processes of their own: ours by its command line, and a real Redis to hold it against.

Both listen on loopback, on a port that was free, and are ready when `start` returns.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_SECONDS = 60.0
"""How long a server may take to start or to stop before it counts as stuck."""
PORTS_TRIED = 5


class Process:
    """A running server; `kill` is `kill -9`, `stop` is SIGTERM."""

    host = "127.0.0.1"
    port: int

    def __init__(self, command: list[str], ready: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self.said: list[str] = []
        self.found = self._read_until(ready)
        # Read to the end, so that the server never waits for a reader of its log.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _read_until(self, ready: str) -> re.Match[str]:
        """The line that says that the server is ready."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            if found := re.search(ready, line):
                return found
        self._process.stdout.close()
        self._process.wait(PATIENCE_SECONDS)
        raise AssertionError("the server did not start:\n" + "".join(self.said))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self.said.extend(output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def resident_bytes(self) -> int:
        """How much memory it holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """Ask it to end, and wait; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        code = self._process.wait(PATIENCE_SECONDS)
        self._listener.join(PATIENCE_SECONDS)
        return code


def start_ephemera(store: str | Path, *options: str) -> Process:
    """`ephemera serve`, as a user starts it, on any free port."""
    command = [sys.executable, "-m", "ephemera.cli.main", "serve", str(store), "--port", "0"]
    process = Process([*command, *options], r"at redis://127\.0\.0\.1:(\d+)")
    process.port = int(process.found[1])
    return process


def start_redis(directory: Path, *options: str) -> Process:
    """A Redis that keeps nothing, unless the options say otherwise."""
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is missing: .ci/system installs it"
    command = [program, "--bind", "127.0.0.1", "--save", "", "--dir", str(directory), *options]
    for attempt in range(PORTS_TRIED):
        port = free_port()
        try:
            process = Process([*command, "--port", str(port)], "Ready to accept connections")
        except AssertionError:  # somebody else took the port meanwhile
            if attempt == PORTS_TRIED - 1:
                raise
        else:
            process.port = port
            return process
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def running(process: Process) -> Iterator[Process]:
    """See to it that the server ends with the block, however that ends."""
    try:
        yield process
    finally:
        if process.is_alive:
            with suppress(subprocess.TimeoutExpired):
                process.stop()
        if process.is_alive:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port: int = place.getsockname()[1]
        return port
