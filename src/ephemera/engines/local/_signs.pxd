# Where the branches of a tree lead, for compiled callers. See _signs.pyx.
from libc.stdint cimport uint64_t

cdef enum:
    NO_SIGN = 1     # where no sign is: they are aligned

cdef class Signs:
    cdef char *start
    cdef uint64_t state, size, room
    cdef bint is_full

    cdef bint begin(self, uint64_t state, uint64_t root) noexcept
    cdef uint64_t follow(self, uint64_t *sign, const char *key, Py_ssize_t size) noexcept
    cdef bint learn(self, uint64_t sign, const char *page, uint64_t page_bytes) noexcept
    cdef bint _make_room(self, uint64_t size) noexcept
