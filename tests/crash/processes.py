"""Processes for tests: a `Peer` has the store open in a process of its own and does what it is told.

Peers come from a fork server, which never opened a store and has no threads: they start in
milliseconds and inherit nothing. Whoever waits for one waits for a bounded time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

import ephemera

PATIENCE_SECONDS = 60.0
"""How long anything may take before it counts as stuck."""
SMALL_SEGMENT_BYTES = 256 * 1024
TINY_SEGMENT_BYTES = 64 * 1024

CONTEXT = multiprocessing.get_context("forkserver")
# What peers import anyway is imported once, in the server.
CONTEXT.set_forkserver_preload(
    ["pytest", "ephemera.engines.local.engine", "tests.crash.death_points", "tests.crash.writers"]
)


class Seat(NamedTuple):
    """What a function that runs in a peer is given: the store, and a word with the test."""

    store: ephemera.Store
    pipe: Connection

    def say(self, word: object) -> None:
        self.pipe.send((True, word))

    def hear(self) -> Any:  # Any: whatever the test says
        return self.pipe.recv()


class Peer:
    """Another process that has the store open."""

    # Any: the options of `ephemera.open`, which checks them itself.
    def __init__(self, path: Path, **options: Any) -> None:
        options.setdefault("segment_bytes", SMALL_SEGMENT_BYTES)
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=_serve, args=(theirs, str(path), options), daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self.answer()

    # Any: what the function takes and returns is between it and the test.
    def tell(self, function: Callable[..., Any], *args: Any) -> None:
        """Have `function(seat, *args)` called there; `answer` waits for what it returns."""
        self._pipe.send((function, args))

    def say(self, word: object) -> None:
        """What the function over there hears."""
        self._pipe.send(word)

    def answer(self, patience_seconds: float = PATIENCE_SECONDS) -> Any:
        """What the peer said or returned. What it raised is raised here."""
        assert self._pipe.poll(patience_seconds), "the other process is stuck"
        is_fine, answer = self._pipe.recv()
        if not is_fine:
            raise answer
        return answer

    def has_answered(self) -> bool:
        return self._pipe.poll()

    def fileno(self) -> int:
        """What is readable once the peer has answered, or is dead: `connection.wait` asks."""
        return self._pipe.fileno()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self.tell(function, *args)
        return self.answer()

    def do(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the peer's store."""
        return self.run(call_method, method, args, named)

    def strike(self) -> None:
        """`kill -9`, without waiting for its death."""
        os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        self.strike()
        self.join(-signal.SIGKILL)

    def join(self, exitcode: int) -> None:
        """Wait for its end, which must be this one."""
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode == exitcode
        self._pipe.close()

    def dies(self) -> bool:
        """Wait until it is killed, or returns what it was told to do; whether it was killed."""
        try:
            self.answer()
        except EOFError:
            self.join(-signal.SIGKILL)
            return True
        return False

    def close(self) -> None:
        """Have it close its store and end; a peer that is dead already is let go."""
        if self._process.is_alive():
            self._pipe.close()
            self._process.join(PATIENCE_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
                raise AssertionError("the other process did not end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            # It may be what is stuck.
            self._process.kill()
        self.close()


@contextmanager
def peers(count: int, path: Path, **options: Any) -> Iterator[list[Peer]]:
    """Several peers on one store."""
    with ExitStack() as stack:
        yield [stack.enter_context(Peer(path, **options)) for _ in range(count)]


def call_method(seat: Seat, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return getattr(seat.store, method)(*args, **named)


def _serve(pipe: Connection, path: str, options: dict[str, Any]) -> None:
    try:
        store = ephemera.open(path, **options)
    except Exception as error:
        pipe.send((False, error))
        return
    with store:
        pipe.send((True, os.getpid()))
        seat = Seat(store, pipe)
        while True:
            try:
                function, args = pipe.recv()
            except EOFError:
                return
            try:
                answer = (True, function(seat, *args))
            except Exception as error:
                answer = (False, error)
            try:
                pipe.send(answer)
            except BrokenPipeError:
                return


def in_fork(child: Callable[[], object]) -> Forked:
    """Fork this very process, stores and all, and run `child` in the copy."""
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        reader.close()
        status = 1
        try:
            writer.send((True, child()))
            status = 0
        except BaseException as error:
            writer.send((False, repr(error)))
        finally:
            os._exit(status)
    writer.close()
    return Forked(pid, reader)


class Forked:
    """A copy of this process; `result` waits for its end."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid = pid
        self._pipe = pipe

    def result(self) -> Any:
        """What its function returned. Raises AssertionError when it failed or is stuck."""
        try:
            assert self._pipe.poll(PATIENCE_SECONDS), "the child is stuck"
            is_fine, answer = self._pipe.recv()
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            self._pipe.close()
            os.waitpid(self.pid, 0)
        assert is_fine, f"the child failed: {answer}"
        return answer
