"""Requests from bytes: the same whatever the pieces, and refused in Redis's words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.resp.parser import LINE_BYTES_MAX, Limits, Parser, Request, split_inline

PIPELINE = (
    b"*3\r\n$3\r\nSET\r\n$4\r\nname\r\n$5\r\na\r\nda\r\n"
    b"*0\r\n*-1\r\n"
    b"*2\r\n$3\r\nGET\r\n$4\r\nname\r\n"
    b"  \r\nset \"a b\" 'c'\r\nPING\n"
    b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n"
)
REQUESTS = [
    [b"SET", b"name", b"a\r\nda"],
    [b"GET", b"name"],
    [b"set", b"a b", b"c"],
    [b"PING"],
    [b"ECHO", b""],
]


def parse(*pieces: bytes, limits: Limits | None = None) -> tuple[list[Request], bytes | None]:
    parser = Parser(limits or Limits())
    requests = [request for piece in pieces for request in parser.feed(piece)]
    return requests, parser.error


def wire(request: Request) -> bytes:
    return b"*%d\r\n" % len(request) + b"".join(
        b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in request
    )


@pytest.mark.parametrize("at", range(len(PIPELINE) + 1))
def test_a_pipeline_may_be_cut_anywhere(at: int) -> None:
    assert parse(PIPELINE[:at], PIPELINE[at:]) == (REQUESTS, None)


def test_a_pipeline_may_come_byte_by_byte() -> None:
    assert parse(*(PIPELINE[at : at + 1] for at in range(len(PIPELINE)))) == (REQUESTS, None)


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=6),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_was_sent_is_what_is_read(sent: list[Request], cuts: list[int]) -> None:
    data = b"".join(map(wire, sent))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert parse(*pieces) == (sent, None)


def test_arguments_longer_than_the_tables_are_read() -> None:
    sent = [[b"SET", b"k", b"v" * 5_000], [b"DEL", *[b"%d" % n for n in range(2_000)]]]
    assert parse(b"".join(map(wire, sent))) == (sent, None)


def test_the_two_bytes_after_an_argument_are_not_looked_at() -> None:
    assert parse(b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n") == ([[b"PING"], [b"PING"]], None)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*\r\n", b"invalid multibulk length"),
        (b"*x\r\n", b"invalid multibulk length"),
        (b"*01\r\n", b"invalid multibulk length"),
        (b"*3000000000\r\n", b"invalid multibulk length"),
        (b"*99999999999999999999\r\n", b"invalid multibulk length"),
        (b"*1\r\nfoo\r\n", b"expected '$', got 'f'"),
        (b"*1\r\n\r\n", b"expected '$', got '\r'"),
        (b"*1\r\n$-1\r\n", b"invalid bulk length"),
        (b"*1\r\n$\r\n", b"invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", b"invalid bulk length"),
        (b"*1\r\n$536870913\r\n", b"invalid bulk length"),
        (b"*" + b"1" * LINE_BYTES_MAX + b"1", b"too big mbulk count string"),
        (b"*1\r\n$" + b"1" * LINE_BYTES_MAX + b"1", b"too big bulk count string"),
        (b"x" * LINE_BYTES_MAX + b"x", b"too big inline request"),
        (b"set a 'b\r\n", b"unbalanced quotes in request"),
        (b'set a "b"c\r\n', b"unbalanced quotes in request"),
    ],
)
def test_broken_input_is_refused_in_these_words(data: bytes, error: bytes) -> None:
    before = wire([b"PING"])
    for pieces in ((before + data,), (before, data), (before + data[:1], data[1:])):
        assert parse(*pieces) == ([[b"PING"]], b"Protocol error: " + error)


def test_nothing_is_read_after_an_error() -> None:
    assert parse(b"*x\r\n", wire([b"PING"])) == ([], b"Protocol error: invalid multibulk length")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*11\r\n", b"Protocol error: unauthenticated multibulk length"),
        (b"*1\r\n$16385\r\n", b"Protocol error: unauthenticated bulk length"),
    ],
)
def test_a_stranger_may_ask_for_less(data: bytes, error: bytes) -> None:
    assert parse(data) == ([], None)
    assert parse(data, limits=Limits(is_trusted=False)) == ([], error)


def test_the_length_of_an_argument_is_bounded() -> None:
    limits = Limits(bulk_bytes_max=2_000)
    sent = [[b"ECHO", b"x" * 2_000]]
    assert parse(wire(sent[0]), limits=limits) == (sent, None)
    for request in ([b"ECHO", b"x" * 2_001], [b"ECHO", b"x" * 5_000]):
        for pieces in ((wire(request),), (wire(request)[:9], wire(request)[9:])):
            assert parse(*pieces, limits=limits)[1] == b"Protocol error: invalid bulk length"


@pytest.mark.parametrize("arguments", [[b"x" * 2_000], [b"x" * 500] * 4])
def test_an_unfinished_request_holds_no_more_than_the_limit(arguments: list[bytes]) -> None:
    parser = Parser(Limits(buffer_bytes_max=1_000))
    data = wire([b"ECHO", *arguments, b""])
    for at in range(0, 2_000, 100):
        assert parser.feed(data[at : at + 100]) == []
        if parser.is_over:
            break
    assert 1_000 < parser.unread <= 1_100


def test_a_large_argument_in_small_pieces_is_kept_once() -> None:
    parser = Parser(Limits())
    data = wire([b"SET", b"k", b"v" * 1_000_000])
    for at in range(0, len(data) - 1, 1_000):
        assert parser.feed(data[at : min(at + 1_000, len(data) - 1)]) == []
    assert len(data) - 50 < parser.unread <= len(data)
    assert parser.feed(data[-1:]) == [[b"SET", b"k", b"v" * 1_000_000]]
    assert parser.unread == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  get\tname  ", [b"get", b"name"]),
        (b"""echo 'it\\'s' "\\x41\\n\\q" """, [b"echo", b"it's", b"A\nq"]),
        (b'foo"bar"', [b"foobar"]),
        (b"a\0b", [b"a", b"b"]),
        (b'""', [b""]),
        (b'"open', None),
        (b"'a'b", None),
        (b'"a\\"', None),
    ],
)
def test_a_line_is_split_into_words(line: bytes, words: Request | None) -> None:
    assert split_inline(line) == words


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    requests, _ = parse(*pieces)
    assert all(request and all(type(word) is bytes for word in request) for request in requests)


@pytest.mark.parametrize("size", [LINE_BYTES_MAX, LINE_BYTES_MAX + 1])
def test_a_line_is_too_long_however_much_of_it_comes_at_once(size: int) -> None:
    data = b"PING ".ljust(size, b"x") + b"\n"
    outcome = parse(data)
    assert (outcome[1] is None) == (size == LINE_BYTES_MAX)
    for at in (1, 1_000, LINE_BYTES_MAX, size):
        assert parse(data[:at], data[at:]) == outcome


class Counting(Parser):
    """Knows how many bytes it read exactly."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.bytes_read = 0

    def read_exactly(self, data: bytes) -> int:
        taken = super().read_exactly(data)
        self.bytes_read += taken
        return taken


def test_no_more_than_an_argument_is_read_exactly() -> None:
    plain = wire([b"GET", b"name"])
    parser = Counting()
    assert len(parser.feed((b"PING\r\n" + plain * 9) * 1_000 + plain[:-1])) == 10_000
    assert len(parser.feed(plain[-1:] + plain * 1_000)) == 1_001
    assert parser.bytes_read == 1_000 * len(b"PING\r\n") + len(b"$4\r\nname\r\n")


def test_of_a_request_of_many_buffers_only_the_ends_of_them_are_read_exactly() -> None:
    parser = Counting()
    request = [b"MSET", *(b"%d" % n for n in range(50_000))]
    data = wire(request)
    buffers = [data[at : at + 1_000] for at in range(0, len(data), 1_000)]
    assert [one for buffer in buffers for one in parser.feed(buffer)] == [request]
    assert parser.bytes_read <= len(buffers) * len(b"$5\r\n50000\r\n")
