"""`ephemera del`: take keys away."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera.cli import output
from ephemera.cli.failures import absent
from ephemera.cli.stores import (
    FamilyName,
    Json,
    Raw,
    StoreUrl,
    open_to_write,
    pick_family,
    typed_keys,
)
from ephemera.core.arguments import DEFAULT_FAMILY


def delete(
    url: StoreUrl,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Keys; - reads one from each input line.")
    ],
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """Take keys away, all at once; exit with 1 when none of them was there."""
    names = typed_keys(keys, is_raw=raw)
    with open_to_write(url) as store:
        count = pick_family(store, family).delete_many(names)
    if as_json:
        output.record({"deleted": count})
    else:
        output.line(output.count_of(count, "key") + " deleted")
    if not count:
        absent()
