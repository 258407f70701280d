"""Death at any line: a process that counts the lines of the engine it runs, and dies at the n-th.

Compiled code writes and publishes; everything around it (rotation, checkpoint, families, compaction,
opening, closing) is Python, and each of its lines is a moment at which a process can be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import ephemera
from ephemera.engines import local
from tests.crash.processes import CONTEXT, PATIENCE_SECONDS, TINY_SEGMENT_BYTES

ENGINE = str(Path(local.__file__).parent)


class Lines:
    """Counts the lines of the engine that this thread runs; dies at line `fatal`, if that comes."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:  # Any: a trace function
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        if event == "line":
            self.count += 1
            if self.count == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def open_quietly(path: Path, **options: Any) -> ephemera.Store:
    """A store without threads, so that all it does is done by lines of this thread."""
    quiet = {"maintenance": "manual", "durability": "none", "segment_bytes": TINY_SEGMENT_BYTES}
    return ephemera.open(path, **{**quiet, **options})


def die_in(act: Callable[[ephemera.Store], None], path: Path, fatal: int) -> int | None:
    """Run `act` on the store in another process that dies at this line of it.

    Returns None if it died, else how many lines there were.
    """
    return _run(_open_and_act, act, path, fatal)


def die_opening(path: Path, fatal: int) -> int | None:
    """The same of opening a store and closing it again."""
    return _run(_open_and_close, None, path, fatal)


def _run(target: Callable[..., None], act: object, path: Path, fatal: int) -> int | None:
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=target, args=(writer, act, str(path), fatal), daemon=True)
    process.start()
    writer.close()
    process.join(PATIENCE_SECONDS)
    if process.exitcode == -signal.SIGKILL:
        return None
    assert process.exitcode == 0
    lines: int = reader.recv()
    return lines


def _open_and_act(pipe: Any, act: Callable[[ephemera.Store], None], path: str, fatal: int) -> None:
    store = open_quietly(Path(path))
    lines = Lines(fatal)
    sys.settrace(lines)
    try:
        act(store)
    finally:
        sys.settrace(None)
    pipe.send(lines.count)
    os._exit(0)


def _open_and_close(pipe: Any, _: None, path: str, fatal: int) -> None:
    lines = Lines(fatal)
    sys.settrace(lines)
    try:
        open_quietly(Path(path)).close()
    finally:
        sys.settrace(None)
    pipe.send(lines.count)
    os._exit(0)
