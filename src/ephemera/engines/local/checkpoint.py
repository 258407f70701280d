"""The checkpoint: what a frozen segment holds moves to the base tier.

The newest version of each key, in key order, in batches that each commit synced. A batch that was
committed twice, or half of a segment, harms nothing: until the whole segment counts as applied,
readers find its rows in the segment first, and applying it again gives the same rows. Rows that
died meanwhile are not written, and still take away the older row below them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ephemera.engines.local import families
from ephemera.engines.local._segment import Cut, Segment
from ephemera.engines.local.base_tier import BaseTier, BaseWrite
from ephemera.engines.local.expiry import Dead

APPLIED = b"applied-segment"
HIGH_WATER = b"clock-high-water"
BATCH_ROWS = 4_000
BATCH_BYTES = 4 * 1024 * 1024


def apply_segment(
    base: BaseTier, segment: Segment, now_ms: int, untold: Iterable[Dead] = ()
) -> bool:
    """Apply a frozen segment; False when another process was faster.

    What is `untold` of the dead that this leaves out is kept for who will tell.
    """
    cut = Cut([segment], [segment.position])
    rows_max = _rows_per_batch(segment)
    start = b""
    while True:
        chunk = cut.chunk(start, None, False, rows_max)
        with base.write() as txn:
            if txn.number(APPLIED) >= segment.number:
                return False
            txn.apply(chunk, families.live_ids(txn), now_ms)
            note_time(txn, now_ms)
            if len(chunk) < rows_max:
                for dead in untold:
                    txn.add_untold(
                        dead.deadline_ms, dead.base_key, dead.value, is_gone=dead.is_gone
                    )
                txn.set_number(APPLIED, segment.number)
                return True
        start = chunk[-1][0] + b"\0"


def note_time(txn: BaseWrite, now_ms: int) -> None:
    """Keep the latest instant that was seen, so that reopening never goes back before it."""
    if txn.number(HIGH_WATER) < now_ms:
        txn.set_number(HIGH_WATER, now_ms)


def _rows_per_batch(segment: Segment) -> int:
    # Large values: fewer rows in a batch, so that none of them holds the base tier for long.
    row_bytes = segment.records_bytes // max(1, segment.count_records())
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
