"""`ephemera purge`: remove what is dead."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera.cli import output
from ephemera.cli.stores import Json, StoreUrl, open_to_write


def purge(
    url: StoreUrl,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many keys.")] = None,
    as_json: Json = False,
) -> None:
    """Remove dead keys of all families now; a store in use does so by itself."""
    with open_to_write(url) as store:
        removed = store.purge_expired(limit)
    if as_json:
        output.record({"removed": removed})
    else:
        output.line(output.count_of(removed, "dead key") + " removed")
