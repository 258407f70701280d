"""LCS: what two values have in common, in order.

The lengths of all pairs of beginnings are kept as bits, a number for each byte of the first value: bit j of
a number is clear where byte j of the second value makes the common part longer. A step over such a
number does the work of a whole row of the usual table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ephemera.resp.replies import Refused, Reply
from ephemera.server.arguments import SYNTAX_ERROR, integer
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("string")

CELL_BYTES = 4
"""What a pair of places costs in Redis, whose limit is kept."""


class Match(NamedTuple):
    """Bytes that both values have: where the last of them stands in each, and how many they are."""

    last_a: int
    last_b: int
    length: int

    def shown(self, *, with_length: bool) -> Reply:
        ranges = [
            [self.last_a - self.length + 1, self.last_a],
            [self.last_b - self.length + 1, self.last_b],
        ]
        return [*ranges, self.length] if with_length else ranges


@dataclass(slots=True)
class LcsOptions:
    """What follows the keys."""

    wants_length: bool = False
    wants_places: bool = False
    length_min: int = 0
    with_lengths: bool = False


@command("LCS", arity=-3, flags="readonly", keys=KeyRange(1, 2), since="7.0.0",
         summary="The longest common subsequence of two values, its length, or where it lies.")  # fmt: skip
def lcs(call: Call) -> Reply:
    a, b = (call.keys.get(key) or b"" for key in call.args[1:3])
    options = _options(call.args[3:])
    if (len(a) + 1) * (len(b) + 1) * CELL_BYTES > call.server.settings.proto_max_bulk_len:
        raise Refused(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"
        )
    if options.wants_length:
        return common_length(a, b)
    found = list(matches(a, b))
    if not options.wants_places:
        parts = (a[each.last_a - each.length + 1 : each.last_a + 1] for each in reversed(found))
        return b"".join(parts)
    shown = [
        each.shown(with_length=options.with_lengths)
        for each in found
        if each.length >= options.length_min
    ]
    return {b"matches": shown, b"len": sum(each.length for each in found)}


def _options(args: list[bytes]) -> LcsOptions:
    options = LcsOptions()
    rest = iter(args)
    for given in rest:
        option = given.lower()
        if option == b"len":
            options.wants_length = True
        elif option == b"idx":
            options.wants_places = True
        elif option == b"withmatchlen":
            options.with_lengths = True
        elif option == b"minmatchlen" and (operand := next(rest, None)) is not None:
            options.length_min = integer(operand)
        else:
            raise Refused(SYNTAX_ERROR)
    if options.wants_length and options.wants_places:
        raise Refused("ERR If you want both the length and indexes, please just use IDX.")
    return options


def common_length(a: bytes, b: bytes) -> int:
    """How long the longest common subsequence is.

    >>> common_length(b"ohmytext", b"mynewtext")
    6
    """
    if len(a) > len(b):
        a, b = b, a  # the longer one in the bits
    last = deque(_rows(a, b), maxlen=1)
    return len(b) - last.pop().bit_count() if last else 0


def matches(a: bytes, b: bytes) -> Iterator[Match]:
    """The common subsequence in unbroken pieces, from the last to the first.

    >>> list(matches(b"ohmytext", b"mynewtext"))
    [Match(last_a=7, last_b=8, length=4), Match(last_a=3, last_b=1, length=2)]
    """
    rows = [row.to_bytes(len(b) // 8 + 1, "little") for row in _rows(a, b)]
    i, j = len(a) - 1, len(b) - 1
    while i >= 0 and j >= 0:
        if a[i] != b[j]:
            if rows[i][j >> 3] >> (j & 7) & 1:
                j -= 1
            else:
                i -= 1
            continue
        length = 1
        while length <= min(i, j) and a[i - length] == b[j - length]:
            length += 1
        yield Match(i, j, length)
        i -= length
        j -= length


def _rows(a: bytes, b: bytes) -> Iterator[int]:
    """The row of each byte of the first value."""
    everything = (1 << len(b)) - 1
    places = {byte: _places(b, byte) for byte in set(a)}
    row = everything
    for byte in a:
        hits = row & places[byte]
        row = (row + hits | row - hits) & everything
        yield row


def _places(value: bytes, byte: int) -> int:
    """The bits of the places where the byte stands."""
    digits = bytearray(b"0" * 256)
    digits[byte] = ord("1")
    return int(value[::-1].translate(bytes(digits)) or b"0", 2)
