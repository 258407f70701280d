"""The compiled loops: checksums, LZF, lengths, strings and commands, read through a window."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.core.row import NEVER_MS
from ephemera.formats._codec import (
    Malformed,
    Truncated,
    Window,
    append_record,
    crc64,
    decompress,
    encode_length,
    encode_string,
)

WINDOW_BYTES = 1 << 18


def window(data: bytes) -> Window:
    return Window(BytesIO(data))


def crc64_bit_by_bit(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


@given(st.binary(max_size=100))
def test_a_checksum_is_that_of_its_definition(data: bytes) -> None:
    assert crc64(data) == crc64_bit_by_bit(data)


@given(st.binary(max_size=100), st.integers(0, 100))
def test_a_checksum_can_be_taken_in_parts(data: bytes, at: int) -> None:
    assert crc64(data[at:], crc64(data[:at])) == crc64(data)


def test_decompression_stops_at_the_size_it_was_told() -> None:
    bomb = b"\x00a" + b"\xe0\xff\x00" * 100_000
    with pytest.raises(Malformed):
        decompress(bomb, 1000)


def test_no_memory_is_taken_for_what_so_few_bytes_cannot_become() -> None:
    with pytest.raises(Malformed):
        decompress(b"\x00a", 500 * 1024 * 1024)


@given(st.binary(max_size=60), st.integers(0, 300))
def test_any_bytes_are_decompressed_or_refused(packed: bytes, size: int) -> None:
    with suppress(Malformed):
        assert len(decompress(packed, size)) == size


# --- lengths and strings --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 63, 64, 16_383, 16_384, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_lengths_come_back(length: int) -> None:
    assert window(encode_length(length)).length() == length


@pytest.mark.parametrize("data", [b"\xc0\x01", b"\x82", b"\xbf", b"\x40", b"\x80\0\0\0", b""])
def test_what_is_no_length_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        window(data).length()


@given(st.binary(max_size=100) | st.integers(-(2**33), 2**33).map(lambda n: b"%d" % n))
def test_strings_come_back_and_are_passed_over_exactly(data: bytes) -> None:
    encoded = encode_string(data)
    assert window(encoded).string() == data
    passing = window(encoded + b"!")
    passing.skip_string()
    assert (passing.offset, passing.byte()) == (len(encoded), ord("!"))


@pytest.mark.parametrize("data", [b"0", b"-1", b"127", b"-32768", b"2147483647"])
def test_whole_numbers_are_packed(data: bytes) -> None:
    assert encode_string(data)[0] >= 0xC0


@pytest.mark.parametrize(
    "data", [b"", b"-", b"-0", b"00", b"01", b"+1", b" 1", b"1a", b"4294967296"]
)
def test_what_only_resembles_a_number_is_not_packed(data: bytes) -> None:
    assert encode_string(data) == bytes([len(data)]) + data


def test_a_record_is_what_stands_in_a_file() -> None:
    out = bytearray(b"before")
    append_record(out, b"key", b"7", NEVER_MS)
    append_record(out, b"12", b"value", 0x0102030405060708)
    assert out == (
        b"before\x00\x03key\xc0\x07\xfc\x08\x07\x06\x05\x04\x03\x02\x01\x00\xc0\x0c\x05value"
    )


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\xff", -1), (b"\x80\x00", 128), (b"\x00\x80", -32768), (b"\xfe" + b"\xff" * 7, -2)],
)
def test_numbers_have_signs(data: bytes, number: int) -> None:
    assert window(data).number(len(data)) == number


# --- the window -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2 * WINDOW_BYTES), max_size=6))
def test_bytes_are_taken_across_the_edges_of_the_window(sizes: list[int]) -> None:
    data = bytes(range(251)) * (sum(sizes) // 251 + 1)
    reading = window(data)
    at = 0
    for number, size in enumerate(sizes):
        if number % 2:
            reading.skip(size)
        else:
            assert reading.take(size) == data[at : at + size]
        at += size
        assert reading.offset == at
    assert reading.checksum == crc64(data[:at])


def test_what_does_not_follow_is_not_allocated() -> None:
    claim = encode_length(512 * 1024 * 1024) + b"abc"
    with pytest.raises(Truncated):
        window(claim).string()
    with pytest.raises(Malformed):
        window(encode_length(512 * 1024 * 1024 + 1) + b"abc").string()
    with pytest.raises(Truncated):
        window(encode_length(2**64 - 1) + b"abc").skip_string()


def test_peeking_takes_nothing() -> None:
    reading = window(b"abc")
    assert (reading.peek(2), reading.peek(9), reading.take(3)) == (b"ab", b"abc", b"abc")
    assert reading.is_at_end()


# --- commands -------------------------------------------------------------------------------------


def test_commands_are_read_up_to_the_end() -> None:
    reading = window(
        b"#TS:1700000000\r\n*2\r\n$3\r\nDEL\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n#end\r\n"
    )
    assert reading.command() == [b"DEL", b"\r\n"]
    assert reading.command() == [b"PING"]
    assert reading.command() is None
    assert reading.command() is None


@pytest.mark.parametrize(
    "data",
    [
        b"PING\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*\r\n",
        b"*1\n$4\nPING\n",
        b"*1\r\n:4\r\nPING\r\n",
        b"*1\r\n$4\r\nPINGPONG\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*1\r\n$600000000\r\n",
        b"*1x\r\n",
    ],
)
def test_what_is_no_command_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        window(data).command()
    assert not isinstance(refused.value, Truncated)


@given(st.integers(1, 60))
def test_a_command_that_is_cut_is_truncated(kept: int) -> None:
    whole = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$20\r\n01234567890123456789\r\n"
    if kept >= len(whole):
        assert window(whole).command() == [b"SET", b"key", b"01234567890123456789"]
    else:
        with pytest.raises(Truncated):
            window(whole[:kept]).command()


def test_a_claim_of_many_words_takes_no_memory() -> None:
    with pytest.raises(Truncated):
        window(b"*9999999999\r\n$1\r\na\r\n").command()
