# Whole requests from a buffer, for compiled sessions. See _requests.pyx.
from ephemera.core._access cimport Piece

cdef Py_ssize_t split_request(
    const char **start, const char *end, Py_ssize_t bulk_bytes_max, Piece *pieces, Py_ssize_t room
) noexcept nogil

cdef class Limits:
    cdef public Py_ssize_t bulk_bytes_max
    cdef public Py_ssize_t buffer_bytes_max
    cdef public bint is_trusted


cdef class PlainParser:
    cdef public Limits limits
    cdef public bint has_unread
    cdef public Py_ssize_t missing

    cdef list next(self, const char **start, const char *end)
    cdef list _next_exactly(self, const char **start, const char *end)
    cdef list read(self, const char *start, const char *end)
