"""One value in RDB, the format in which Redis keeps values, with its footer: what DUMP hands out.

    payload   type u8 | value | version u16 LE | CRC-64 u64 LE of all that precedes it

`_codec` has the lengths and strings. Strings are written as they are: compression is read, never made.
"""

from __future__ import annotations

import struct
from io import BytesIO

from ephemera.formats._codec import Malformed, Window, crc64, encode_string

__all__ = ["VERSION", "VERSION_MAX", "Malformed", "WrongFooter", "dump", "load"]

VERSION = 10
"""What is written: every Redis since 7.0 reads it."""
VERSION_MAX = 12
"""What is read: strings are the same in all versions up to here."""

STRING_TYPE = 0
FOOTER = struct.Struct("<HQ")


class WrongFooter(ValueError):
    """The version or the checksum of a payload is wrong."""


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
    window = Window(BytesIO(payload[: -FOOTER.size]))
    kind = window.byte()
    if kind != STRING_TYPE:
        raise Malformed(f"a value of type {kind}, where only strings ({STRING_TYPE}) are known")
    return window.string()
