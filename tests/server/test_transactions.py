"""MULTI and EXEC as one transaction of the store, and what WATCH counts as a change."""

from __future__ import annotations

import shutil
from pathlib import Path

import hiredis
import pytest

import ephemera
from ephemera import ManualClock
from ephemera.server.events import Event
from ephemera.server.server import Server
from ephemera.server.settings import Settings
from tests.server.clients import Argument, Client, wire

ABORTED = "EXECABORT Transaction discarded because of previous errors."


@pytest.fixture
def other(server: Server) -> Client:
    """A second client of the same server."""
    return Client(server)


def run(client: Client, *commands: tuple[Argument, ...]) -> object:
    """What EXEC answers for these commands."""
    client("MULTI")
    for command in commands:
        assert client(*command) == b"QUEUED"
    return client("EXEC")


# --- MULTI, EXEC, DISCARD -------------------------------------------------------------------------


def test_exec_answers_every_command_in_turn(client: Client) -> None:
    replies = run(client, ("SET", "n", 1), ("INCR", "n"), ("GET", "absent"), ("MGET", "n", "x"))
    assert replies == [b"OK", 2, None, [b"2", None]]


def test_exec_of_nothing_answers_nothing(client: Client) -> None:
    assert run(client) == []


def test_what_is_queued_is_not_done_before_exec(client: Client, other: Client) -> None:
    client("MULTI")
    client("SET", "a", 1)
    assert other("GET", "a") is None
    client("EXEC")
    assert other("GET", "a") == b"1"


def test_a_command_that_fails_leaves_the_others(client: Client) -> None:
    replies = run(client, ("SET", "a", "x"), ("INCR", "a"), ("SET", "b", "y"))
    assert isinstance(replies, list)
    assert replies[0::2] == [b"OK", b"OK"]
    assert str(replies[1]) == "ERR value is not an integer or out of range"
    assert client("MGET", "a", "b") == [b"x", b"y"]


def test_a_session_goes_on_as_before_after_exec(client: Client, other: Client) -> None:
    run(client, ("SET", "a", 1))
    assert client("SET", "a", 2) == b"OK"
    assert other("GET", "a") == b"2"


def test_multi_is_not_nested_and_goes_on(client: Client) -> None:
    client("MULTI")
    assert client.error("MULTI") == "ERR MULTI calls can not be nested"
    client("SET", "a", 1)
    assert client("EXEC") == [b"OK"]


@pytest.mark.parametrize("name", ["EXEC", "DISCARD"])
def test_an_end_without_a_beginning_is_refused(name: str, client: Client) -> None:
    assert client.error(name) == f"ERR {name} without MULTI"


@pytest.mark.parametrize("name", ["MULTI", "EXEC", "DISCARD", "UNWATCH"])
def test_these_take_no_arguments(name: str, client: Client) -> None:
    prefix = "EXECABORT Transaction discarded because of:" if name == "EXEC" else "ERR"
    refused = f"{prefix} wrong number of arguments for '{name.lower()}' command"
    assert client.error(name, "x") == refused


@pytest.mark.parametrize("wrong", [("NOPE",), ("GET",), ("GET", "a", "b"), ("CLIENT", "NOPE")])
def test_a_command_that_cannot_be_queued_spoils_exec(
    wrong: tuple[str, ...], client: Client
) -> None:
    client("MULTI")
    client("SET", "a", 1)
    client.error(*wrong)
    assert client("SET", "b", 1) == b"QUEUED"
    assert client.error("EXEC") == ABORTED
    assert client("MGET", "a", "b") == [None, None]
    assert run(client, ("PING",)) == [b"PONG"]


def test_an_exec_that_is_wrong_itself_ends_the_transaction(client: Client) -> None:
    client("MULTI")
    assert client.error("EXEC", "now") == (
        "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"
    )
    assert client.error("EXEC") == "ERR EXEC without MULTI"


def test_discard_forgets_commands_and_errors(client: Client) -> None:
    client("MULTI")
    client("SET", "a", 1)
    client.error("NOPE")
    assert client("DISCARD") == b"OK"
    assert client("GET", "a") is None
    assert run(client, ("PING",)) == [b"PONG"]


def test_reset_ends_a_transaction(client: Client) -> None:
    client("MULTI")
    assert client("RESET") == b"RESET"
    assert client.error("EXEC") == "ERR EXEC without MULTI"


def test_select_inside_holds_inside_and_after(client: Client) -> None:
    replies = run(client, ("SELECT", 3), ("SET", "a", 1), ("SELECT", 4), ("GET", "a"))
    assert replies == [b"OK", b"OK", b"OK", None]
    client("SELECT", 3)
    assert client("GET", "a") == b"1"


def test_the_current_database_is_the_one_that_exec_works_in(client: Client, other: Client) -> None:
    client("SELECT", 2)
    run(client, ("SET", "a", 1))
    assert client("GET", "a") == b"1"
    assert other("GET", "a") is None


def test_deadlines_inside_are_those_of_the_one_instant(client: Client, clock: ManualClock) -> None:
    assert run(client, ("SET", "a", 1, "PX", 10), ("PTTL", "a"), ("PERSIST", "a")) == [b"OK", 10, 1]
    run(client, ("SET", "b", 1, "PX", 10))
    clock.advance(0.010)
    assert client("MGET", "a", "b") == [b"1", None]


def test_subscribing_inside_is_answered_inside(client: Client) -> None:
    replies = run(client, ("SUBSCRIBE", "news"), ("GET", "a"))
    assert replies == [[b"subscribe", b"news", 1], None]
    assert "only (P|S)SUBSCRIBE" in client.error("GET", "a")


def test_commands_inside_are_counted(client: Client, server: Server) -> None:
    run(client, ("GET", "a"), ("GET", "a"), ("SET", "a", 1))
    calls = {name: server.commands.all[name].calls for name in ("get", "set", "exec")}
    assert calls == {"get": 2, "set": 1, "exec": 1}


# --- all or nothing -------------------------------------------------------------------------------


def test_nobody_is_told_before_all_of_it_is_there(client: Client, server: Server) -> None:
    seen: list[tuple[bytes | None, int]] = []

    def look(number: int, key: bytes | None, event: Event) -> None:
        seen.append((key, server.store.count()))

    server.listeners.append(look)
    run(client, ("SET", "a", 1), ("SET", "b", 1))
    assert seen == [(b"a", 2), (b"b", 2)]


def test_a_transaction_that_cannot_be_committed_leaves_nothing(
    client: Client, server: Server, other: Client
) -> None:
    """The script inside is ended, and takes with it what was written before it."""
    server.settings.busy_reply_threshold = 1
    other("SUBSCRIBE", "news")
    client("MULTI")
    client("SET", "a", 1)
    client("PUBLISH", "news", "too early")
    client("EVAL", "while true do end", 0)
    client("SET", "b", 1)
    client("EXEC")
    killer = Client(server)
    assert killer("SCRIPT", "KILL") == b"OK"
    assert "killed by user" in str(client.go_on())
    assert client("MGET", "a", "b") == [None, None]
    assert other.pushed == []


def test_a_transaction_is_one_batch_of_the_log(tmp_path: Path) -> None:
    """A crash that lost the end of it leaves nothing of it."""
    options = {"maintenance": "manual", "durability": "none", "segment_bytes": 1 << 20}
    with ephemera.open(tmp_path / "running.eph", **options) as store:
        client = Client(Server(store))
        client("SET", "before", 1)
        run(client, ("SET", "first", "x" * 100), ("SET", "second", "y" * 100))
        shutil.copytree(tmp_path / "running.eph", tmp_path / "crashed.eph")
    segment = tmp_path / "crashed.eph" / "segments" / "00000001.seg"
    segment.write_bytes(segment.read_bytes().replace(b"y" * 100, bytes(100)))
    with ephemera.open(tmp_path / "crashed.eph", **options) as store:
        assert store.get_many(["before", "first", "second"]) == {b"before": b"1"}


# --- WATCH ----------------------------------------------------------------------------------------

CHANGES: list[tuple[Argument, ...]] = [
    ("SET", "key", 1),
    ("SET", "key", 1, "KEEPTTL"),
    ("APPEND", "key", "x"),
    ("INCR", "key"),
    ("DEL", "key"),
    ("UNLINK", "key"),
    ("EXPIRE", "key", 100),
    ("EXPIRE", "key", -1),
    ("RENAME", "key", "elsewhere"),
    ("MOVE", "key", 1),
    ("COPY", "full", "key", "REPLACE"),
    ("MSET", "x", 1, "key", 2),
    ("GETDEL", "key"),
    ("FLUSHDB",),
    ("FLUSHALL",),
    ("SWAPDB", 0, 1),
    ("EVAL", "redis.call('set', KEYS[1], 2)", 1, "key"),
]
NO_CHANGES: list[tuple[Argument, ...]] = [
    ("GET", "key"),
    ("TTL", "key"),
    ("PERSIST", "key"),
    ("SET", "key", 1, "NX"),
    ("DEL", "absent"),
    ("EXPIRE", "absent", 1),
    ("SET", "other", 1),
    ("EVAL", "return redis.call('get', KEYS[1])", 1, "key"),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_of_a_watched_key_lets_exec_do_nothing(
    change: tuple[Argument, ...], client: Client, other: Client
) -> None:
    client("MSET", "key", 1, "full", 2)
    client("WATCH", "absent", "key")
    other(*change)
    assert run(client, ("SET", "done", 1)) is None
    assert client("GET", "done") is None
    assert run(client, ("SET", "done", 1)) == [b"OK"], "a second try is not spoilt any more"


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_by_the_watching_client_itself_counts(
    change: tuple[Argument, ...], client: Client
) -> None:
    client("MSET", "key", 1, "full", 2)
    client("WATCH", "key")
    client(*change)
    assert run(client, ("PING",)) is None


@pytest.mark.parametrize("command", NO_CHANGES, ids=str)
def test_what_changes_nothing_spoils_nothing(
    command: tuple[Argument, ...], client: Client, other: Client
) -> None:
    client("SET", "key", 1)
    client("WATCH", "key", "absent")
    other(*command)
    assert run(client, ("PING",)) == [b"PONG"]


def test_a_watched_key_that_comes_into_being_has_changed(client: Client, other: Client) -> None:
    client("WATCH", "key")
    other("SET", "key", 1)
    assert run(client, ("PING",)) is None


@pytest.mark.parametrize("flush", ["FLUSHDB", "FLUSHALL"])
def test_a_flush_changes_no_key_that_was_not_there(
    flush: str, client: Client, other: Client
) -> None:
    client("SET", "full", 1)
    client("WATCH", "absent")
    other(flush)
    assert run(client, ("PING",)) == [b"PONG"]


def test_a_swap_that_brings_a_watched_key_changes_it(client: Client, other: Client) -> None:
    other("SELECT", 1)
    other("SET", "key", 1)
    client("WATCH", "key")
    other("SWAPDB", 0, 1)
    assert run(client, ("PING",)) is None


def test_a_key_is_watched_in_its_database_alone(client: Client, other: Client) -> None:
    client("SELECT", 1)
    client("WATCH", "key")
    other("SET", "key", 1)
    client("SELECT", 0)
    assert run(client, ("PING",)) == [b"PONG"]
    client("SELECT", 1)
    client("WATCH", "key")
    client("SELECT", 0)
    other("SELECT", 1)
    other("SET", "key", 1)
    assert run(client, ("PING",)) is None


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_watched_key_that_dies_has_changed(
    is_swept: bool, client: Client, server: Server, clock: ManualClock
) -> None:
    client("SET", "key", 1, "PX", 10)
    client("WATCH", "key")
    clock.advance(0.010)
    if is_swept:
        server.store.purge_expired()
    assert run(client, ("PING",)) is None


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_key_that_was_dead_at_watch_has_not_changed(
    is_swept: bool, client: Client, server: Server, clock: ManualClock
) -> None:
    server.settings.notify_keyspace_events = "KEA"
    server.review()
    client("SET", "key", 1, "PX", 10)
    clock.advance(0.010)
    client("WATCH", "key")
    if is_swept:
        server.store.purge_expired()
    assert run(client, ("PING",)) == [b"PONG"]


def test_a_watched_key_that_does_not_live_to_exec_but_dies_inside_is_no_change(
    client: Client, clock: ManualClock
) -> None:
    client("SET", "key", 1, "PX", 10)
    client("WATCH", "key")
    clock.advance(0.009)
    assert run(client, ("PTTL", "key")) == [1]


@pytest.mark.parametrize("end", [("UNWATCH",), ("RESET",)])
def test_what_ends_watching(end: tuple[str], client: Client, other: Client) -> None:
    client("WATCH", "key")
    other("SET", "key", 1)
    client(*end)
    assert run(client, ("PING",)) == [b"PONG"]


@pytest.mark.parametrize("end", ["EXEC", "DISCARD"])
def test_the_end_of_a_transaction_ends_watching(end: str, client: Client, other: Client) -> None:
    client("WATCH", "key")
    client("MULTI")
    client(end)
    other("SET", "key", 1)
    assert run(client, ("PING",)) == [b"PONG"]


def test_unwatch_inside_comes_too_late(client: Client, other: Client) -> None:
    client("WATCH", "key")
    other("SET", "key", 1)
    assert run(client, ("UNWATCH",)) is None


def test_watch_inside_is_refused_and_spoils_nothing(client: Client) -> None:
    client("MULTI")
    assert client.error("WATCH", "key") == "ERR WATCH inside MULTI is not allowed"
    client("SET", "key", 1)
    assert client("EXEC") == [b"OK"]


def test_watch_needs_a_key(client: Client) -> None:
    assert client.error("WATCH") == "ERR wrong number of arguments for 'watch' command"


def test_a_queueing_error_counts_before_a_changed_key(client: Client, other: Client) -> None:
    client("WATCH", "key")
    other("SET", "key", 1)
    client("MULTI")
    client.error("NOPE")
    assert client.error("EXEC") == ABORTED


def test_who_is_gone_watches_nothing(client: Client, other: Client, server: Server) -> None:
    client("WATCH", "a", "b")
    other("WATCH", "b")
    assert len(server.listeners) == 1
    client.session.close()
    other("UNWATCH")
    assert server.listeners == []


def test_nothing_is_null_in_either_protocol(client: Client, server: Server) -> None:
    for protocol, null in ((2, b"*-1\r\n"), (3, b"_\r\n")):
        client("HELLO", protocol)
        client("WATCH", "key")
        Client(server)("SET", "key", protocol)
        client("MULTI")
        assert client.session.feed(wire("EXEC")) == null


def test_a_password_is_asked_for_first() -> None:
    with ephemera.open("memory://") as store:
        client = Client(Server(store, Settings(requirepass=b"secret")))
        assert isinstance(client("MULTI"), hiredis.ReplyError)
        assert client.error("EXEC") == (
            "EXECABORT Transaction discarded because of: NOAUTH Authentication required."
        )
