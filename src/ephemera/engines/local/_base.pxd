# Encodings of the base tier, for compiled callers. See _base.pyx.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "_crc32c.h" nogil:
    void eph_crc_setup()
    uint32_t eph_crc32c(uint32_t crc, const void *data, size_t n)

from ephemera.core._access cimport Slice
from ephemera.core._row cimport RowHead
from ephemera.engines.local._pages cimport Tree

cdef enum:
    ROW_AT = 4                 # where the row begins in a base value
    BASE_KEY_BYTES_MAX = 2048  # no key is so long (KEY_BYTES_MAX)

cdef bint open_row(Slice base_key, Slice stored, RowHead *head) except -1
cdef Py_ssize_t pack_key_to(char *out, uint32_t family, Slice key) noexcept nogil
cdef bytes pack_key_of(uint32_t family, const char *key, Py_ssize_t size)
cdef bytes pack_row_of(bytes base_key, const char *row, Py_ssize_t size)

cdef class RowReader:
    cdef object pin, ask
    cdef Tree tree
    cdef uint64_t renewals
    cdef object find(self, Slice base_key, Slice *stored)
    cdef Tree _pinned(self)
