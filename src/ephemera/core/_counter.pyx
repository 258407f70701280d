# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Adding to a counter: decimal digits that stand for a signed 64-bit number.

An `Addition` is the change that `incr` hands to an engine's `update`. Any engine may just call it;
a compiled one may give it the stored digits, and keep the row's attributes itself.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MIN, int64_t, uint64_t

from ephemera.core.row import Row

cdef extern from *:
    """
    static inline int eph_add64(int64_t a, int64_t b, int64_t *sum) {
        return __builtin_add_overflow(a, b, sum);
    }
    """
    bint eph_add64(int64_t a, int64_t b, int64_t *sum) nogil


cdef bint read_digits(
    const char *digits, Py_ssize_t size, bint is_strict, int64_t *number
) noexcept nogil:
    """Whether all of it is one number: a minus and up to 19 digits, if strict without idle zeros."""
    cdef bint is_negative = size > 0 and digits[0] == c"-"
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    if is_negative:
        digits += 1
        size -= 1
    if not 0 < size < DIGITS_BYTES_MAX:
        return False
    if is_strict and digits[0] == c"0" and (size > 1 or is_negative):
        return False
    for i in range(size):
        if not c"0" <= digits[i] <= c"9":
            return False
        value = value * 10 + <uint64_t> (digits[i] - c"0")
    if value > (<uint64_t> 1 << 63) - (not is_negative):
        return False
    number[0] = <int64_t> (0 - value if is_negative else value)
    return True


cdef Py_ssize_t write_digits(char *out, int64_t number) noexcept nogil:
    """Write a number into DIGITS_BYTES_MAX bytes; how many it took."""
    cdef char reversed[DIGITS_BYTES_MAX]
    cdef uint64_t value = 0 - <uint64_t> number if number < 0 else <uint64_t> number
    cdef Py_ssize_t count = 0, at = 0
    while True:
        reversed[count] = <char> (c"0" + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    if number < 0:
        out[0] = c"-"
        at = 1
    while count:
        count -= 1
        out[at] = reversed[count]
        at += 1
    return at


cdef class Addition:
    """Adds `by` to what a key holds, and says what came of it.

    A key that is not there begins at 0 (`is_new`), with the lifetime that `life` gives for the
    instant, or with none. What cannot be counted on stays as it is: `is_no_number`, or
    `is_out_of_range` when the sum would be. A strict one takes digits only as it writes them itself.

    >>> addition = Addition(2)
    >>> addition.on(b"40"), addition.total
    (b'42', 42)
    >>> addition.on(b"forty"), addition.is_no_number
    (None, True)
    """

    def __init__(self, int64_t by, *, life=None, bint is_strict=False):
        self.by = by
        self.life = life
        self.is_strict = is_strict

    cdef bint add_to(self, const char *digits, Py_ssize_t size) noexcept:
        """Whether the sum is one; it is in `total`."""
        cdef int64_t number = 0
        self.is_new = False
        self.is_no_number = not read_digits(digits, size, self.is_strict, &number)
        self.is_out_of_range = not self.is_no_number and eph_add64(number, self.by, &self.total)
        return not self.is_no_number and not self.is_out_of_range

    cdef void begin(self) noexcept:
        """Count from 0: the key is not there."""
        self.is_new, self.is_no_number, self.is_out_of_range = True, False, False
        self.total = self.by

    def on(self, bytes digits):
        """The digits of the sum, or None when there is none; `digits` of None begin at 0."""
        cdef char out[DIGITS_BYTES_MAX]
        if digits is None:
            self.begin()
        elif not self.add_to(PyBytes_AS_STRING(digits), PyBytes_GET_SIZE(digits)):
            return None
        return PyBytes_FromStringAndSize(out, write_digits(out, self.total))

    def __call__(self, row, int64_t now_ms):
        """The change itself: the row to store, or the one that was given."""
        digits = self.on(None if row is None else row.value)
        if digits is None:
            return row
        if row is not None:
            return Row(digits, now_ms, *row[2:])
        return Row(digits, now_ms) if self.life is None else Row(digits, now_ms, *self.life(now_ms))


cdef Addition strict_addition(int64_t by):
    """`Addition(by, is_strict=True)`, without the search for its arguments."""
    cdef Addition addition = Addition.__new__(Addition)
    addition.by = by
    addition.is_strict = True
    return addition
