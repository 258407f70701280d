# Mapped files, for compiled callers. See _mapping.pyx.
cdef extern from *:
    """
    static inline void eph_prefetch(const void *at) { __builtin_prefetch(at); }
    """
    void eph_prefetch(const void *at) noexcept nogil

cdef enum:
    LINE_BYTES = 64              # that a processor fetches at once

cdef int sync_mapped(char *memory, Py_ssize_t start, Py_ssize_t end) noexcept nogil

cdef class Mapping:
    cdef void *start
    cdef Py_ssize_t size
    cdef bint is_writable
