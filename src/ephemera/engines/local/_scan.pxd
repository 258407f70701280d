# What can be closed, for compiled callers. See _scan.pyx.

cdef class Closable:
    cdef public bint is_closed
