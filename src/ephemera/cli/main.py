"""The console script `ephemera`: puts the commands together."""

from __future__ import annotations

import sys

INSTALL = "pip install 'ephemera[cli]'"


def main() -> None:
    """Run the command line; without the packages it needs, say how to get them."""
    try:
        import typer
    except ImportError:
        sys.exit(f"ephemera: the command line needs typer: {INSTALL}")
    from ephemera.cli.serve import serve

    app = typer.Typer(
        help="Durable storage for data with a deadline.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_keep_subcommands)
    app.command()(serve)
    app()


def _keep_subcommands() -> None:
    """Durable storage for data with a deadline."""


if __name__ == "__main__":
    main()
