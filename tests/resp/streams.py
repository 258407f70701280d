"""Streams of requests for fuzz tests: proper ones, any mixture of bytes, and proper ones that were broken."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import strategies as st

from tests.server.clients import wire

SEEDS = [
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\nv\xff\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\n",
    b"PING\r\nset \"a b\" 'c'\r\n\r\n",
    b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * 3,
    b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nPX\r\n$4\r\n1000\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n",
    wire("MSET", "k", "1", "n", "2", "other", "3") + wire("MGET", "k", "n", "absent"),
    wire("SETEX", "k", 60, "v") + wire("EXPIRE", "n", 5) + wire("PTTL", "k") + wire("TTL", "n"),
    wire("DECRBY", "n", -3) + wire("EXISTS", "k", "n", "k") + wire("DEL", "k", "n", "absent"),
    wire("UNLINK", *range(70)),
]
TELLING = [
    b"\r\n",
    b"\r",
    b"\n",
    b"*",
    b"$",
    b"-1",
    b"0",
    b"999999999999",
    b'"',
    b"'",
    b"\\x",
    b" ",
]


names = st.sampled_from([b"a", b"b", b"c", b"d"])
lives = st.sampled_from([b"1", b"5", b"1000", b"100000"])
numbers = st.sampled_from([b"1", b"-3", b"9223372036854775807"])
requests = st.one_of(
    st.tuples(st.sampled_from([b"GET", b"INCR", b"DECR", b"DEL", b"TTL", b"PTTL"]), names),
    st.tuples(st.just(b"SET"), names, st.sampled_from([b"1", b"x", b"y" * 300])),
    st.tuples(st.just(b"SET"), names, st.just(b"7"), st.sampled_from([b"EX", b"PX"]), lives),
    st.tuples(st.sampled_from([b"EXPIRE", b"PEXPIRE"]), names, lives),
    st.tuples(st.just(b"INCRBY"), names, numbers),
    st.tuples(st.just(b"MSET"), names, st.just(b"5"), names, st.just(b"z")),
    st.tuples(st.sampled_from([b"MGET", b"EXISTS", b"DEL", b"UNLINK"]), names, names, names),
    st.sampled_from(
        [
            (b"PING",),
            (b"MULTI",),
            (b"EXEC",),
            (b"SELECT", b"1"),
            (b"SELECT", b"0"),
            (b"PERSIST", b"a"),
            (b"APPEND", b"a", b"0"),
            (b"FLUSHDB",),
        ]
    ),
)

pieces = st.one_of(
    requests.map(lambda request: wire(*request)),
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"*1\r\n$4\r\nPING\r",
            b"*0\r\n",
            b"PING\r\n",
            b"*-1\r\n",
            b"$3\r\n",
            b"*65\r\n",
            b"*1\r\n$10\r\n",
            b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
            b"*01\r\n",
        ]
    ),
)
streams = st.lists(pieces, max_size=30).map(b"".join)


@st.composite
def broken(draw: st.DrawFn) -> list[bytes]:
    """The pieces of a stream that was fine once."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "drop", "double", "insert"])):
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "drop":
                del data[at : at + draw(st.integers(1, 10))]
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.sampled_from(TELLING))
    return cut(bytes(data), draw(st.lists(st.integers(0, len(data)), max_size=6)))


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The pieces between these places."""
    bounds = sorted({0, *(place for place in places if place < len(data)), len(data)})
    return [data[a:b] for a, b in pairwise(bounds)]
