"""`ephemera families`: the families of a store."""

from __future__ import annotations

from ephemera.cli import output
from ephemera.cli.stores import Json, StoreUrl, open_to_read, pick_families
from ephemera.cli.times import show_seconds


def families(url: StoreUrl, as_json: Json = False) -> None:
    """Print the families, how many keys each has, and the TTL that keys get by default."""
    with open_to_read(url) as store:
        found = [(each.name, each.count(), each.default_ttl) for each in pick_families(store, None)]
    if as_json:
        for name, keys, default_ttl in found:
            output.record({"family": name, "keys": keys, "default_ttl": default_ttl})
        return
    output.table(
        ("family", ">keys", ">default ttl"),
        ((name, f"{keys}", show_seconds(default_ttl)) for name, keys, default_ttl in found),
    )
