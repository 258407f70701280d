# Whole requests from a buffer, for compiled sessions. See _requests.pyx.
from ephemera.core._access cimport Slice

cdef Py_ssize_t split_request(
    const char **start, const char *end, Py_ssize_t bulk_bytes_max, Slice *slices, Py_ssize_t room
) noexcept nogil

cdef class Limits:
    cdef public Py_ssize_t bulk_bytes_max
    cdef public Py_ssize_t buffer_bytes_max
    cdef public bint is_trusted


cdef class PlainParser:
    cdef public Limits limits
    cdef public list request
    cdef public Py_ssize_t held
    cdef public Py_ssize_t awaited
    cdef public bint is_inside
    cdef public Py_ssize_t missing

    cdef bint has_unread(self) noexcept
    cdef list next(self, const char **start, const char *end)
    cdef bint _is_whole(self) noexcept
    cdef int _read_plainly(self, const char **start, const char *end) except -1
    cdef int _read_exactly(self, const char **start, const char *end) except -1
