"""Ephemera's own commands: PURGE, EXPIRYLAG, DEADLINES."""

from __future__ import annotations

import pytest

from ephemera import ManualClock
from tests.server.clients import Client

START_MS = ManualClock().now_ms()


def test_purge_removes_the_dead_and_counts_them(clock: ManualClock, client: Client) -> None:
    for number in range(5):
        client("SET", f"dies:{number}", "x", "PX", 100 + number)
    client("SET", "lives", "x")
    assert client("PURGE") == 0
    clock.advance(1)
    assert client("PURGE", 2) == 2
    assert client("PURGE", 0) == 0
    assert client("PURGE") == 3
    assert client("DBSIZE") == 1


def test_the_lag_of_expiry_is_measured(clock: ManualClock, client: Client) -> None:
    client("HELLO", 3)
    assert client("EXPIRYLAG") == {
        b"last": 0, b"p50": 0, b"p99": 0, b"max": 0, b"keys": 0, b"next": None,
    }  # fmt: skip
    for number in range(100):
        client("SET", f"key:{number}", "x", "PX", 1000 - number)
    clock.advance(1)
    client("PURGE")
    lag = client("EXPIRYLAG")
    assert (lag[b"keys"], lag[b"max"], lag[b"p50"], lag[b"last"]) == (100, 99, 49, 0)
    assert lag[b"p99"] == 98


def test_the_next_deadline_is_that_of_a_key_that_is_there(client: Client) -> None:
    client("SET", "key", "x", "PX", 500)
    client("SET", "other", "x", "PX", 900)
    assert client("EXPIRYLAG")[-1] == START_MS + 500
    client("DEL", "key")
    assert client("EXPIRYLAG")[-1] == START_MS + 900
    client("PERSIST", "other")
    assert client("EXPIRYLAG")[-1] is None


def test_info_tells_the_lag_too(clock: ManualClock, client: Client) -> None:
    client("SET", "key", "x", "PX", 990)
    clock.advance(1)
    client("PURGE")
    assert "expiry_lag_max_ms:10\r\n" in client("INFO", "ephemera").decode()
    assert "expired_keys:1\r\n" in client("INFO", "stats").decode()


def test_deadlines_are_in_order(clock: ManualClock, client: Client) -> None:
    client("SET", "permanent", "x")
    for key, ttl_ms in (("c", 300), ("a", 100), ("dead", 50), ("b", 200)):
        client("SET", key, "x", "PX", ttl_ms)
    clock.advance(0.05)
    assert client("DEADLINES") == [
        [b"a", START_MS + 100],
        [b"b", START_MS + 200],
        [b"c", START_MS + 300],
    ]
    assert client("DEADLINES", "count", 1) == [[b"a", START_MS + 100]]
    assert client("DEADLINES", "COUNT", 0) == []
    client("SELECT", 1)
    assert client("DEADLINES") == []


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("PURGE 1 2", "ERR wrong number of arguments for 'purge' command"),
        ("PURGE x", "ERR value is not an integer or out of range"),
        ("PURGE -1", "ERR value is not an integer or out of range"),
        ("EXPIRYLAG x", "ERR wrong number of arguments for 'expirylag' command"),
        ("DEADLINES 5", "ERR syntax error"),
        ("DEADLINES COUNT", "ERR syntax error"),
        ("DEADLINES COUNT x", "ERR value is not an integer or out of range"),
        ("DEADLINES COUNT -1", "ERR value is not an integer or out of range"),
    ],
)
def test_bad_arguments_are_refused(client: Client, command: str, error: str) -> None:
    assert client.error(*command.split()) == error
