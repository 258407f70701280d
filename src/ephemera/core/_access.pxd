# An engine's operations for compiled callers. See _access.pyx.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

from ephemera.core._counter cimport Addition

cdef struct Slice:
    # Bytes that lie in somebody's buffer.
    const char *start
    Py_ssize_t size


cdef inline Slice slice_of(bytes data) noexcept:
    cdef Slice whole
    whole.start = PyBytes_AS_STRING(data)
    whole.size = PyBytes_GET_SIZE(data)
    return whole


cdef inline int compare(Slice a, Slice b) noexcept nogil:
    """In the order of bytes: less than, equal to or greater than 0."""
    cdef int order = memcmp(a.start, b.start, min(a.size, b.size))
    return order if order else (a.size > b.size) - (a.size < b.size)


cdef struct ValueRef:
    # A value where it lies, and when it dies.
    Slice value
    int64_t deadline_ms

cdef enum Touched:
    NOT_THERE
    TOUCHED
    TOO_LATE


cdef class CompiledAccess:
    cdef public bint is_behind

    cdef uint64_t prefetch(self, object family, Slice key) noexcept
    cdef void prefetch_more(self, uint64_t hint) noexcept
    cdef object find(self, object family, Slice key, int64_t now_ms, ValueRef *live)
    cdef int store(
        self, object family, Slice key, Slice value, int64_t written_ms, int64_t deadline_ms,
        object durable
    ) except -1
    cdef int store_all(
        self, object family, const Slice *pairs, Py_ssize_t count, int64_t written_ms
    ) except -1
    cdef int add(self, object family, Slice key, Addition addition) except -1
    cdef Py_ssize_t remove_all(self, object family, Slice *keys, Py_ssize_t count) except -1
    cdef Touched renew(self, object family, Slice key, int64_t deadline_ms) except *
