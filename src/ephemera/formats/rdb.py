"""RDB, the format in which Redis keeps values: here one value with its footer, as DUMP hands it out.

    payload   type u8 | value | version u16 LE | CRC-64 u64 LE of all that precedes it
    length    00nnnnnn | 01nnnnnn n | 0x80 u32 BE | 0x81 u64 BE | 11 and the number of an encoding
    string    length and bytes | a whole number as i8, i16 or i32 LE | compressed with LZF

`Reader` takes values from anything that reads; `encode_string` and `encode_length` are its reverse.
Strings are written as they are: compression is read, never made.
"""

from __future__ import annotations

import re
import struct
from io import BytesIO
from typing import BinaryIO

from ephemera.core.arguments import VALUE_BYTES_MAX
from ephemera.formats.crc64 import crc64

VERSION = 10
"""What is written: every Redis since 7.0 reads it."""
VERSION_MAX = 12
"""What is read: strings are the same in all versions up to here."""

STRING_TYPE = 0

LENGTH_14_BITS = 0x40
LENGTH_32_BITS = 0x80
LENGTH_64_BITS = 0x81
ENCODED = 0xC0
NUMBERS = {0: struct.Struct("<b"), 1: struct.Struct("<h"), 2: struct.Struct("<i")}
"""How whole numbers are packed, by the number of the encoding."""
LZF_ENCODING = 3

WHOLE_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,9}")
FOOTER = struct.Struct("<HQ")


class WrongFooter(ValueError):
    """The version or the checksum of a payload is wrong."""


class Malformed(ValueError):
    """The bytes are no value that is known here."""


# --- one value with its footer --------------------------------------------------------------------


def dump(value: bytes) -> bytes:
    """The payload that RESTORE takes.

    >>> dump(b"ada").hex(" ")
    '00 03 61 64 61 0a 00 67 b1 88 39 fd ed 73 76'
    """
    body = bytes([STRING_TYPE]) + encode_string(value) + struct.pack("<H", VERSION)
    return body + struct.pack("<Q", crc64(body))


def load(payload: bytes) -> bytes:
    """The value in a payload of DUMP. Raises WrongFooter or Malformed."""
    if len(payload) < FOOTER.size:
        raise WrongFooter("there is no footer")
    version, checksum = FOOTER.unpack(payload[-FOOTER.size :])
    if version > VERSION_MAX or checksum != crc64(payload[:-8]):
        raise WrongFooter(f"version {version}, checksum {checksum:#x}")
    reader = Reader(BytesIO(payload[: -FOOTER.size]))
    kind = reader.byte()
    if kind != STRING_TYPE:
        raise Malformed(f"a value of type {kind}, where only strings ({STRING_TYPE}) are known")
    return reader.string()


# --- writing --------------------------------------------------------------------------------------


def encode_length(length: int) -> bytes:
    """A length in as few bytes as it takes.

    >>> encode_length(63).hex(), encode_length(64).hex(), encode_length(16_384).hex()
    ('3f', '4040', '8000004000')
    """
    if length < 1 << 6:
        return bytes([length])
    if length < 1 << 14:
        return bytes([LENGTH_14_BITS | length >> 8, length & 0xFF])
    if length < 1 << 32:
        return struct.pack(">BI", LENGTH_32_BITS, length)
    return struct.pack(">BQ", LENGTH_64_BITS, length)


def encode_string(data: bytes) -> bytes:
    """A string with its length; one that spells a whole number of 32 bits, as that number.

    >>> encode_string(b"ada"), encode_string(b"-1").hex(), encode_string(b"256").hex()
    (b'\\x03ada', 'c0ff', 'c10001')
    """
    if WHOLE_NUMBER.fullmatch(data):
        number = int(data)
        for encoding, packing in NUMBERS.items():
            if -1 << 8 * packing.size - 1 <= number < 1 << 8 * packing.size - 1:
                return bytes([ENCODED | encoding]) + packing.pack(number)
    return encode_length(len(data)) + data


# --- reading --------------------------------------------------------------------------------------


class Reader:
    """Takes values off a source of bytes. Every method raises Malformed where there is none."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        if size > VALUE_BYTES_MAX:
            raise Malformed(f"{size} bytes are more than a value has")
        data = self._source.read(size)
        if len(data) != size:
            raise Malformed(f"{size} bytes were to follow, and {len(data)} do")
        return data

    def byte(self) -> int:
        return self.take(1)[0]

    def length(self) -> int:
        length, is_encoding = self._length_or_encoding()
        if is_encoding:
            raise Malformed(f"encoding {length} in the place of a length")
        return length

    def string(self) -> bytes:
        length, is_encoding = self._length_or_encoding()
        if not is_encoding:
            return self.take(length)
        if length in NUMBERS:
            packing = NUMBERS[length]
            (number,) = packing.unpack(self.take(packing.size))
            return b"%d" % number
        if length != LZF_ENCODING:
            raise Malformed(f"a string in the unknown encoding {length}")
        packed_size, size = self.length(), self.length()
        return decompress(self.take(packed_size), size)

    def _length_or_encoding(self) -> tuple[int, bool]:
        """A length, or the number of an encoding, and which of them it is."""
        first = self.byte()
        if first >= ENCODED:
            return first & 0x3F, True
        if first < LENGTH_14_BITS:
            return first, False
        if first < LENGTH_32_BITS:
            return (first & 0x3F) << 8 | self.byte(), False
        if first == LENGTH_32_BITS:
            return int.from_bytes(self.take(4), "big"), False
        if first == LENGTH_64_BITS:
            return int.from_bytes(self.take(8), "big"), False
        raise Malformed(f"a length cannot begin with {first:#x}")


def decompress(packed: bytes, size: int) -> bytes:
    """What LZF made smaller: runs of literal bytes, and references to what is there already.

    >>> decompress(bytes([0]) + b"a" + bytes([0xE0, 0x02, 0x00]), 12)
    b'aaaaaaaaaaaa'
    """
    out = bytearray()
    at = 0
    try:
        while at < len(packed) and len(out) <= size:
            control = packed[at]
            at += 1
            if control < 32:
                out += packed[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            distance = ((control & 0x1F) << 8 | packed[at]) + 1
            at += 1
            _repeat(out, distance, length + 2)
    except IndexError:
        raise Malformed("the compressed bytes end too early") from None
    if at > len(packed) or len(out) != size:
        raise Malformed(f"the compressed bytes do not become {size}")
    return bytes(out)


def _repeat(out: bytearray, distance: int, length: int) -> None:
    """Append what lies so far back; where it overlaps what is appended, again and again."""
    if distance > len(out):
        raise Malformed("compressed bytes refer to what lies before them")
    start = len(out) - distance
    pattern = out[start : start + length]
    out += (pattern * (length // len(pattern) + 1))[:length]
