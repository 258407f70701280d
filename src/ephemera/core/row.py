"""The row: a value with its attributes, as every engine carries it.

The deadline travels with the data, so a copied or restored row is as dead as the original. The
bytes of a row are made and read in `_row.pyx` alone.
"""

from __future__ import annotations

from typing import NamedTuple

from ephemera.core._row import NEVER_MS, decode_row, encode_row

__all__ = ["NEVER_MS", "Row", "decode_row", "encode_row"]


class Row(NamedTuple):
    """A value and when it was written, when it dies, and how long it may lie idle.

    Without a deadline `deadline_ms` is `NEVER_MS`, which is later than every instant, so that no
    reader needs a special case. `idle_ms` is 0 unless the row dies of idleness; then `hard_ms` is
    the instant that no touch can move it past.
    """

    value: bytes
    written_ms: int
    deadline_ms: int = NEVER_MS
    idle_ms: int = 0
    hard_ms: int = NEVER_MS
