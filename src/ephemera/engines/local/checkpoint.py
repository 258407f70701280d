"""The checkpoint: what frozen segments hold moves to the base tier.

The newest version of each key, in key order, in batches that each commit synced. A batch that was
committed twice, or half of the segments, harms nothing: until all of them count as applied, readers
find their rows in the segments first, and applying them again gives the same rows. Only one process at a
time may apply any. Rows that
died meanwhile are not written, and still take away the older row below them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ephemera.engines.local import families
from ephemera.engines.local._segment import Segment, SegmentSnapshot
from ephemera.engines.local.base_tier import APPLIED, BaseTier, BaseWrite, Stored
from ephemera.engines.local.expiry import Dead, DroppedByCheckpoint

HIGH_WATER = b"clock-high-water"
BATCH_ROWS = 8_000
"""How many rows one commit has: it writes whole pages, however few of their rows changed, and keeps them
in memory until then, two for each row at worst."""
BATCH_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 1_000
CHUNK_BYTES = 512 * 1024
"""How many rows are read from segments at once: other threads wait for so long."""


def apply_segments(
    base: BaseTier, segments: list[Segment], now_ms: int, dropped: DroppedByCheckpoint | None = None
) -> bool:
    """Apply frozen segments, oldest first; False when another process was faster.

    The dead that are `dropped` are kept for who will tell: a row of the base tier by the commit that takes it
    away, those of segments by the last one, after which no segment has them.
    """
    snapshot = SegmentSnapshot.whole(segments)
    batch_rows = _rows_in(snapshot, BATCH_ROWS, BATCH_BYTES)
    rows = _rows(snapshot, _rows_in(snapshot, CHUNK_ROWS, CHUNK_BYTES))
    newest = segments[-1].number
    above, below = ([], []) if dropped is None else dropped
    waiting = deque(below)
    is_more = True
    while is_more:
        with base.write() as txn:
            if txn.number(APPLIED) >= newest:
                return False
            applied_key, is_more = _apply_batch(txn, rows, batch_rows, now_ms)
            while waiting and waiting[0].base_key <= applied_key:
                _keep(txn, waiting.popleft())
            note_time(txn, now_ms)
            if not is_more:
                for dead in above:
                    _keep(txn, dead)
                txn.set_number(APPLIED, newest)
    return True


def _keep(txn: BaseWrite, dead: Dead) -> None:
    txn.add_undelivered(dead.deadline_ms, dead.base_key, dead.value, is_gone=dead.is_gone)


def _rows(snapshot: SegmentSnapshot, rows_max: int) -> Iterator[list[Stored]]:
    """The newest version of each key, in key order, so many at a time."""
    start = b""
    while chunk := snapshot.chunk(start, None, False, rows_max):
        yield chunk
        start = chunk[-1][0] + b"\0"


def _apply_batch(
    txn: BaseWrite, rows: Iterator[list[Stored]], rows_max: int, now_ms: int
) -> tuple[bytes, bool]:
    """The last key of this batch, and whether there may be more after it."""
    live_ids = families.live_ids(txn)
    applied = 0
    applied_key = b""
    for chunk in rows:
        txn.apply(chunk, live_ids, now_ms)
        applied += len(chunk)
        applied_key = chunk[-1][0]
        if applied >= rows_max:
            return applied_key, True
    return applied_key, False


def note_time(txn: BaseWrite, now_ms: int) -> None:
    """Keep the latest instant that was seen, so that reopening never goes back before it."""
    if txn.number(HIGH_WATER) < now_ms:
        txn.set_number(HIGH_WATER, now_ms)


def _rows_in(snapshot: SegmentSnapshot, rows_max: int, bytes_max: int) -> int:
    """So many rows, and fewer where values are large: others wait for the base tier, or the GIL, for as long."""
    row_bytes = sum(segment.records_bytes for segment in snapshot.segments) // max(
        1, snapshot.records
    )
    return max(1, min(rows_max, bytes_max // max(1, row_bytes)))
