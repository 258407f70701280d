"""Commands on bits, held against the plain way of counting them one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_, xor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ephemera
from ephemera import ManualClock
from ephemera.server.commands.bits import _cut, _find
from ephemera.server.server import Server
from tests.server.clients import Client

Combine = Callable[[int, int], int]

SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
BAD_OFFSET = "ERR bit offset is not an integer or out of range"


def bits_of(value: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in value)


# --- single bits ----------------------------------------------------------------------------------


def test_setbit_sets_clears_and_tells_what_was(client: Client) -> None:
    assert client("SETBIT", "k", 7, 1) == 0
    assert client("GET", "k") == b"\x01"
    assert client("SETBIT", "k", 7, 0) == 1
    assert client("SETBIT", "k", 17, 1) == 0
    assert client("GET", "k") == b"\0\0\x40"
    assert [client("GETBIT", "k", at) for at in (16, 17, 18, 999)] == [0, 1, 0, 0]
    assert client("GETBIT", "absent", 0) == 0


def test_setbit_keeps_the_deadline(client: Client, clock: ManualClock) -> None:
    client("SET", "k", "a", "PX", 1234)
    client("SETBIT", "k", 100, 1)
    assert client("PTTL", "k") == 1234
    clock.advance(1.234)
    assert client("GETBIT", "k", 100) == 0
    assert client("SETBIT", "k", 0, 0) == 0
    assert client("GET", "k") == b"\0"
    assert client("PTTL", "k") == -1


def test_setbit_tells_only_of_what_it_changed(client: Client, server: Server) -> None:
    told: list[bytes] = []
    server.listeners.append(lambda _, key, event: told.append(event.name))
    for args, count in [((7, 1), 1), ((7, 1), 0), ((8, 0), 1), ((8, 0), 0), ((7, 0), 1)]:
        told.clear()
        client("SETBIT", "k", *args)
        assert told == [b"setbit"] * count


@pytest.mark.parametrize("offset", ["-1", "x", "4294967296", ""])
def test_an_offset_lies_within_a_value(offset: str, client: Client) -> None:
    assert client.error("SETBIT", "k", offset, 1) == BAD_OFFSET
    assert client.error("GETBIT", "k", offset) == BAD_OFFSET


@pytest.mark.parametrize("bit", ["2", "-1", "x", ""])
def test_a_bit_is_0_or_1(bit: str, client: Client) -> None:
    assert client.error("SETBIT", "k", 0, bit) == "ERR bit is not an integer or out of range"


# --- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 26),
        ([0, 0], 4),
        ([1, 1], 6),
        ([0, -1], 26),
        ([-2, -1], 7),
        ([1, 1, "BYTE"], 6),
        ([5, 30, "BIT"], 17),
        ([5, 5, "bit"], 1),
        ([-8, -1, "BIT"], 4),
        ([4, 2], 0),
        ([99, 100], 0),
        ([-1, -2], 0),
        ([-100, -200], 0),
        ([0, -100], 4),
    ],
)
def test_bitcount(options: list[int | str], count: int, client: Client) -> None:
    client("SET", "k", "foobar")
    assert client("BITCOUNT", "k", *options) == count


def test_bitcount_refuses_what_it_cannot_take(client: Client) -> None:
    assert client("BITCOUNT", "absent", "x") == 0  # as Redis 7 does: the key comes first
    client("SET", "k", "foobar")
    assert client.error("BITCOUNT", "k", 0) == SYNTAX
    assert client.error("BITCOUNT", "k", 0, 1, "WORD") == SYNTAX
    assert client.error("BITCOUNT", "k", 0, 1, "BIT", 2) == SYNTAX
    assert client.error("BITCOUNT", "k", 0, "x") == NOT_AN_INTEGER


@given(st.binary(min_size=1, max_size=6), st.data())
def test_any_range_of_bits_is_counted_and_searched(value: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(value) * 8 - 1))
    stop = data.draw(st.integers(start + 1, len(value) * 8))
    bits = range(start, stop)
    told = bits_of(value)[start:stop]
    assert int.from_bytes(_cut(value, bits, filler=0)).bit_count() == told.count("1")
    for wanted, filler in ((1, 0), (0, 0xFF)):
        found = _find(_cut(value, bits, filler=filler), wanted)
        place = told.find(str(wanted))
        assert found == (None if place < 0 else place + start % 8)


# --- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "args", "place"),
    [
        (b"\xff\xf0\x00", [0], 12),
        (b"\x00\xff\xf0", [1], 8),
        (b"\x00\xff\xf0", [1, 0], 8),
        (b"\x00\xff\xf0", [1, 2], 16),
        (b"\x00\xff\xf0", [1, 2, -1, "BYTE"], 16),
        (b"\x00\xff\xf0", [1, 7, 15, "BIT"], 8),
        (b"\x00\xff\xf0", [1, 7, -3, "BIT"], 8),
        (b"\x00\xff\xf0", [0, 8, 15, "BIT"], -1),
        (b"\x00\x00", [1], -1),
        (b"\xff\xff", [0], 16),
        (b"\xff\xff", [0, 1], 16),
        (b"\xff\xff", [0, 2], -1),
        (b"\xff\xff", [0, 0, -1], -1),
        (b"", [0], -1),
        (b"", [1], -1),
        (b"\x7f", [0, -100, -200], 0),
    ],
)
def test_bitpos(value: bytes, args: list[int | str], place: int, client: Client) -> None:
    client("SET", "k", value)
    assert client("BITPOS", "k", *args) == place


def test_bitpos_of_an_absent_key_and_of_bad_arguments(client: Client) -> None:
    assert client("BITPOS", "absent", 0) == 0
    assert client("BITPOS", "absent", 1) == -1
    assert client.error("BITPOS", "absent", 2) == "ERR The bit argument must be 1 or 0."
    assert client.error("BITPOS", "absent", "x") == NOT_AN_INTEGER
    client("SET", "k", "a")
    assert client.error("BITPOS", "k", 1, 0, 1, "WORD") == SYNTAX
    assert client.error("BITPOS", "k", 1, 0, 1, "BIT", "x") == SYNTAX
    assert client.error("BITPOS", "k", 1, "x") == NOT_AN_INTEGER


# --- combining ------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=8), min_size=1, max_size=4),
    st.sampled_from([("AND", and_), ("or", or_), ("XOR", xor)]),
)
def test_bitop_pads_with_zeros(values: list[bytes], operation: tuple[str, Combine]) -> None:
    name, combine = operation
    size = max(len(value) for value in values)
    padded = [value.ljust(size, b"\0") for value in values]
    expected = bytes(reduce(combine, column) for column in zip(*padded, strict=True))
    with ephemera.open("memory://", maintenance="manual") as store:
        client = Client(Server(store))
        for number, value in enumerate(values):
            client("SET", f"k{number}", value)
        assert client("BITOP", name, "out", *(f"k{n}" for n in range(len(values)))) == size
        assert client("GET", "out") == (expected or None)


def test_bitop_not_and_what_it_does_to_its_target(client: Client) -> None:
    client("SET", "k", b"\x00\x0f\xff")
    client("SET", "out", "old", "EX", 10)
    assert client("BITOP", "NOT", "out", "k") == 3
    assert client("GET", "out") == b"\xff\xf0\x00"
    assert client("TTL", "out") == -1
    assert client("BITOP", "OR", "out", "absent", "gone") == 0
    assert client("EXISTS", "out") == 0


def test_bitop_refuses_what_it_cannot_take(client: Client) -> None:
    error = "ERR BITOP NOT must be called with a single source key."
    assert client.error("BITOP", "NOT", "out", "a", "b") == error
    assert client.error("BITOP", "NAND", "out", "a") == SYNTAX


def test_a_large_value_takes_no_time(client: Client) -> None:
    client("SETBIT", "k", 8 * 2**20, 1)
    assert client("BITCOUNT", "k") == 1
    assert client("BITPOS", "k", 1) == 8 * 2**20
    assert client("BITOP", "NOT", "out", "k") == 2**20 + 1
    assert client("BITPOS", "out", 0, 1, -1, "BIT") == 8 * 2**20


@pytest.mark.parametrize(
    "args",
    [["SETBIT", "k", "0"], ["GETBIT", "k"], ["BITCOUNT"], ["BITPOS", "k"], ["BITOP", "AND", "k"]],
)
def test_too_few_arguments_are_refused(args: list[str], client: Client) -> None:
    error = f"ERR wrong number of arguments for '{args[0].lower()}' command"
    assert client.error(*args) == error
