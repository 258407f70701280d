"""However requests arrive, they get the same replies by the same way.

The end of a read cuts requests anywhere; inline commands, long requests, and requests that had to wait stand
between plain ones. The compiled commands answer all that they can answer alone, on a store at a path.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ephemera
from ephemera.server.server import Server
from ephemera.server.session import OUTPUT_BYTES_PAUSE, Session
from ephemera.server.settings import Settings
from tests.resp.streams import broken, cut, streams
from tests.server.clients import count_handled, wire

SOAK_EXAMPLES = 20_000
PIECE_BYTES = 7_000

STREAM = (
    wire("SET", "n", 1)
    + wire("MSET", "a", 1, "b", "two\r\n")
    + b"INCR n\r\n*0\r\n"
    + wire("MGET", "n", "absent", "b")
    + wire("SET", "c", "x", "EX", 60)
    + wire("TTL", "c")
    + wire("MULTI") + wire("INCR", "n") + b"get n\r\n" + wire("EXEC")
    + wire("DEL", "a", "c", "absent")
    + wire("NOPE") + wire("GET", "n", "more")
    + wire("HELLO", 3) + wire("GET", "absent")
    + wire("CLIENT", "REPLY", "SKIP") + wire("INCR", "n")
    + wire("EXISTS", *range(12)) + wire("GET", "n")
)  # fmt: skip
ENDS = {
    "ends": b"",
    "is wrong": b"*1\r\n$x\r\n" + wire("SET", "n", "late"),
    "closes": wire("QUIT") + wire("SET", "n", "late"),
    "is unfinished": b"*2\r\n$3\r\nGET\r\n$4\r\n",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ephemera.Store]:
    """One for all tests, which begin with no keys: to open one takes longer than they do."""
    place = tmp_path_factory.mktemp("streams") / "store.eph"
    clock = ephemera.ManualClock()
    with ephemera.open(place, clock=clock, maintenance="manual", durability="none") as store:
        yield store


@pytest.fixture
def server(store: ephemera.Store) -> Server:
    return empty_server(store)


def empty_server(store: ephemera.Store) -> Server:
    server = Server(store)
    Session(server).feed(wire("FLUSHALL"))
    return server


def answer(store: ephemera.Store, pieces: list[bytes]) -> tuple[bytes, bool, list[object]]:
    """The replies to what came in these pieces, whether the session is over, and what is stored then."""
    server = empty_server(store)
    session = Session(server)
    out = b""
    for piece in pieces:
        if not session.is_closing:
            out += session.feed(piece)
    return out, session.is_closing, [list(server.database(n).all_stored()) for n in (0, 1)]


# --- the same replies -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_may_be_cut_at_every_byte(store: ephemera.Store, end: str) -> None:
    stream = STREAM + ENDS[end]
    whole = answer(store, [stream])
    assert whole[0].startswith(
        b"+OK\r\n+OK\r\n:2\r\n*3\r\n$1\r\n2\r\n$-1\r\n$5\r\ntwo\r\n\r\n+OK\r\n:60\r\n"
    )
    for at in range(len(stream)):
        assert answer(store, [stream[:at], stream[at:]]) == whole, at
    assert answer(store, [stream[at : at + 1] for at in range(len(stream))]) == whole


def check_the_pieces_do_not_matter(store: ephemera.Store, pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    whole = answer(store, [stream])
    assert answer(store, pieces) == whole
    assert answer(store, [stream[at : at + 1] for at in range(len(stream))]) == whole


cuts = st.lists(st.integers(0, 2000), max_size=6)


@given(stream=streams, cuts=cuts)
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_answered_the_same_whole_and_in_pieces(
    store: ephemera.Store, stream: bytes, cuts: list[int]
) -> None:
    check_the_pieces_do_not_matter(store, cut(stream, cuts))


@given(pieces=broken())
@settings(deadline=None, max_examples=60)
def test_a_broken_stream_is_answered_the_same_whole_and_in_pieces(
    store: ephemera.Store, pieces: list[bytes]
) -> None:
    check_the_pieces_do_not_matter(store, pieces)


@pytest.mark.soak
@given(stream=streams, cuts=cuts)
@settings(deadline=None, max_examples=SOAK_EXAMPLES)
def test_thousands_of_streams_of_any_bytes(
    store: ephemera.Store, stream: bytes, cuts: list[int]
) -> None:
    check_the_pieces_do_not_matter(store, cut(stream, cuts))


@pytest.mark.soak
@given(pieces=broken())
@settings(deadline=None, max_examples=SOAK_EXAMPLES)
def test_thousands_of_broken_streams(store: ephemera.Store, pieces: list[bytes]) -> None:
    check_the_pieces_do_not_matter(store, pieces)


# --- the same way ---------------------------------------------------------------------------------


def test_requests_that_the_end_of_a_read_cuts_are_answered_in_place(server: Server) -> None:
    session, handled = Session(server), count_handled(server)
    stream = b"".join(wire("GET", f"key:{n}") for n in range(4_000))
    out = b"".join(
        session.feed(stream[at : at + PIECE_BYTES]) for at in range(0, len(stream), PIECE_BYTES)
    )
    assert out == b"$-1\r\n" * 4_000
    assert handled == {}
    assert server.commands.all["get"].calls == 4_000


def test_a_large_value_in_many_reads_is_stored_in_place(server: Server) -> None:
    session, handled = Session(server), count_handled(server)
    value = b"x" * 300_000
    stream = wire("SET", "large", value) * 3 + wire("PING")
    pieces = [stream[at : at + PIECE_BYTES] for at in range(0, len(stream), PIECE_BYTES)]
    assert b"".join(map(session.feed, pieces)) == b"+OK\r\n" * 3 + b"+PONG\r\n"
    assert handled == {}
    assert server.database(0).peek(b"large") == value


@pytest.mark.parametrize(
    "other",
    [b"TIME\r\n", b"\r\n", b"*0\r\n", wire("TIME"), wire("TOUCH", *range(2_000))],
    ids=["inline", "empty line", "no arguments", "no compiled command", "many arguments"],
)
def test_what_follows_another_kind_of_request_is_answered_in_place(
    server: Server, other: bytes
) -> None:
    session, handled = Session(server), count_handled(server)
    session.feed((wire("SET", "key", "v") + other + wire("GET", "key")) * 30)
    assert set(handled) <= {"time", "touch"}
    assert server.commands.all["get"].calls == server.commands.all["set"].calls == 30


def test_an_inline_command_is_answered_in_place_too(server: Server) -> None:
    session, handled = Session(server), count_handled(server)
    assert session.feed(b"SET key 'a b'\r\nGET key\r\n") == b"+OK\r\n$3\r\na b\r\n"
    assert handled == {}


def test_requests_that_waited_for_their_client_are_answered_in_place(server: Server) -> None:
    session, handled = Session(server), count_handled(server)
    session.feed(wire("SET", "large", b"x" * 10_000))
    out, rounds = session.feed(wire("GET", "large") * 1_000), 1
    while session.has_waiting:
        out += session.go_on()
        rounds += 1
    assert len(out) == 1_000 * len(b"$10000\r\n" + b"x" * 10_000 + b"\r\n")
    assert rounds == len(out) // OUTPUT_BYTES_PAUSE + 1
    assert handled == {}


def test_what_comes_while_requests_wait_is_answered_after_them(server: Server) -> None:
    session = Session(server)
    session.feed(wire("SET", "large", b"x" * OUTPUT_BYTES_PAUSE))
    out = session.feed(wire("GET", "large") + wire("ECHO", "one") + wire("ECHO", "two")[:9])
    assert session.has_waiting
    assert session.feed(wire("ECHO", "two")[9:] + b"ECHO three\r\n*x\r\n") == b""
    out += session.go_on()
    assert out.endswith(
        b"$3\r\none\r\n$3\r\ntwo\r\n$5\r\nthree\r\n-ERR Protocol error: invalid multibulk length\r\n"
    )
    assert session.is_closing


def test_who_gives_a_password_may_ask_for_more_in_the_same_breath(store: ephemera.Store) -> None:
    settings = Settings()
    settings.requirepass = b"secret"
    empty_server(store)
    server = Server(store, settings)
    handled = count_handled(server)
    many = wire("EXISTS", *range(20))
    session = Session(server)
    assert session.feed(wire("AUTH", "secret") + many) == b"+OK\r\n:0\r\n"
    assert handled == {"auth": 1}
    stranger = Session(server)
    assert stranger.feed(wire("PING") + many).endswith(b"unauthenticated multibulk length\r\n")
    assert stranger.is_closing
