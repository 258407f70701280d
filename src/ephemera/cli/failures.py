"""How a command ends: what went wrong becomes one line that says what to do, and an exit code.

0  found, or done        1  absent        2  wrong usage, or an error        130  Ctrl-C
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from ephemera import EphemeraError, StoreLocked

ABSENT = 1
ERROR = 2
INTERRUPTED = 130

ASK_THE_SERVER = (
    "if that is a server, ask it with `ephemera shell --port PORT` or `redis-cli -p PORT`"
)


def absent() -> NoReturn:
    """End because what was asked for is not there."""
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


def say(message: str) -> None:
    """One line on standard error."""
    one_line = " ".join(message.split())
    is_red = sys.stderr.isatty()
    sys.stderr.write(
        f"\x1b[31mephemera: {one_line}\x1b[0m\n" if is_red else f"ephemera: {one_line}\n"
    )


def explain(error: Exception) -> str:
    """What to tell a person about it."""
    if isinstance(error, StoreLocked):
        return f"{error}: {ASK_THE_SERVER}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)
