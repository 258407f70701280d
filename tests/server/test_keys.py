"""Single keys: deleting, naming, copying, moving, dumping, and what they do to deadlines."""

from __future__ import annotations

import pytest

from ephemera import ManualClock
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.formats import rdb
from ephemera.formats._codec import crc64
from ephemera.server.server import Server
from tests.server.clients import Argument, Client

SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NO_DATABASE = "ERR DB index is out of range"
SAME_OBJECT = "ERR source and destination objects are the same"


# --- there or not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DEL", "UNLINK"])
def test_del_counts_what_was_there(name: str, client: Client, clock: ManualClock) -> None:
    client("MSET", "a", 1, "b", 1, "d", 1)
    assert client(name, "a") == 1
    assert client(name, "a") == 0
    client("PEXPIRE", "d", 1)
    clock.advance(0.001)
    assert client(name, "b", "b", "c", "d") == 1


@pytest.mark.parametrize("name", ["EXISTS", "TOUCH"])
def test_exists_counts_each_mention(name: str, client: Client, clock: ManualClock) -> None:
    client("SET", "a", 1, "PX", 1)
    assert client(name, "a", "a", "b") == 2
    clock.advance(0.001)
    assert client(name, "a", "a", "b") == 0


def test_type_is_string_or_none(client: Client, clock: ManualClock) -> None:
    client("SET", "a", 1, "PX", 1)
    assert client("TYPE", "a") == b"string"
    clock.advance(0.001)
    assert client("TYPE", "a") == b"none"


# --- RENAME ---------------------------------------------------------------------------------------


def test_rename_takes_value_and_deadline_along(client: Client, clock: ManualClock) -> None:
    client("SET", "a", "1", "PX", 12_345)
    client("SET", "b", "2", "EX", 1)
    clock.advance(0.001)
    assert client("RENAME", "a", "b") == b"OK"
    assert client("MGET", "a", "b") == [None, b"1"]
    assert client("PTTL", "b") == 12_344


def test_rename_of_a_permanent_key_leaves_no_old_deadline(client: Client) -> None:
    client("SET", "a", "1")
    client("SET", "b", "2", "EX", 1)
    client("RENAME", "a", "b")
    assert client("TTL", "b") == -1


def test_renamenx_spares_what_is_there(client: Client, clock: ManualClock) -> None:
    client("SET", "a", "1")
    client("SET", "b", "2", "PX", 1)
    assert client("RENAMENX", "a", "b") == 0
    assert client("MGET", "a", "b") == [b"1", b"2"]
    clock.advance(0.001)
    assert client("RENAMENX", "a", "b") == 1
    assert client("MGET", "a", "b") == [None, b"1"]


def test_rename_to_itself_changes_nothing(client: Client) -> None:
    client("SET", "a", "1", "PX", 100)
    assert client("RENAME", "a", "a") == b"OK"
    assert client("RENAMENX", "a", "a") == 0
    assert client("PTTL", "a") == 100


@pytest.mark.parametrize("name", ["RENAME", "RENAMENX"])
def test_rename_needs_a_key_and_a_name_that_can_be(name: str, client: Client) -> None:
    assert client.error(name, "a", "a") == "ERR no such key"
    client("SET", "a", "1")
    assert client.error(name, "a", "") == "ERR a key has 1 to 1900 bytes, this one has 0"
    assert client("GET", "a") == b"1"


def test_inside_a_transaction_all_of_it_is_one(client: Client) -> None:
    client("SET", "a", "1", "PX", 12_345)
    client("MULTI")
    for args in (
        ["RENAME", "a", "b"],
        ["RENAME", "a", "c"],
        ["MOVE", "b", "1"],
        ["SWAPDB", "0", "1"],
    ):
        assert client(*args) == b"QUEUED"
    assert [str(reply) for reply in client("EXEC")] == [
        "b'OK'", "ERR no such key", "1", "b'OK'",
    ]  # fmt: skip
    assert client("GET", "b") == b"1"
    assert client("PTTL", "b") == 12_345


# --- COPY and MOVE --------------------------------------------------------------------------------


def test_copy_takes_value_and_deadline_along(client: Client) -> None:
    client("SET", "a", "1", "PX", 12_345)
    assert client("COPY", "a", "b") == 1
    assert client("MGET", "a", "b") == [b"1", b"1"]
    assert client("PTTL", "b") == 12_345
    assert client("COPY", "absent", "c") == 0


def test_copy_replaces_only_if_told(client: Client) -> None:
    client("SET", "a", "1")
    client("SET", "b", "2", "EX", 10)
    assert client("COPY", "a", "b") == 0
    assert client("GET", "b") == b"2"
    assert client("COPY", "a", "b", "REPLACE") == 1
    assert client("GET", "b") == b"1"
    assert client("TTL", "b") == -1


def test_copy_to_another_database(client: Client) -> None:
    client("SET", "a", "1", "PX", 12_345)
    assert client("COPY", "a", "a", "DB", 3) == 1
    client("SELECT", 3)
    assert client("GET", "a") == b"1"
    assert client("PTTL", "a") == 12_345


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["a", "a"], SAME_OBJECT),
        (["a", "a", "DB", 0, "REPLACE"], SAME_OBJECT),
        (["a", "b", "DB", 16], NO_DATABASE),
        (["a", "b", "DB", -1], NO_DATABASE),
        (["a", "b", "DB", "x"], NOT_AN_INTEGER),
        (["a", "b", "DB"], SYNTAX),
        (["a", "b", "FOO"], SYNTAX),
    ],
)
def test_copy_refuses_what_it_cannot_take(args: list[Argument], error: str, client: Client) -> None:
    client("SET", "a", "1")
    assert client.error("COPY", *args) == error
    assert client("EXISTS", "b") == 0


def test_move_takes_value_and_deadline_along(client: Client, clock: ManualClock) -> None:
    client("SET", "a", "1", "PX", 12_345)
    assert client("MOVE", "a", 3) == 1
    assert client("EXISTS", "a") == 0
    assert client("MOVE", "a", 3) == 0
    client("SET", "a", "other")
    assert client("MOVE", "a", 3) == 0
    client("SELECT", 3)
    assert client("GET", "a") == b"1"
    assert client("PTTL", "a") == 12_345
    clock.advance(12.345)
    client("SELECT", 0)
    assert client("MOVE", "a", 3) == 1


@pytest.mark.parametrize(
    ("number", "error"), [("0", SAME_OBJECT), ("16", NO_DATABASE), ("x", NOT_AN_INTEGER)]
)
def test_move_refuses_what_it_cannot_take(number: str, error: str, client: Client) -> None:
    client("SET", "a", "1")
    assert client.error("MOVE", "a", number) == error


# --- DUMP and RESTORE -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"", b"ada", b"-7", b"70000", b"x" * 100, bytes(range(256)) * 80]
)
def test_restore_takes_what_dump_gave(value: bytes, client: Client) -> None:
    client("SET", "a", value)
    assert client("RESTORE", "b", 0, client("DUMP", "a")) == b"OK"
    assert client("GET", "b") == value
    assert client("TTL", "b") == -1


def test_dump_of_a_dead_key_is_nothing(client: Client, clock: ManualClock) -> None:
    client("SET", "a", 1, "PX", 1)
    clock.advance(0.001)
    assert client("DUMP", "a") is None


def test_restore_with_a_lifetime(client: Client, clock: ManualClock) -> None:
    payload = rdb.dump(b"v")
    assert client("RESTORE", "a", 1234, payload) == b"OK"
    assert client("PTTL", "a") == 1234
    assert client("RESTORE", "b", clock.now_ms() + 77, payload, "ABSTTL") == b"OK"
    assert client("PTTL", "b") == 77
    assert client("RESTORE", "c", 0, payload, "ABSTTL", "IDLETIME", 5) == b"OK"
    assert client("TTL", "c") == -1
    assert client("RESTORE", "d", 0, payload, "FREQ", 255) == b"OK"


def test_restore_of_what_is_dead_leaves_no_key(client: Client) -> None:
    payload = rdb.dump(b"v")
    assert client("RESTORE", "a", 1, payload, "ABSTTL") == b"OK"
    assert client("EXISTS", "a") == 0
    client("SET", "a", "1")
    assert client("RESTORE", "a", 1, payload, "ABSTTL", "REPLACE") == b"OK"
    assert client("EXISTS", "a") == 0


def test_restore_replaces_only_if_told(client: Client) -> None:
    payload = rdb.dump(b"new")
    client("SET", "a", "old", "EX", 10)
    assert client.error("RESTORE", "a", 0, payload) == "BUSYKEY Target key name already exists."
    assert client("RESTORE", "a", 0, payload, "REPLACE") == b"OK"
    assert client("GET", "a") == b"new"
    assert client("TTL", "a") == -1


@pytest.mark.parametrize(
    ("ttl", "options", "error"),
    [
        (-1, [], "ERR Invalid TTL value, must be >= 0"),
        ("x", [], NOT_AN_INTEGER),
        (0, ["FOO"], SYNTAX),
        (0, ["IDLETIME"], SYNTAX),
        (0, ["IDLETIME", "x"], NOT_AN_INTEGER),
        (0, ["IDLETIME", -1], "ERR Invalid IDLETIME value, must be >= 0"),
        (0, ["FREQ", 256], "ERR Invalid FREQ value, must be >= 0 and <= 255"),
        (0, ["FREQ", 1, "IDLETIME", 1], SYNTAX),
        (0, ["IDLETIME", 1, "FREQ", 1], SYNTAX),
    ],
)
def test_restore_refuses_what_it_cannot_take(
    ttl: Argument, options: list[Argument], error: str, client: Client
) -> None:
    assert client.error("RESTORE", "a", ttl, rdb.dump(b"v"), *options) == error
    assert client("EXISTS", "a") == 0


def test_restore_refuses_damaged_payloads(client: Client) -> None:
    payload = rdb.dump(b"value")
    wrong = "ERR DUMP payload version or checksum are wrong"
    for damaged in (b"", b"abc", payload[:-1], b"\x01" + payload[1:], payload[:-1] + b"\0"):
        assert client.error("RESTORE", "a", 0, damaged) == wrong
    a_list = b"\x01\x01\x01a\x0a\x00"
    checksum = crc64(a_list).to_bytes(8, "little")
    assert client.error("RESTORE", "a", 0, a_list + checksum) == "ERR Bad data format"


def test_restore_past_the_last_deadline_is_refused(client: Client) -> None:
    reply = client.error("RESTORE", "a", DEADLINE_MS_MAX + 1, rdb.dump(b"v"), "ABSTTL")
    assert "past 9999-12-31" in reply
    assert client("EXISTS", "a") == 0


# --- OBJECT ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        ("12", b"int"),
        (2**63 - 1, b"int"),
        (-(2**63), b"int"),
        (2**63, b"embstr"),
        ("012", b"embstr"),
        ("", b"embstr"),
        ("x" * 44, b"embstr"),
        ("x" * 45, b"raw"),
    ],
)
def test_object_encoding(value: Argument, encoding: bytes, client: Client) -> None:
    client("SET", "a", value)
    assert client("OBJECT", "ENCODING", "a") == encoding


def test_what_else_object_tells(client: Client, clock: ManualClock) -> None:
    client("SET", "a", "x")
    clock.advance(7.5)
    assert client("OBJECT", "IDLETIME", "a") == 7
    assert client("OBJECT", "refcount", "a") == 1
    client("SET", "b", 9999)
    assert client("OBJECT", "REFCOUNT", "b") == 2**31 - 1
    assert "LFU maxmemory policy is not selected" in client.error("OBJECT", "FREQ", "a")
    for subcommand in ("ENCODING", "IDLETIME", "REFCOUNT", "FREQ"):
        assert client("OBJECT", subcommand, "absent") is None
    assert client("OBJECT", "HELP")[0].startswith(b"OBJECT <subcommand>")
    assert client.error("OBJECT", "FOO") == "ERR unknown subcommand 'FOO'. Try OBJECT HELP."


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["DEL"], ["UNLINK"], ["EXISTS"], ["TOUCH"], ["TYPE"], ["RENAME", "a"], ["RENAMENX", "a"],
        ["COPY", "a"], ["MOVE", "a"], ["DUMP"], ["RESTORE", "a", "0"], ["OBJECT"],
    ],
)  # fmt: skip
def test_too_few_arguments_are_refused(args: list[str], client: Client) -> None:
    error = f"ERR wrong number of arguments for '{args[0].lower()}' command"
    assert client.error(*args) == error


def test_what_listeners_are_told(client: Client, server: Server) -> None:
    told: list[tuple[int, bytes | None, bytes]] = []
    server.listeners.append(lambda number, key, event: told.append((number, key, event.name)))
    client("SET", "a", "1", "EX", 10)
    expected: list[tuple[list[Argument], list[tuple[int, bytes, bytes]]]] = [
        (["RENAME", "a", "b"], [(0, b"a", b"rename_from"), (0, b"b", b"rename_to")]),
        (["RENAME", "b", "b"], []),
        (["COPY", "b", "c"], [(0, b"c", b"copy_to")]),
        (["COPY", "b", "c", "DB", 2], [(2, b"c", b"copy_to")]),
        (["MOVE", "b", 1], [(0, b"b", b"move_from"), (1, b"b", b"move_to")]),
        (["RESTORE", "d", 99, rdb.dump(b"v")], [(0, b"d", b"restore")]),
        (["RESTORE", "d", 1, rdb.dump(b"v"), "ABSTTL", "REPLACE"], [(0, b"d", b"del")]),
        (["UNLINK", "c"], [(0, b"c", b"del")]),
    ]
    for args, events in expected:
        told.clear()
        client(*args)
        assert [change for change in told if change[2] != b"keymiss"] == events, args
