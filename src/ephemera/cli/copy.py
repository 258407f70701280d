"""`ephemera copy`: a live store into another one, on whatever engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ephemera import InvalidArgument
from ephemera.cli import output
from ephemera.cli.process import ABSENT, say
from ephemera.cli.stores import Json, open_to_read, open_to_write
from ephemera.cli.text import json_field, show
from ephemera.core.keyvalue import KeyValue
from ephemera.core.passwords import without_password
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats.copying import Copied, Copy, Difference, differences
from ephemera.store import SCHEME

NOT_SETTLED = (
    "the source was written to all the while: what changed since the last comparison is not carried."
    " Stop its writers and type the same command again"
)
NOT_REMOVED = "--delete removes what the source does not have"
PLAIN = "values=plain keeps no write times, idle times or families"


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The store to read: a path or a URL.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="The store to fill; it is made if not there.")
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Then compare every key, value and deadline; exit code 1 if any differ.",
        ),
    ] = False,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Remove from DST what SRC does not have, if it was there before."
        ),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew, wherever an earlier copy stood.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy all families, keys, values, deadlines, idle times and write times to another store.

    SRC may be in use: what changes during the copy is found by comparing both stores at its end, and
    carried. Interrupted, the same command goes on where it was. With a DST that is filled already, only what
    differs is carried.
    """
    _check(source, target)
    with open_to_read(source) as origin, open_to_write(target, create=True) as destination:
        copying = Copy(origin.engine, destination.engine, label=label_of(source), removes=delete)
        if restart:
            copying.restart()
        with output.progress("copying") as advance:
            done = copying.run(advance)
        found = _verify(origin.engine, destination.engine, as_json=as_json) if verify else None
    _report(done, found, as_json=as_json)
    if found:
        raise typer.Exit(ABSENT)


def label_of(url: str) -> str:
    """What a store is called in the note of a copy: where it is, without a password.

    >>> label_of("redis://:secret@localhost:6379/0")
    'redis://localhost:6379/0'
    """
    return without_password(url) if SCHEME.match(url) else str(Path(url).resolve())


def _check(source: str, target: str) -> None:
    if label_of(source) == label_of(target):
        raise InvalidArgument(f"SRC and DST are the same store: {label_of(source)}")
    for url, instead in ((source, "ephemera import --from redis"), (target, "a URL without it")):
        if SCHEME.match(url) and "values=plain" in url:
            raise InvalidArgument(f"{PLAIN}: use {instead} in place of {label_of(url)}")


def _verify(source: KeyValue, target: KeyValue, *, as_json: bool) -> int:
    """Tell every difference; how many there were."""
    count = 0
    with output.progress("verifying") as advance:
        for found in differences(source, target, advance):
            count += 1
            if as_json:
                key = {} if found.key is None else json_field("key", found.key)
                output.record({"family": found.family, **key, "differs": _what(found)})
            else:
                output.line(f"{_name(found)}: {_what(found)}")
    return count


def _name(found: Difference) -> str:
    return found.family if found.key is None else f"{found.family} {show(found.key)}"


def _what(found: Difference) -> str:
    """What is not the same, in a few words."""
    if found.key is None:
        return f"default TTL {_duration(found.source)} in SRC, {_duration(found.target)} in DST"
    if not isinstance(found.source, Row):
        return "only in DST"
    if not isinstance(found.target, Row):
        return "only in SRC"
    parts = []
    if found.source.value != found.target.value:
        parts.append("value")
    if found.source.deadline_ms != found.target.deadline_ms:
        parts.append(
            f"deadline {_instant(found.source.deadline_ms)} in SRC,"
            f" {_instant(found.target.deadline_ms)} in DST"
        )
    if found.source.written_ms != found.target.written_ms:
        parts.append("write time")
    if (found.source.idle_ms, found.source.hard_ms) != (found.target.idle_ms, found.target.hard_ms):
        parts.append("idle time")
    return "; ".join(parts)


def _instant(deadline_ms: int) -> str:
    return "never" if deadline_ms == NEVER_MS else f"{deadline_ms} ms"


def _duration(default_ttl_ms: Row | int | None) -> str:
    return "none" if default_ttl_ms is None else f"{default_ttl_ms} ms"


def _report(done: Copied, found: int | None, *, as_json: bool) -> None:
    if as_json:
        output.record({
            "resumed": done.is_resumed, "copied": done.copied, "dead": done.dead,
            "caught_up": done.caught_up, "removed": done.removed, "left": done.left,
            "settled": done.is_settled, "differences": found,
        })  # fmt: skip
        return
    rows = [
        ("copied", f"{done.copied}", "from where it was" if done.is_resumed else ""),
        ("dead", f"{done.dead}", ""),
        ("caught up", f"{done.caught_up}", ""),
        ("removed", f"{done.removed}", ""),
        ("left", f"{done.left}", NOT_REMOVED if done.left else ""),
    ]
    if found is not None:
        rows.append(("different", f"{found}", ""))
    output.table(("", ">keys", ""), rows)
    if not done.is_settled:
        say(NOT_SETTLED)
