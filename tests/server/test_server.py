"""What all sessions share: changes that are told, and transactions that hold them together."""

from __future__ import annotations

import pytest

from ephemera.server.database import ABSENT, PERMANENT
from ephemera.server.events import DEL, EXPIRE, FLUSHED, INCRBY, PERSIST, SET, Event
from ephemera.server.server import Server
from tests.server.clients import Client

Change = tuple[int, bytes | None, Event]


@pytest.fixture
def told(server: Server) -> list[Change]:
    changes: list[Change] = []
    server.listeners.append(lambda *change: changes.append(change))
    return changes


def test_every_write_is_told_once(client: Client, told: list[Change]) -> None:
    client("SET", "a", 1)
    client("SET", "a", 1, "EX", 10)
    client("INCR", "a")
    client("SELECT", 3)
    client("SET", "b", 1)
    client("SET", "c", 1, "PXAT", 2**47)
    client("DEL", "b", "b", "nope")
    client("FLUSHALL")
    assert told == [
        (0, b"a", SET), (0, b"a", SET), (0, b"a", EXPIRE), (0, b"a", INCRBY),
        (3, b"b", SET), (3, b"c", SET), (3, b"c", EXPIRE), (3, b"b", DEL),
        (0, None, FLUSHED), (3, None, FLUSHED),
    ]  # fmt: skip


def test_what_changes_nothing_is_not_told(
    client: Client, server: Server, told: list[Change]
) -> None:
    for args in (["GET", "a"], ["DEL", "a"], ["SET", "a", 1, "XX"], ["FLUSHDB"], ["TTL", "a"]):
        client(*args)
    assert (told, server.changes) == ([], 0)


def test_lifetimes_of_a_database(server: Server, told: list[Change]) -> None:
    keys = server.database(0)
    now_ms = server.now_ms()
    assert (keys.ttl_ms(b"a"), keys.deadline_ms(b"a")) == (ABSENT, ABSENT)
    keys.put(b"a", b"1")
    assert (keys.ttl_ms(b"a"), keys.deadline_ms(b"a")) == (PERMANENT, PERMANENT)
    assert not keys.persist(b"a")
    assert keys.expire(b"a", now_ms + 1_234)
    assert (keys.ttl_ms(b"a"), keys.deadline_ms(b"a")) == (1_234, now_ms + 1_234)
    assert keys.persist(b"a")
    assert keys.expire(b"a", now_ms)
    assert not keys.has(b"a")
    assert not keys.expire(b"a", now_ms + 1)
    assert [event for _, _, event in told] == [SET, EXPIRE, PERSIST, DEL]


def test_a_transaction_is_told_after_its_commit(server: Server, told: list[Change]) -> None:
    with server.transaction():
        server.database(0).put(b"a", b"1")
        server.database(2).put(b"b", b"2")
        assert server.database(2).get(b"b") == b"2"
        assert told == []
        assert server.store.get(b"a") is None
    assert told == [(0, b"a", SET), (2, b"b", SET)]
    assert server.database(2).get(b"b") == b"2"


def test_a_transaction_that_fails_is_neither_kept_nor_told(
    server: Server, told: list[Change]
) -> None:
    def fail() -> None:
        with server.transaction():
            server.database(0).put(b"a", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (server.database(0).get(b"a"), told) == (None, [])
    with server.transaction():
        pass
    assert told == []


def test_a_key_that_died_after_it_was_read_is_replaced_as_a_new_one(server: Server) -> None:
    keys = server.database(0)
    keys.replace(b"a", b"what it held when it was read", b"new")
    assert (keys.get(b"a"), keys.ttl_ms(b"a")) == (b"new", PERMANENT)
