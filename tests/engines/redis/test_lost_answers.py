"""Answers that get lost on the way: what is done again, what is not, and what the caller is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import ephemera
from ephemera import EngineUnavailable, ManualClock
from tests.engines.redis.conftest import Opener
from tests.engines.redis.proxy import Proxy
from tests.waiting import wait_until
from tests.wire.servers import Process


@pytest.fixture
def proxy(server: Process) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, opener: Opener) -> ephemera.Store:
    """Through a network on which answers get lost, its script already known to the server."""
    store = opener(f"redis://127.0.0.1:{proxy.port}?retry_for=5", clock=ManualClock())
    store.incr("warm")
    store.delete("warm")
    return store


def test_a_read_is_asked_again(store: ephemera.Store, proxy: Proxy) -> None:
    store.put("key", "1", ttl=60)
    reads: list[Callable[[], object]] = [
        lambda: store.get("key"),
        lambda: store.ttl("key"),
        lambda: store.get_many(["key", "absent"]),
    ]
    for read in reads:
        proxy.lose_answers(2, to=b"GET")
        assert read() in (b"1", 60.0, {b"key": b"1"})
        assert proxy.answers_left_to_lose == 0


def test_a_put_is_done_again(store: ephemera.Store, proxy: Proxy) -> None:
    proxy.lose_answers(2, to=b"SET")
    store.put("key", "1", ttl=60)
    assert proxy.answers_left_to_lose == 0
    proxy.lose_answers(2, to=b"MULTI")
    store.put_many({"a": "2", "b": "3"})
    assert proxy.answers_left_to_lose == 0
    assert dict(store.scan()) == {b"key": b"1", b"a": b"2", b"b": b"3"}
    assert store.ttl("key") == 60.0


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("incr", b"2"),
        ("compare_and_set", b"9"),
        ("pop", None),
        ("delete", None),
        ("delete_many", None),
        ("transaction", b"7"),
    ],
)
def test_a_change_is_done_once_and_the_caller_told_that_nobody_knows(
    store: ephemera.Store, proxy: Proxy, name: str, after: bytes | None
) -> None:
    changes: dict[str, Callable[[], object]] = {
        "incr": lambda: store.incr("key"),
        "compare_and_set": lambda: store.compare_and_set("key", "1", "9"),
        "pop": lambda: store.pop("key"),
        "delete": lambda: store.delete("key"),
        "delete_many": lambda: store.delete_many(["key"]),
        "transaction": lambda: _write_in_transaction(store),
    }
    store.put("key", "1")
    proxy.lose_answers(1, to=b"EVALSHA")
    with pytest.raises(EngineUnavailable, match="may have happened"):
        changes[name]()
    assert proxy.answers_left_to_lose == 0
    wait_until(lambda: store.get("key") == after, what="the server has done it")
    store.put("key", "the writer lock is free")


def _write_in_transaction(store: ephemera.Store) -> None:
    with store.transaction() as transaction:
        transaction.put("key", str(int(transaction["key"]) + 6))


def test_a_change_whose_read_got_lost_is_made(store: ephemera.Store, proxy: Proxy) -> None:
    store.put("key", "1")
    proxy.lose_answers(2, to=b"GET")
    assert store.incr("key") == 2
    assert store.get("key") == b"2"


def test_answers_that_never_come_are_given_up_in_time(proxy: Proxy, opener: Opener) -> None:
    store = opener(f"redis://127.0.0.1:{proxy.port}?retry_for=0.3")
    proxy.lose_answers(10**9, to=b"SET")
    with pytest.raises(EngineUnavailable, match=r"within 0\.3 s"):
        store.put("key", "1")
    proxy.lose_answers(0, to=b"")
    # One of the attempts may still be on its way, and would take the next value's place.
    proxy.wait_carried_out()
    store.put("key", "2")
    assert store.get("key") == b"2"
