"""Commands that took long, as SLOWLOG shows them, and what is never shown of a command."""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

from ephemera.server.settings import Settings

ARGUMENTS_MAX = 32
ARGUMENT_BYTES_MAX = 128
REDACTED = b"(redacted)"


class Slow(NamedTuple):
    """A command that took long."""

    number: int
    at_ms: int
    micros: int
    args: list[bytes]
    address: str
    name: bytes


class SlowLog:
    """The last commands that took long, the latest first; `slowlog-max-len` of them are kept."""

    def __init__(self, settings: Settings) -> None:
        self.entries: deque[Slow] = deque()
        self._settings = settings
        self._numbers = itertools.count()

    def note(
        self, args: list[bytes], micros: int, *, at_ms: int, address: str, name: bytes
    ) -> None:
        shown = _shortened(redacted(args))
        self.entries.appendleft(Slow(next(self._numbers), at_ms, micros, shown, address, name))
        self.trim()

    def trim(self) -> None:
        while len(self.entries) > self._settings.slowlog_max_len:
            self.entries.pop()


def redacted(args: list[bytes]) -> list[bytes]:
    """The command without the passwords in it.

    >>> redacted([b"HELLO", b"3", b"AUTH", b"default", b"open sesame"])
    [b'HELLO', b'3', b'AUTH', b'(redacted)', b'(redacted)']
    """
    words = [word.lower() for word in args]
    if words[0] == b"auth":
        return [args[0], *[REDACTED] * (len(args) - 1)]
    if words[0] == b"hello" and b"auth" in words:
        at = words.index(b"auth") + 1
        return [*args[:at], *[REDACTED] * len(args[at : at + 2]), *args[at + 2 :]]
    if words[:2] == [b"config", b"set"]:
        is_secret = [at > 2 and words[at - 1] == b"requirepass" for at in range(len(args))]
        return [REDACTED if hide else arg for arg, hide in zip(args, is_secret, strict=True)]
    return args


def _shortened(args: list[bytes]) -> list[bytes]:
    """As much as is kept: a log of slow commands must not hold on to their values."""
    left_out = len(args) - ARGUMENTS_MAX + 1
    if left_out > 1:
        more = b"... (%d more arguments)" % left_out
        return [*_shortened(args[: ARGUMENTS_MAX - 1]), more]
    return [
        b"%b... (%d more bytes)" % (arg[:ARGUMENT_BYTES_MAX], len(arg) - ARGUMENT_BYTES_MAX)
        if len(arg) > ARGUMENT_BYTES_MAX
        else arg
        for arg in args
    ]
