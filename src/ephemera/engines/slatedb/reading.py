"""Reads of one state: the store as it is, a snapshot of it, or what a transaction sees.

All of them answer the same two questions, what is at a key and what is in a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ephemera.core.keyvalue import Range, prefix_end
from ephemera.core.row import Row
from ephemera.engines.slatedb._calls import (
    Handle,
    Method,
    count_live,
    live_row,
    live_value,
    plain_value,
    rows,
)
from ephemera.engines.slatedb.families import ID_BYTES
from ephemera.engines.slatedb.library import Library, load, wait

FIRST_ROWS = 32
"""How many rows the first step of a scan fetches: many scans want no more."""
ROWS_MAX = 4_096
STEP_BYTES = 1024 * 1024
"""About how much a later step fetches, and how much is read ahead."""


KEYS_AT_ONCE = 64
"""How many reads of the object store may be under way for one caller."""


class ReadHandle:
    """Something to read from: `of` is a db, dbreader, dbsnapshot or dbtransaction."""

    def __init__(self, kind: str, of: Handle) -> None:
        library = load()
        self.of = of
        self._get = library.methods[f"{kind}_get_key_value"]
        self._scan = library.methods[f"{kind}_scan_with_options"]
        self._next = library.methods["dbiterator_next_batch"]

    def value(self, prefix: bytes, key: bytes, now_ms: int) -> bytes | None:
        """The live value at a key."""
        return live_value(wait(self._get.of_key(self.of, prefix, key)), now_ms)

    def values(self, prefix: bytes, keys: Sequence[bytes], now_ms: int) -> dict[bytes, bytes]:
        """The live values at several keys, which are all looked for at the same time."""
        found = {}
        for some in (keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE)):
            calls = [self._get.of_key(self.of, prefix, key) for key in some]
            for key, call in zip(some, calls, strict=True):
                value = live_value(wait(call), now_ms)
                if value is not None:
                    found[key] = value
        return found

    def row(self, prefix: bytes, key: bytes, now_ms: int) -> Row | None:
        """The live row at a key."""
        return live_row(wait(self._get.of_key(self.of, prefix, key)), now_ms)

    def record(self, key: bytes) -> bytes | None:
        """One of the store's own records."""
        return plain_value(wait(self._get.of_key(self.of, b"", key)))

    def walk(self, prefix: bytes, bounds: Range) -> Iterator[bytes]:
        """The answers of a scan: of the state as it is now, whatever is written on the way."""
        start = prefix + bounds.start
        end = prefix_end(prefix) if bounds.end is None else prefix + bounds.end
        if end is not None and start >= end:
            return iter(())
        options = _options(load(), is_reverse=bounds.is_reverse)
        return _steps(self._next, wait(self._scan(self.of, _key_range(start, end), options)))

    def rows(self, prefix: bytes, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        """Keys and rows in order, the dead among them."""
        walk = self.walk(prefix, bounds)
        return (pair for answer in walk for pair in rows(answer, ID_BYTES))

    def count(self, prefix: bytes, now_ms: int) -> int:
        """How many rows are alive."""
        return sum(count_live(answer, now_ms)[1] for answer in self.walk(prefix, Range()))


def _steps(fetch: Method, found: Handle) -> Iterator[bytes]:
    wanted = FIRST_ROWS
    while True:
        answer: bytes = wait(fetch(found, wanted))
        count = int.from_bytes(answer[:4], "big")
        if count:
            yield answer
        if count < wanted:
            return
        wanted = max(1, min(ROWS_MAX, STEP_BYTES * count // len(answer)))


def _key_range(start: bytes, end: bytes | None) -> bytes:
    """As the library takes it: the start is in it, the end is not."""
    return _optional(start) + b"\x01" + _optional(end) + b"\x00"


def _optional(data: bytes | None) -> bytes:
    return b"\x00" if data is None else b"\x01" + len(data).to_bytes(4, "big") + data


def _options(library: Library, *, is_reverse: bool) -> bytes:
    options = _OPTIONS.get(is_reverse)
    if options is None:
        slatedb = library.slatedb
        order = slatedb.IterationOrder
        options = _OPTIONS[is_reverse] = library.lower(
            "TypeScanOptions",
            slatedb.ScanOptions(
                durability_filter=slatedb.DurabilityLevel.MEMORY,
                dirty=False,
                read_ahead_bytes=STEP_BYTES,
                cache_blocks=True,
                max_fetch_tasks=4,
                order=order.DESCENDING if is_reverse else order.ASCENDING,
            ),
        )
    return options


_OPTIONS: dict[bool, bytes] = {}  # worked out once: they are the same for every scan
