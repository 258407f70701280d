"""Whole databases: finding and visiting keys, counting, emptying, exchanging."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ephemera
from ephemera import ManualClock
from ephemera.server.cursors import CURSORS_MAX, Cursors
from ephemera.server.server import Server
from tests.server.clients import Argument, Client

SYNTAX = "ERR syntax error"


def scan(client: Client, *options: Argument) -> list[bytes]:
    """Every key that a whole scan returns."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, keys = client("SCAN", cursor, *options)
        found += keys
        if cursor == b"0":
            return found


# --- KEYS -----------------------------------------------------------------------------------------


def test_keys_finds_what_matches_and_lives(client: Client, clock: ManualClock) -> None:
    client("MSET", "one", 1, "two", 2, "three", 3)
    client("SET", "twelve", 12, "PX", 1)
    assert client("KEYS", "t*") == [b"three", b"twelve", b"two"]
    clock.advance(0.001)
    assert client("KEYS", "t*") == [b"three", b"two"]
    assert client("KEYS", "*") == [b"one", b"three", b"two"]
    assert client("KEYS", "[ot]??") == [b"one", b"two"]
    assert client("KEYS", "two") == [b"two"]
    assert client("KEYS", "") == []


def test_keys_with_a_backslash_means_the_character(client: Client) -> None:
    client("MSET", "a*", 1, "ab", 2, "a\\", 3)
    assert client("KEYS", "a\\*") == [b"a*"]
    assert client("KEYS", "a\\\\") == [b"a\\"]


def test_a_hostile_pattern_takes_no_time(client: Client) -> None:
    client("SET", "a" * 1900, 1)
    assert client("KEYS", "*a" * 500 + "b") == []
    assert len(client("KEYS", "a*" * 500)) == 1


# --- SCAN -----------------------------------------------------------------------------------------


def test_a_scan_returns_every_key_once(client: Client) -> None:
    keys = {f"key:{number}".encode() for number in range(250)}
    for key in keys:
        client("SET", key, 1)
    assert Counter(scan(client)) == Counter(keys)
    assert Counter(scan(client, "COUNT", 7)) == Counter(keys)
    assert Counter(scan(client, "COUNT", 2**63 - 1)) == Counter(keys)
    assert set(scan(client, "MATCH", "key:1?")) == {b"key:%d" % n for n in range(10, 20)}
    assert len(scan(client, "TYPE", "STRING")) == 250
    assert scan(client, "TYPE", "list") == []


def test_a_scan_visits_as_many_keys_as_it_is_told(client: Client) -> None:
    client("MSET", *(f"k{number}" for number in range(40)))
    cursor, keys = client("SCAN", 0, "COUNT", 5)
    assert (len(keys), cursor == b"0") == (5, False)
    cursor, keys = client("SCAN", cursor, "COUNT", 15)
    assert (len(keys), cursor) == (15, b"0")


def test_dead_keys_are_not_visited(client: Client, clock: ManualClock) -> None:
    client("MSET", "a", 1, "c", 1)
    client("SET", "b", 1, "PX", 1)
    clock.advance(0.001)
    assert scan(client, "COUNT", 1) == [b"a", b"c"]


changes = st.lists(
    st.tuples(st.sampled_from(["SET", "DEL"]), st.integers(0, 60)), min_size=1, max_size=20
)


@given(st.sets(st.integers(100, 160)), st.lists(changes, max_size=8), st.integers(1, 9))
def test_a_key_that_is_there_all_the_while_is_returned(
    lasting: set[int], rounds: list[list[tuple[str, int]]], count: int
) -> None:
    with ephemera.open("memory://", maintenance="manual") as store:
        client = Client(Server(store))
        for number in lasting:
            client("SET", f"{number % 10}:{number}", 1)
        seen: set[bytes] = set()
        cursor = b"0"
        for step in range(200):
            cursor, keys = client("SCAN", cursor, "COUNT", count)
            seen.update(keys)
            if cursor == b"0":
                break
            for name, number in rounds[step % len(rounds)] if rounds else []:
                client(name, f"{number % 10}:{number}", *([1] if name == "SET" else []))
        assert cursor == b"0"
        assert seen >= {f"{number % 10}:{number}".encode() for number in lasting}


def test_a_cursor_that_is_not_known_begins_again(client: Client) -> None:
    client("MSET", *(f"k{number}" for number in range(40)))
    first = client("SCAN", 0)[1]
    assert client("SCAN", 2**64 - 1)[1] == first


def test_a_client_that_missed_a_reply_can_ask_once_more(client: Client) -> None:
    client("MSET", *(f"k{number:02}" for number in range(60)))
    cursor = client("SCAN", 0)[0]
    assert client("SCAN", cursor)[1] == client("SCAN", cursor)[1]


def test_a_cursor_goes_on_in_another_connection(client: Client, server: Server) -> None:
    client("MSET", *(f"k{number:02}" for number in range(24)))
    cursor, first = client("SCAN", 0)
    cursor, second = Client(server)("SCAN", cursor)
    assert cursor == b"0"
    assert len(set(first + second)) == 12


def test_a_fast_scan_does_not_push_out_a_slow_one() -> None:
    cursors = Cursors()
    slow = cursors.add(b"slow", began_with=0)
    fast = 0
    for _ in range(CURSORS_MAX * 2):
        cursors.find(fast)
        fast = cursors.add(b"fast", began_with=fast)
    assert cursors.find(slow) == b"slow"
    assert len(cursors) <= 3


def test_abandoned_scans_are_forgotten_in_the_end() -> None:
    cursors = Cursors()
    first = cursors.add(b"first", began_with=0)
    for _ in range(CURSORS_MAX):
        last = cursors.add(b"last", began_with=0)
    assert len(cursors) == CURSORS_MAX
    assert cursors.find(first) == b""
    assert cursors.find(last) == b"last"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["x"], "ERR invalid cursor"),
        ([""], "ERR invalid cursor"),
        (["-1"], "ERR invalid cursor"),
        ([2**64], "ERR invalid cursor"),
        (["x", "FOO"], "ERR invalid cursor"),
        ([0, "COUNT"], SYNTAX),
        ([0, "COUNT", 0], SYNTAX),
        ([0, "COUNT", "x"], "ERR value is not an integer or out of range"),
        ([0, "FOO", 1], SYNTAX),
        ([0, "MATCH", "*", "TYPE"], SYNTAX),
    ],
)
def test_scan_refuses_what_it_cannot_take(args: list[Argument], error: str, client: Client) -> None:
    assert client.error("SCAN", *args) == error


# --- RANDOMKEY ------------------------------------------------------------------------------------


def test_any_key_may_come_and_no_other(
    client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randint", random.Random(7).randint)
    assert client("RANDOMKEY") is None
    client("SET", "dead", 1, "PX", 1)
    clock.advance(0.001)
    assert client("RANDOMKEY") is None
    keys = {b"a", b"ab", b"abc", b"b", b"user:1", b"user:10", b"user:2", b"\xff\xff", b"\x00"}
    for key in keys:
        client("SET", key, 1)
    assert {client("RANDOMKEY") for _ in range(2000)} == keys


def test_keys_that_fork_evenly_are_equally_likely(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randint", random.Random(7).randint)
    for number in range(10, 60):
        client("SET", f"user:{number}", 1)
    drawn = Counter(client("RANDOMKEY") for _ in range(5000))
    assert len(drawn) == 50
    assert all(50 < count < 150 for count in drawn.values())


def test_a_random_key_takes_few_steps_whatever_the_keys(client: Client) -> None:
    for length in range(1, 200):
        client("SET", "a" * length, 1)
    assert set(client("RANDOMKEY")) == {ord("a")}


# --- as a whole -----------------------------------------------------------------------------------


def test_dbsize_counts_the_living(client: Client, clock: ManualClock) -> None:
    client("SET", "a", 1)
    client("SET", "b", 1, "EX", 1)
    assert client("DBSIZE") == 2
    clock.advance(1)
    assert client("DBSIZE") == 1


def test_flushdb_empties_one_database_and_flushall_all(client: Client) -> None:
    client("SET", "a", 1)
    client("SELECT", 5)
    client("SET", "a", 1)
    assert client("FLUSHDB", "ASYNC") == b"OK"
    assert client("DBSIZE") == 0
    client("SELECT", 0)
    assert client("DBSIZE") == 1
    assert client("FLUSHALL") == b"OK"
    assert client("DBSIZE") == 0


@pytest.mark.parametrize("args", [["FLUSHDB", "now"], ["FLUSHALL", "ASYNC", "SYNC"]])
def test_flush_takes_one_word(client: Client, args: list[str]) -> None:
    client("SET", "a", 1)
    assert client.error(*args) == SYNTAX
    assert client("DBSIZE") == 1


def test_swapdb_exchanges_values_and_deadlines(client: Client, clock: ManualClock) -> None:
    client("SET", "a", "in 0", "PX", 12_345)
    client("SET", "b", "in 0")
    client("SELECT", 1)
    client("SET", "a", "in 1")
    client("SELECT", 0)
    clock.advance(0.001)
    assert client("SWAPDB", 0, 1) == b"OK"
    assert client("MGET", "a", "b") == [b"in 1", None]
    assert client("TTL", "a") == -1
    client("SELECT", 1)
    assert client("MGET", "a", "b") == [b"in 0", b"in 0"]
    assert client("PTTL", "a") == 12_344


def test_swapdb_tells_that_both_changed(client: Client, server: Server) -> None:
    told: list[tuple[int, bytes | None, bytes]] = []
    client("SET", "a", 1)
    server.listeners.append(lambda number, key, event: told.append((number, key, event.name)))
    client("SWAPDB", 0, 1)
    assert told == [(0, None, b"flushed"), (1, None, b"flushed")]


def test_swapdb_with_itself_changes_nothing(client: Client) -> None:
    client("SET", "a", 1, "PX", 100)
    assert client("SWAPDB", 0, 0) == b"OK"
    assert client("PTTL", "a") == 100


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["x", 1], "ERR invalid first DB index"),
        ([0, "x"], "ERR invalid second DB index"),
        ([0, 2**40], "ERR invalid second DB index"),
        ([0, 16], "ERR DB index is out of range"),
        ([-1, 0], "ERR DB index is out of range"),
    ],
)
def test_swapdb_refuses_what_is_no_database(
    args: list[Argument], error: str, client: Client
) -> None:
    assert client.error("SWAPDB", *args) == error


@pytest.mark.parametrize("args", [["KEYS"], ["SCAN"], ["RANDOMKEY", "x"], ["SWAPDB", "0"]])
def test_a_wrong_number_of_arguments_is_refused(args: list[str], client: Client) -> None:
    error = f"ERR wrong number of arguments for '{args[0].lower()}' command"
    assert client.error(*args) == error
