"""`ephemera compact`: give free space back."""

from __future__ import annotations

from ephemera.cli import output
from ephemera.cli.stores import Json, StoreUrl, open_to_write
from ephemera.cli.usage import disk_bytes


def compact(url: StoreUrl, as_json: Json = False) -> None:
    """Write the store anew without the space that removed keys left, while it goes on being used."""
    with open_to_write(url) as store, output.progress("compacting"):
        before = disk_bytes(url)
        store.compact()
    after = disk_bytes(url)
    if as_json:
        output.record({"bytes_before": before, "bytes_after": after})
    elif before is None or after is None:
        output.line("compacted")
    else:
        output.line(f"{output.show_bytes(before)} before, {output.show_bytes(after)} now")
