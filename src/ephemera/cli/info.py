"""`ephemera info`: numbers about a store."""

from __future__ import annotations

from typing import Any

from ephemera import Store
from ephemera.cli import output
from ephemera.cli.stores import Json, StoreUrl, open_to_read, pick_families
from ephemera.cli.times import show_seconds
from ephemera.cli.usage import disk_bytes
from ephemera.core.row import NEVER_MS

Numbers = dict[str, Any]  # Any: what JSON can hold


def info(url: StoreUrl, as_json: Json = False) -> None:
    """Print sizes, counts, durability, what waits to be written or removed, and how late expiry is."""
    with open_to_read(url) as store:
        numbers = collect(store, url)
    if as_json:
        output.record(numbers)
    else:
        output.table(("", ""), describe(numbers))


def collect(store: Store, url: str) -> Numbers:
    """What the store says about itself, what the disk says, and the keys of each family."""
    stats = store.stats()
    keys = {each.name: each.count() for each in pick_families(store, None)}
    return {
        **stats,
        "disk_bytes": disk_bytes(url),
        "keys": keys,
        "next_deadline_seconds": next_deadline(stats, store.clock.now_ms()),
        "backlog_seconds": backlog(stats, store.clock.now_ms()),
    }


def next_deadline(stats: Numbers, now_ms: int) -> float | None:
    """The seconds until the next row of the base tier dies, None when none does."""
    next_ms = stats.get("next_deadline_ms", NEVER_MS)
    return None if next_ms == NEVER_MS else max(0, next_ms - now_ms) / 1000


def backlog(stats: Numbers, now_ms: int) -> float:
    """For how many seconds the longest dead row has waited to be removed."""
    next_ms: int = stats.get("next_deadline_ms", NEVER_MS)
    return max(0, now_ms - next_ms) / 1000


def describe(numbers: Numbers) -> list[tuple[str, str]]:
    """The numbers in the words of a person, those that this engine has."""
    keys = numbers["keys"]
    facts = [
        ("engine", numbers["engine"]),
        ("path", numbers.get("path")),
        ("keys", _keys(keys)),
        ("on disk", _size(numbers["disk_bytes"])),
        ("base tier", _of(numbers, "base_rows", "row", "base_bytes")),
        ("waits for a checkpoint", _of(numbers, "segments", "segment", "segment_bytes")),
        ("durability", numbers.get("durability")),
        ("next deadline", _in(numbers["next_deadline_seconds"])),
        ("dead rows wait", show_seconds(numbers["backlog_seconds"])),
        ("last event came after", show_seconds(numbers.get("expiry_lag_ms", 0) / 1000)),
        ("clock", "ignores the wall clock" if numbers["clock_ignores_wall"] else "steady"),
        ("failed", "a sync failed: close it everywhere" if numbers.get("has_failed") else None),
        ("background", numbers.get("background_error")),
    ]
    return [(name, fact) for name, fact in facts if fact is not None]


def _keys(keys: dict[str, int]) -> str:
    total = f"{sum(keys.values()):,}"
    if len(keys) == 1:
        return total
    return f"{total} ({', '.join(f'{name} {count:,}' for name, count in keys.items() if count)})"


def _size(size: int | None) -> str | None:
    return None if size is None else output.show_bytes(size)


def _of(numbers: Numbers, count: str, thing: str, size: str) -> str | None:
    if count not in numbers:
        return None
    return f"{output.count_of(numbers[count], thing)}, {output.show_bytes(numbers[size])}"


def _in(seconds: float | None) -> str:
    return "never" if seconds is None else f"in {show_seconds(seconds)}"
