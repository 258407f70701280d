"""How a command ends: what went wrong becomes one line that says what to do, and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from ephemera import EphemeraError, StoreLocked
from ephemera.cli import output
from ephemera.cli.process import ABSENT, ERROR, INTERRUPTED, say

ASK_THE_SERVER = (
    "if that is a server, ask it with `ephemera shell --port PORT` or `redis-cli -p PORT`"
)


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
            say(explain(error))
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


def explain(error: Exception) -> str:
    """What to tell a person about it."""
    if isinstance(error, StoreLocked):
        return f"{error}: {ASK_THE_SERVER}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)
