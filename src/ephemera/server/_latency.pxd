# For compiled callers. See _latency.pyx.
from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    int __builtin_clzll(unsigned long long number) nogil

cdef enum:
    SUB_BITS = 3
    SUB_BUCKETS = 8
    HIGHEST_BIT_MAX = 40         # 18 minutes
    BUCKETS = (HIGHEST_BIT_MAX - SUB_BITS + 2) * SUB_BUCKETS


cdef class Histogram:
    cdef int64_t *counts         # NULL until the first call is counted
    cdef bint allocate(self) noexcept


cdef inline int bucket_of(int64_t ns) noexcept nogil:
    # A power of two belongs to the bucket that it ends.
    cdef uint64_t last = <uint64_t> (ns - 1) if ns > 0 else 0
    cdef int highest
    if last < SUB_BUCKETS:
        return <int> last
    highest = 63 - __builtin_clzll(last)
    if highest > HIGHEST_BIT_MAX:
        return BUCKETS - 1
    return (highest - SUB_BITS + 1) * SUB_BUCKETS + <int> (last >> (highest - SUB_BITS) & SUB_BUCKETS - 1)


cdef inline void count_duration(Histogram histogram, int64_t ns) noexcept:
    if histogram.counts != NULL or histogram.allocate():
        histogram.counts[bucket_of(ns)] += 1
