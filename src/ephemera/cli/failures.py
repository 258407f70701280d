"""How a command ends: what went wrong becomes one line that says what to do, and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import urlsplit

import typer

from ephemera import EphemeraError, StoreLocked
from ephemera.cli import output
from ephemera.cli.process import ABSENT, ERROR, INTERRUPTED, say
from ephemera.core.errors import served_store_url

HERE = ("127.0.0.1", "localhost")
"""Addresses that a client on this machine reaches without naming them."""


def absent(*, as_json: bool = False) -> NoReturn:
    """End because what was asked for is not there; to JSON, that is null."""
    if as_json:
        output.record(None)
    raise typer.Exit(ABSENT)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its failures told in one line."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:  # Any: whatever the command takes
        try:
            command(*args, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader had enough: nothing is wrong, and nobody is left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (EphemeraError, OSError) as error:
            say(explain(error, command.__name__))
            raise typer.Exit(ERROR) from None
        except typer.Exit:
            raise
        except Exception as error:
            if sys.flags.dev_mode:
                raise
            say(f"this is a bug (python -X dev shows where): {type(error).__name__}: {error}")
            raise typer.Exit(ERROR) from None

    return run


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Let an error of the system say what it is about, where it does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.strerror:
            error.filename = str(place)
        raise


def explain(error: Exception, command: str = "") -> str:
    """What to tell a person about it; `command` is the function that raised it."""
    if isinstance(error, StoreLocked) and error.served_at:
        return f"{error.reason}: {_instead(command, error.served_at)}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)


def _instead(command: str, served_at: str) -> str:
    """What to do where a server keeps the store from a command."""
    if command == "compact":
        return "a server has no command for it; stop the server first"
    if command == "backup":
        return (
            f"stop the server first, or export what it serves: BGSAVE in {_ways_to_ask(served_at)}"
            f" writes exports/dump.rdb in the store, `ephemera export '{served_store_url(served_at)}' FILE.rdb`"
            " a file of database 0"
        )
    if command == "exporting":
        return f"stop the server first, or give '{served_store_url(served_at)}' as STORE for its database 0"
    if command == "copy":
        return (
            f"stop the server first, or read what it serves with `ephemera import DST {served_at}`"
        )
    return f"ask it with {_ways_to_ask(served_at)}, or stop it first"


def _ways_to_ask(served_at: str) -> str:
    """Commands that ask the server at a URL.

    >>> _ways_to_ask("redis://127.0.0.1:6380")
    '`ephemera shell --port 6380` or `redis-cli -p 6380`'
    >>> _ways_to_ask("redis://[::1]:6380")
    '`ephemera shell --host ::1 --port 6380` or `redis-cli -h ::1 -p 6380`'
    """
    parts = urlsplit(served_at)
    client = "redis-cli --tls" if parts.scheme == "rediss" else "redis-cli"
    if parts.hostname in HERE:
        shell, client = "ephemera shell", f"{client} -p {parts.port}"
    else:
        shell = f"ephemera shell --host {parts.hostname}"
        client = f"{client} -h {parts.hostname} -p {parts.port}"
    if parts.scheme == "rediss":
        return f"`{client}`"
    return f"`{shell} --port {parts.port}` or `{client}`"
