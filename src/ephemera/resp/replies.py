"""The vocabulary of replies: what a command answers, whatever protocol its client speaks.

    int          integer                     bool         boolean, in RESP2 1 or 0
    bytes        bulk string                 float        double, in RESP2 a bulk string
    None         null                        dict         map, in RESP2 a flat array
    list, tuple  array                       Unordered    set, in RESP2 an array
    Simple       simple string (OK, PONG)    Push         out of band, in RESP2 an array
    Refused      error, also raised          Verbatim     text, in RESP2 a bulk string
    NO_ARRAY     null, in RESP2 of an array  BigNumber    in RESP2 a bulk string
    NO_REPLY     nothing at all              Pushes       several of them, in place of one reply

`encoder.encode` renders them; scripts and transactions pass them on as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final


class Simple(bytes):
    """A short word that says how it went, without line breaks."""


class Verbatim(bytes):
    """Text for people, to be shown as it is."""


class BigNumber(bytes):
    """A whole number that may leave the signed 64 bits, as its digits: a million of them cost no arithmetic."""


class Unordered(list[Any]):  # Any: replies of every kind, which mypy cannot nest
    """Members of a set, in the order in which RESP2 shows them."""


class Push(list[Any]):  # Any: as above
    """A message that answers no request."""


class Pushes(list[Push]):
    """Messages that answer a request which has an answer for each of its arguments."""


class Special(enum.Enum):
    """Replies that carry nothing but themselves."""

    NO_ARRAY = "null where an array would be"
    NO_REPLY = "nothing is sent"


class Refused(Exception):  # named for what happened to the request
    """An error reply; a handler may return it or raise it. The text begins with its code.

    >>> Refused("ERR syntax error").text
    b'ERR syntax error'
    """

    def __init__(self, text: str | bytes) -> None:
        self.text = text.encode(errors="replace") if isinstance(text, str) else text
        super().__init__(self.text.decode(errors="replace"))

    @property
    def code(self) -> str:
        """The first word, which programs go by."""
        return self.text.partition(b" ")[0].decode(errors="replace")


Reply = (
    bytes | int | float | Refused | Special | Sequence[Any] | dict[Any, Any] | None
)  # Any: replies again

OK: Final = Simple(b"OK")
NO_ARRAY: Final = Special.NO_ARRAY
NO_REPLY: Final = Special.NO_REPLY
