"""The page of the command line, made from the commands: `python -m ephemera.cli.docs > docs/cli.md`."""

from __future__ import annotations

import sys
from typing import Any

import typer.main

from ephemera.cli.main import PANELS, application

HEAD = r"""# The command line

`ephemera COMMAND STORE …`, where STORE is a path or any URL that `ephemera.open` takes. It works while other
processes use the store. `pip install 'ephemera-kv[cli]'` brings what it needs;
`ephemera --install-completion` lets your shell complete commands and options. This page is made from the
commands: `python -m ephemera.cli.docs > docs/cli.md`.

**Exit codes**: 0 found or done, 1 absent, 2 wrong usage or an error, 130 Ctrl-C. An error is one line on
standard error, and nothing is printed besides. `--json` prints a JSON object, one on each line where there are
several, or null for a key that is absent.

**Keys and values** are printed as text with escapes, and typed the same way: `\\`, `\n`, `\r`, `\t`, and
`\xNN` for any byte. What is printed can be typed again; one that begins with a dash goes after `--`. With
`--raw`, bytes are taken and printed as they are. `-` reads standard input: keys one from each line, a value as
it is. In JSON, what is no UTF-8 is called `key_base64` or `value_base64`.

**Durations** are typed as `90` (seconds), `1h30m`, `2d`, `250ms`, and shown as `59m 12s`.

**Instants** (`--at`) are typed as a date, `2030-01-31`, or a date and time, `2030-01-31 12:00`, both in the local
time zone; with a zone, `2030-01-31T12:00:00Z` or `…+02:00`; or as seconds since 1970.

**A store that a server keeps** is open to nobody else: the error names the process, its address and how to ask it, with
`ephemera shell --port PORT` or any Redis client. `compact` and `backup` need the server stopped; BGSAVE, or
`ephemera export 'redis://127.0.0.1:PORT/0?values=plain' FILE.rdb`, write what it serves while it runs.

**`ephemera --version`** prints the version. `python -m ephemera` is the same program.

**Files** that a command makes, a store, a backup or an export, can be read by their owner alone.

**Passwords** on a command line are seen by every user of the machine. `serve` and `shell` take them from
`EPHEMERA_PASSWORD` too, or from a file: `--requirepass-file`, `--password-file` or `EPHEMERA_PASSWORD_FILE`. A URL of
Redis says `?password_file=PATH` or `?password_env=NAME`.
"""


def page() -> str:
    """The page as it should be."""
    group: Any = typer.main.get_command(application([each for p in PANELS.values() for each in p]))
    parts = [HEAD]
    for panel, names in PANELS.items():
        parts.append(f"\n## {panel}\n")
        parts += [_section(name, group.commands[name]) for name in names]
    return "".join(parts)


def _section(name: str, command: Any) -> str:  # Any: typer keeps the type to itself
    about = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join(["ephemera", name, *(each.metavar or each.name.upper() for each in arguments)])
    rows = [(each.metavar or each.name.upper(), each.help) for each in arguments]
    rows += [(_spelling(each), each.help) for each in options if "--help" not in each.opts]
    table = "".join(f"| `{spelling}` | {help_} |\n" for spelling, help_ in rows)
    return f"\n### {name}\n\n    {usage} [OPTIONS]\n\n{about}\n\n| | |\n|---|---|\n{table}"


def _spelling(option: Any) -> str:  # Any: as above
    names = ", ".join(option.opts)
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


if __name__ == "__main__":
    sys.stdout.write(page())
