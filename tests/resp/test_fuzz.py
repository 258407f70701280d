"""Broken streams: proper requests with bytes changed, dropped, doubled and inserted, cut anywhere.

However a stream is broken and however it arrives, the parser reads the same requests from it and
finds the same error, and a session answers each of them and goes on, or closes with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import hiredis
import pytest
from hypothesis import given, settings

import ephemera
from ephemera.resp.parser import Limits, Parser, Request
from ephemera.server.server import Server
from ephemera.server.session import Session
from tests.resp.streams import SEEDS, broken
from tests.server.clients import wire

SOAK_EXAMPLES = 100_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ephemera.Store]:
    """At a path, where compiled code answers. One for all streams: to open one takes longer than they do."""
    place = tmp_path_factory.mktemp("fuzz") / "store.eph"
    with ephemera.open(place, maintenance="manual", durability="none") as store:
        yield store


def read(pieces: list[bytes]) -> tuple[list[Request], bytes | None]:
    parser = Parser(Limits())
    return [request for piece in pieces for request in parser.feed(piece)], parser.error


def check_the_pieces_do_not_matter(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    whole = read([data])
    assert read(pieces) == whole
    assert read([data[at : at + 1] for at in range(len(data))]) == whole


def check_a_session_answers(store: ephemera.Store, pieces: list[bytes]) -> None:
    expected = len(read(pieces)[0])
    reader = hiredis.Reader()
    server = Server(store)
    Session(server).feed(wire("FLUSHALL"))
    session = Session(server)
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
def test_a_session_answers_every_request_of_a_broken_stream(
    store: ephemera.Store, pieces: list[bytes]
) -> None:
    check_a_session_answers(store, pieces)


@pytest.mark.soak
@settings(max_examples=SOAK_EXAMPLES)
@given(broken())
def test_a_hundred_thousand_broken_streams(store: ephemera.Store, pieces: list[bytes]) -> None:
    check_the_pieces_do_not_matter(pieces)
    check_a_session_answers(store, pieces)


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
