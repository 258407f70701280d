# cython: language_level=3
"""A file in memory, shared with every process that maps it. Python's own keeps a descriptor as well."""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from posix.mman cimport MAP_FAILED, MAP_SHARED, MS_SYNC, PROT_READ, PROT_WRITE, mmap, msync, munmap


@cython.no_gc
cdef class Mapping:
    """`size` bytes of a file, until nobody uses them any more."""
    cdef void *start
    cdef Py_ssize_t size

    def __cinit__(self, int fd, Py_ssize_t size):
        cdef void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if start == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.start = start
        self.size = size

    def __dealloc__(self):
        if self.start != NULL:
            munmap(self.start, self.size)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, 0, flags)

    def flush(self) -> None:
        """Hand what was written to the file."""
        if msync(self.start, self.size, MS_SYNC):
            PyErr_SetFromErrno(OSError)
