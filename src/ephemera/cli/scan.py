"""`ephemera scan`: keys in order, with their values and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ephemera import Entry
from ephemera.cli import output
from ephemera.cli.stores import FamilyName, Json, Raw, StoreUrl, open_to_read, pick_family
from ephemera.cli.text import json_field, parse, show, show_encoded, show_pieces, show_short
from ephemera.cli.times import show_instant, show_seconds
from ephemera.core.arguments import DEFAULT_FAMILY

VALUE_WIDTH = 200
"""How much of a value a table shows; a pipe gets all of it."""

Rows = Iterator[tuple[bytes, Entry]]


def scan(
    url: StoreUrl,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="What keys begin with.")] = "",
    start: Annotated[str | None, typer.Option(metavar="KEY", help="The first key.")] = None,
    end: Annotated[str | None, typer.Option(metavar="KEY", help="The key to stop before.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last to the first.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many keys.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Keys alone, one on each line.")] = False,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Print keys in the order of their bytes, with their values and what time they have left.

    Off a terminal, each line is key, tab, value, tab, time left; with --json, each line is an object.
    """
    with open_to_read(url) as store:
        rows = pick_family(store, family).entries(
            parse(prefix),
            start=None if start is None else parse(start),
            end=None if end is None else parse(end),
            reverse=reverse,
            limit=limit,
        )
        if as_json:
            _print_json(rows)
        elif keys:
            output.raw_lines(key if raw else show_encoded(key) for key, _ in rows)
        elif raw:
            output.raw_pieces(
                piece for key, entry in rows for piece in (key, b"\t", entry.value, b"\n")
            )
        elif output.is_terminal():
            output.table(("key", "value", ">ttl"), _cells(rows))
        else:
            output.raw_pieces(_pieces(rows))


def _print_json(rows: Rows) -> None:
    for key, entry in rows:
        output.record(
            {
                **json_field("key", key),
                **json_field("value", entry.value),
                "ttl": entry.ttl,
                "deadline": show_instant(entry.deadline),
                "written_at": show_instant(entry.written_at),
            }
        )


def _cells(rows: Rows) -> Iterator[tuple[str, str, str]]:
    for key, entry in rows:
        yield show(key), show_short(entry.value, VALUE_WIDTH), show_seconds(entry.ttl)


def _pieces(rows: Rows) -> Iterator[bytes]:
    for key, entry in rows:
        yield show_encoded(key) + b"\t"
        yield from show_pieces(entry.value)
        yield b"\t%b\n" % show_seconds(entry.ttl).encode()
