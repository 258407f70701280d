"""CONFIG GET, SET, RESETSTAT and REWRITE."""

from __future__ import annotations

from pathlib import Path

import pytest

import ephemera
from ephemera.server.server import Server
from tests.server.clients import Client


def test_get_finds_settings_by_patterns(client: Client) -> None:
    assert client("CONFIG", "GET", "timeout") == [b"timeout", b"0"]
    assert client("CONFIG", "GET", "SLOWLOG-*", "timeout", "time*") == [
        b"timeout", b"0", b"slowlog-log-slower-than", b"10000", b"slowlog-max-len", b"128",
    ]  # fmt: skip
    assert client("CONFIG", "GET", "nosuch") == []


def test_get_is_a_map_in_resp3(client: Client) -> None:
    client("HELLO", 3)
    assert client("CONFIG", "GET", "m[a-z]xmemory") == {b"maxmemory": b"0"}


@pytest.mark.parametrize(
    "name",
    ["maxmemory", "maxmemory-policy", "save", "appendonly", "appendfsync", "maxclients", "timeout",
     "requirepass", "notify-keyspace-events", "proto-max-bulk-len", "client-query-buffer-limit",
     "client-output-buffer-limit", "slowlog-log-slower-than", "slowlog-max-len", "databases", "hz",
     "lua-time-limit", "busy-reply-threshold", "port", "bind", "hash-max-listpack-entries", "dir",
     "dbfilename", "appenddirname", "appendfilename", "logfile", "pidfile", "aclfile"],
)  # fmt: skip
def test_what_clients_and_tools_read_is_there(client: Client, name: str) -> None:
    assert client("CONFIG", "GET", name)[0] == name.encode()


def test_dir_and_the_names_in_it_lead_to_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ephemera.open("s.eph") as store:
        client = Client(Server(store))
        client("SET", "key", "1")
        assert client("SAVE") == b"OK"
        client("BGREWRITEAOF")
        client.session.server.saving.wait()
        client("HELLO", 3)
        found = client("CONFIG", "GET", "dir", "dbfilename", "append*name")
    told = {name: value.decode() for name, value in found.items()}
    assert Path(told[b"dir"]) == tmp_path / "s.eph" / "exports"
    assert Path(told[b"dir"], told[b"dbfilename"]).is_file()
    assert Path(told[b"dir"], told[b"appenddirname"], told[b"appendfilename"]).is_file()


def test_a_store_in_memory_has_no_directory(client: Client) -> None:
    assert client("CONFIG", "GET", "dir") == [b"dir", b""]


@pytest.mark.parametrize("name", ["dir", "dbfilename", "appenddirname", "appendfilename"])
def test_no_client_says_where_files_go(client: Client, name: str) -> None:
    refused = client.error("CONFIG", "SET", name, "elsewhere")
    assert refused.startswith(f"ERR CONFIG SET failed (possibly related to argument '{name}') - ")


def test_set_changes_all_or_nothing(client: Client) -> None:
    assert client("CONFIG", "SET", "timeout", 60, "maxclients", 100) == b"OK"
    assert client("CONFIG", "GET", "timeout", "maxclients") == [b"maxclients", b"100", b"timeout", b"60"]  # fmt: skip
    assert client.error("CONFIG", "SET", "timeout", 5, "maxclients", 0) == (
        "ERR CONFIG SET failed (possibly related to argument 'maxclients') - "
        "argument must be between 1 and 4294967295 inclusive"
    )
    assert client("CONFIG", "GET", "timeout") == [b"timeout", b"60"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("CONFIG SET nosuch 1", "ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
        ("CONFIG SET timeout", "ERR wrong number of arguments for 'config|set' command"),
        ("CONFIG SET timeout 1 hz", "ERR wrong number of arguments for 'config|set' command"),
        ("CONFIG GET", "ERR wrong number of arguments for 'config|get' command"),
        ("CONFIG RESETSTAT x", "ERR wrong number of arguments for 'config|resetstat' command"),
        ("CONFIG REWRITE", "ERR The server is running without a config file"),
        ("CONFIG FOO", "ERR unknown subcommand 'FOO'. Try CONFIG HELP."),
    ],
)  # fmt: skip
def test_config_refuses_in_the_words_of_redis(client: Client, command: str, error: str) -> None:
    assert client.error(*command.split()) == error


def test_a_new_password_holds_for_those_who_come_after(server: Server, client: Client) -> None:
    client("CONFIG", "SET", "requirepass", b"\xffsecret")
    assert client("CONFIG", "GET", "requirepass") == [b"requirepass", b"\xffsecret"]
    stranger = Client(server)
    assert stranger.error("PING") == "NOAUTH Authentication required."
    assert stranger("AUTH", b"\xffsecret") == b"OK"


def test_a_new_limit_holds_for_those_who_are_there(client: Client) -> None:
    client("CONFIG", "SET", "proto-max-bulk-len", "1mb")
    assert (
        client.session.feed(b"*1\r\n$1048577\r\n")
        == b"-ERR Protocol error: invalid bulk length\r\n"
    )


def test_notifications_follow_their_setting(server: Server, client: Client) -> None:
    listener = Client(server)
    listener("SUBSCRIBE", "__keyevent@0__:set")
    client("SET", "key", "1")
    client("CONFIG", "SET", "notify-keyspace-events", "KEA")
    client("SET", "key", "2")
    client("CONFIG", "SET", "notify-keyspace-events", "")
    client("SET", "key", "3")
    assert listener.pushed == [[b"message", b"__keyevent@0__:set", b"key"]]


def test_resetstat_sets_counters_back(server: Server, client: Client) -> None:
    client("GET", "key")
    client("NOSUCH")
    assert client("CONFIG", "RESETSTAT") == b"OK"
    stats = client("INFO", "stats").decode()
    for field in ("keyspace_misses:0", "total_error_replies:0", "total_connections_received:0"):
        assert field in stats
    assert "cmdstat_get" not in client("INFO", "commandstats").decode()
