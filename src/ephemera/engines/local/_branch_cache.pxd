# Where the branches of a tree lead, for compiled callers. See _branch_cache.pyx.
from libc.stdint cimport uint64_t

cdef enum:
    NO_LINK = 1     # where no link is: they are aligned
    COUNT_AT = 40   # the bits of a link from there on, up to the last
    PART_BITS = 6
    PARTS = 64      # of a page, to say where a node lies


cdef inline uint64_t page_in(uint64_t leads) noexcept nogil:
    """The number of the page that a link leads to."""
    return leads & ((<uint64_t> 1 << COUNT_AT) - 1)


cdef inline uint64_t middles_in(uint64_t leads) noexcept nogil:
    """The parts of a leaf in which a search looks first, three times PART_BITS; 0 when nobody has seen it yet."""
    return leads >> COUNT_AT


cdef inline uint64_t part_bytes(uint64_t page_bytes) noexcept nogil:
    return page_bytes // PARTS


cdef class BranchCache:
    cdef char *start
    cdef uint64_t state, size, room
    cdef bint is_full

    cdef bint begin(self, uint64_t state, uint64_t root) noexcept
    cdef uint64_t follow(self, uint64_t *link, const char *key, Py_ssize_t size) noexcept
    cdef void note_leaf(self, uint64_t link, const char *page, uint64_t page_bytes) noexcept
    cdef bint learn(self, uint64_t link, const char *page, uint64_t page_bytes) noexcept
    cdef bint _make_room(self, uint64_t size) noexcept
