"""`ephemera export`: the contents of a store for Redis, or for anybody."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ephemera import InvalidArgument
from ephemera.cli import output
from ephemera.cli.stores import Json, OneFamily, StoreUrl, open_to_read, pick_family
from ephemera.cli.text import STANDARD_INPUT
from ephemera.formats.aof import encode_aof
from ephemera.formats.jsonl import encode_jsonl
from ephemera.formats.rdb_file import encode_rdb
from ephemera.formats.transfer import Encoder, chunks, save

ENCODERS: dict[str, Encoder] = {"rdb": encode_rdb, "aof": encode_aof, "jsonl": encode_jsonl}


def exporting(
    url: StoreUrl,
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A file, replaced as a whole; - is standard output."),
    ],
    rdb: Annotated[bool, typer.Option("--rdb", help="An RDB file that Redis loads.")] = False,
    aof: Annotated[bool, typer.Option("--aof", help="An append-only file.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="JSON Lines.")] = False,
    relative: Annotated[
        bool,
        typer.Option("--relative", help="With --aof: the time left, as servers before 6.2 need."),
    ] = False,
    family: OneFamily = None,
    as_json: Json = False,
) -> None:
    """Write what is alive at one instant to a file, while the store is used.

    The format is told by an option, or by the file's name: .rdb, .aof or .jsonl.
    """
    encode = _encoder(target, rdb=rdb, aof=aof, jsonl=jsonl, relative=relative)
    if as_json and str(target) == STANDARD_INPUT:
        raise InvalidArgument("--json prints where the export goes to: give a file, not -")
    with open_to_read(url) as store, output.progress("exporting") as advance:
        families = None if family is None else [pick_family(store, family).name]
        if str(target) == STANDARD_INPUT:
            for chunk in chunks(store.engine, encode, families=families, progress=advance):
                output.raw(chunk)
            return
        count = save(store.engine, target, encode, families=families, progress=advance)
    if as_json:
        output.record({"path": str(target), "keys": count, "bytes": target.stat().st_size})
    else:
        size = output.show_bytes(target.stat().st_size)
        output.line(f"{output.count_of(count, 'key')}, {size} in {target}")


def _encoder(target: Path, *, rdb: bool, aof: bool, jsonl: bool, relative: bool) -> Encoder:
    asked = [name for name, is_asked in (("rdb", rdb), ("aof", aof), ("jsonl", jsonl)) if is_asked]
    named = asked or [target.suffix.removeprefix(".")]
    if len(named) > 1:
        raise InvalidArgument(
            f"say one format, not several: {', '.join(map('--{}'.format, named))}"
        )
    if named[0] not in ENCODERS:
        raise InvalidArgument(
            f"{target.name!r} does not tell the format: a file ends in .rdb, .aof or .jsonl, or say"
            " --rdb, --aof or --jsonl"
        )
    if not relative:
        return ENCODERS[named[0]]
    if named[0] != "aof":
        raise InvalidArgument("--relative goes with --aof")
    return partial(encode_aof, relative=True)
