# Encodings of the base tier, for compiled callers. See _base.pyx.
from libc.stdint cimport uint32_t

cdef extern from "_crc32c.h" nogil:
    void eph_crc_setup()
    uint32_t eph_crc32c(uint32_t crc, const void *data, size_t n)

from ephemera.core._row cimport RowHead

cdef enum:
    ROW_AT = 4                 # where the row begins in a base value

cdef bint open_row(bytes base_key, bytes stored, RowHead *head) except -1
cdef bytes pack_key_of(uint32_t family, const char *key, Py_ssize_t size)
cdef bytes pack_row_of(bytes base_key, const char *row, Py_ssize_t size)

cdef class RowReader:
    cdef object begin, explain
    cdef list idle
    cdef Py_ssize_t out
    cdef bytes stored(self, bytes base_key)
