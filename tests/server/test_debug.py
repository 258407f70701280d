"""DEBUG, where it is allowed."""

from __future__ import annotations

import pytest

from ephemera.resp.encoder import encode
from ephemera.server.commands.debug import SAMPLES
from ephemera.server.server import Server
from tests.server.clients import Client, wire


@pytest.fixture
def client(server: Server) -> Client:
    server.settings.enable_debug_command = "yes"
    return Client(server)


def test_debug_is_off_unless_enabled(server: Server) -> None:
    assert Client(server).error("DEBUG", "SLEEP", 0).startswith("ERR DEBUG command not allowed.")


def test_a_debug_that_is_off_is_rejected_and_counts_as_no_call(server: Server) -> None:
    client = Client(server)
    client("MULTI")
    client.error("DEBUG", "SLEEP", 0)
    assert client.error("EXEC").startswith("EXECABORT")
    client.error("DEBUG", "SLEEP", 0)
    debug = server.commands.all["debug"]
    assert (debug.calls, debug.failed, debug.rejected) == (0, 0, 2)
    assert client("LATENCY", "HISTOGRAM", "debug") == []


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [("127.0.0.1:5", True), ("[::1]:5", True), ("(unix):0", True), ("10.0.0.1:5", False)],
)
def test_local_allows_this_machine_alone(server: Server, address: str, is_allowed: bool) -> None:
    server.settings.enable_debug_command = "local"
    client = Client(server)
    client.session.address = address
    assert (client("DEBUG", "SLEEP", 0) == b"OK") == is_allowed


@pytest.mark.parametrize(
    "command",
    ["SLEEP 0", "SLEEP x", "SET-ACTIVE-EXPIRE 0", "RELOAD", "RELOAD NOSAVE NOFLUSH", "LOADAOF",
     "LOG hello", "QUICKLIST-PACKED-THRESHOLD 100b", "SET-DISABLE-DENY-SCRIPTS 1"],
)  # fmt: skip
def test_what_test_suites_call_is_agreed_to(client: Client, command: str) -> None:
    assert client("DEBUG", *command.split()) == b"OK"


def test_reload_keeps_keys_and_deadlines(client: Client) -> None:
    client("SET", "key", "1", "PX", 500)
    client("DEBUG", "RELOAD")
    assert (client("GET", "key"), client("PTTL", "key")) == (b"1", 500)


def test_object_describes_a_value(client: Client) -> None:
    client("SET", "key", "12345")
    assert b"serializedlength:5 " in client("DEBUG", "OBJECT", "key")
    assert client.error("DEBUG", "OBJECT", "nosuch") == "ERR no such key"


def test_change_repl_id_does(client: Client) -> None:
    before = client("INFO", "replication")
    client("DEBUG", "CHANGE-REPL-ID")
    assert client("INFO", "replication") != before


def test_error_answers_the_error_given(client: Client) -> None:
    assert client.error("DEBUG", "ERROR", "LOADING please wait") == "LOADING please wait"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", SAMPLES)
def test_protocol_answers_a_reply_of_each_kind(client: Client, kind: bytes, protocol: int) -> None:
    client("HELLO", protocol)
    reply = client.session.feed(wire("DEBUG", "PROTOCOL", kind))
    assert reply == encode(SAMPLES[kind], protocol)


def test_protocol_pushes(client: Client) -> None:
    client("HELLO", 3)
    assert client("DEBUG", "PROTOCOL", "push") == [b"server-cpu-usage", 42]
    assert client("DEBUG", "PROTOCOL", "attrib") == b"Some real reply following the push reply"


@pytest.mark.parametrize("command", ["NOSUCH", "SLEEP", "SLEEP 1 2", "OBJECT"])
def test_debug_refuses_what_it_does_not_know(client: Client, command: str) -> None:
    name = command.split()[0]
    assert client.error("DEBUG", *command.split()) == (
        f"ERR unknown subcommand or wrong number of arguments for '{name}'. Try DEBUG HELP."
    )


def test_protocol_refuses_an_unknown_kind(client: Client) -> None:
    assert client.error("DEBUG", "PROTOCOL", "x").startswith("ERR Wrong protocol type name.")


def test_help_names_the_subcommands(client: Client) -> None:
    assert b"SLEEP" in client("DEBUG", "HELP")
