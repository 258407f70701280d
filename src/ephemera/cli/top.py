"""`ephemera top`: a store at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as counting
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ephemera import Expired, Store
from ephemera.cli import output
from ephemera.cli.info import Numbers, backlog, next_deadline
from ephemera.cli.stores import Json, StoreUrl, open_to_write
from ephemera.cli.times import show_seconds
from ephemera.cli.usage import disk_bytes
from ephemera.core.clock import elapsed_ns

if TYPE_CHECKING:
    from rich.table import Table


class Reading(NamedTuple):
    """The store's numbers at a moment, and what was done up to then."""

    at_ns: int
    stats: Numbers
    deaths: int
    lag_max_ms: int


class Deaths:
    """Counts the keys that die, and how late it was told of the latest one."""

    def __init__(self, store: Store) -> None:
        self._now_ms = store.clock.now_ms
        self.count = 0
        self.lag_max_ms = 0
        store.on_expire(self._note)

    def _note(self, expired: Expired) -> None:
        self.count += 1
        self.lag_max_ms = max(self.lag_max_ms, self._now_ms() - expired.deadline_ms)

    def take_lag_max_ms(self) -> int:
        """The largest since the last time this was asked."""
        lag_ms, self.lag_max_ms = self.lag_max_ms, 0
        return lag_ms


def top(
    url: StoreUrl,
    interval: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Stop after so many looks; else at Ctrl-C."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a store at work: bytes written and keys dying per second, lag, sizes and what waits."""
    with open_to_write(url) as store:
        deaths = Deaths(store)
        former = _read(store, deaths)
        pause = threading.Event()
        try:
            with _screen(as_json) as show:
                for looks in counting():
                    if looks == count:
                        return
                    pause.wait(interval)
                    current = _read(store, deaths)
                    show(_rates(store, url, former, current))
                    former = current
        except KeyboardInterrupt:
            return


def _read(store: Store, deaths: Deaths) -> Reading:
    return Reading(elapsed_ns(), store.stats(), deaths.count, deaths.take_lag_max_ms())


def _rates(store: Store, url: str, former: Reading, current: Reading) -> Numbers:
    seconds = (current.at_ns - former.at_ns) / 1e9
    stats, now_ms = current.stats, store.clock.now_ms()
    written = stats.get("written_bytes", 0) - former.stats.get("written_bytes", 0)
    return {
        "written_bytes_per_second": round(written / seconds),
        "deaths_per_second": round((current.deaths - former.deaths) / seconds, 1),
        "deaths": current.deaths,
        "lag_max_ms": current.lag_max_ms,
        "base_rows": stats.get("base_rows", stats.get("keys", 0)),
        "base_bytes": stats.get("base_bytes", 0),
        "segments": stats.get("segments", 0),
        "segment_bytes": stats.get("segment_bytes", 0),
        "writers_wait": stats.get("writers_wait", False),
        "disk_bytes": disk_bytes(url),
        "next_deadline_seconds": next_deadline(stats, now_ms),
        "backlog_seconds": backlog(stats, now_ms),
    }


@contextmanager
def _screen(as_json: bool) -> Iterator[Any]:  # Any: a function that takes Numbers
    """Where the numbers go: a picture that changes on a terminal, a line for each look elsewhere."""
    if as_json or not output.is_terminal():
        yield _print_record if as_json else _print_line
        return
    from rich.live import Live

    with Live(auto_refresh=False, screen=False) as live:
        yield lambda numbers: live.update(_picture(numbers), refresh=True)


def _print_record(numbers: Numbers) -> None:
    output.record(numbers)
    output.flush()


def _print_line(numbers: Numbers) -> None:
    output.line("\t".join(f"{name} {value}" for name, value in describe(numbers)))
    output.flush()


def describe(numbers: Numbers) -> list[tuple[str, str]]:
    """The numbers in the words of a person."""
    size = output.show_bytes
    waits = f"{output.count_of(numbers['segments'], 'segment')}, {size(numbers['segment_bytes'])}"
    return [
        ("written", f"{size(numbers['written_bytes_per_second'])}/s"),
        ("dying", f"{numbers['deaths_per_second']:,.0f}/s, {numbers['deaths']:,} so far"),
        ("expiry lag", f"{numbers['lag_max_ms']}ms at most"),
        ("base tier", f"{numbers['base_rows']:,} rows, {size(numbers['base_bytes'])}"),
        ("waits for a checkpoint", waits + (", writers wait" if numbers["writers_wait"] else "")),
        ("dead rows wait", show_seconds(numbers["backlog_seconds"])),
        ("next deadline", show_seconds(numbers["next_deadline_seconds"])),
        ("on disk", "–" if numbers["disk_bytes"] is None else size(numbers["disk_bytes"])),
    ]


def _picture(numbers: Numbers) -> Table:
    from rich.table import Table

    picture = Table(box=None, show_header=False, pad_edge=False)
    picture.add_column(style="bold")
    for name, value in describe(numbers):
        picture.add_row(name, value)
    return picture
