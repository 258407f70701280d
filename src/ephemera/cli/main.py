"""The console script `ephemera`: puts the commands together.

A command's module is imported when it is named, so that `ephemera get` loads nothing of the server.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

INSTALL = "pip install 'ephemera[cli]'"
COMPLETION_VARIABLE = "_EPHEMERA_COMPLETE"

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
    """Run the command line; without the packages it needs, say how to get them."""
    try:
        import typer
    except ImportError:
        sys.exit(f"ephemera: the command line needs typer: {INSTALL}")
    from ephemera.cli.failures import ERROR, say

    named = sys.argv[1] if len(sys.argv) > 1 else ""
    is_one = named in PANEL_OF and COMPLETION_VARIABLE not in os.environ
    app = application([named] if is_one else list(PANEL_OF))
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="ephemera")
    except typer.TyperException as error:
        where = f"ephemera {named} --help" if is_one else "ephemera --help"
        say(f"{error.format_message().rstrip('.')}; see {where}")
        code = ERROR
    sys.exit(code)


def application(names: list[str]) -> typer.Typer:
    """The program with these commands."""
    import typer

    from ephemera.cli.failures import guarded

    app = typer.Typer(
        help="Durable storage for data with a deadline.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_keep_subcommands)
    for name in names:
        module_name = MODULES.get(name, name)
        function = getattr(import_module(f"ephemera.cli.{module_name}"), module_name)
        app.command(name, rich_help_panel=PANEL_OF[name])(guarded(function))
    return app


def _keep_subcommands() -> None:
    """Durable storage for data with a deadline."""


if __name__ == "__main__":
    main()
