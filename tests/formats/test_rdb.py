"""Values in RDB: payloads that Redis made, all encodings, and damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.formats._codec import crc64, encode_string
from ephemera.formats.rdb import VERSION_MAX, Malformed, WrongFooter, dump, load

MADE_BY_REDIS = {
    b"": "00000a005d9b5c400f7fa2da",
    b"a": "0001610a00bffeef9b8f367db4",
    b"-1": "00c0ff0a000c937e2485089dc5",
    b"127": "00c07f0a000db5eb315254c514",
    b"128": "00c180000a00eb7ab3b510cf4b65",
    b"-32769": "00c2ff7fffff0a00aee34c4d06c68536",
    b"2147483647": "00c2ffffff7f0a002c74e59ee02eada1",
    b"2147483648": "000a323134373438333634380a00e7b129a34c1d76ee",
    b"007": "00033030370a007258e27b4c69bad9",
}
COMPRESSED_BY_REDIS = {
    b"a" * 100: "00c3094064016161e057000161610a00e8a3b507b06df271",
    b"abcdefgh" * 20: "00c31040a008616263646566676861e08c070167680a00a2b2ee8cb477f14a",
    b"hello hello hello hello, is there anybody in there? hello!": (
        "00c32a3a0668656c6c6f2068e00705142c20697320746865726520616e79626f647920696e8010003f602d016f21"
        "0a0004603a7161e67912"
    ),
}


def signed(body: bytes, version: int = 10) -> bytes:
    """A payload of whatever bytes, with a footer that is right."""
    body += struct.pack("<H", version)
    return body + struct.pack("<Q", crc64(body))


# --- payloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", MADE_BY_REDIS)
def test_a_payload_has_the_bytes_that_redis_gives_it(value: bytes) -> None:
    assert dump(value).hex() == MADE_BY_REDIS[value]
    assert load(dump(value)) == value


@pytest.mark.parametrize("value", COMPRESSED_BY_REDIS)
def test_what_redis_compressed_is_read(value: bytes) -> None:
    assert load(bytes.fromhex(COMPRESSED_BY_REDIS[value])) == value


@given(st.binary(max_size=200) | st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n))
def test_every_value_comes_back(value: bytes) -> None:
    assert load(dump(value)) == value


def test_a_long_value_comes_back() -> None:
    value = bytes(range(256)) * 300
    assert load(dump(value)) == value


@given(st.data())
def test_any_flipped_bit_is_found(data: st.DataObject) -> None:
    payload = bytearray(dump(b"some value"))
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WrongFooter):
        load(bytes(payload))


def test_a_version_of_the_future_is_refused() -> None:
    body = b"\x00" + encode_string(b"v")
    assert load(signed(body, VERSION_MAX)) == b"v"
    with pytest.raises(WrongFooter):
        load(signed(body, VERSION_MAX + 1))


@pytest.mark.parametrize("payload", [b"", b"\0" * 9])
def test_what_is_too_short_has_no_footer(payload: bytes) -> None:
    with pytest.raises(WrongFooter):
        load(payload)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01\x00",  # a list
        b"\x00",
        b"\x00\x05abc",
        b"\x00\x82abc",
        b"\x00\xc1\x00",
        b"\x00\xc4",
        b"\x00\x81" + b"\xff" * 8,
        b"\x00\xc3\x02\x05\x00a",  # becomes one byte, not five
        b"\x00\xc3\x02\x00\x00a",
        b"\x00\xc3\x01\x01\x05",  # literals that are not there
        b"\x00\xc3\x02\x08\xe0\x00",  # a reference that is cut
        b"\x00\xc3\x02\x03\x20\x00",  # a reference to what lies before
        b"\x00\xc3\xc0\x01",
    ],
)
def test_damage_under_a_good_footer_is_found(body: bytes) -> None:
    with pytest.raises(Malformed):
        load(signed(body))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value = load(signed(b"\x00" + body))
    except Malformed:
        return
    assert isinstance(value, bytes)
