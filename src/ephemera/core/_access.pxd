# Reads and writes of one key, for compiled callers. See _access.pyx.
from libc.stdint cimport int64_t

cdef class DirectAccess:
    cdef object live_value(self, object family, bytes key, int64_t now_ms)
    cdef int store(
        self, object family, bytes key, bytes value, int64_t written_ms, int64_t deadline_ms,
        int64_t idle_ms, int64_t hard_ms, object durable
    ) except -1
