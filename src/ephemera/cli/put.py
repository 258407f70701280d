"""`ephemera put`: store a value."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera.cli import output
from ephemera.cli.process import ABSENT
from ephemera.cli.stores import (
    AtText,
    FamilyName,
    IdleText,
    Json,
    KeyText,
    Raw,
    StoreUrl,
    TtlText,
    open_to_write,
    typed_key,
    typed_value,
)
from ephemera.cli.times import parse_life
from ephemera.core.arguments import DEFAULT_FAMILY


def put(
    url: StoreUrl,
    key: KeyText,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value; - takes standard input as it is.")
    ],
    ttl: TtlText = None,
    at: AtText = None,
    idle: IdleText = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if the key is not there; else exit with 1.")
    ] = False,
    durable: Annotated[
        bool, typer.Option("--durable", help="Return when it would survive a power loss.")
    ] = False,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Store a value. The store and the family are made when they are not there."""
    name = typed_key(key, is_raw=raw)
    data = typed_value(value, is_raw=raw)
    life_ttl, life_at, life_idle = parse_life(ttl, at, idle)
    is_stored = True
    with open_to_write(url, create=True) as store:
        space = store.family(family)
        if if_absent:
            is_stored = space.put_if_absent(
                name, data, ttl=life_ttl, at=life_at, idle=life_idle, durable=durable or None
            )
        else:
            space.put(name, data, ttl=life_ttl, at=life_at, idle=life_idle, durable=durable or None)
    if as_json:
        output.record({"stored": is_stored})
    if not is_stored:
        raise typer.Exit(ABSENT)
