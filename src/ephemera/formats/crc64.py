"""The checksum of RDB: CRC-64 with Jones's polynomial, reflected, beginning at zero."""

from __future__ import annotations

import struct

POLYNOMIAL = 0x95AC9329AC4BC9B5
"""0xAD93D23594C935A9 with its bits reversed."""
CHUNK_WORDS = 8192
WORD_BYTES = 8


def _tables() -> list[list[int]]:
    """For each place of a byte in a word: what it does to the sum by the time the word has passed."""
    nearest = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
        nearest.append(byte)
    tables = [nearest]
    while len(tables) < WORD_BYTES:
        tables.append([crc >> 8 ^ nearest[crc & 0xFF] for crc in tables[-1]])
    return tables


TABLES = _tables()


def crc64(data: bytes, crc: int = 0) -> int:
    """The checksum of the data, going on from that of what came before.

    >>> hex(crc64(b"123456789"))
    '0xe9c6d914c4b8d9ca'
    """
    t0, t1, t2, t3, t4, t5, t6, t7 = TABLES
    words = len(data) // WORD_BYTES
    for first in range(0, words, CHUNK_WORDS):
        count = min(CHUNK_WORDS, words - first)
        for word in struct.unpack_from(f"<{count}Q", data, first * WORD_BYTES):
            crc ^= word
            crc = (
                t7[crc & 0xFF]
                ^ t6[crc >> 8 & 0xFF]
                ^ t5[crc >> 16 & 0xFF]
                ^ t4[crc >> 24 & 0xFF]
                ^ t3[crc >> 32 & 0xFF]
                ^ t2[crc >> 40 & 0xFF]
                ^ t1[crc >> 48 & 0xFF]
                ^ t0[crc >> 56]
            )
    for byte in data[words * WORD_BYTES :]:
        crc = crc >> 8 ^ t0[(crc ^ byte) & 0xFF]
    return crc
