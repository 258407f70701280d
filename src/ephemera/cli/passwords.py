"""The password of a server: typed, in the environment, or in a file, as container secrets are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ephemera import InvalidArgument
from ephemera.core.passwords import password_from_file

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="EPHEMERA_PASSWORD_FILE",
        help="A file with the password, which no list of processes shows.",
    ),
]


def one_password(given: str, path: Path | None) -> str:
    """Return the password; empty where none is given. Raises InvalidArgument for two."""
    if path is None:
        return given
    if given:
        raise InvalidArgument(f"the password is given twice: itself, and in {path}; leave one out")
    return password_from_file(path)
