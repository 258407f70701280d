# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bytes as escaped text for one line: compiled, and in pieces, for values of many megabytes.

`text.show` says the rule.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint Py_UNICODE_ISPRINTABLE(uint32_t code)

cdef enum:
    TAB = 0x09
    LF = 0x0A
    CR = 0x0D
    SPACE = 0x20
    BACKSLASH = 0x5C
    TILDE = 0x7E
    LEAD_MIN = 0xC2      # what a UTF-8 character of several bytes begins with
    LEAD_MAX = 0xF4
    # What one byte takes at most.
    ESCAPE_BYTES = 4
    CHAR_BYTES_MAX = 4
    PIECE = 1 << 16

PIECE_BYTES = PIECE
"""How many bytes are escaped at a time."""

cdef const char *HEX = "0123456789abcdef"

# What each byte is shown as where it is no part of a longer character, and how long that is; 0 for those that
# begin one. A look into a table costs the same whatever the bytes are.
cdef char[256][ESCAPE_BYTES] shown
cdef uint8_t[256] shown_bytes


cdef int _fill_table() except -1:
    cdef int byte
    cdef uint8_t each
    for byte in range(256):
        each = <uint8_t> byte
        if SPACE <= byte <= TILDE and byte != BACKSLASH:
            shown[byte][0] = <char> byte
            shown_bytes[byte] = 1
        elif not LEAD_MIN <= byte <= LEAD_MAX:
            shown_bytes[byte] = <uint8_t> _put_special(shown[byte], &each, byte < 0x80, byte)
    return 0


cdef inline bint _continues(const uint8_t *at) noexcept nogil:
    return at[0] & 0xC0 == 0x80


cdef int _char_bytes(const uint8_t *at, Py_ssize_t left, uint32_t *code) noexcept nogil:
    """How many bytes the UTF-8 character here has, and its code point; 0 where there is none."""
    cdef uint8_t first = at[0]
    if first < 0x80:
        code[0] = first
        return 1
    if LEAD_MIN <= first < 0xE0 and left >= 2 and _continues(at + 1):
        code[0] = (first & 0x1F) << 6 | at[1] & 0x3F
        return 2
    if 0xE0 <= first < 0xF0 and left >= 3 and _continues(at + 1) and _continues(at + 2):
        code[0] = (first & 0x0F) << 12 | (at[1] & 0x3F) << 6 | at[2] & 0x3F
        return 3 if code[0] >= 0x800 and not 0xD800 <= code[0] < 0xE000 else 0
    if (
        0xF0 <= first <= LEAD_MAX and left >= 4
        and _continues(at + 1) and _continues(at + 2) and _continues(at + 3)
    ):
        code[0] = (first & 0x07) << 18 | (at[1] & 0x3F) << 12 | (at[2] & 0x3F) << 6 | at[3] & 0x3F
        return 4 if 0x10000 <= code[0] < 0x110000 else 0
    return 0


cdef Py_ssize_t _put_special(char *out, const uint8_t *at, int size, uint32_t code) noexcept:
    """Write a character that is no plain ASCII, or with a size of 0 one byte; how much was written."""
    cdef int number
    if size and Py_UNICODE_ISPRINTABLE(code) and code != BACKSLASH:
        memcpy(out, at, size)
        return size
    out[0] = BACKSLASH
    if size == 1 and (code == BACKSLASH or code == LF or code == CR or code == TAB):
        out[1] = BACKSLASH if code == BACKSLASH else b"n" if code == LF else b"r" if code == CR else b"t"
        return 2
    for number in range(max(size, 1)):
        memcpy(out + number * ESCAPE_BYTES, b"\\x", 2)
        out[number * ESCAPE_BYTES + 2] = HEX[at[number] >> 4]
        out[number * ESCAPE_BYTES + 3] = HEX[at[number] & 15]
    return max(size, 1) * ESCAPE_BYTES


def escaped_pieces(bytes data not None):
    """Yield the bytes as text, in UTF-8, in which whatever does not print is escaped, piece by piece."""
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(data)
    cdef bytes buffer = PyBytes_FromStringAndSize(
        NULL, (min(PyBytes_GET_SIZE(data), PIECE) + CHAR_BYTES_MAX) * ESCAPE_BYTES
    )
    cdef Py_ssize_t written
    while at < end:
        written = _escape_piece(PyBytes_AS_STRING(buffer), &at, end)
        yield PyBytes_FromStringAndSize(PyBytes_AS_STRING(buffer), written)


cdef Py_ssize_t _escape_piece(char *out, const uint8_t **start, const uint8_t *end) noexcept:
    """Escape one piece, and move the start behind it; how much was written."""
    cdef const uint8_t *at = start[0]
    cdef const uint8_t *piece_end = at + min(end - at, PIECE)
    cdef Py_ssize_t written = 0
    cdef uint32_t code = 0
    cdef int size
    while at < piece_end:
        size = shown_bytes[at[0]]
        if size:
            memcpy(out + written, shown[at[0]], ESCAPE_BYTES)
            written += size
            at += 1
            continue
        size = _char_bytes(at, end - at, &code)
        written += _put_special(out + written, at, size, code)
        at += max(size, 1)
    start[0] = at
    return written


_fill_table()
