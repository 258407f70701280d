"""`ephemera get`: the value of a key."""

from __future__ import annotations

from itertools import chain

from ephemera.cli import output
from ephemera.cli.failures import absent
from ephemera.cli.stores import (
    FamilyName,
    Json,
    KeyText,
    Raw,
    StoreUrl,
    open_to_read,
    pick_family,
    typed_key,
)
from ephemera.cli.text import json_field, show_pieces
from ephemera.cli.times import show_instant
from ephemera.core.arguments import DEFAULT_FAMILY


def get(
    url: StoreUrl,
    key: KeyText,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Print the value of a key; exit with 1 when it is absent or dead."""
    name = typed_key(key, is_raw=raw)
    with open_to_read(url) as store:
        entry = pick_family(store, family).entry(name)
    if entry is None:
        absent(as_json=as_json)
    if as_json:
        output.record(
            {
                **json_field("key", name),
                **json_field("value", entry.value),
                "ttl": entry.ttl,
                "deadline": show_instant(entry.deadline),
                "written_at": show_instant(entry.written_at),
            }
        )
    elif raw:
        output.raw(entry.value)
    else:
        output.raw_pieces(chain(show_pieces(entry.value), (b"\n",)))
