"""`ephemera ttl`: how long a key has left."""

from __future__ import annotations

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
from ephemera.cli.times import show_instant, show_seconds
from ephemera.core.arguments import DEFAULT_FAMILY


def ttl(
    url: StoreUrl,
    key: KeyText,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Print how long a key has left, or never; exit with 1 when it is absent or dead."""
    name = typed_key(key, is_raw=raw)
    with open_to_read(url) as store:
        entry = pick_family(store, family).entry(name)
    if entry is None:
        absent(as_json=as_json)
    if as_json:
        output.record({"ttl": entry.ttl, "deadline": show_instant(entry.deadline)})
    else:
        output.line(show_seconds(entry.ttl))
