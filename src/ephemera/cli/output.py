"""What is printed, and where: JSON for scripts, tables and bars on a terminal, plain lines elsewhere.

Rich is loaded only where a terminal shows something.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

TABLE_ROWS = 200
"""Longer tables are printed in pieces, so that the first rows appear at once."""
WRITE_BYTES = 1 << 16
SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB")

Advance = Callable[[int, int | None], None]
"""Told how much of the work is done, and of how much in all if that is known."""


def is_terminal() -> bool:
    return sys.stdout.isatty()


def line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def raw(data: bytes) -> None:
    """Bytes as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def raw_pieces(pieces: Iterable[bytes]) -> None:
    """Bytes as they are: short pieces many at a time, a long one alone and without a copy."""
    pending: list[bytes] = []
    size = 0
    for each in pieces:
        if size + len(each) > WRITE_BYTES:
            raw(b"".join(pending))
            pending.clear()
            size = 0
        pending.append(each)
        size += len(each)
    raw(b"".join(pending))


def raw_lines(lines: Iterable[bytes]) -> None:
    """Lines as they are."""
    raw_pieces(piece for each in lines for piece in (each, b"\n"))


def record(fields: dict[str, Any] | None) -> None:  # Any: what JSON can hold
    """One line of JSON: an object, or null for what is not there."""
    text = json.dumps(fields, ensure_ascii=False)
    # In pieces: a stream encodes what it gets as a whole, beside the text.
    for start in range(0, len(text), WRITE_BYTES):
        sys.stdout.write(text[start : start + WRITE_BYTES])
    line()


def flush() -> None:
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere a line for each row, with tabs and no head.

    A column whose name begins with > is set to the right.
    """
    if not is_terminal():
        for row in rows:
            line("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    rest = iter(rows)
    while piece := list(islice(rest, TABLE_ROWS)):
        shown = Table(box=None, header_style="bold", pad_edge=False, show_header=any(columns))
        for column in columns:
            is_number = column.startswith(">")
            shown.add_column(
                column.removeprefix(">"),
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in piece:
            shown.add_row(*(Text(cell) for cell in row))
        console.print(shown)


@contextmanager
def progress(task: str) -> Iterator[Advance]:
    """A bar on standard error for work that takes long, where that is a terminal."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar:
        number = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(number, completed=done, total=total)


def show_bytes(size: float) -> str:
    """A size in the unit that a person would use.

    >>> show_bytes(512), show_bytes(34_603_008)
    ('512 B', '33.0 MiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    power = min(int(math.log(size, 1024)), len(SIZE_UNITS))
    return f"{size / 1024**power:.1f} {SIZE_UNITS[power - 1]}"


def count_of(number: int, thing: str, things: str | None = None) -> str:
    """A number with its noun: 1 key, 2 keys."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def _ignore(done: int, total: int | None) -> None:
    """Where progress goes that nobody sees."""
