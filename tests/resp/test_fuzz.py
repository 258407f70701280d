"""Broken streams: proper requests with bytes changed, dropped, doubled and inserted, cut anywhere.

However a stream is broken and however it arrives, the parser reads the same requests from it and
finds the same error, and a session answers each of them and goes on, or closes with the reason.
"""

from __future__ import annotations

import random
from itertools import pairwise

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ephemera
from ephemera.resp.parser import Limits, Parser, Request
from ephemera.server.server import Server
from ephemera.server.session import Session

SOAK_EXAMPLES = 100_000

SEEDS = [
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\nv\xff\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\n",
    b"PING\r\nset \"a b\" 'c'\r\n\r\n",
    b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * 3,
    b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nPX\r\n$4\r\n1000\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n",
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
    cuts = sorted({0, *draw(st.lists(st.integers(0, len(data)), max_size=6)), len(data)})
    return [bytes(data[a:b]) for a, b in pairwise(cuts)]


def read(pieces: list[bytes]) -> tuple[list[Request], bytes | None]:
    parser = Parser(Limits())
    return [request for piece in pieces for request in parser.feed(piece)], parser.error


def check_the_pieces_do_not_matter(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    whole = read([data])
    assert read(pieces) == whole
    assert read([data[at : at + 1] for at in range(len(data))]) == whole


def check_a_session_answers(pieces: list[bytes]) -> None:
    expected = len(read(pieces)[0])
    reader = hiredis.Reader()
    with ephemera.open("memory://", maintenance="manual") as store:
        session = Session(Server(store))
        for piece in pieces:
            reader.feed(session.feed(piece))
        # What was broken into a subscription is answered more than once: there may be more.
        replies = 0
        while reader.gets() is not False:
            replies += 1
        assert replies >= expected or session.is_closing


@given(broken())
def test_however_a_broken_stream_is_cut_it_reads_the_same(pieces: list[bytes]) -> None:
    check_the_pieces_do_not_matter(pieces)


@given(broken())
def test_a_session_answers_every_request_of_a_broken_stream(pieces: list[bytes]) -> None:
    check_a_session_answers(pieces)


@pytest.mark.soak
@settings(max_examples=SOAK_EXAMPLES)
@given(broken())
def test_a_hundred_thousand_broken_streams(pieces: list[bytes]) -> None:
    check_the_pieces_do_not_matter(pieces)
    check_a_session_answers(pieces)


@pytest.mark.soak
def test_a_gigabyte_of_noise() -> None:
    """Noise that is fast to make: far more bytes than a search could try."""
    chance = random.Random(1)
    total = 0
    while total < 1 << 30:
        pieces = [chance.choice(SEEDS) if chance.random() < 0.5 else chance.randbytes(200)] * 50
        chance.shuffle(pieces)
        requests, _ = read(pieces)
        assert all(request for request in requests)
        total += sum(map(len, pieces))
