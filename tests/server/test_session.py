"""A session: order, errors, passwords, limits, and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera.resp.replies import Push
from ephemera.server.server import Server
from ephemera.server.session import OUTPUT_BYTES_PAUSE, Session
from ephemera.server.settings import Settings
from tests.server.clients import Client, wire

PIPELINE = wire("SET", "a", "1") + wire("INCR", "a") + b"GET a\r\n" + wire("nope", "x")
REPLIES = b"+OK\r\n:2\r\n$1\r\n2\r\n-ERR unknown command 'nope', with args beginning with: 'x' \r\n"


@pytest.fixture
def guarded(clock: ephemera.ManualClock) -> Iterator[Server]:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        yield Server(store, Settings(requirepass=b"secret"))


@pytest.fixture
def local(clock: ephemera.ManualClock, tmp_path: Path) -> Iterator[Client]:
    """Of a store whose commonest commands are answered in place."""
    with ephemera.open(tmp_path / "s.eph", clock=clock, maintenance="manual") as store:
        yield Client(Server(store))


@pytest.mark.parametrize("at", range(len(PIPELINE) + 1))
def test_replies_do_not_depend_on_how_the_bytes_arrive(server: Server, at: int) -> None:
    session = Session(server)
    assert session.feed(PIPELINE[:at]) + session.feed(PIPELINE[at:]) == REPLIES


@pytest.mark.parametrize("name", ["get", "GET", "GeT"])
def test_a_command_is_found_in_any_case(client: Client, name: str) -> None:
    client("SET", "a", "1")
    assert client(name, "a") == b"1"


@pytest.mark.parametrize("name", [b"\0GET", b"\0\0\0\0\0GET", b"GET\0", b"G\0ET"])
def test_a_name_with_zero_bytes_is_another_name(local: Client, name: bytes) -> None:
    assert local("SET", "a", "1") == b"OK"
    assert local("GET", "a") == b"1"
    assert local.error(name, "a").startswith("ERR unknown command")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["nope"], "ERR unknown command 'nope', with args beginning with: "),
        (["a\r\nb", "c"], "ERR unknown command 'a  b', with args beginning with: 'c' "),
        (
            ["x" * 200, "y" * 200, "z"],
            f"ERR unknown command '{'x' * 128}', with args beginning with: '{'y' * 128}' ",
        ),
        (["get"], "ERR wrong number of arguments for 'get' command"),
        (["GET", "a", "b"], "ERR wrong number of arguments for 'get' command"),
        (["set", "a"], "ERR wrong number of arguments for 'set' command"),
        (["client"], "ERR wrong number of arguments for 'client' command"),
        (["client", "nope"], "ERR unknown subcommand 'nope'. Try CLIENT HELP."),
        (["CLIENT", "ID", "x"], "ERR wrong number of arguments for 'client|id' command"),
    ],
)
def test_what_cannot_be_called_is_refused(client: Client, args: list[str], error: str) -> None:
    assert client.error(*args) == error
    assert client("PING") == b"PONG"


def test_what_the_store_refuses_is_an_error_and_changes_nothing(client: Client) -> None:
    assert client.error("SET", "", "x") == "ERR a key has 1 to 1900 bytes, this one has 0"
    assert client("DBSIZE") == 0


def test_a_handler_that_fails_costs_nobody_the_connection(
    client: Client, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    server.commands.by_name[b"ECHO"].handler = fail
    assert client.error("ECHO", "x") == "ERR internal error; the server's log has more"
    assert "echo failed" in caplog.text
    assert client("PING") == b"PONG"


def test_a_protocol_error_is_told_after_the_replies_before_it(server: Server) -> None:
    session = Session(server)
    out = session.feed(wire("PING") + b"*x\r\n" + wire("PING"))
    assert out == b"+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"
    assert session.is_closing


def test_quit_ends_a_pipeline(server: Server) -> None:
    session = Session(server)
    assert session.feed(wire("QUIT") + wire("PING")) == b"+OK\r\n"
    assert session.is_closing


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"Host: x\r\n"])
def test_a_browser_is_not_spoken_to(server: Server, line: bytes) -> None:
    session = Session(server)
    assert session.feed(line) == b""
    assert session.is_closing


def test_a_request_larger_than_the_query_buffer_closes_without_a_word(server: Server) -> None:
    server.settings.client_query_buffer_limit = 100
    session = Session(server)
    assert session.feed(b"*2\r\n$4\r\nECHO\r\n$1000\r\n" + b"x" * 200) == b""
    assert session.is_closing


def test_large_replies_wait_for_their_reader(client: Client, server: Server) -> None:
    client("SET", "large", b"x" * OUTPUT_BYTES_PAUSE)
    session = Session(server)
    first = session.feed(wire("GET", "large") * 2 + wire("GET", "large") + wire("PING"))
    assert OUTPUT_BYTES_PAUSE < len(first) < 3 * OUTPUT_BYTES_PAUSE
    assert session.has_waiting
    assert session.feed(wire("ECHO", "later")) == b""
    rest = first
    while session.has_waiting:
        rest += session.go_on()
    assert rest.count(b"x") == 3 * OUTPUT_BYTES_PAUSE
    assert rest.endswith(b"+PONG\r\n$5\r\nlater\r\n")


def test_small_replies_wait_for_their_reader_too(client: Client, server: Server) -> None:
    client("SET", "small", b"x" * 100)
    session = Session(server)
    replies, times = session.feed(wire("GET", "small") * 50_000), 0
    while session.has_waiting:
        part = session.go_on()
        assert 0 < len(part) < 2 * OUTPUT_BYTES_PAUSE
        replies, times = replies + part, times + 1
    assert times >= 5
    assert replies == (b"$100\r\n" + b"x" * 100 + b"\r\n") * 50_000


def test_a_push_keeps_its_place_among_the_replies(client: Client, server: Server) -> None:
    server.listeners.append(lambda *_: client.session.push(Push([b"changed"])))
    out = client.session.feed(wire("SET", "a", "1") + wire("PING"))
    assert out == b"*1\r\n$7\r\nchanged\r\n+OK\r\n+PONG\r\n"
    Client(server)("SET", "a", "2")
    assert client.pushed == [[b"changed"]]


# --- passwords ------------------------------------------------------------------------------------


def test_without_the_password_nothing_is_answered_but_auth(guarded: Server) -> None:
    client = Client(guarded)
    assert client.error("GET", "a") == "NOAUTH Authentication required."
    assert client.error("PING") == "NOAUTH Authentication required."
    assert client.error("HELLO", 3).startswith("NOAUTH HELLO must be called")
    assert client.error("AUTH", "wrong").startswith("WRONGPASS invalid username-password pair")
    assert client.error("AUTH", "other", "secret").startswith("WRONGPASS")
    assert client("AUTH", "secret") == b"OK"
    assert client("GET", "a") is None
    assert client("RESET") == b"RESET"
    assert client.error("GET", "a") == "NOAUTH Authentication required."


def test_hello_may_carry_the_password_and_a_name(guarded: Server) -> None:
    client = Client(guarded)
    reply = client("HELLO", 3, "AUTH", "default", "secret", "SETNAME", "me")
    assert reply[b"proto"] == 3
    assert client("CLIENT", "GETNAME") == b"me"


def test_a_stranger_cannot_make_the_server_hold_much(guarded: Server) -> None:
    session = Session(guarded)
    assert session.feed(b"*11\r\n").startswith(b"-ERR Protocol error: unauthenticated multibulk")
    session = Session(guarded)
    assert session.feed(b"*1\r\n$20000\r\n").startswith(
        b"-ERR Protocol error: unauthenticated bulk"
    )


def test_auth_where_no_password_is_set(client: Client) -> None:
    assert client.error("AUTH", "x").startswith("ERR AUTH <password> called without any password")
    assert client("AUTH", "default", "x") == b"OK"


# --- what sessions share --------------------------------------------------------------------------


def test_databases_are_apart(client: Client, server: Server) -> None:
    client("SET", "a", "0")
    assert client("SELECT", 1) == b"OK"
    assert client("GET", "a") is None
    client("SET", "a", "1")
    assert Client(server)("GET", "a") == b"0"
    assert server.store.get("a") == b"0"
    assert server.store.family("db1").get("a") == b"1"


def test_reset_takes_effect_within_a_pipeline(client: Client) -> None:
    client("SET", "a", "0")
    client("SELECT", 1)
    out = client.session.feed(wire("RESET") + wire("GET", "a"))
    assert out == b"+RESET\r\n$1\r\n0\r\n"


def test_a_renamed_command_has_only_its_new_name(clock: ephemera.ManualClock) -> None:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        renamed = {"flushall": "", "get": "fetch"}
        client = Client(Server(store, Settings(renamed=renamed)))
        assert client.error("FLUSHALL").startswith("ERR unknown command 'FLUSHALL'")
        assert client.error("GET", "a").startswith("ERR unknown command 'GET'")
        assert client("FETCH", "a") is None


def test_calls_failures_and_slow_commands_are_counted(client: Client, server: Server) -> None:
    server.settings.slowlog_log_slower_than = 0
    server.review()
    client("SET", "a", "x")
    client.error("INCR", "a")
    client.error("INCR")
    counted = server.commands.all["incr"]
    assert (counted.calls, counted.failed, counted.rejected) == (1, 1, 1)
    assert [slow.args for slow in server.slowlog.entries] == [[b"INCR", b"a"], [b"SET", b"a", b"x"]]


def test_a_client_that_leaves_is_forgotten(client: Client, server: Server) -> None:
    assert client.session.id in server.clients
    client.session.close()
    assert client.session.id not in server.clients
