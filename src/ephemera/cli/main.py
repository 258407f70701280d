"""The console script `ephemera`: puts the commands together.

A command's module is imported when it is named, so that `ephemera get` loads nothing of the server.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ephemera.cli.process import ERROR, INTERRUPTED, mend, say

if TYPE_CHECKING:
    import typer

INSTALL = "pip install 'ephemera-kv[cli]'"
COMPLETION_VARIABLE = "_EPHEMERA_COMPLETE"
LOGS = {"serve"}
"""Programs whose log somebody reads. Others say in one line how they ended, and nothing besides."""

PANELS = {
    "Keys": ["get", "put", "del", "ttl", "touch", "scan", "count"],
    "What is there": ["families", "deadlines", "watch", "top", "info"],
    "Care": ["purge", "check", "compact", "backup", "restore", "copy", "import", "export"],
    "Programs": ["shell", "serve", "bench"],
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
MODULES = {"del": "delete", "import": "importing", "export": "exporting"}
"""Where a command's module cannot have its name, which Python keeps for itself. The function in it has
the name of the module."""


def main() -> None:
    """Run the command line and end with its exit code."""
    mend()
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: list[str]) -> Any:  # Any: as typer has it
    """The exit code of a command; without the packages it needs, say how to get them."""
    try:
        import typer
    except ImportError:
        say(f"the command line needs typer: {INSTALL}")
        return ERROR
    named = arguments[0] if arguments else ""
    if named not in LOGS:
        logging.getLogger("ephemera").addHandler(logging.NullHandler())
    is_one = named in PANEL_OF and COMPLETION_VARIABLE not in os.environ
    app = application([named] if is_one else list(PANEL_OF))
    try:
        return app(arguments or ["--help"], standalone_mode=False, prog_name="ephemera")
    except typer.TyperException as error:
        where = f"ephemera {named} --help" if is_one else "ephemera --help"
        say(f"{error.format_message().rstrip('.')}{_given(error)}; see {where}")
        return ERROR
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            return 0  # the reader of the help had enough
        raise


def _given(error: Exception) -> str:
    """The value that an option does not take, which typer leaves out of its message."""
    cause = error.__cause__ or error.__context__
    found = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    return f", not {found[0]['input']!r}" if found else ""


def application(names: list[str]) -> typer.Typer:
    """The program with these commands."""
    import typer

    from ephemera.cli.failures import guarded
    from ephemera.cli.program import program

    app = typer.Typer(
        help="Durable storage for data with a deadline.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(program)
    for name in names:
        module_name = MODULES.get(name, name)
        function = getattr(import_module(f"ephemera.cli.{module_name}"), module_name)
        app.command(name, rich_help_panel=PANEL_OF[name])(guarded(function))
    return app


if __name__ == "__main__":
    main()
