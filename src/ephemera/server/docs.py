"""The page of all commands, made from the table: `python -m ephemera.server.docs > docs/commands.md`."""

from __future__ import annotations

import sys
from itertools import groupby

from ephemera.server.table import Declaration, declarations

HEAD = """\
# Commands

What the server understands, by group. This page is made from the table that the server itself uses:
`python -m ephemera.server.docs > docs/commands.md`. Every other command is refused as unknown.

A number of arguments counts the command's name; with a + it is the least. The last column is the version
of Redis in which the command appeared.
"""


def page() -> str:
    """The page as it should be."""
    table = sorted(declarations().values(), key=lambda each: (each.group, each.name))
    sections = [
        f"\n## {group.capitalize()}\n\n| command | arguments | | since |\n|---|---|---|---|\n"
        + "".join(_line(declared) for declared in commands)
        for group, commands in groupby(table, key=lambda each: each.group)
    ]
    return HEAD + "".join(sections)


def _line(declared: Declaration) -> str:
    name = declared.name.upper().replace("|", " ")
    arguments = str(declared.arity) if declared.arity > 0 else f"{-declared.arity}+"
    return f"| `{name}` | {arguments} | {declared.summary} | {declared.since} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
