"""`ephemera` itself: what can be said before any command."""

from __future__ import annotations

from typing import Annotated

import typer

from ephemera import __version__
from ephemera.cli import output


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        output.line(f"ephemera {__version__}")
        raise typer.Exit


def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Durable storage for data with a deadline."""
