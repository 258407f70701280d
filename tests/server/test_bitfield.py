"""BITFIELD, held against a model that spells a value out as a string of bits."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera import ManualClock
from ephemera.core.arguments import VALUE_BYTES_MAX
from ephemera.server.commands.bitfield import Field, fit, read, write
from ephemera.server.server import Server
from tests.server.clients import Client

INVALID_TYPE = (
    "ERR Invalid bitfield type. Use something like i16 u8. "
    "Note that u64 is not supported but i64 is."
)
BAD_OFFSET = "ERR bit offset is not an integer or out of range"
SYNTAX = "ERR syntax error"

fields = st.builds(
    Field, offset=st.integers(0, 70), width=st.integers(1, 63), is_signed=st.booleans()
)


def bitfield(client: Client, operations: str, *, name: str = "BITFIELD") -> object:
    return client(name, "k", *operations.split())


def bits_of(value: bytes | bytearray) -> str:
    return "".join(f"{byte:08b}" for byte in value)


def test_a_field_beyond_the_largest_value_is_refused_before_anything_is_allocated(
    client: Client,
) -> None:
    last_bit = 8 * VALUE_BYTES_MAX - 1
    assert bitfield(client, f"GET u8 {last_bit}") == [0]
    tracemalloc.start()
    try:
        refused = client.error("BITFIELD", "k", "SET", "u8", last_bit, 1)
        assert (
            refused
            == f"ERR a value has at most {VALUE_BYTES_MAX} bytes, this one would have 536870913"
        )
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert client("EXISTS", "k") == 0


# --- fields of a value ----------------------------------------------------------------------------


@given(value=st.binary(max_size=20), field=fields)
def test_a_field_is_read_as_its_bits_spell_it(value: bytes, field: Field) -> None:
    bits = bits_of(value).ljust(200, "0")[field.offset :][: field.width]
    number = int(bits, 2)
    if field.is_signed and bits[0] == "1":
        number -= 2**field.width
    assert read(value, field) == number


@given(value=st.binary(min_size=17, max_size=20), field=fields, number=st.integers())
def test_a_write_changes_the_bits_of_its_field_alone(
    value: bytes, field: Field, number: int
) -> None:
    changed = bytearray(value)
    write(changed, field, number)
    end = field.offset + field.width
    assert read(changed, field) == fit(number, field, b"wrap")
    assert len(changed) == len(value)
    assert bits_of(changed)[: field.offset] == bits_of(value)[: field.offset]
    assert bits_of(changed)[end:] == bits_of(value)[end:]


@given(field=fields, number=st.integers(-(2**64), 2**64))
def test_a_number_that_does_not_fit_wraps_saturates_or_fails(field: Field, number: int) -> None:
    fits = field.low <= number <= field.high
    nearest = min(max(number, field.low), field.high)
    wrapped = fit(number, field, b"wrap")
    assert wrapped is not None
    assert field.low <= wrapped <= field.high
    assert (wrapped - number) % 2**field.width == 0
    assert fit(number, field, b"sat") == nearest
    assert fit(number, field, b"fail") == (number if fits else None)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("i1", -1, 0),
        ("u1", 0, 1),
        ("i8", -128, 127),
        ("u63", 0, 2**63 - 1),
        ("i64", -(2**63), 2**63 - 1),
    ],
)
def test_a_type_reaches_from_its_lowest_to_its_highest_number(
    kind: str, low: int, high: int, client: Client
) -> None:
    bitfield(client, f"SET {kind} 3 {high}")
    up, down = f"INCRBY {kind} 3 1", f"INCRBY {kind} 3 -1"
    assert bitfield(client, f"OVERFLOW FAIL {up} OVERFLOW WRAP {up}") == [None, low]
    assert bitfield(client, f"OVERFLOW SAT {down} OVERFLOW WRAP {down}") == [low, high]


# --- the command ----------------------------------------------------------------------------------


def test_operations_see_each_others_writes(client: Client) -> None:
    operations = "SET u8 0 255 GET i4 0 INCRBY u4 4 -1 GET u8 #0"
    assert bitfield(client, operations) == [0, -1, 14, 254]
    assert client("GET", "k") == b"\xfe"


def test_an_offset_with_a_hash_counts_fields(client: Client) -> None:
    assert bitfield(client, f"SET u12 #2 {0xABC}") == [0]
    assert client("GET", "k") == b"\0\0\0\xab\xc0"
    assert bitfield(client, "GET u12 24 GET u4 #7") == [0xABC, 0xB]


def test_overflow_applies_to_the_operations_that_follow_it(client: Client) -> None:
    over = "INCRBY u8 0 300"
    operations = f"{over} OVERFLOW SAT {over} OVERFLOW fail {over} {over}"
    assert bitfield(client, operations) == [44, 255, None, None]


def test_set_takes_numbers_far_below_a_field_for_large_ones_as_redis_does(client: Client) -> None:
    for kind, number, stored in [
        ("u8", -1, 255),
        ("i8", -129, -128),
        ("i8", -(2**63) + 128, -128),
        ("i8", -(2**63) + 127, 127),
        ("i63", -(2**62) - 1, 2**62 - 1),
    ]:
        bitfield(client, f"OVERFLOW SAT SET {kind} 0 {number}")
        assert bitfield(client, f"GET {kind} 0") == [stored]


def test_a_write_lengthens_the_value_even_where_it_fails(client: Client) -> None:
    assert bitfield(client, "GET u8 1000 SET u8 9 0") == [0, 0]
    assert client("GET", "k") == bytes(3)
    assert bitfield(client, "OVERFLOW FAIL SET u8 24 256") == [None]
    assert client("GET", "k") == bytes(4)


def test_reads_alone_write_nothing(client: Client, server: Server) -> None:
    changes = server.changes
    for name in ("BITFIELD", "BITFIELD_RO"):
        assert bitfield(client, "GET u8 0 GET i64 #9", name=name) == [0, 0]
        assert client(name, "k") == []
    assert client("EXISTS", "k") == 0
    assert server.changes == changes


def test_a_call_is_one_event_and_none_where_nothing_changed(client: Client, server: Server) -> None:
    events: list[bytes] = []
    server.listeners.append(lambda _, key, event: events.append(event.name))
    for operations, count in [
        ("SET u8 0 0", 1),
        ("SET u8 0 0 INCRBY u8 0 256", 0),
        ("SET u8 0 1 SET u8 0 0", 1),
        ("OVERFLOW FAIL SET u8 0 256", 0),
        ("GET u8 0", 0),
    ]:
        events.clear()
        bitfield(client, operations)
        assert events == [b"setbit"] * count


def test_bitfield_keeps_the_deadline(client: Client, clock: ManualClock) -> None:
    client("SET", "k", "a", "PX", 1234)
    bitfield(client, "SET u8 100 1")
    assert client("PTTL", "k") == 1234
    clock.advance(1.234)
    assert bitfield(client, "GET u8 0 SET u8 0 7") == [0, 0]
    assert client("GET", "k") == b"\x07"
    assert client("PTTL", "k") == -1


def test_bitfield_ro_refuses_to_write(client: Client) -> None:
    error = "ERR BITFIELD_RO only supports the GET subcommand"
    assert client.error("BITFIELD_RO", "k", "GET", "u8", 0, "SET", "u8", 0, 1) == error
    assert client.error("BITFIELD_RO", "k", "INCRBY", "u8", 0, 1) == error
    assert client("BITFIELD_RO", "k", "OVERFLOW", "SAT", "GET", "u8", 0) == [0]


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ("BOGUS", SYNTAX),
        ("GET u8", SYNTAX),
        ("SET u8 0", SYNTAX),
        ("OVERFLOW", SYNTAX),
        ("SET u8 0 1 BOGUS", SYNTAX),
        ("OVERFLOW BOGUS", "ERR Invalid OVERFLOW type specified"),
        ("GET u64 0", INVALID_TYPE),
        ("GET i65 0", INVALID_TYPE),
        ("GET i0 0", INVALID_TYPE),
        ("GET I8 0", INVALID_TYPE),
        ("GET u 0", INVALID_TYPE),
        ("GET u08 x", INVALID_TYPE),
        ("GET u8 -1", BAD_OFFSET),
        ("GET u8 #-1", BAD_OFFSET),
        ("GET u8 #", BAD_OFFSET),
        ("GET u8 4294967296", BAD_OFFSET),
        ("GET u8 #536870912", BAD_OFFSET),
        ("GET u8 #4611686018427387904", BAD_OFFSET),
        ("SET u8 0 x", "ERR value is not an integer or out of range"),
        ("SET u8 0 9223372036854775808", "ERR value is not an integer or out of range"),
        ("GET u99 0 BOGUS", INVALID_TYPE),
    ],
)
def test_a_call_that_is_refused_writes_nothing(operations: str, error: str, client: Client) -> None:
    assert client.error("BITFIELD", "k", "SET", "u8", 0, 1, *operations.split()) == error
    assert client("EXISTS", "k") == 0


@pytest.mark.parametrize("name", ["BITFIELD", "BITFIELD_RO"])
def test_a_call_without_a_key_is_refused(name: str, client: Client) -> None:
    error = f"ERR wrong number of arguments for '{name.lower()}' command"
    assert client.error(name) == error


def test_a_field_in_a_large_value_takes_no_time(client: Client) -> None:
    bitfield(client, f"SET u8 {8 * 2**24} 7")
    assert client("STRLEN", "k") == 2**24 + 1
    bitfield(client, f"INCRBY u63 {8 * 2**24 - 55} 1 " * 1000)
    assert bitfield(client, f"GET u16 {8 * 2**24 - 8}") == [1007]
