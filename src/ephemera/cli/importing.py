"""`ephemera import`: the contents of a file, a directory of diskcache or a running Redis."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ephemera import Clock, InvalidArgument
from ephemera.cli import output
from ephemera.cli.process import ERROR, say
from ephemera.cli.stores import Json, StoreUrl, has_store, open_to_write
from ephemera.cli.text import json_field, show_short
from ephemera.core.arguments import check_family_name
from ephemera.core.clock import SteadyClock
from ephemera.formats.detect import is_redis_url, open_source
from ephemera.formats.diskcache import DiskCache
from ephemera.formats.transfer import Loaded, Record, RecordSource, load_prepared, prepare
from ephemera.store import SCHEME, STORE_SCHEMES

KEYS_SHOWN = 10
KEY_WIDTH = 80


class Origin(enum.StrEnum):
    """What is not told by the bytes that a file begins with."""

    DISKCACHE = "diskcache"
    REDIS = "redis"


class InFamily:
    """A source whose records all go to one family."""

    def __init__(self, source: RecordSource, family: str) -> None:
        self._source = source
        self._family = family
        self.skipped = source.skipped
        self.failed = source.failed
        self.damage = source.damage
        self.unread_bytes = source.unread_bytes

    def progress(self) -> tuple[int, int | None]:
        return self._source.progress()

    def prepare(self, tick: Callable[[], None]) -> None:
        self._source.prepare(tick)

    def __iter__(self) -> Iterator[Record]:
        for record in self._source:
            yield record._replace(family=self._family)
        self.damage = self._source.damage
        self.unread_bytes = self._source.unread_bytes

    def landed(self) -> None:
        self._source.landed()


def importing(
    url: StoreUrl,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="An RDB file, an AOF or its directory, JSON Lines, a directory of diskcache, or redis://….",
        ),
    ],
    origin: Annotated[
        Origin | None,
        typer.Option(
            "--from", help="What SOURCE is, where that is not told by its name and bytes."
        ),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Take what can be read of a damaged source.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With redis://…: note here where to go on."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--family", "-f", metavar="NAME", help="Put all of it into this family."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read keys, values and deadlines into a store, over what it holds; it is made if not there.

    Keys that are dead already are left out and counted. What is no string is skipped. Of a damaged file
    nothing is taken, and no store is made for it, unless --keep-going: then what can be read is taken.
    Where anything but dead keys was left behind, the keys are named and it exits with 2; --json has up
    to 1,000 of them in left_behind. Nothing is ever unpickled. A store of Ephemera, at a path or a URL,
    is read by `ephemera copy`. The URL of a running Redis is written as for a store (docs/redis.md); one
    without a database means all of them.
    """
    if is_redis_url(source) and origin is None:
        origin = Origin.REDIS
    _check(source, origin, url)
    if resume is not None and origin is not Origin.REDIS:
        raise InvalidArgument("--resume goes with a running Redis: give its URL, redis://HOST:PORT")
    with output.progress("importing") as advance, ExitStack() as stack:
        store = stack.enter_context(open_to_write(url)) if has_store(url) else None
        clock = SteadyClock() if store is None else store.clock
        found = _source(clock, source, origin, resume, keep_going=keep_going)
        wanted = found if family is None else InFamily(found, check_family_name(family))
        prepare(wanted, advance)
        if store is None:
            store = stack.enter_context(open_to_write(url, create=True))
        loaded = load_prepared(store.engine, wanted, advance)
    _report(loaded, as_json=as_json)


def _check(source: str, origin: Origin | None, url: str) -> None:
    """Raise InvalidArgument for a source that is no file, directory or running Redis, in its own words."""
    found = SCHEME.match(source)
    if found and not is_redis_url(source):
        is_store = found[1].lower() in STORE_SCHEMES
        copied = "; `ephemera copy SRC DST` reads a store at any URL" if is_store else ""
        raise InvalidArgument(
            f"import does not read {source!r}: it reads a file, a directory, or a running Redis at"
            f" redis://, rediss:// or unix://{copied}"
        )
    if origin is Origin.REDIS and not found:
        raise InvalidArgument(f"{source!r} is no URL of a running Redis: redis://HOST:PORT")
    if not found and has_store(source):
        raise InvalidArgument(
            f"{source} is a store of Ephemera: `ephemera copy {source} {url}` copies it whole"
        )


def _source(
    clock: Clock, source: str, origin: Origin | None, resume: Path | None, *, keep_going: bool
) -> RecordSource:
    if origin is Origin.REDIS:
        # Imported here: it needs a package that other sources do without.
        from ephemera.cli.redis_source import live_redis

        return live_redis(source, clock=clock, cursor_path=resume)
    if origin is Origin.DISKCACHE:
        return DiskCache(source, keep_going=keep_going)
    return open_source(source, now_ms=clock.now_ms(), keep_going=keep_going)


def _report(loaded: Loaded, *, as_json: bool) -> None:
    if as_json:
        output.record(
            {
                "imported": loaded.imported,
                "dead": loaded.dead,
                "skipped": dict(loaded.skipped),
                "failed": dict(loaded.failed),
                "damage": None if loaded.damage is None else str(loaded.damage),
                "unread_bytes": loaded.unread_bytes,
                "left_behind": [
                    {**json_field("key", key), "reason": reason}
                    for key, reason in _left_behind(loaded).items()
                ],
            }
        )
    else:
        output.table(
            ("", ">keys", ""),
            [
                ("imported", f"{loaded.imported}", ""),
                ("dead", f"{loaded.dead}", ""),
                ("skipped", f"{loaded.skipped.total()}", _reasons(loaded.skipped)),
                ("failed", f"{loaded.failed.total()}", _reasons(loaded.failed)),
            ],
        )
    if not loaded.is_whole:
        say(f"not all of the source was taken: {_losses(loaded)}")
        raise typer.Exit(ERROR)


def _losses(loaded: Loaded) -> str:
    told = []
    if loaded.skipped:
        told.append(f"{loaded.skipped.total()} skipped ({_reasons(loaded.skipped)})")
    if loaded.failed:
        told.append(f"{loaded.failed.total()} failed ({_reasons(loaded.failed)})")
    if loaded.damage is not None:
        told.append(f"it is damaged, first {loaded.damage}")
    if loaded.unread_bytes:
        told.append(f"{output.count_of(loaded.unread_bytes, 'byte')} from there on were not read")
    keys = [f"{show_short(key, KEY_WIDTH)} ({why})" for key, why in _left_behind(loaded).items()]
    if keys:
        more = f" and {len(keys) - KEYS_SHOWN} more, see --json" if len(keys) > KEYS_SHOWN else ""
        told.append(f"left behind: {', '.join(keys[:KEYS_SHOWN])}{more}")
    return "; ".join(told)


def _left_behind(loaded: Loaded) -> dict[bytes, str]:
    return {**loaded.skipped.keys_named, **loaded.failed.keys_named}


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common())
