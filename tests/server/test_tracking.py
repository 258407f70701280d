"""The tracking table: what it remembers, what it sends, and what it costs those who do not track.

Which commands invalidate what, and where a message stands among replies, is held against Redis in `tests/wire`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.server.events import EXPIRED
from ephemera.server.server import Server
from ephemera.server.settings import Settings
from ephemera.server.tracking import EVICTED_AT_ONCE_MAX, STALE_READERS_MIN
from tests.server.clients import Argument, Client, count_handled, wire


@pytest.fixture
def reader(server: Server) -> Client:
    return tracking(server)


def tracking(server: Server, *options: str) -> Client:
    """A client in RESP3 that tracks."""
    made = Client(server)
    made("HELLO", 3)
    assert made("CLIENT", "TRACKING", "ON", *options) == b"OK"
    return made


def invalidated(client: Client) -> list[Any]:  # Any: lists of keys, or None for all of them
    """What the client was told to drop since this was last asked."""
    messages, client.pushed = client.pushed, []
    assert all(message[0] == b"invalidate" for message in messages), messages
    return [message[1] for message in messages]


# --- the table ------------------------------------------------------------------------------------


def test_a_key_is_invalidated_once_until_it_is_read_again(client: Client, reader: Client) -> None:
    reader("GET", "k")
    client("SET", "k", 1)
    client("SET", "k", 2)
    assert invalidated(reader) == [[b"k"]]
    reader("GET", "k")
    client("DEL", "k")
    assert invalidated(reader) == [[b"k"]]


def test_every_reader_of_a_key_is_told(client: Client, server: Server) -> None:
    readers = [tracking(server) for _ in range(3)]
    for each in readers[:2]:
        each("GET", "k")
    client("SET", "k", 1)
    assert [invalidated(each) for each in readers] == [[[b"k"]], [[b"k"]], []]


def test_the_oldest_keys_make_room_for_new_ones(server: Server, reader: Client) -> None:
    server.settings.tracking_table_max_keys = 3
    for name in "abcde":
        reader("GET", name)
        reader("PING")
    assert list(server.tracking.readers) == [b"c", b"d", b"e"]
    assert server.tracking.items == 3


def test_a_client_hears_of_the_keys_that_make_room_even_with_noloop(server: Server) -> None:
    """Nobody would tell it when they change."""
    server.settings.tracking_table_max_keys = 1
    reader = tracking(server, "NOLOOP")
    replies = reader.session.feed(wire("GET", "a") + wire("GET", "b") + wire("PING"))
    assert replies == b"_\r\n_\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n+PONG\r\n"


def test_a_limit_that_is_lowered_is_reached_in_steps(server: Server, reader: Client) -> None:
    reader("MGET", *range(3 * EVICTED_AT_ONCE_MAX))
    server.settings.tracking_table_max_keys = 1
    sizes = []
    for _ in range(4):
        reader("GET", "k")
        sizes.append(len(server.tracking.readers))
    assert sizes == [2 * EVICTED_AT_ONCE_MAX + 1, EVICTED_AT_ONCE_MAX + 1, 1, 1]


def test_a_limit_of_none_keeps_all_keys(server: Server, reader: Client) -> None:
    server.settings.tracking_table_max_keys = 0
    reader("MGET", *range(1000))
    assert len(server.tracking.readers) == 1000


def test_clients_that_come_and_go_do_not_fill_the_table(server: Server, reader: Client) -> None:
    for _ in range(10 * STALE_READERS_MIN):
        passing = tracking(server)
        passing("GET", "k")
        passing.session.close()
    assert len(server.tracking.readers[b"k"]) <= STALE_READERS_MIN
    assert server.tracking.items == len(server.tracking.readers[b"k"])


def test_a_client_that_is_gone_is_sent_nothing(client: Client, server: Server) -> None:
    gone, reader = tracking(server), tracking(server)
    gone("GET", "k")
    gone.session.close()
    client("SET", "k", 1)
    assert (invalidated(gone), invalidated(reader)) == ([], [])
    assert (len(server.tracking.readers), server.tracking.items) == (0, 0)


def test_the_last_client_takes_the_table_with_it(client: Client, server: Server) -> None:
    first, second = tracking(server), tracking(server, "BCAST", "PREFIX", "k")
    first("GET", "k")
    first.session.close()
    assert len(server.tracking.readers) == 1
    second("RESET")
    assert not server.tracking.readers
    assert not server.tracking.prefixes
    assert server.tracking.items == 0
    assert server.listeners == server.expirations.listeners == []


@pytest.mark.parametrize("ending", [("RESET",), ("CLIENT", "TRACKING", "OFF")])
def test_a_client_that_stops_tracking_is_sent_nothing(
    client: Client, server: Server, reader: Client, ending: tuple[str, ...]
) -> None:
    tracking(server)
    reader("GET", "k")
    reader(*ending)
    client("SET", "k", 1)
    assert invalidated(reader) == []


def test_a_transaction_that_ends_tracking_leaves_nothing_behind(
    server: Server, reader: Client
) -> None:
    for command in (("MULTI",), ("GET", "k"), ("CLIENT", "TRACKING", "OFF"), ("EXEC",)):
        reader(*command)
    assert not server.tracking.readers


# --- expiry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("BCAST",), ("NOLOOP",)], ids=str)
def test_an_expired_key_is_invalidated_at_its_deadline(
    server: Server, clock: ManualClock, options: tuple[str, ...]
) -> None:
    reader = tracking(server, *options)
    reader("SET", "k", 1, "PX", 10)
    reader("GET", "k")
    reader.pushed.clear()
    clock.advance(0.009)
    server.store.purge_expired()
    assert invalidated(reader) == []
    clock.advance(0.001)
    server.store.purge_expired()
    assert invalidated(reader) == [[b"k"]]


def test_a_renewed_key_is_invalidated_when_its_last_deadline_has_passed(
    client: Client, server: Server, reader: Client, clock: ManualClock
) -> None:
    client("SET", "k", 1, "PX", 10)
    client("PEXPIRE", "k", 20)
    reader("GET", "k")
    clock.advance(0.010)
    server.store.purge_expired()
    assert invalidated(reader) == []
    clock.advance(0.010)
    server.store.purge_expired()
    assert invalidated(reader) == [[b"k"]]


def test_a_key_that_expires_while_a_long_script_has_read_it_is_not_cached_for_ever(
    server: Server, reader: Client
) -> None:
    server.settings.busy_reply_threshold = 1
    reader("SET", "k", 1)
    script = "local value = redis.call('GET', 'k') for _ = 1, 5e6 do end return value"
    reply = reader.session.feed(wire("EVAL", script, 0))
    assert server.busy.is_on, "the script takes long enough"
    server.tell(0, b"k", EXPIRED)
    assert invalidated(reader) == [], "nothing is remembered before the script ends"
    while server.busy.is_on:
        reply += reader.session.go_on()
    assert reply == b"$1\r\n1\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n"


# --- broadcasts -----------------------------------------------------------------------------------


def pipeline(*requests: tuple[Argument, ...]) -> bytes:
    return b"".join(wire(*each) for each in requests)


def test_a_broadcast_is_sent_before_the_replies_to_the_requests_that_caused_it(
    server: Server,
) -> None:
    """Not when the event loop comes to it: a client that has its reply may ask another one at once."""
    handed: list[Callable[[], object]] = []
    server.hand_over = handed.append
    reader, client = tracking(server, "BCAST"), Client(server)
    for key in ("a", "b"):
        client("SET", key, 1)
        assert invalidated(reader) == [[key.encode()]]


def test_the_changes_of_requests_that_arrive_together_are_one_message_for_each_prefix(
    server: Server,
) -> None:
    reader = tracking(server, "BCAST", "PREFIX", "a", "PREFIX", "b")
    client = Client(server)
    client.session.feed(pipeline(*(("SET", key, 1) for key in ("b2", "a1", "c", "b1", "b2"))))
    assert invalidated(reader) == [[b"a1"], [b"b1", b"b2"]]
    client("SET", "c", 1)
    assert invalidated(reader) == []


def test_a_broadcast_follows_the_replies_of_the_client_that_caused_it(server: Server) -> None:
    reader = tracking(server, "BCAST")
    assert reader.session.feed(pipeline(("SET", "b", 1), ("SET", "a", 1), ("PING",))) == (
        b"+OK\r\n+OK\r\n+PONG\r\n>2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
    )


def test_a_broadcast_without_loop_leaves_out_what_the_client_wrote(server: Server) -> None:
    own, other = tracking(server, "BCAST", "NOLOOP"), tracking(server, "BCAST")
    assert own.session.feed(pipeline(("SET", "a", 1), ("SET", "b", 1))) == b"+OK\r\n+OK\r\n"
    Client(server)("SET", "b", 1)
    assert invalidated(own) == [[b"b"]]
    assert invalidated(other) == [[b"a", b"b"], [b"b"]]


def test_keys_that_expire_together_are_one_broadcast(server: Server, clock: ManualClock) -> None:
    handed: list[Callable[[], object]] = []
    reader, client = tracking(server, "BCAST"), Client(server)
    client("SET", "b", 1, "PX", 10)
    client("SET", "a", 1, "PX", 10)
    reader.pushed.clear()
    server.hand_over = handed.append
    clock.advance(0.010)
    server.store.purge_expired()
    handed.pop()()
    assert invalidated(reader) == [[b"a", b"b"]]


def test_a_broadcast_that_nobody_waits_for_any_more_is_dropped(server: Server) -> None:
    reader = tracking(server, "BCAST")
    ending = ("CLIENT", "TRACKING", "OFF"), ("CLIENT", "TRACKING", "ON", "BCAST")
    assert reader.session.feed(pipeline(("SET", "a", 1), *ending)) == b"+OK\r\n+OK\r\n+OK\r\n"
    reader("PING")
    assert invalidated(reader) == []


# --- redirection ----------------------------------------------------------------------------------


def test_a_receiver_hears_of_its_own_write_after_the_reply(server: Server) -> None:
    receiver = Client(server)
    receiver("HELLO", 3)
    reader = tracking(server, "REDIRECT", str(receiver.session.id))
    reader("GET", "k")
    assert receiver.session.feed(wire("SET", "k", 1) + wire("PING")) == (
        b"+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n+PONG\r\n"
    )


def test_a_receiver_in_resp2_gets_its_own_null(client: Client, server: Server) -> None:
    """Redis sends it the null of RESP3 where the reader speaks that."""
    receiver = Client(server)
    got: list[bytes] = []
    receiver.session.transmit = got.append
    receiver("SUBSCRIBE", "__redis__:invalidate")
    tracking(server, "REDIRECT", str(receiver.session.id))
    client("FLUSHALL")
    assert got == [b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$-1\r\n"]


def test_a_client_redirects_to_one_other(client: Client) -> None:
    number = client.session.id
    assert client.error("CLIENT", "TRACKING", "ON", "REDIRECT", number, "REDIRECT", number) == (
        "ERR A client can only redirect to a single other client"
    )


# --- what others pay for it -----------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    """A server whose commonest commands are answered in place."""
    path = str(tmp_path / "store.eph")
    with ephemera.open(path, clock=clock, maintenance="manual", exclusive=True) as store:
        yield Server(store)


REQUESTS = [("SET", "k", 1), ("GET", "k"), ("INCR", "k"), ("MGET", "k", "a"), ("DEL", "k")]


def test_nothing_leaves_the_fast_path_before_and_after_a_client_tracks(local: Server) -> None:
    client, reader = Client(local), tracking(local)
    reader("CLIENT", "TRACKING", "OFF")
    handled = count_handled(local)
    for each in REQUESTS:
        client(*each)
        reader(*each)
    assert handled == {}


def test_reads_of_others_stay_on_the_fast_path(local: Server) -> None:
    client, reader, listener = Client(local), tracking(local), tracking(local, "BCAST")
    handled = count_handled(local)
    client("GET", "k")
    listener("GET", "k")
    assert handled == {}
    reader("GET", "k")
    assert handled == {"get": 1}


def test_reads_of_a_tracking_client_go_straight_to_their_handlers(local: Server) -> None:
    """Only where CLIENT CACHING may be about the next command is each of them special."""
    default, choosing = tracking(local), tracking(local, "OPTIN")
    assert (default.session.is_direct, default.session.is_in_place) == (True, False)
    assert (choosing.session.is_direct, choosing.session.is_in_place) == (False, False)
    default.session.feed(wire("GET", "a") + wire("MGET", "b", "c") + wire("BOGUS", "d"))
    assert list(local.tracking.readers) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("options", [(), ("BCAST",)], ids=str)
def test_writes_of_everybody_are_heard_of(local: Server, options: tuple[str, ...]) -> None:
    client, reader = Client(local), tracking(local, *options)
    for each in REQUESTS:
        if each[0] not in ("GET", "MGET"):
            reader("GET", "k")
            client(*each)
            assert invalidated(reader) == [[b"k"]], each


def test_a_server_that_cannot_hear_of_writes_refuses(tmp_path: Path) -> None:
    path = str(tmp_path / "store.eph")
    with ephemera.open(path), ephemera.open(path, read_only=True) as store:
        client = Client(Server(store, Settings()))
        assert "connect to the server that writes" in client.error("CLIENT", "TRACKING", "ON")
        assert client("CLIENT", "TRACKING", "OFF") == b"OK"
