# cython: language_level=3
"""The open files of stores, those of file locks above all, and all of them in this process.

A lock on a file belongs to the open file, which the child of a fork shares: it lasts until every copy of the
descriptor is closed. So every one of them is listed here, whatever object has it, and whatever
a thread was doing with it when another one forked: the child closes its copies.

No finalizer closes one. A collection finalizes all that a forgotten store consists of, and the store
then closes itself, with its locks, in a thread that may have begun meanwhile. What holds no object, as
this, is none of the garbage collector's business, and goes with the last reference.
"""
from ephemera.core import forks
from ephemera.core.errors import StoreClosed

from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EAGAIN, EINTR, errno
from posix.unistd cimport close

cdef extern from "<sys/file.h>" nogil:
    int LOCK_EX
    int LOCK_NB
    int LOCK_SH
    int LOCK_UN
    int flock(int fd, int operation)

cdef extern from "<fcntl.h>" nogil:
    int F_GETLK
    short F_RDLCK
    short F_UNLCK
    struct flock_range "flock":
        short l_type
        short l_whence
        long l_start
        long l_len
        int l_pid
    int fcntl(int fd, int command, flock_range *range)

cdef extern from "<unistd.h>" nogil:
    short SEEK_SET

cdef enum:
    TRIES = 100     # to open a file while nobody forks; a hook of somebody else's may open one in a fork

cdef void *_newest = NULL


cdef class OpenFile:
    """A file that `open()`, which returns a descriptor, has opened; until `close`, or until nobody has this.

    What another thread closes meanwhile stays open until the call that uses it ends, so that its number
    is nobody else's.
    """
    cdef readonly int fd
    cdef int users
    cdef bint is_closed
    cdef void *older
    cdef void *newer

    def __cinit__(self):
        global _newest
        self.fd = -1
        self.older = _newest
        if _newest != NULL:
            (<OpenFile> _newest).newer = <void *> self
        _newest = <void *> self

    def __init__(self, open):
        # The child of a fork in another thread may have the descriptor before it is known here. Such a one
        # is never locked.
        for _ in range(TRIES):
            begun, under_way = forks.begun, forks.under_way
            self.fd = open()
            if forks.begun == begun and under_way == 0:
                break
            self._close()
        else:
            self.fd = open()

    @property
    def is_open(self) -> bool:
        return not self.is_closed and self.fd >= 0

    def use(self, function, *given):
        """Return `function(fd, *given)`."""
        self._must_be_open()
        self.users += 1
        try:
            return function(self.fd, *given)
        finally:
            self.users -= 1
            if self.is_closed and self.users == 0:
                self._close()

    def close(self) -> None:
        self.is_closed = True
        if self.users == 0:
            self._close()

    cdef int _must_be_open(self) except -1:
        if self.is_closed or self.fd < 0:
            raise StoreClosed("the store was closed")
        return 0

    cdef void _close(self) noexcept:
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            close(fd)

    def __dealloc__(self):
        global _newest
        self._close()
        if self.older != NULL:
            (<OpenFile> self.older).newer = self.newer
        if self.newer != NULL:
            (<OpenFile> self.newer).older = self.older
        else:
            _newest = self.older


cdef class LockFile(OpenFile):
    """The open file of a file lock."""

    def try_lock(self, *, bint is_shared) -> bool:
        """Lock the file unless another one has locked it; return whether that was done."""
        cdef int kind = LOCK_SH if is_shared else LOCK_EX
        self._must_be_open()
        while flock(self.fd, kind | LOCK_NB):
            if errno == EAGAIN:
                return False
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
        return True

    def unlock(self) -> None:
        """Unlock the file, for all who share it; nothing if it was closed, which did the same."""
        if self.fd >= 0:
            flock(self.fd, LOCK_UN)


def close_inherited(kept) -> None:
    """In the child of a fork: close all of the parent's files, except those in `kept`."""
    cdef OpenFile file
    cdef void *at = _newest
    while at != NULL:
        file = <OpenFile> at
        if file not in kept:
            # Its user is a thread of the parent, which does not exist here.
            file.is_closed = True
            file._close()
        at = file.older


def write_locker(int fd) -> int:
    """Return the pid of the process with a write lock (of `fcntl`) on the first byte of a file; 0: nobody.

    Without taking one: a process that dies has its locks for a moment longer, and would look like a user.
    """
    cdef flock_range first
    first.l_type, first.l_whence, first.l_start, first.l_len = F_RDLCK, SEEK_SET, 0, 1
    while fcntl(fd, F_GETLK, &first):
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
    return 0 if first.l_type == F_UNLCK else first.l_pid
