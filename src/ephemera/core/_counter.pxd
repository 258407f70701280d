# Adding to a counter, for compiled engines. See _counter.pyx.
from libc.stdint cimport int64_t

cdef enum:
    DIGITS_BYTES_MAX = 20      # of a signed 64-bit number in decimal digits


cdef bint read_digits(
    const char *digits, Py_ssize_t size, bint is_strict, int64_t *number
) noexcept nogil
cdef Py_ssize_t write_digits(char *out, int64_t number) noexcept nogil


cdef class Addition:
    cdef readonly int64_t by
    cdef readonly int64_t total
    cdef readonly bint is_new
    cdef readonly bint is_no_number
    cdef readonly bint is_out_of_range
    cdef bint is_strict
    cdef object life

    cdef bint add_to(self, const char *digits, Py_ssize_t size) noexcept
    cdef void begin(self) noexcept


cdef Addition strict_addition(int64_t by)
