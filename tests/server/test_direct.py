"""The straight way and the long one do the same: default lifetimes, transactions, every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera.server.server import Server
from ephemera.server.session import Session
from tests.server.clients import Client, wire

KEY_BYTES_MAX = 1900


@pytest.fixture(params=["memory", "local"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ephemera.ManualClock
) -> Iterator[ephemera.Store]:
    place = "memory://" if request.param == "memory" else tmp_path / "direct.eph"
    with ephemera.open(place, clock=clock, maintenance="manual", durability="none") as store:
        yield store


@pytest.fixture
def client(store: ephemera.Store) -> Client:
    return Client(Server(store))


def test_counters_keep_their_deadline_wherever_they_lie(
    client: Client, store: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    client("SET", "n", "41", "PX", 60_000)
    clock.advance(10)
    assert client("INCR", "n") == 42
    if store.engine.name == "local":
        store.checkpoint()
    assert client("DECRBY", "n", 2) == 40
    assert (client("GET", "n"), client("PTTL", "n")) == (b"40", 50_000)
    clock.advance(50)
    assert client("INCR", "n") == 1
    assert client("TTL", "n") == -1


def test_a_deleted_counter_begins_anew(client: Client) -> None:
    client("SET", "n", "41", "EX", 60)
    client("DEL", "n")
    assert client("INCRBY", "n", -7) == -7
    assert client("TTL", "n") == -1


def test_what_is_no_counter_stays_as_it_is(client: Client) -> None:
    for value in ("007", "-0", "9223372036854775807", "x", ""):
        client("SET", "n", value, "EX", 60)
        client.error("INCR", "n")
        assert (client("GET", "n"), client("TTL", "n")) == (value.encode(), 60)


def test_counting_inside_a_transaction_is_the_same(
    client: Client, clock: ephemera.ManualClock
) -> None:
    client("SET", "n", "41", "EX", 60)
    client("MULTI")
    client("INCR", "n")
    client("INCR", "new")
    assert client("EXEC") == [42, 1]
    assert (client("TTL", "n"), client("TTL", "new")) == (60, -1)


def test_a_default_lifetime_is_given_to_what_has_none(clock: ephemera.ManualClock) -> None:
    with ephemera.open("memory://", clock=clock, default_ttl=30, maintenance="manual") as store:
        client = Client(Server(store))
        client("SET", "a", "1")
        client("INCR", "n")
        client("SET", "own", "1", "EX", 5)
        assert [client("TTL", key) for key in ("a", "n", "own")] == [30, 30, 5]


def test_a_default_lifetime_counts_from_when_it_is_set(
    client: Client, store: ephemera.Store
) -> None:
    client("SET", "before", "1")
    store.family("default", default_ttl=30)
    client("SET", "after", "1")
    client("INCR", "n")
    assert [client("TTL", key) for key in ("before", "after", "n")] == [-1, 30, 30]


@pytest.mark.parametrize("key", [b"", b"k" * (KEY_BYTES_MAX + 1)])
def test_a_key_that_no_store_takes_is_refused_by_all(client: Client, key: bytes) -> None:
    refused = f"ERR a key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(key)}"
    assert client.error("GET", key) == refused
    assert client.error("SET", key, "v") == refused
    assert client.error("INCR", key) == refused


def test_a_new_counter_is_told_as_new(client: Client) -> None:
    client("CONFIG", "SET", "notify-keyspace-events", "En$")
    listener = Client(client.session.server)
    listener("SUBSCRIBE", "__keyevent@0__:new", "__keyevent@0__:incrby")
    client("INCR", "n")
    client("INCR", "n")
    channels = [message[1] for message in listener.pushed if message[0] == b"message"]
    assert channels == [b"__keyevent@0__:new", *[b"__keyevent@0__:incrby"] * 2]


def test_plain_and_exact_reading_take_turns_within_one_stream(client: Client) -> None:
    session = Session(client.session.server)
    stream = (
        wire("SET", "a", "1") + b"INCR a\r\n" + wire("INCR", "a") * 3 + b"*0\r\n" + wire("PING")
    )
    replies = b"+OK\r\n:2\r\n:3\r\n:4\r\n:5\r\n+PONG\r\n"
    half = len(stream) // 2
    assert session.feed(stream[:half]) + session.feed(stream[half:]) == replies


def test_many_large_and_small_replies_keep_their_order(client: Client) -> None:
    client("SET", "large", b"x" * 5000)
    out = client.session.feed((wire("GET", "large") + wire("STRLEN", "large")) * 20)
    assert out == (b"$5000\r\n" + b"x" * 5000 + b"\r\n:5000\r\n") * 20
