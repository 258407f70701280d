# Encodings of the base tier, for compiled callers. See _base.pyx.
from libc.stdint cimport int64_t, uint32_t

cdef extern from "_crc32c.h" nogil:
    void eph_crc_setup()
    uint32_t eph_crc32c(uint32_t crc, const void *data, size_t n)

cdef bytes pack_key_of(uint32_t family, const char *key, Py_ssize_t size)
cdef bytes pack_row_of(bytes base_key, const char *row, Py_ssize_t size)

cdef class RowReader:
    cdef object begin, explain
    cdef list idle
    cdef Py_ssize_t out
    cdef bytes stored(self, bytes base_key)
    cdef object live_value(self, uint32_t family, bytes key, int64_t now_ms)
    cdef object row(self, uint32_t family, bytes key)
