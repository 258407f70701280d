"""`ephemera count`: how many keys are alive."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera.cli import output
from ephemera.cli.stores import FamilyName, Json, StoreUrl, open_to_read, pick_family
from ephemera.cli.text import parse
from ephemera.core.arguments import DEFAULT_FAMILY


def count(
    url: StoreUrl,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="What keys begin with.")] = "",
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
) -> None:
    """Print how many keys are alive. It visits them, so it costs what a scan costs."""
    with open_to_read(url) as store:
        space = pick_family(store, family)
        keys = sum(1 for _ in space.scan(parse(prefix))) if prefix else space.count()
    if as_json:
        output.record({"keys": keys})
    else:
        output.line(str(keys))
