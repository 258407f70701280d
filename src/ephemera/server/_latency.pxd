# For compiled callers. See _latency.pyx.
from libc.stdint cimport int64_t

cdef class Histogram:
    cdef int64_t *counts         # NULL until the first note
    cdef void note(self, int64_t ns) noexcept
