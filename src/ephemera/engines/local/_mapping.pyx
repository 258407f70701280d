# cython: language_level=3
"""A file in memory, shared with every process that maps it. Python's own keeps a descriptor as well."""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from posix.mman cimport (
    MAP_FAILED,
    MAP_SHARED,
    MS_SYNC,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    msync,
    munmap,
)
from posix.unistd cimport _SC_PAGESIZE, sysconf

cdef extern from *:
    """
    #ifdef __linux__
    #define EPH_POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, since Linux 5.14 */
    #define EPH_UNMAP_PAGES 4 /* MADV_DONTNEED: of a shared file it takes the mapping away, and no byte */
    #else
    #define EPH_POPULATE_WRITE -1
    #define EPH_UNMAP_PAGES -1
    #endif
    """
    int EPH_POPULATE_WRITE
    int EPH_UNMAP_PAGES

cdef Py_ssize_t PAGE_BYTES = sysconf(_SC_PAGESIZE)
cdef Py_ssize_t MANY_BYTES = 64 * PAGE_BYTES


cdef int sync_mapped(char *memory, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Put what was written to these bytes of a mapped file on the disk; -1, with errno, if that failed.

    The system makes each page that it writes read-only before, and interrupts every processor that runs a
    thread of ours for each. It need not for pages that are not mapped: many go all at once, and
    whoever looks there again maps them by the dozen.
    """
    cdef Py_ssize_t whole = end - end % PAGE_BYTES
    start -= start % PAGE_BYTES
    if whole - start >= MANY_BYTES:
        madvise(memory + start, whole - start, EPH_UNMAP_PAGES)
    return msync(memory + start, end - start, MS_SYNC)


@cython.no_gc
cdef class Mapping:
    """`size` bytes of a file, until nobody uses them any more."""

    def __cinit__(self, int fd, Py_ssize_t size, *, bint is_writable=True):
        cdef int access = PROT_READ | PROT_WRITE if is_writable else PROT_READ
        cdef void *start = mmap(NULL, size, access, MAP_SHARED, fd, 0)
        if start == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.start = start
        self.size = size
        self.is_writable = is_writable

    def __dealloc__(self):
        # Where the file has no name any more the system frees its blocks here, which may wait for the disk.
        if self.start != NULL:
            with nogil:
                munmap(self.start, self.size)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, not self.is_writable, flags)

    def sync(self, Py_ssize_t start, Py_ssize_t end) -> None:
        """Return once what was written to these bytes is on the disk. Raises OSError."""
        cdef int rc
        if not 0 <= start <= end <= self.size:
            raise ValueError(f"bytes {start} to {end} of {self.size}")
        with nogil:
            rc = sync_mapped(<char *> self.start, start, end)
        if rc:
            PyErr_SetFromErrno(OSError)

    def populate(self, Py_ssize_t start) -> None:
        """Have every page from there on in memory and writable before anyone writes to it, where the
        system can. No byte changes."""
        if not 0 <= start <= self.size:
            raise ValueError(f"byte {start} of {self.size}")
        start -= start % PAGE_BYTES
        with nogil:
            madvise(<char *> self.start + start, self.size - start, EPH_POPULATE_WRITE)

    def let_go(self) -> None:
        """Count as no memory of this process until someone looks again, where the system can. No byte
        changes."""
        with nogil:
            madvise(self.start, self.size, EPH_UNMAP_PAGES)
