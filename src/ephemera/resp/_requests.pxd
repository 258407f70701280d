# Whole requests from a buffer, for compiled sessions. See _requests.pyx.

cdef class Limits:
    cdef public Py_ssize_t bulk_bytes_max
    cdef public Py_ssize_t buffer_bytes_max
    cdef public bint is_trusted


cdef class PlainParser:
    cdef public Limits limits
    cdef public bint has_unread

    cdef list read(self, bytes data)
