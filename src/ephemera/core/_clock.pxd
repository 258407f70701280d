# Absolute instants for waits inside compiled modules: only this module reads a clock.
cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec

cdef void monotonic_after(timespec *out, long ms) noexcept nogil
cdef void wall_after(timespec *out, long ms) noexcept nogil
