# Syncing, for compiled callers. See _mapping.pyx.
cdef int sync_mapped(char *memory, Py_ssize_t start, Py_ssize_t end) noexcept nogil
