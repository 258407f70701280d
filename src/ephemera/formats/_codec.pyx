# cython: language_level=3, boundscheck=False, wraparound=False
"""The loops over single bytes: CRC-64, LZF, the lengths and strings of RDB, the words of an AOF.

    length    00nnnnnn | 01nnnnnn n | 0x80 u32 BE | 0x81 u64 BE | 11 and the number of an encoding
    string    length and bytes | a whole number as i8, i16 or i32 LE | compressed with LZF
    command   *words CRLF, then for each word $bytes CRLF, the bytes, CRLF

A `Window` reads them off a file of any size and holds little of it. A length that a file claims is
believed only as far as there are bytes: none makes it allocate what does not follow.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ephemera.core.arguments import VALUE_BYTES_MAX as _VALUE_BYTES_MAX
from ephemera.core.row import NEVER_MS as _NEVER_MS

cdef uint64_t VALUE_MAX = _VALUE_BYTES_MAX
cdef int64_t NEVER = _NEVER_MS
cdef Py_ssize_t WINDOW = 1 << 18

cdef enum:
    STRING_TYPE = 0
    EXPIRETIME_MS = 252
    LENGTH_14_BITS = 0x40
    LENGTH_32_BITS = 0x80
    LENGTH_64_BITS = 0x81
    ENCODED = 0xC0
    LZF = 3
    LZF_RATIO = 88          # three bytes become at most 264
    HEAD_BYTES_MAX = 9


class Malformed(ValueError):
    """The bytes are no value that is known here."""


class Truncated(Malformed):
    """The bytes end where more were to follow."""


# --- CRC-64 with Jones's polynomial, reflected, beginning at zero ----------------------------------

cdef uint64_t POLYNOMIAL = 0x95AC9329AC4BC9B5   # 0xAD93D23594C935A9 with its bits reversed
cdef uint64_t[8][256] TABLES                    # by the place of a byte in a word of eight


cdef void _make_tables() noexcept:
    cdef uint64_t crc
    cdef int byte, bit, place
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        TABLES[0][byte] = crc
    for place in range(1, 8):
        for byte in range(256):
            crc = TABLES[place - 1][byte]
            TABLES[place][byte] = crc >> 8 ^ TABLES[0][crc & 0xFF]


_make_tables()


cdef uint64_t _crc64(const uint8_t *data, Py_ssize_t size, uint64_t crc) noexcept nogil:
    cdef Py_ssize_t at = 0
    while size - at >= 8:
        crc = (
            TABLES[7][(crc & 0xFF) ^ data[at]]
            ^ TABLES[6][(crc >> 8 & 0xFF) ^ data[at + 1]]
            ^ TABLES[5][(crc >> 16 & 0xFF) ^ data[at + 2]]
            ^ TABLES[4][(crc >> 24 & 0xFF) ^ data[at + 3]]
            ^ TABLES[3][(crc >> 32 & 0xFF) ^ data[at + 4]]
            ^ TABLES[2][(crc >> 40 & 0xFF) ^ data[at + 5]]
            ^ TABLES[1][(crc >> 48 & 0xFF) ^ data[at + 6]]
            ^ TABLES[0][(crc >> 56) ^ data[at + 7]]
        )
        at += 8
    while at < size:
        crc = crc >> 8 ^ TABLES[0][(crc ^ data[at]) & 0xFF]
        at += 1
    return crc


def crc64(const uint8_t[::1] data not None, uint64_t crc=0) -> int:
    """The checksum of the data, going on from that of what came before.

    >>> hex(crc64(b"123456789"))
    '0xe9c6d914c4b8d9ca'
    """
    return _crc64(&data[0], data.shape[0], crc) if data.shape[0] else crc


# --- LZF ------------------------------------------------------------------------------------------


def decompress(bytes packed not None, uint64_t size) -> bytes:
    """What LZF made smaller: runs of literal bytes, and references to what is there already.

    >>> decompress(bytes([0]) + b"a" + bytes([0xE0, 0x02, 0x00]), 12)
    b'aaaaaaaaaaaa'
    """
    cdef Py_ssize_t packed_size = PyBytes_GET_SIZE(packed)
    if size > <uint64_t> packed_size * LZF_RATIO or size > VALUE_MAX:
        raise Malformed(f"{packed_size} compressed bytes do not become {size}")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    if not _decompress(
        <const uint8_t *> PyBytes_AS_STRING(packed), packed_size,
        <uint8_t *> PyBytes_AS_STRING(out), size,
    ):
        raise Malformed(f"{packed_size} compressed bytes do not become {size}")
    return out


cdef bint _decompress(
    const uint8_t *packed, Py_ssize_t packed_size, uint8_t *out, Py_ssize_t size
) noexcept nogil:
    # Whether the packed bytes end exactly where the unpacked ones are full.
    cdef Py_ssize_t at = 0, to = 0, length, distance
    while at < packed_size:
        length = packed[at]
        at += 1
        if length < 32:
            length += 1
            if length > packed_size - at or length > size - to:
                return False
            memcpy(out + to, packed + at, length)
            at += length
            to += length
            continue
        distance = (length & 0x1F) << 8
        length >>= 5
        if length == 7:
            if at == packed_size:
                return False
            length += packed[at]
            at += 1
        if at == packed_size:
            return False
        distance += packed[at] + 1
        at += 1
        length += 2
        if distance > to or length > size - to:
            return False
        while length:   # byte by byte: it may refer to what it is writing
            out[to] = out[to - distance]
            to += 1
            length -= 1
    return to == size


# --- writing --------------------------------------------------------------------------------------


cdef Py_ssize_t _write_length(uint8_t *out, uint64_t length) noexcept nogil:
    cdef int place
    if length < 1 << 6:
        out[0] = <uint8_t> length
        return 1
    if length < 1 << 14:
        out[0] = <uint8_t> (LENGTH_14_BITS | length >> 8)
        out[1] = <uint8_t> length
        return 2
    if length < <uint64_t> 1 << 32:
        out[0] = LENGTH_32_BITS
        for place in range(4):
            out[1 + place] = <uint8_t> (length >> 8 * (3 - place))
        return 5
    out[0] = LENGTH_64_BITS
    for place in range(8):
        out[1 + place] = <uint8_t> (length >> 8 * (7 - place))
    return 9


cdef Py_ssize_t _write_number(uint8_t *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    # A string that spells a whole number of 32 bits as that number; 0 when it spells none.
    cdef bint is_negative = size > 0 and data[0] == c"-"
    cdef Py_ssize_t at = is_negative, count
    cdef int64_t number = 0
    if size - at < 1 or size - at > 10 or (data[at] == c"0" and size > 1):
        return 0
    while at < size:
        if not c"0" <= data[at] <= c"9":
            return 0
        number = number * 10 + (data[at] - c"0")
        at += 1
    if is_negative:
        number = -number
    if not -(<int64_t> 1 << 31) <= number < <int64_t> 1 << 31:
        return 0
    if -128 <= number < 128:
        out[0], count = ENCODED, 1
    elif -32768 <= number < 32768:
        out[0], count = ENCODED | 1, 2
    else:
        out[0], count = ENCODED | 2, 4
    for at in range(count):
        out[1 + at] = <uint8_t> (number >> 8 * at)
    return 1 + count


cdef Py_ssize_t _write_string(uint8_t *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t written = _write_number(out, data, size)
    if not written:
        written = _write_length(out, size)
        memcpy(out + written, data, size)
        written += size
    return written


def encode_length(uint64_t length) -> bytes:
    """A length in as few bytes as it takes.

    >>> encode_length(63).hex(), encode_length(64).hex(), encode_length(16_384).hex()
    ('3f', '4040', '8000004000')
    """
    cdef uint8_t[HEAD_BYTES_MAX] out
    return (<char *> out)[:_write_length(out, length)]


def encode_string(bytes data not None) -> bytes:
    """A string with its length; one that spells a whole number of 32 bits, as that number.

    >>> encode_string(b"ada"), encode_string(b"-1").hex(), encode_string(b"256").hex()
    (b'\\x03ada', 'c0ff', 'c10001')
    """
    out = bytearray(PyBytes_GET_SIZE(data) + HEAD_BYTES_MAX)
    cdef Py_ssize_t size = _write_string(
        <uint8_t *> PyByteArray_AS_STRING(out),
        <const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
    )
    return bytes(out[:size])


def append_record(
    bytearray out not None, bytes key not None, bytes value not None, int64_t deadline_ms
) -> None:
    """Add to `out` what an RDB file holds for a string: its deadline if it has one, key and value."""
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(out), at = before
    cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key), value_size = PyBytes_GET_SIZE(value)
    cdef uint8_t *start
    PyByteArray_Resize(out, before + 10 + 2 * HEAD_BYTES_MAX + key_size + value_size)
    start = <uint8_t *> PyByteArray_AS_STRING(out)
    if deadline_ms != NEVER:
        start[at] = EXPIRETIME_MS
        _write_int64(start + at + 1, deadline_ms)
        at += 9
    start[at] = STRING_TYPE
    at += 1
    at += _write_string(start + at, <const uint8_t *> PyBytes_AS_STRING(key), key_size)
    at += _write_string(start + at, <const uint8_t *> PyBytes_AS_STRING(value), value_size)
    PyByteArray_Resize(out, at)


cdef void _write_int64(uint8_t *out, int64_t number) noexcept nogil:
    cdef int place
    for place in range(8):
        out[place] = <uint8_t> (<uint64_t> number >> 8 * place)


# --- reading --------------------------------------------------------------------------------------


cdef class Window:
    """Takes values off a source of bytes. Every method raises Malformed where there is none."""

    cdef object _read
    cdef bytes _data
    cdef const uint8_t *_start
    cdef Py_ssize_t _at, _size, _summed
    cdef uint64_t _crc
    cdef int64_t _base

    def __init__(self, source) -> None:
        self._read = source.read
        self._show(b"")

    cdef void _show(self, bytes data):
        self._data = data
        self._start = <const uint8_t *> PyBytes_AS_STRING(data)
        self._size = PyBytes_GET_SIZE(data)
        self._at = self._summed = 0

    @property
    def offset(self) -> int:
        """How many bytes were taken."""
        return self._base + self._at

    @property
    def checksum(self) -> int:
        """The CRC-64 of all that was taken."""
        self._sum()
        return self._crc

    cdef void _sum(self):
        self._crc = _crc64(self._start + self._summed, self._at - self._summed, self._crc)
        self._summed = self._at

    cdef Py_ssize_t _refill(self) except -1:
        # Let go of what was taken and read on; how many bytes are there now.
        cdef bytes more = self._read(WINDOW)
        self._sum()
        self._base += self._at
        self._show(self._data[self._at :] + more if self._at < self._size else more)
        return self._size

    cdef inline int _need(self, Py_ssize_t size) except -1:
        if self._size - self._at < size and self._refill() < size:
            raise Truncated(f"{size} bytes were to follow, and {self._size} do")
        return 0

    cdef bytes _take(self, uint64_t size):
        cdef Py_ssize_t part
        if size <= <uint64_t> WINDOW:
            self._need(size)
            data = PyBytes_FromStringAndSize(<const char *> self._start + self._at, size)
            self._at += size
            return data
        if size > VALUE_MAX:
            raise Malformed(f"{size} bytes are more than a value has")
        parts = []
        while size:
            self._need(1)
            part = min(size, <uint64_t> (self._size - self._at))
            parts.append(self._data[self._at : self._at + part])
            self._at += part
            size -= part
        return b"".join(parts)

    def take(self, uint64_t size) -> bytes:
        """Exactly so many bytes."""
        return self._take(size)

    def skip(self, uint64_t size) -> None:
        """Pass over so many bytes, however many those are."""
        self._skip(size)

    cdef int _skip(self, uint64_t size) except -1:
        cdef Py_ssize_t part
        while size:
            self._need(1)
            part = min(size, <uint64_t> (self._size - self._at))
            self._at += part
            size -= part
        return 0

    def is_at_end(self) -> bool:
        """Whether nothing follows."""
        return self._at == self._size and self._refill() == 0

    def peek(self, Py_ssize_t size) -> bytes:
        """The next bytes, or fewer where fewer follow, without taking them."""
        if self._size - self._at < size:
            self._refill()
        return self._data[self._at : min(self._at + size, self._size)]

    def byte(self) -> int:
        self._need(1)
        self._at += 1
        return self._start[self._at - 1]

    def number(self, Py_ssize_t size) -> int:
        """A signed number of at most eight bytes, the lowest first."""
        self._need(size)
        cdef uint64_t number = 0
        cdef Py_ssize_t place
        for place in range(size):
            number |= <uint64_t> self._start[self._at + place] << 8 * place
        self._at += size
        if size < 8 and number >> (8 * size - 1):
            number -= <uint64_t> 1 << 8 * size
        return <int64_t> number

    # -- RDB

    cdef int _length(self, uint64_t *length) except -1:
        # Whether it is no length but the number of an encoding.
        cdef uint8_t first
        cdef Py_ssize_t place, size
        self._need(1)
        first = self._start[self._at]
        if first > LENGTH_64_BITS and first < ENCODED:
            raise Malformed(f"a length cannot begin with {first:#x}")
        size = 1 if first >= ENCODED or first < LENGTH_14_BITS else 2
        if LENGTH_32_BITS <= first <= LENGTH_64_BITS:
            size = 5 if first == LENGTH_32_BITS else 9
        self._need(size)
        length[0] = 0 if LENGTH_32_BITS <= first <= LENGTH_64_BITS else first & 0x3F
        for place in range(1, size):
            length[0] = length[0] << 8 | self._start[self._at + place]
        self._at += size
        return first >= ENCODED

    def length(self) -> int:
        cdef uint64_t length = 0
        if self._length(&length):
            raise Malformed(f"encoding {length} in the place of a length")
        return length

    def string(self) -> bytes:
        cdef uint64_t length = 0
        if not self._length(&length):
            return self._take(length)
        if length < LZF:
            return b"%d" % self.number(1 << length)
        if length > LZF:
            raise Malformed(f"a string in the unknown encoding {length}")
        packed_size, size = self.length(), self.length()
        return decompress(self._take(packed_size), size)

    def skip_string(self) -> None:
        cdef uint64_t length = 0
        if not self._length(&length):
            self._skip(length)
        elif length < LZF:
            self._skip(1 << length)
        elif length > LZF:
            raise Malformed(f"a string in the unknown encoding {length}")
        else:
            packed_size, _ = self.length(), self.length()
            self._skip(packed_size)

    # -- AOF

    def command(self):
        """The words of the next command, at least one, or None at the end.

        Lines that begin with `#` are remarks and passed over.
        """
        cdef int64_t count
        while not self.is_at_end():
            if self._start[self._at] != c"#":
                break
            self._pass_line()
        else:
            return None
        count = self._count(c"*")
        if count < 1:
            raise Malformed("a command without a word")
        words = []
        while count:
            words.append(self._word())
            count -= 1
        return words

    cdef bytes _word(self):
        cdef bytes word = self._take(self._count(c"$"))
        self._end_line()
        return word

    cdef int64_t _count(self, uint8_t mark) except -1:
        # What a line says: the mark and a number.
        cdef int64_t count = 0
        cdef int digits = 0
        self._need(1)
        if self._start[self._at] != mark:
            raise Malformed(f"{chr(self._start[self._at])!r} in the place of {chr(mark)!r}")
        self._at += 1
        while True:
            self._need(1)
            if self._start[self._at] == c"\r" and digits:
                break
            if not c"0" <= self._start[self._at] <= c"9" or digits == 10:
                raise Malformed(f"{chr(mark)!r} has no number of at most ten digits")
            count = count * 10 + (self._start[self._at] - c"0")
            digits += 1
            self._at += 1
        self._end_line()
        return count

    cdef int _end_line(self) except -1:
        self._need(2)
        if self._start[self._at] != c"\r" or self._start[self._at + 1] != c"\n":
            raise Malformed("a line does not end where it should")
        self._at += 2
        return 0

    cdef int _pass_line(self) except -1:
        cdef uint8_t byte = 0
        while byte != c"\n":
            self._need(1)
            byte = self._start[self._at]
            self._at += 1
        return 0
