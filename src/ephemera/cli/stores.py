"""The store that a command works on: how it is opened, and which of its families is meant.

Reading opens read-only, so that a look changes nothing and a mistyped path is not made a store. Only
what is there to fill a store (`put`, `import`, `shell`, `serve`) makes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

import ephemera
from ephemera import Family, InvalidArgument, Store
from ephemera.cli.process import given, given_lines
from ephemera.cli.text import STANDARD_INPUT, parse
from ephemera.core.arguments import KEY_BYTES_MAX, VALUE_BYTES_MAX
from ephemera.engines.local.layout import Layout
from ephemera.store import SCHEME

LINE_BYTES_MAX = len("\\xNN") * KEY_BYTES_MAX + 1
"""How long a line with one key can be: every byte escaped, and the end."""

StoreUrl = Annotated[
    str, typer.Argument(metavar="STORE", help="A path, or any URL that ephemera.open takes.")
]
KeyText = Annotated[str, typer.Argument(metavar="KEY", help="The key; - reads standard input.")]
FamilyName = Annotated[
    str, typer.Option("--family", "-f", metavar="NAME", help="The family to work in.")
]
OneFamily = Annotated[
    str | None, typer.Option("--family", "-f", metavar="NAME", help="This family alone.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Raw = Annotated[bool, typer.Option("--raw", help="Take and print bytes as they are.")]
TtlText = Annotated[
    str | None,
    typer.Option("--ttl", metavar="DURATION", help="How long it lives: 90, 1h30m, 2d or never."),
]
AtText = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="INSTANT",
        help="When it dies: 2030-01-31, 2030-01-31 12:00 (local time) or 2030-01-31T12:00:00Z.",
    ),
]
IdleText = Annotated[
    str | None,
    typer.Option("--idle", metavar="DURATION", help="How long it lives without a touch."),
]


def open_to_read(url: str) -> Store:
    """Raises InvalidArgument where there is no store."""
    return ephemera.open(url, read_only=True)


def open_to_write(url: str, *, create: bool = False) -> Store:
    """Raises InvalidArgument where there is no store, unless one is to be made."""
    if not create and not has_store(url):
        raise InvalidArgument(f"there is no store at {url}")
    return ephemera.open(url)


def has_store(url: str) -> bool:
    """Whether opening makes no new one at this path; what is no path is asked when it is opened."""
    return SCHEME.match(url) is not None or Layout(url).format.exists()


def pick_family(store: Store, name: str) -> Family:
    """A family that is there. Raises InvalidArgument for another."""
    known = store.families()
    if name not in known:
        raise InvalidArgument(f"there is no family {name!r}; there are {', '.join(known)}")
    return store.family(name)


def pick_families(store: Store, name: str | None) -> list[Family]:
    """One family, or all of them."""
    return [pick_family(store, each) for each in ([name] if name else store.families())]


def typed_keys(arguments: list[str], *, is_raw: bool) -> list[bytes]:
    """Keys of the command line; - is one for each line of standard input."""
    keys: list[bytes] = []
    for argument in arguments:
        lines: Iterable[bytes] = [argument.encode(errors="surrogateescape")]
        if argument == STANDARD_INPUT:
            lines = given_lines(LINE_BYTES_MAX)
        keys += lines if is_raw else map(parse, lines)
    return keys


def typed_key(argument: str, *, is_raw: bool) -> bytes:
    """The one key of a command. Raises InvalidArgument when standard input has another number."""
    keys = typed_keys([argument], is_raw=is_raw)
    if len(keys) != 1:
        raise InvalidArgument(f"one key is wanted, and standard input has {len(keys)} lines")
    return keys[0]


def typed_value(argument: str, *, is_raw: bool) -> bytes:
    """A value of the command line; - is standard input as it is: data, which nobody typed."""
    if argument == STANDARD_INPUT:
        return given().read(VALUE_BYTES_MAX + 1)  # the store says that one more is too many
    data = argument.encode(errors="surrogateescape")
    return data if is_raw else parse(data)
