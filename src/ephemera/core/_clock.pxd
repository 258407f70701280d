# Readings for compiled modules: only this module reads a clock. See _clock.pyx.
from libc.stdint cimport int64_t

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec

cpdef int64_t elapsed_ns() noexcept nogil

cdef class SteadyClock:
    cdef int64_t own_offset
    cdef int64_t compare_from_us # of the boot-time clock: when to look at the wall clock again
    cdef int64_t *offset
    cdef object memory
    cdef object read_wall
    cdef object read_boot
    cdef bint is_system          # neither reading is replaced
    cdef readonly bint ignores_wall
    cdef int64_t read_ms(self) except? -1
    cdef int64_t read_us(self) except? -1
    cdef int64_t _wall_ns(self) except? -1
    cdef int64_t _boot_ns(self) except? -1
    cdef int64_t _difference_us(self, int64_t *boot_ns) except? -1
    cdef int64_t _believe(self, int64_t seen, int64_t offset) noexcept
    cdef void _raise_offset(self, int64_t to) noexcept


cdef class Now:
    cdef SteadyClock steady
    cdef object now_ms
    cdef bint is_compiled        # nothing else happens while it is read
    cdef int64_t ms(self) except? -1

# Absolute instants, for waits.
cdef void monotonic_after(timespec *out, long ms) noexcept nogil
cdef void wall_after(timespec *out, long ms) noexcept nogil
