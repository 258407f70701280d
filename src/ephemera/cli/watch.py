"""`ephemera watch`: keys as they die."""

from __future__ import annotations

from itertools import count as counting
from queue import SimpleQueue
from typing import Annotated

import typer

from ephemera import Expired
from ephemera.cli import output
from ephemera.cli.stores import Json, OneFamily, StoreUrl, open_to_write, pick_family
from ephemera.cli.text import json_field, show, show_short
from ephemera.cli.times import show_instant
from ephemera.core.expiry import to_datetime

VALUE_WIDTH = 60


def watch(
    url: StoreUrl,
    count: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after so many; else at Ctrl-C.")
    ] = None,
    family: OneFamily = None,
    as_json: Json = False,
) -> None:
    """Print every key that dies, as it dies: when, how late the event came, family, key and value."""
    died: SimpleQueue[tuple[Expired, int]] = SimpleQueue()
    with open_to_write(url) as store:
        if family is not None:
            pick_family(store, family)
        now_ms = store.clock.now_ms
        store.on_expire(lambda expired: died.put((expired, now_ms())))
        try:
            for seen in counting():
                if seen == count:
                    return
                expired, told_ms = died.get()
                while family not in (None, expired.family):
                    expired, told_ms = died.get()
                _print(expired, lag_ms=told_ms - expired.deadline_ms, as_json=as_json)
        except KeyboardInterrupt:
            return


def _print(expired: Expired, *, lag_ms: int, as_json: bool) -> None:
    deadline = to_datetime(expired.deadline_ms)
    if as_json:
        output.record(
            {
                "family": expired.family,
                **json_field("key", expired.key),
                **json_field("value", expired.value),
                "deadline": show_instant(deadline),
                "lag_ms": lag_ms,
            }
        )
    else:
        at = deadline.astimezone().strftime("%H:%M:%S.%f")[:-3]
        value = show_short(expired.value, VALUE_WIDTH)
        output.line(f"{at}  +{lag_ms}ms  {expired.family}  {show(expired.key)}  {value}")
    output.flush()
