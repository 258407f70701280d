"""`ephemera deadlines`: what dies when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Annotated

import typer

from ephemera import Family
from ephemera.cli import output
from ephemera.cli.stores import Json, OneFamily, StoreUrl, open_to_read, pick_families
from ephemera.cli.text import json_field, show
from ephemera.cli.times import show_instant, show_seconds

SPANS = {
    "next minute": 60.0,
    "next hour": 3_600.0,
    "next day": 86_400.0,
    "next week": 604_800.0,
    "later": inf,
}
"""What is left of a key's time, at most, and not as little as the span before says."""
NEVER = "never"
BAR_WIDTH = 40


def deadlines(
    url: StoreUrl,
    next_: Annotated[
        int | None, typer.Option("--next", metavar="N", help="The N keys that die next instead.")
    ] = None,
    family: OneFamily = None,
    as_json: Json = False,
) -> None:
    """Print how many keys die in the next minute, hour, day, week, later and never.

    Each key counts once: those of the next hour are not those of the next minute again.
    """
    with open_to_read(url) as store:
        families = pick_families(store, family)
        if next_ is not None:
            _print_next(families, next_, now_ms=store.clock.now_ms(), as_json=as_json)
            return
        counts = histogram(families)
    if as_json:
        output.record({span.replace(" ", "_"): count for span, count in counts.items()})
    else:
        output.table(("dies", ">keys", ""), _bars(counts))


def histogram(families: Iterable[Family]) -> dict[str, int]:
    """How many keys die in each of the spans."""
    counts: Counter[str] = Counter()
    for each in families:
        counts.update(_span(entry.ttl) for _, entry in each.entries())
    return {span: counts[span] for span in (*SPANS, NEVER)}


def _bars(counts: dict[str, int]) -> list[tuple[str, ...]]:
    """A line for each span, with a bar on a terminal."""
    if not output.is_terminal():
        return [(span, f"{count}") for span, count in counts.items()]
    most = max(1, *counts.values())
    return [
        (span, f"{count}", "█" * -(-count * BAR_WIDTH // most)) for span, count in counts.items()
    ]


def _span(seconds: float | None) -> str:
    if seconds is None:
        return NEVER
    return next(span for span, most in SPANS.items() if seconds <= most)


def _print_next(families: list[Family], limit: int, *, now_ms: int, as_json: bool) -> None:
    found = sorted(
        (deadline, each.name, key)
        for each in families
        for key, deadline in each.next_deadlines(limit)
    )[:limit]
    if as_json:
        for deadline, name, key in found:
            output.record(
                {"family": name, **json_field("key", key), "deadline": show_instant(deadline)}
            )
        return
    output.table(
        ("family", "key", ">dies in"),
        (
            (name, show(key), show_seconds(max(0.0, deadline.timestamp() - now_ms / 1000)))
            for deadline, name, key in found
        ),
    )
