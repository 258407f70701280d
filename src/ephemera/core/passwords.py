"""Passwords from a file or the environment: on a command line, every user of the machine can read them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ephemera.core.errors import InvalidArgument

_USER_PART = re.compile("//[^/@]*@")


def password_from_file(path: str | Path) -> str:
    """Return the content of a file, without the line end behind it.

    Raises InvalidArgument when there is no such file, or nothing in it.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"no password can be read from {path}: {error.strerror}. It is a file with the password alone"
        ) from None
    password = data.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
    if not password:
        raise InvalidArgument(f"no password can be read from {path}: it is empty")
    return password


def password_from_environment(name: str) -> str:
    """Return the value of an environment variable. Raises InvalidArgument when it has none."""
    password = os.environ.get(name, "")
    if not password:
        raise InvalidArgument(f"the environment variable {name!r} is to hold a password: set it")
    return password


SOURCES = {"password_file": password_from_file, "password_env": password_from_environment}
"""The parameters of a URL that say where its password is."""


def without_password(url: str) -> str:
    """Return a URL as it may be shown.

    >>> without_password("redis://:secret@localhost:6379/0")
    'redis://localhost:6379/0'
    """
    return _USER_PART.sub("//", url)
