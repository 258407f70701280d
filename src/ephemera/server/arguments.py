"""What arguments mean: numbers and lifetimes, refused in Redis's words."""

from __future__ import annotations

import re
from typing import NamedTuple

from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.resp.replies import Refused
from ephemera.server.settings import DATABASES

INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX_ERROR = "ERR syntax error"

LIFETIMES = {b"ex", b"px", b"exat", b"pxat"}
"""The options that are followed by a time: seconds or milliseconds, from now on or an instant."""


def integer(argument: bytes, error: str = NOT_AN_INTEGER) -> int:
    """A whole number of signed 64 bits, written as Redis writes them. Raises Refused."""
    if INTEGER.fullmatch(argument):
        number = int(argument)
        if INTEGER_MIN <= number <= INTEGER_MAX:
            return number
    raise Refused(error)


def integer32(argument: bytes) -> int:
    """A whole number of signed 32 bits, where Redis takes no larger one."""
    number = integer(argument)
    if not -(2**31) <= number < 2**31:
        raise Refused(f"ERR value is out of range, value must between {-(2**31)} and {2**31 - 1}")
    return number


def bit_offset(argument: bytes, *, value_bytes_max: int, width: int = 0) -> int:
    """Return the offset of a bit that a value may have. Raises Refused.

    Where fields of a width are addressed, `#n` is the offset of the n-th of them.

    >>> bit_offset(b"100", value_bytes_max=16), bit_offset(b"#3", value_bytes_max=16, width=5)
    (100, 15)
    """
    error = "ERR bit offset is not an integer or out of range"
    if width and argument.startswith(b"#"):
        offset = integer(argument[1:], error) * width
    else:
        offset = integer(argument, error)
    if not 0 <= offset < 8 * value_bytes_max:
        raise Refused(error)
    return offset


class ExpiryArgument(NamedTuple):
    """What EX, PX, EXAT or PXAT ask for: a duration, or an instant."""

    ttl_ms: int | None
    deadline_ms: int | None

    def ends_ms(self, now_ms: int) -> int:
        """The instant at which it is over."""
        return now_ms + (self.ttl_ms or 0) if self.deadline_ms is None else self.deadline_ms


def lifetime(option: bytes, argument: bytes, *, now_ms: int, command: str) -> ExpiryArgument:
    """The lifetime that an option of LIFETIMES gives. Raises Refused for what can be none."""
    number = integer(argument)
    milliseconds = number * (1000 if option in (b"ex", b"exat") else 1)
    is_instant = option.endswith(b"at")
    latest_ms = DEADLINE_MS_MAX if is_instant else DEADLINE_MS_MAX - now_ms
    if not 0 < milliseconds <= latest_ms:
        raise Refused(f"ERR invalid expire time in '{command}' command")
    return ExpiryArgument(None, milliseconds) if is_instant else ExpiryArgument(milliseconds, None)


def database_number(argument: bytes) -> int:
    """The number of a database. Raises Refused when there is none of this number."""
    number = integer32(argument)
    if not 0 <= number < DATABASES:
        raise Refused("ERR DB index is out of range")
    return number


def places(start: int, end: int, length: int) -> range:
    """The places from `start` to `end`, both counting, negative ones from behind; as many as exist.

    >>> places(-3, -1, 10), places(0, -100, 10), places(5, 99, 10)
    (range(7, 10), range(0, 1), range(5, 10))
    """
    first = max(start + length, 0) if start < 0 else start
    last = max(end + length, 0) if end < 0 else end
    return range(first, min(last + 1, length))
