"""What the program has to do with the process it runs in: standard streams and exit codes.

    0  found, or done        1  absent        2  wrong usage, or an error        130  Ctrl-C

It imports nothing that takes time, so that a program that is interrupted while it loads can say so.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from ephemera.core.errors import InvalidArgument

ABSENT = 1
ERROR = 2
INTERRUPTED = 130

ENCODING = "utf-8"
ERRORS = "backslashreplace"
"""A path that is no UTF-8 is printed with escapes, which JSON knows too."""


def mend() -> None:
    """Let what is printed be UTF-8 in every locale, and go nowhere where a stream is closed."""
    sys.stdout = _mended(sys.stdout)
    sys.stderr = _mended(sys.stderr)


def _mended(stream: object) -> io.TextIOWrapper:
    if stream is None:
        return open(os.devnull, "w", encoding=ENCODING, errors=ERRORS)
    assert isinstance(stream, io.TextIOWrapper)  # as Python opens them
    stream.reconfigure(encoding=ENCODING, errors=ERRORS)
    return stream


def given() -> BinaryIO:
    """Standard input. Raises InvalidArgument where there is none: that is not the same as an empty one."""
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed: give it something to read")
    return sys.stdin.buffer


def given_lines(line_bytes_max: int) -> Iterator[bytes]:
    """The lines of standard input without their ends. Raises InvalidArgument for one that is too long."""
    source = given()
    while line := source.readline(line_bytes_max + 1):
        if len(line) > line_bytes_max:
            raise InvalidArgument(
                f"a line of standard input has more than {line_bytes_max} bytes: one key on each line"
            )
        yield line.removesuffix(b"\n")


def say(message: str) -> None:
    """One line on standard error."""
    one_line = " ".join(message.split())
    is_red = sys.stderr.isatty()
    sys.stderr.write(
        f"\x1b[31mephemera: {one_line}\x1b[0m\n" if is_red else f"ephemera: {one_line}\n"
    )
