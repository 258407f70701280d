"""Keyspace notifications: every event by Redis's name, in Redis's order, and `expired` from the store."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.server.server import Server
from ephemera.server.settings import Settings
from tests.server.clients import Argument, Client, wire

Command = tuple[Argument, ...]


@pytest.fixture
def listener(server: Server) -> Client:
    """Subscribed to everything that the setting of the test lets through."""
    found = Client(server)
    found("PSUBSCRIBE", "__key*__:*")
    return found


def choose(server: Server, flags: str) -> None:
    """What CONFIG SET notify-keyspace-events does."""
    server.settings.notify_keyspace_events = flags
    server.review()


def events(listener: Client) -> list[tuple[bytes, bytes]]:
    """Event and key of what came since the last look, on the channels of events."""
    got = [(channel.partition(b":")[2], key) for _, _, channel, key in listener.pushed]
    listener.pushed.clear()
    return got


# --- where it is published ------------------------------------------------------------------------


def test_k_publishes_on_the_channel_of_the_key(
    client: Client, server: Server, listener: Client
) -> None:
    choose(server, "KA")
    client("SET", "a", 1)
    assert listener.pushed == [[b"pmessage", b"__key*__:*", b"__keyspace@0__:a", b"set"]]


def test_e_publishes_on_the_channel_of_the_event(
    client: Client, server: Server, listener: Client
) -> None:
    choose(server, "EA")
    client("SET", "a", 1)
    assert listener.pushed == [[b"pmessage", b"__key*__:*", b"__keyevent@0__:set", b"a"]]


def test_both_publish_the_key_first(client: Client, server: Server, listener: Client) -> None:
    choose(server, "KEA")
    client("SET", "a", 1)
    assert [channel for _, _, channel, _ in listener.pushed] == [
        b"__keyspace@0__:a",
        b"__keyevent@0__:set",
    ]


def test_the_channel_names_the_database(client: Client, server: Server) -> None:
    choose(server, "KA")
    listener = Client(server)
    listener("SUBSCRIBE", "__keyspace@7__:a")
    client("SET", "a", 1)
    client("SELECT", 7)
    client("SET", "a", 1)
    assert listener.pushed == [[b"message", b"__keyspace@7__:a", b"set"]]


def test_keys_of_any_bytes_are_published(client: Client, server: Server, listener: Client) -> None:
    choose(server, "K$")
    client("SET", b"\x00\xff\r\n", 1)
    assert listener.pushed[0][2:] == [b"__keyspace@0__:\x00\xff\r\n", b"set"]


@pytest.mark.parametrize("flags", ["", "A", "g$xnm", "KE"])
def test_without_a_place_or_a_class_nothing_is_published(
    flags: str, client: Client, server: Server, listener: Client
) -> None:
    choose(server, flags)
    client("SET", "a", 1)
    client("GET", "absent")
    assert listener.pushed == []
    assert server.listeners == []


# --- what is published ----------------------------------------------------------------------------

EVENTS: list[tuple[Command, str]] = [
    (("SET", "key", 1), "set key"),
    (("SET", "key", 1, "EX", 9), "set key, expire key"),
    (("SET", "key", 1, "EXAT", 9_999_999_999), "set key, expire key"),
    (("SET", "key", 1, "KEEPTTL"), "set key"),
    (("SET", "key", 1, "NX"), ""),
    (("SETNX", "absent", 1), "set absent"),
    (("SETEX", "key", 9, 1), "set key, expire key"),
    (("PSETEX", "key", 9, 1), "set key, expire key"),
    (("GETSET", "key", 1), "set key"),
    (("GETDEL", "key"), "del key"),
    (("GETEX", "key"), ""),
    (("GETEX", "key", "EX", 9), "expire key"),
    (("GETEX", "mortal", "PERSIST"), "persist mortal"),
    (("MSET", "key", 1, "b", 2), "set key, set b"),
    (("MSETNX", "b", 1, "c", 2), "set b, set c"),
    (("APPEND", "key", "x"), "append key"),
    (("SETRANGE", "key", 1, "x"), "setrange key"),
    (("SETRANGE", "absent", 0, ""), ""),
    (("SETBIT", "key", 1, 1), "setbit key"),
    (("BITFIELD", "key", "SET", "u8", 0, 1, "INCRBY", "u8", 0, 1), "setbit key"),
    (("BITFIELD", "key", "GET", "u8", 0), ""),
    (("BITOP", "NOT", "b", "key"), "set b"),
    (("BITOP", "AND", "key", "absent"), "del key"),
    (("INCR", "key"), "incrby key"),
    (("DECR", "key"), "incrby key"),
    (("INCRBY", "key", 2), "incrby key"),
    (("DECRBY", "key", 2), "incrby key"),
    (("INCRBYFLOAT", "key", "1.5"), "incrbyfloat key"),
    (("DEL", "key", "absent", "mortal"), "del key, del mortal"),
    (("UNLINK", "key"), "del key"),
    (("EXPIRE", "key", 9), "expire key"),
    (("PEXPIREAT", "key", 9_999_999_999_999), "expire key"),
    (("EXPIRE", "key", -1), "del key"),
    (("EXPIRE", "absent", 9), ""),
    (("PERSIST", "mortal"), "persist mortal"),
    (("PERSIST", "key"), ""),
    (("RENAME", "key", "b"), "rename_from key, rename_to b"),
    (("RENAMENX", "key", "b"), "rename_from key, rename_to b"),
    (("COPY", "key", "b"), "copy_to b"),
    (("MOVE", "key", 1), "move_from key, move_to key"),
    (("FLUSHDB",), ""),
    (("FLUSHALL",), ""),
    (("SWAPDB", 0, 1), ""),
    (("GET", "key"), ""),
    (("TOUCH", "key"), ""),
    (("EVAL", "redis.call('set', 'a', 1) redis.call('del', 'a')", 0), "set a, del a"),
]


@pytest.mark.parametrize(("command", "expected"), EVENTS, ids=lambda value: str(value))
def test_events_have_rediss_names_and_order(
    command: Command, expected: str, client: Client, server: Server, listener: Client
) -> None:
    client("SET", "key", 1)
    client("SET", "mortal", 1, "EX", 9)
    choose(server, "EA")
    client(*command)
    told = ", ".join(f"{event.decode()} {key.decode()}" for event, key in events(listener))
    assert told == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("E$", [b"set"]),
        ("Eg", [b"expire", b"del"]),
        ("E$g", [b"set", b"expire", b"del"]),
        ("EA", [b"set", b"expire", b"del"]),
        ("En", [b"new"]),
        ("Em", [b"keymiss"]),
        ("EAmn", [b"new", b"set", b"expire", b"del", b"keymiss"]),
        ("El", []),
    ],
)
def test_the_letters_choose_classes(
    flags: str, expected: list[bytes], client: Client, server: Server, listener: Client
) -> None:
    choose(server, flags)
    client("SET", "a", 1, "EX", 9)
    client("DEL", "a")
    client("GET", "a")
    assert [event for event, _ in events(listener)] == expected


def test_a_setting_can_change_and_end(client: Client, server: Server, listener: Client) -> None:
    choose(server, "E$")
    choose(server, "Eg")
    client("SET", "a", 1)
    client("DEL", "a")
    assert events(listener) == [(b"del", b"a")]
    choose(server, "")
    client("SET", "a", 1)
    client("DEL", "a")
    assert events(listener) == []


def test_a_server_starts_with_its_setting(clock: ManualClock) -> None:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        server = Server(store, Settings(notify_keyspace_events="Ex"))
        client, listener = Client(server), Client(server)
        listener("SUBSCRIBE", "__keyevent@0__:expired")
        client("SET", "a", 1, "PX", 1)
        clock.advance(0.001)
        store.purge_expired()
        assert listener.pushed == [[b"message", b"__keyevent@0__:expired", b"a"]]


# --- new and missing keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("SET", "a", 1), b"a"),
        (("SET", "a", 1, "PX", 9), b"a"),
        (("INCR", "a"), b"a"),
        (("APPEND", "a", "x"), b"a"),
        (("SETBIT", "a", 1, 1), b"a"),
        (("COPY", "full", "a"), b"a"),
        (("RENAME", "full", "a"), b"a"),
    ],
    ids=str,
)
def test_a_key_that_was_not_there_is_new(
    command: Command, key: bytes, client: Client, server: Server, listener: Client
) -> None:
    client("SET", "full", 1)
    choose(server, "En")
    client(*command)
    assert events(listener) == [(b"new", key)]
    client("SET", "a", 2)
    assert events(listener) == [], "it is there now"


def test_new_comes_before_what_made_the_key(
    client: Client, server: Server, listener: Client
) -> None:
    choose(server, "EAn")
    client("MSET", "a", 1, "b", 2)
    assert events(listener) == [(b"new", b"a"), (b"set", b"a"), (b"new", b"b"), (b"set", b"b")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("RENAME", "key", "a"), "new a, rename_from key, rename_to a"),
        (("RENAME", "key", "other"), "new other, rename_from key, rename_to other"),
        (("RENAMENX", "key", "a"), "new a, rename_from key, rename_to a"),
        (("MOVE", "key", 1), "new key, move_from key, move_to key"),
        (("COPY", "key", "other", "REPLACE"), "new other, copy_to other"),
        (("SET", "a", 1, "PXAT", 1), "new a, set a, expire a, expired a"),
        (("SWAPDB", 0, 1), ""),
    ],
    ids=str,
)
def test_a_key_that_takes_a_place_is_new_before_anything_else_happens(
    command: Command, expected: str, client: Client, server: Server, listener: Client
) -> None:
    client("MSET", "key", 1, "other", 2)
    choose(server, "EAn")
    client(*command)
    assert (
        ", ".join(f"{event.decode()} {key.decode()}" for event, key in events(listener)) == expected
    )


def test_a_dead_key_that_is_written_is_new(
    client: Client, server: Server, listener: Client, clock: ManualClock
) -> None:
    choose(server, "En")
    client("SET", "a", 1, "PX", 1)
    clock.advance(0.001)
    client("SET", "a", 1)
    assert events(listener) == [(b"new", b"a"), (b"new", b"a")]


def test_new_keys_are_told_inside_transactions_too(
    client: Client, server: Server, listener: Client
) -> None:
    choose(server, "En")
    client("MULTI")
    client("SET", "a", 1)
    client("SET", "a", 2)
    client("EXEC")
    assert events(listener) == [(b"new", b"a")]


@pytest.mark.parametrize(
    "command",
    [("GET", "a"), ("EXISTS", "a"), ("STRLEN", "a"), ("MGET", "a"), ("TYPE", "a"), ("GETDEL", "a"),
     ("TTL", "a"), ("PTTL", "a"), ("EXPIRETIME", "a"), ("PEXPIRETIME", "a"), ("COPY", "a", "b")],
    ids=str,
)  # fmt: skip
def test_a_read_that_finds_nothing_is_a_miss(
    command: Command, client: Client, server: Server, listener: Client
) -> None:
    choose(server, "Em")
    client(*command)
    assert events(listener) == [(b"keymiss", b"a")]
    client("SET", "a", 1)
    client(*command)
    assert events(listener) == []


@pytest.mark.parametrize(
    "command", [("SET", "a", 1), ("SET", "a", 1, "NX"), ("INCR", "a"), ("DEL", "a")], ids=str
)
def test_a_write_misses_nothing(
    command: Command, client: Client, server: Server, listener: Client
) -> None:
    choose(server, "Em")
    client(*command)
    assert events(listener) == []


# --- expired --------------------------------------------------------------------------------------


def test_a_dead_key_is_told_by_the_sweeper(
    client: Client, server: Server, listener: Client, clock: ManualClock
) -> None:
    choose(server, "Ex")
    client("SET", "later", 1, "PX", 20)
    client("SET", "a", 1, "PX", 10)
    client("SELECT", 3)
    client("SET", "b", 1, "PX", 5)
    clock.advance(0.010)
    assert listener.pushed == []
    server.store.purge_expired()
    assert [message[2:] for message in listener.pushed] == [
        [b"__keyevent@3__:expired", b"b"],
        [b"__keyevent@0__:expired", b"a"],
    ]


def test_a_family_that_is_no_database_is_not_told(
    server: Server, listener: Client, clock: ManualClock
) -> None:
    choose(server, "Ex")
    server.store.family("sessions").put("a", "1", ttl=1)
    clock.advance(1)
    server.store.purge_expired()
    assert listener.pushed == []


def test_what_no_longer_chooses_deaths_is_not_told_of_them(
    client: Client, server: Server, listener: Client, clock: ManualClock
) -> None:
    choose(server, "Ex")
    choose(server, "Eg")
    client("SET", "a", 1)
    client("PEXPIRE", "a", 1)
    listener.pushed.clear()
    clock.advance(0.001)
    server.store.purge_expired()
    assert listener.pushed == []


def test_deaths_are_handed_over_once_for_all_that_wait(
    client: Client, server: Server, listener: Client, clock: ManualClock
) -> None:
    """A thread of the store tells of them; the server's own publishes them."""
    handed: list[Callable[[], object]] = []
    server.hand_over = handed.append
    choose(server, "Ex")
    for name in "abc":
        client("SET", name, 1, "PX", 1)
    clock.advance(0.001)
    thread = threading.Thread(target=server.store.purge_expired)
    thread.start()
    thread.join()
    assert (len(handed), listener.pushed) == (1, [])
    handed.pop()()
    assert sorted(events(listener)) == [(b"expired", b"a"), (b"expired", b"b"), (b"expired", b"c")]
    client("SET", "d", 1, "PX", 1)
    clock.advance(0.001)
    server.store.purge_expired()
    assert len(handed) == 1, "the next one wakes the server again"


# --- when it is published -------------------------------------------------------------------------


def test_events_and_messages_of_a_transaction_keep_their_order(
    client: Client, server: Server, listener: Client
) -> None:
    choose(server, "EA")
    listener("SUBSCRIBE", "news")
    client("MULTI")
    client("SET", "a", 1)
    client("PUBLISH", "news", "between")
    client("DEL", "a")
    client("EXEC")
    assert [message[-1] for message in listener.pushed] == [b"a", b"between", b"a"]


def test_ones_own_events_follow_the_reply(client: Client, server: Server) -> None:
    choose(server, "E$")
    client("HELLO", 3)
    client("SUBSCRIBE", "__keyevent@0__:set")
    event = b">3\r\n$7\r\nmessage\r\n$18\r\n__keyevent@0__:set\r\n$1\r\na\r\n"
    assert (
        client.session.feed(wire("SET", "a", 1) + wire("PING")) == b"+OK\r\n" + event + b"+PONG\r\n"
    )
