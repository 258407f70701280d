# Trees of the base tier's file, for compiled callers. See _pages.pyx.
from libc.stdint cimport int64_t, uint64_t

from ephemera.core._access cimport Slice
from ephemera.engines.local._lmdb cimport DEPTH_MAX, Node
from ephemera.engines.local._mapping cimport Mapping
from ephemera.engines.local._branch_cache cimport BranchCache

cdef enum Look:
    ABSENT
    PRESENT
    UNSURE              # a page is not what it should be: LMDB must say

cdef class Tree:
    cdef object txn
    cdef object __weakref__
    cdef Mapping mapping
    cdef readonly BranchCache cache
    cdef uint64_t state, root, pages, page_bytes
    cdef readonly bint is_sure          # whether the tree was found

    cdef Look find(self, const char *key, Py_ssize_t size, Slice *value) noexcept
    cdef bint _has_cache(self, BranchCache learned)
    cdef uint64_t _leaf(self, const char *key, Py_ssize_t size, int *prefetched) noexcept
    cdef void _prefetch_leaf(self, uint64_t leads) noexcept
    cdef Look _find_from(
        self, uint64_t number, int prefetched, const char *key, Py_ssize_t size, Slice *value
    ) noexcept
    cdef bint _read_meta(self, const char *page, uint64_t *names_root) noexcept
    cdef Look _data(self, const char *page, const char *at, const Node *node, Slice *value) noexcept
    cdef const char *_page(self, uint64_t number) noexcept


cdef class Walk:
    cdef Tree tree
    cdef bint is_reverse
    cdef bint is_lost                   # a page on the way is not what it should be
    cdef int depth                      # of the leaf where the walk stands; -1 at the end of the tree
    cdef const char *pages[DEPTH_MAX]   # the way there
    cdef int64_t at[DEPTH_MAX]          # the node of each
    cdef int64_t counts[DEPTH_MAX]

    cdef Look step(self, Slice *key, Slice *value) noexcept
    cdef Look _turn_page(self) noexcept
    cdef Look _descend(self, uint64_t number, const Slice *bound) noexcept
