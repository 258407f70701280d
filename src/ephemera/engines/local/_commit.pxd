# Group commit, for compiled callers. See _commit.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ephemera.engines.local._control cimport Control
from ephemera.engines.local._segment cimport Segment

cdef class GroupCommit:
    cdef Control control
    cdef object now_ms
    cdef object sync
    cdef object sync_alone
    cdef bint syncs_directly
    cdef double timeout
    cdef uint32_t arrivals
    # When the last one went back to Python, in about microseconds, below how many had come by then.
    cdef uint64_t last_return
    # How many this process did.
    cdef readonly uint64_t syncs
    cpdef int wait(self, Segment segment, uint64_t number, uint64_t position) except -1
    cdef int _join(self, uint64_t wanted) noexcept nogil
    cdef int _look(self, uint64_t wanted) noexcept nogil
    cdef void _return_in_turn(self) noexcept nogil
    cdef int _lead(self, Segment segment, uint64_t wanted, int64_t now_ms) noexcept nogil
    cdef _lead_slowly(self)
    cdef void _end(self) noexcept nogil
    cdef void _gather(self) noexcept nogil
