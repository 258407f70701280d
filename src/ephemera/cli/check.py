"""`ephemera check`: walk everything and report every disagreement."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera import CheckReport
from ephemera.cli import output
from ephemera.cli.process import ERROR, say
from ephemera.cli.stores import Json, StoreUrl, open_to_read, open_to_write


def check(
    url: StoreUrl,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Make the index of deadlines anew where rows say otherwise."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Walk rows, index, segments and pages and report every disagreement; exit with 2 if there is one.

    --repair mends what follows from the rows alone. Rows that are damaged stay as they are.
    """
    repaired = 0
    with open_to_write(url) if repair else open_to_read(url) as store:
        report = store.check()
        if repair and not report.is_clean:
            repaired = store.repair()
            report = store.check()
    if as_json:
        output.record({**report._asdict(), "repaired": repaired})
    else:
        _print(report, repaired)
    if not report.is_clean:
        say(f"{output.count_of(len(report.problems), 'problem')}: {_advice(repair)}")
        raise typer.Exit(ERROR)


def _print(report: CheckReport, repaired: int) -> None:
    for problem in report.problems:
        output.line(problem)
    if repaired:
        output.line(output.count_of(repaired, "index entry", "index entries") + " mended")
    output.line(
        f"{output.count_of(report.rows, 'row')}, "
        f"{output.count_of(report.index_entries, 'index entry', 'index entries')}, "
        f"{output.count_of(report.records, 'record')} checked"
    )


def _advice(has_repaired: bool) -> str:
    if has_repaired:
        return "restore a backup, or export what can be read"
    return "try check --repair, or restore a backup"
