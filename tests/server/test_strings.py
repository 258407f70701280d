"""Commands on values: every option, every refusal, and what they do to deadlines."""

from __future__ import annotations

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.server.server import Server
from tests.server.clients import Argument, Client

SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"


# --- SET ------------------------------------------------------------------------------------------


def test_set_stores_and_drops_the_deadline(client: Client) -> None:
    assert client("SET", "k", "1", "EX", 10) == b"OK"
    assert client("PTTL", "k") == 10_000
    assert client("SET", "k", "2") == b"OK"
    assert client("GET", "k") == b"2"
    assert client("PTTL", "k") == -1


@pytest.mark.parametrize(("option", "time"), [("EX", 2), ("px", 2000), ("EXAT", 3), ("PXAT", 3000)])
def test_set_with_a_lifetime_ends_in_time(option: str, time: int) -> None:
    early = ManualClock(1000)
    with ephemera.open("memory://", clock=early, maintenance="manual") as store:
        client = Client(Server(store))
        assert client("SET", "k", "v", option, time) == b"OK"
        assert client("PTTL", "k") == 2000
        early.advance(1.999)
        assert client("GET", "k") == b"v"
        early.advance(0.001)
        assert client("GET", "k") is None


def test_set_until_an_instant_that_has_passed_leaves_no_key(client: Client) -> None:
    client("SET", "k", "v")
    assert client("SET", "k", "w", "PXAT", 1) == b"OK"
    assert client("EXISTS", "k") == 0


def test_set_on_conditions(client: Client) -> None:
    assert client("SET", "k", "1", "XX") is None
    assert client("SET", "k", "1", "NX") == b"OK"
    assert client("SET", "k", "2", "NX") is None
    assert client("SET", "k", "2", "XX") == b"OK"
    assert client("SET", "k", "3", "IFEQ", "other") is None
    assert client("SET", "k", "3", "IFEQ", "2") == b"OK"
    assert client("GET", "k") == b"3"


def test_set_get_answers_with_the_value_before(client: Client) -> None:
    assert client("SET", "k", "1", "GET") is None
    assert client("SET", "k", "2", "GET") == b"1"
    assert client("SET", "k", "3", "NX", "GET") == b"2"
    assert client("GET", "k") == b"2"


def test_set_keepttl_keeps_the_deadline(client: Client, clock: ManualClock) -> None:
    client("SET", "k", "1", "PX", 1234)
    clock.advance(0.2)
    assert client("SET", "k", "2", "KEEPTTL") == b"OK"
    assert client("PTTL", "k") == 1034
    assert client("SET", "new", "1", "KEEPTTL") == b"OK"
    assert client("PTTL", "new") == -1


def test_the_last_of_two_equal_lifetimes_counts(client: Client) -> None:
    assert client("SET", "k", "v", "EX", 10, "EX", 20) == b"OK"
    assert client("TTL", "k") == 20


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["EX"], SYNTAX),
        (["EX", 1, "PX", 1], SYNTAX),
        (["EX", 1, "KEEPTTL"], SYNTAX),
        (["KEEPTTL", "EX", 1], SYNTAX),
        (["NX", "XX"], SYNTAX),
        (["IFEQ"], SYNTAX),
        (["NX", "IFEQ", "1"], SYNTAX),
        (["FOO"], SYNTAX),
        (["EX", 0, "FOO"], SYNTAX),
        (["EX", "x"], NOT_AN_INTEGER),
        (["EX", 0], "ERR invalid expire time in 'set' command"),
        (["PX", -1], "ERR invalid expire time in 'set' command"),
        (["PXAT", DEADLINE_MS_MAX + 1], "ERR invalid expire time in 'set' command"),
        (["EX", 2**63 - 1], "ERR invalid expire time in 'set' command"),
    ],
)
def test_set_refuses_what_it_cannot_take(
    options: list[Argument], error: str, client: Client
) -> None:
    assert client.error("SET", "k", "v", *options) == error
    assert client("EXISTS", "k") == 0


# --- the older ways to store ----------------------------------------------------------------------


def test_setnx_stores_only_what_is_not_there(client: Client, clock: ManualClock) -> None:
    assert client("SETNX", "k", "1") == 1
    assert client("SETNX", "k", "2") == 0
    client("PEXPIRE", "k", 100)
    clock.advance(0.1)
    assert client("SETNX", "k", "3") == 1
    assert client("PTTL", "k") == -1


@pytest.mark.parametrize(("name", "time"), [("SETEX", 3), ("PSETEX", 3000)])
def test_setex_and_psetex_store_for_a_while(
    name: str, time: int, client: Client, clock: ManualClock
) -> None:
    assert client(name, "k", time, "v") == b"OK"
    assert client("PTTL", "k") == 3000
    clock.advance(3)
    assert client("GET", "k") is None
    assert client.error(name, "k", 0, "v") == f"ERR invalid expire time in '{name.lower()}' command"
    assert client.error(name, "k", "x", "v") == NOT_AN_INTEGER


def test_mset_stores_all_and_the_last_of_a_key_counts(client: Client) -> None:
    client("SET", "a", "0", "EX", 10)
    assert client("MSET", "a", "1", "b", "2", "a", "3") == b"OK"
    assert client("MGET", "a", "b", "absent", "a") == [b"3", b"2", None, b"3"]
    assert client("TTL", "a") == -1


def test_mset_with_a_key_that_cannot_be_stores_nothing(client: Client) -> None:
    assert (
        client.error("MSET", "a", "1", "", "2") == "ERR a key has 1 to 1900 bytes, this one has 0"
    )
    assert client("EXISTS", "a") == 0


def test_msetnx_stores_all_or_none(client: Client, clock: ManualClock) -> None:
    client("SET", "b", "0", "PX", 100)
    assert client("MSETNX", "a", "1", "b", "2") == 0
    assert client("EXISTS", "a") == 0
    clock.advance(0.1)
    assert client("MSETNX", "a", "1", "b", "2") == 1
    assert client("MGET", "a", "b") == [b"1", b"2"]


@pytest.mark.parametrize("name", ["mset", "msetnx"])
def test_a_key_without_a_value_is_refused(name: str, client: Client) -> None:
    error = f"ERR wrong number of arguments for '{name}' command"
    assert client.error(name, "a", "1", "b") == error


# --- reading and changing in one go ---------------------------------------------------------------


def test_getset_answers_with_the_old_value_and_drops_the_deadline(client: Client) -> None:
    assert client("GETSET", "k", "1") is None
    client("EXPIRE", "k", 10)
    assert client("GETSET", "k", "2") == b"1"
    assert client("TTL", "k") == -1


def test_getdel_takes_the_key_away(client: Client) -> None:
    assert client("GETDEL", "k") is None
    client("SET", "k", "v")
    assert client("GETDEL", "k") == b"v"
    assert client("EXISTS", "k") == 0


def test_getex_gives_a_new_lifetime(client: Client, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    client("SET", "k", "v")
    assert client("GETEX", "k") == b"v"
    assert client("PTTL", "k") == -1
    assert client("GETEX", "k", "EX", 10) == b"v"
    assert client("PTTL", "k") == 10_000
    assert client("GETEX", "k", "PX", 1234) == b"v"
    assert client("PTTL", "k") == 1234
    assert client("GETEX", "k", "EXAT", now_ms // 1000 + 7) == b"v"
    assert client("EXPIRETIME", "k") == now_ms // 1000 + 7
    assert client("GETEX", "k", "PXAT", now_ms + 77) == b"v"
    assert client("PEXPIRETIME", "k") == now_ms + 77
    assert client("GETEX", "k", "PERSIST") == b"v"
    assert client("PTTL", "k") == -1


def test_getex_until_an_instant_that_has_passed_deletes(client: Client) -> None:
    client("SET", "k", "v")
    assert client("GETEX", "k", "PXAT", 1) == b"v"
    assert client("EXISTS", "k") == 0


def test_getex_looks_at_the_options_then_the_key_then_the_time(client: Client) -> None:
    assert client("GETEX", "absent", "EX", 0) is None
    assert client.error("GETEX", "absent", "FOO") == SYNTAX
    client("SET", "k", "v")
    assert client.error("GETEX", "k", "EX", 0) == "ERR invalid expire time in 'getex' command"
    for options in (["EX"], ["EX", 1, "PERSIST"], ["PERSIST", "PX", 1], ["EX", 1, "PX", 1]):
        assert client.error("GETEX", "k", *options) == SYNTAX


# --- parts of a value -----------------------------------------------------------------------------


def test_append_adds_and_keeps_the_deadline(client: Client, clock: ManualClock) -> None:
    assert client("APPEND", "k", "ab") == 2
    client("PEXPIRE", "k", 1234)
    clock.advance(0.001)
    assert client("APPEND", "k", "c") == 3
    assert client("GET", "k") == b"abc"
    assert client("PTTL", "k") == 1233
    assert client("STRLEN", "k") == 3
    assert client("STRLEN", "absent") == 0


def test_append_to_a_dead_key_begins_anew(client: Client, clock: ManualClock) -> None:
    client("SET", "k", "old", "PX", 1)
    clock.advance(0.001)
    assert client("APPEND", "k", "new") == 3
    assert client("PTTL", "k") == -1


def test_setrange_writes_over_pads_and_keeps_the_deadline(client: Client) -> None:
    client("SET", "k", "Hello World", "PX", 5001)
    assert client("SETRANGE", "k", 6, "Redis!") == 12
    assert client("GET", "k") == b"Hello Redis!"
    assert client("SETRANGE", "k", 1, "a") == 12
    assert client("PTTL", "k") == 5001
    assert client("SETRANGE", "new", 3, "x") == 4
    assert client("GET", "new") == b"\0\0\0x"


def test_setrange_with_nothing_changes_nothing(client: Client) -> None:
    assert client("SETRANGE", "k", 5, "") == 0
    assert client("EXISTS", "k") == 0
    client("SET", "k", "ab")
    assert client("SETRANGE", "k", 5, "") == 2
    assert client("GET", "k") == b"ab"


def test_values_do_not_outgrow_the_limit(client: Client, server: Server) -> None:
    server.settings.proto_max_bulk_len = 4
    too_large = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
    client("SET", "k", "abc")
    assert client.error("APPEND", "k", "de") == too_large
    assert client.error("SETRANGE", "k", 3, "de") == too_large
    assert client("APPEND", "k", "d") == 4
    assert client.error("SETRANGE", "k", -1, "x") == "ERR offset is out of range"
    assert client.error("SETRANGE", "k", "x", "x") == NOT_AN_INTEGER


@pytest.mark.parametrize("name", ["GETRANGE", "SUBSTR"])
@pytest.mark.parametrize(
    ("start", "end", "part"),
    [
        (0, 3, b"This"),
        (-3, -1, b"ing"),
        (0, -1, b"This is a string"),
        (10, 100, b"string"),
        (5, 4, b""),
        (99, 100, b""),
        (-1, -5, b""),
        (0, -100, b"T"),
        (-100, 1, b"Th"),
        (-100, -200, b""),
    ],
)
def test_getrange_counts_both_ends_and_from_behind(
    name: str, start: int, end: int, part: bytes, client: Client
) -> None:
    client("SET", "k", "This is a string")
    assert client(name, "k", start, end) == part
    assert client(name, "absent", start, end) == b""
    assert client.error(name, "k", start, "x") == NOT_AN_INTEGER


# --- counters -------------------------------------------------------------------------------------


def test_counters_count_and_keep_the_deadline(client: Client, clock: ManualClock) -> None:
    assert client("INCR", "k") == 1
    client("PEXPIRE", "k", 1001)
    assert client("INCRBY", "k", 41) == 42
    assert client("DECR", "k") == 41
    assert client("DECRBY", "k", 1) == 40
    assert client("INCRBYFLOAT", "k", "0.5") == b"40.5"
    assert client("PTTL", "k") == 1001
    clock.advance(1.001)
    assert client("INCR", "k") == 1
    assert client("PTTL", "k") == -1


@pytest.mark.parametrize(
    ("old", "step", "total"),
    [
        ("10.50", "0.1", b"10.6"),
        ("10.6", "-5", b"5.6"),
        ("5.0e3", "2.0e2", b"5200"),
        ("3", "0.1", b"3.1"),
        ("0", "1e-17", b"0.00000000000000001"),
        ("0", "-1e-18", b"0"),
        ("99999999999999999999", "1", b"100000000000000000000"),
        ("1", "1.1", b"2.1"),
    ],
)
def test_incrbyfloat_writes_numbers_as_redis_does(
    old: str, step: str, total: bytes, client: Client
) -> None:
    client("SET", "k", old)
    assert client("INCRBYFLOAT", "k", step) == total
    assert client("GET", "k") == total


@pytest.mark.parametrize("text", ["abc", "", "nan", " 1", "1 ", "1e5000", "1e-5000", "1_0", "."])
def test_incrbyfloat_refuses_what_is_no_number(text: str, client: Client) -> None:
    client("SET", "k", "1")
    assert client.error("INCRBYFLOAT", "k", text) == "ERR value is not a valid float"
    client("SET", "bad", text or "x")
    assert client.error("INCRBYFLOAT", "bad", "1") == "ERR value is not a valid float"


def test_incrbyfloat_stays_finite(client: Client) -> None:
    error = "ERR increment would produce NaN or Infinity"
    assert client.error("INCRBYFLOAT", "k", "inf") == error
    client("SET", "k", "1e4932")
    assert client.error("INCRBYFLOAT", "k", "1e4932") == error
    assert client("GET", "k") == b"1e4932"
    assert len(client("INCRBYFLOAT", "k", "0")) == 4933


@pytest.mark.parametrize("value", ["abc", "01", "1.5", " 1", "9223372036854775808"])
def test_a_counter_is_a_whole_number(value: str, client: Client) -> None:
    client("SET", "k", value)
    assert client.error("INCR", "k") == NOT_AN_INTEGER
    assert client.error("INCRBY", "n", value) == NOT_AN_INTEGER


def test_counters_do_not_overflow(client: Client) -> None:
    overflow = "ERR increment or decrement would overflow"
    client("SET", "k", 2**63 - 1)
    assert client.error("INCR", "k") == overflow
    client("SET", "k", -(2**63))
    assert client.error("DECR", "k") == overflow
    assert client.error("DECRBY", "k", -(2**63)) == "ERR decrement would overflow"


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["GET"], ["MGET"], ["SET", "k"], ["SETNX", "k"], ["SETEX", "k", "1"], ["PSETEX", "k", "1"],
        ["MSET", "k"], ["MSETNX", "k"], ["GETSET", "k"], ["GETDEL"], ["GETEX"], ["STRLEN"],
        ["APPEND", "k"], ["SETRANGE", "k", "0"], ["GETRANGE", "k", "0"], ["SUBSTR", "k", "0"],
        ["INCR"], ["DECR"], ["INCRBY", "k"], ["DECRBY", "k"], ["INCRBYFLOAT", "k"],
    ],
)  # fmt: skip
def test_too_few_arguments_are_refused(args: list[str], client: Client) -> None:
    error = f"ERR wrong number of arguments for '{args[0].lower()}' command"
    assert client.error(*args) == error


@pytest.mark.parametrize(("key", "size"), [("", 0), ("x" * 1901, 1901)])
@pytest.mark.parametrize(
    "args", [["GET"], ["STRLEN"], ["GETDEL"], ["INCR"], ["SET", "v"], ["APPEND", "v"], ["EXISTS"]]
)
def test_a_key_that_cannot_be_gets_one_clear_error(
    key: str, size: int, args: list[str], client: Client
) -> None:
    name, *rest = args
    assert client.error(name, key, *rest) == f"ERR a key has 1 to 1900 bytes, this one has {size}"


def test_what_listeners_are_told(client: Client, server: Server) -> None:
    told: list[bytes] = []
    server.listeners.append(lambda _, key, event: told.append(event.name))
    expected: list[tuple[list[Argument], list[bytes]]] = [
        (["SETEX", "k", 9, "1"], [b"set", b"expire"]),
        (["INCRBYFLOAT", "k", "1"], [b"incrbyfloat"]),
        (["APPEND", "k", "x"], [b"append"]),
        (["SETRANGE", "k", 0, "y"], [b"setrange"]),
        (["GETEX", "k", "EX", 5], [b"expire"]),
        (["GETEX", "k", "PERSIST"], [b"persist"]),
        (["GETEX", "k", "PERSIST"], []),
        (["GETSET", "k", "z"], [b"set"]),
        (["MSET", "k", "1", "l", "2"], [b"set", b"set"]),
        (["GETEX", "l", "PXAT", 1], [b"del"]),
        (["GETDEL", "k"], [b"del"]),
        (["GETDEL", "k"], []),
    ]
    for args, names in expected:
        told.clear()
        client(*args)
        assert [name for name in told if name != b"keymiss"] == names, args
