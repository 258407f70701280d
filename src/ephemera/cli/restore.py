"""`ephemera restore`: a backup becomes a store again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ephemera import CorruptStore, InvalidArgument
from ephemera.cli import output
from ephemera.cli.backup import copy
from ephemera.cli.stores import Json, open_to_read


def restore(
    source: Annotated[str, typer.Argument(metavar="BACKUP", help="What `backup` has written.")],
    target: Annotated[Path, typer.Argument(metavar="STORE", help="A new directory.")],
    as_json: Json = False,
) -> None:
    """Check a backup and copy it to where a store is wanted; what lies there is never replaced."""
    if os.path.lexists(target):
        raise InvalidArgument(
            f"{target} is there already, and restore replaces nothing: give the path of a new store, or move "
            f"{target} away first"
        )
    with open_to_read(source) as store:
        report = store.check()
        if not report.is_clean:
            raise CorruptStore(source, None, f"{report.problems[0]}: use another backup")
        copy(store, target, task="restoring")
    if as_json:
        output.record({"path": str(target), "rows": report.rows, "records": report.records})
    else:
        output.line(f"{target} is whole: {output.count_of(report.rows + report.records, 'row')}")
