"""`ephemera touch`: a new lifetime for a key."""

from __future__ import annotations

from ephemera.cli import output
from ephemera.cli.failures import absent
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
    pick_family,
    typed_key,
)
from ephemera.cli.times import parse_life, show_seconds
from ephemera.core.arguments import DEFAULT_FAMILY


def touch(
    url: StoreUrl,
    key: KeyText,
    ttl: TtlText = None,
    at: AtText = None,
    idle: IdleText = None,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Give a key a new lifetime and leave its value; exit with 1 when it is absent or dead.

    Without a lifetime, its idle time begins again, or it gets the family's default.
    """
    name = typed_key(key, is_raw=raw)
    life_ttl, life_at, life_idle = parse_life(ttl, at, idle)
    with open_to_write(url) as store:
        space = pick_family(store, family)
        if not space.touch(name, ttl=life_ttl, at=life_at, idle=life_idle):
            absent(as_json=as_json)
        entry = space.entry(name)
    left = None if entry is None else entry.ttl
    if as_json:
        output.record({"ttl": left})
    else:
        output.line(show_seconds(left))
