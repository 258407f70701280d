"""Replies from bytes: the client's side of the Redis protocol, RESP2 and RESP3."""

from __future__ import annotations

from typing import Any, BinaryIO

from ephemera.resp.replies import BigNumber, Push, Refused, Reply, Simple, Unordered, Verbatim


class Pairs(list[tuple[Any, Any]]):  # Any: replies, some of which cannot be keys of a dict
    """A map of RESP3, in the order in which it came."""


def write_request(args: list[bytes]) -> bytes:
    """A command as clients send it."""
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in args)


def read_reply(stream: BinaryIO) -> Reply:
    """The next reply. Raises EOFError where there is none, or only a part of one.

    >>> import io
    >>> read_reply(io.BytesIO(b"*2\\r\\n:1\\r\\n$3\\r\\nada\\r\\n"))
    [1, b'ada']
    """
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind in b"$=":
        return _bulk(stream, int(rest), is_text=kind == b"=")
    if kind in b"*~>%":
        return _members(stream, kind, int(rest))
    return _scalar(kind, rest)


def _scalar(kind: bytes, rest: bytes) -> Reply:
    match kind:
        case b"+":
            return Simple(rest)
        case b"-":
            return Refused(rest)
        case b":":
            return int(rest)
        case b"(":
            return BigNumber(rest)
        case b",":
            return float(rest)
        case b"#":
            return rest == b"t"
        case b"_":
            return None
    raise EOFError  # not this protocol: nothing that follows can be read


def _bulk(stream: BinaryIO, size: int, *, is_text: bool) -> Reply:
    if size < 0:
        return None
    data = stream.read(size + 2)
    if len(data) < size + 2:
        raise EOFError
    return Verbatim(data[len(b"txt:") : -2]) if is_text else data[:-2]


def _members(stream: BinaryIO, kind: bytes, count: int) -> Reply:
    if count < 0:
        return None
    if kind == b"%":
        return Pairs((read_reply(stream), read_reply(stream)) for _ in range(count))
    members = [read_reply(stream) for _ in range(count)]
    if kind == b"~":
        return Unordered(members)
    return Push(members) if kind == b">" else members
