"""Patterns as KEYS, PSUBSCRIBE and CONFIG GET take them: *, ?, [a-z], [^a] and a backslash to escape."""

from __future__ import annotations

import re
from functools import lru_cache

SPECIAL = re.compile(rb"[*?\[\\]")


@lru_cache(maxsize=256)
def glob(pattern: bytes, *, ignores_case: bool = False) -> re.Pattern[bytes]:
    """The pattern, ready for `fullmatch`.

    >>> bool(glob(b"user:[0-9]*").fullmatch(b"user:7:name")), bool(glob(b"h?llo").fullmatch(b"hllo"))
    (True, False)
    """
    segments = [b""]  # what stands between stars
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        at += 1
        if char == b"*":
            segments.append(b"")
        elif char == b"?":
            segments[-1] += b"."
        elif char == b"[":
            members, at = _members(pattern, at)
            segments[-1] += members
        else:
            if char == b"\\" and at < len(pattern):
                char = pattern[at : at + 1]
                at += 1
            segments[-1] += re.escape(char)
    return re.compile(_joined(segments), re.DOTALL | (re.IGNORECASE if ignores_case else 0))


def literal_prefix(pattern: bytes) -> bytes:
    """What everything that the pattern matches begins with.

    >>> literal_prefix(b"user:*"), literal_prefix(b"[a-z]*")
    (b'user:', b'')
    """
    return SPECIAL.split(pattern, maxsplit=1)[0]


def _joined(segments: list[bytes]) -> bytes:
    """The first place where a segment fits is as good as any later one, so none is tried again: a
    pattern full of stars costs no more than another."""
    first, *middle = segments
    if not middle:
        return first
    last = middle.pop()
    return first + b"".join(b"(?>.*?%b)" % segment for segment in middle if segment) + b".*" + last


def _members(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The class that begins here as an expression, and the place after it; the end closes it too."""
    is_negated = pattern[at : at + 1] == b"^"
    at += is_negated
    members = b""
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            first = last = pattern[at : at + 1]
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            first, last = sorted((pattern[at : at + 1], pattern[at + 2 : at + 3]))
            at += 2
        else:
            first = last = pattern[at : at + 1]
        members += b"%b-%b" % (re.escape(first), re.escape(last))
        at += 1
    if not members:
        return (b"." if is_negated else b"(?!)"), at + 1
    return b"[%b%b]" % (b"^" if is_negated else b"", members), at + 1
