"""Where scans go on: the cursors that SCAN hands out, each standing for a key.

A cursor is a number, a key is longer, so the server remembers which is which, for as many scans as
`CURSORS_MAX`. When a scan takes a step, the cursor before the one that it came with is forgotten: a
fast scan does not push a slow one out, and a client that missed a reply can ask once more. A cursor that is
not known (forgotten, or of an earlier life of the server) goes on at the first key: some keys
come again, which a client of SCAN must expect anyway, and none is missed.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from typing import NamedTuple

CURSORS_MAX = 10_000
FIRST_CURSOR_BITS = 48
"""So that the numbers of two lives of a server differ, and are exact where all numbers are doubles."""


class ScanPosition(NamedTuple):
    """The first key that was not seen, and the cursor with which the step that ended here began."""

    key: bytes
    began_with: int


class Cursors:
    """The cursors of one server; 0 is the beginning, and the end."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1 + secrets.randbits(FIRST_CURSOR_BITS))
        self._positions: OrderedDict[int, ScanPosition] = OrderedDict()

    def find(self, cursor: int) -> bytes:
        """The key at which this cursor goes on."""
        position = self._positions.get(cursor)
        if position is None:
            return b""
        self._positions.move_to_end(cursor)
        self._positions.pop(position.began_with, None)
        return position.key

    def add(self, key: bytes, *, began_with: int) -> int:
        """A cursor that goes on at this key, for a scan whose last step began with that one."""
        cursor = next(self._numbers)
        self._positions[cursor] = ScanPosition(key, began_with)
        if len(self._positions) > CURSORS_MAX:
            self._positions.popitem(last=False)
        return cursor

    def __len__(self) -> int:
        return len(self._positions)
