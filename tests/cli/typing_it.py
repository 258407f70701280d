"""Commands as a person types them: what they print, and how they end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from ephemera.cli.main import main

PROGRAM = [sys.executable, "-m", "ephemera.cli.main"]


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:  # Any: what JSON can hold
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:  # Any: as above
        """The objects of JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*args: object, given: bytes = b"") -> Done:
    """Run a command in this process, off a terminal, with this standard input."""
    out, err = io.BytesIO(), io.BytesIO()
    streams: dict[str, Any] = {  # Any: streams, and the arguments
        "stdin": io.TextIOWrapper(io.BytesIO(given)),
        "stdout": io.TextIOWrapper(out, encoding="utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, encoding="utf-8", write_through=True),
        "argv": ["ephemera", *map(str, args)],
    }
    code: object = 0
    with patch.multiple(sys, **streams):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int), code
    return Done(code, out.getvalue(), err.getvalue().decode())


def ok(*args: object, given: bytes = b"") -> Done:
    """The same for a command that must end well."""
    done = run(*args, given=given)
    assert (done.code, done.err) == (0, ""), done
    return done


def refused(*args: object, given: bytes = b"") -> str:
    """The one line that a command ends with which cannot be done."""
    done = run(*args, given=given)
    assert done.code == 2, done
    assert done.err.startswith("ephemera: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    return done.err.removeprefix("ephemera: ").removesuffix("\n")


@contextmanager
def process(*args: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, ended with the block if it still runs."""
    running = subprocess.Popen(
        [*PROGRAM, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()
