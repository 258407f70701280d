# Readings for compiled modules: only this module reads a clock. See _clock.pyx.
from libc.stdint cimport int64_t

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec

cpdef int64_t elapsed_ns() noexcept nogil
# Absolute instants, for waits.
cdef void monotonic_after(timespec *out, long ms) noexcept nogil
cdef void wall_after(timespec *out, long ms) noexcept nogil
