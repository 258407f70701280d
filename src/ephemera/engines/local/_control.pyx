# cython: language_level=3, boundscheck=False, wraparound=False
"""The control page: the few words and the locks that all processes of a store share.

It is one mapped page. The first process to open a store formats it anew and trusts nothing that it
held before; everybody else attaches. `epoch` changes whenever anything else here does that a reader
must know (another active segment, a checkpoint, a family cleared), so that one comparison
before an operation tells whether what a process knows still holds.

A thread acquires the locks in this order, and never waits for one on the left while it holds one on
the right: checkpoint, base_writer, lmdb, writer, syncer. Every wait is bounded, can be interrupted, and
names the process that holds the lock when it fails: that one may be stopped (SIGSTOP, a debugger).
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF
from libc.math cimport INFINITY
from libc.string cimport memcmp, memcpy, memset
from posix.unistd cimport getpid

from ephemera.core._clock cimport monotonic_after, timespec, wall_after
from ephemera.core.errors import CorruptStore, InvalidArgument, StoreBusy, StoreClosed, StoreFailed
from ephemera.core.nonblocking import is_nonblocking

cdef extern from "<errno.h>" nogil:
    int EBADF
    int EBUSY
    int EDEADLK
    int ETIMEDOUT

cdef extern from "_shared.h" nogil:
    int eph_lock_wait(eph_lock *lock, const timespec *monotonic_until, const timespec *wall_until)
    int eph_lock_try_checked(eph_lock *lock)

cdef extern from *:
    """
    /* The locks fit their places in the page. */
    _Static_assert(sizeof(eph_lock_page) <= 128, "a lock outgrew its place in the control page");
    """

CONTROL_BYTES = 4096
CLOCK_OFFSET_AT = 56
"""Where the clock's shared word lies in the page."""
NAMESPACES_AT = 2048
NAMESPACES_BYTES = 256
"""Where the first opener's kernel and namespaces lie in the page (namespaces.py)."""

cdef enum:
    WRITER_AT = 1024
    SYNCER_AT = 1152
    BASE_WRITER_AT = 1280
    LMDB_AT = 1408
    CHECKPOINT_AT = 1536
    WAIT_SLICE_MS = 50

cdef const char *MAGIC = b"EPHCTRL4"

LOCKS = (
    ("writer", WRITER_AT),
    ("sync", SYNCER_AT),
    ("base-tier", BASE_WRITER_AT),
    ("LMDB", LMDB_AT),
    ("checkpoint", CHECKPOINT_AT),
)
"""The locks by name, and where they lie in the page."""


cdef class Lock:
    """A lock of the control page. Taken and released by the same thread; never waits with the GIL.

    `patience` bounds every wait, also those that are under way. When a holder dies, the lock is
    inconsistent from then on, whoever acquires it and for whatever purpose, until `mark_consistent`.
    """

    @property
    def is_inconsistent(self) -> bool:
        """Whether a holder died, or was interrupted, and what it left half done is not recovered yet."""
        return self.lock.page.is_inconsistent != 0

    cdef void mark_inconsistent(self) noexcept:
        """As the holder: let whoever comes next recover, should this be interrupted."""
        eph_store32(&self.lock.page.is_inconsistent, 1)

    cdef void mark_consistent(self) noexcept:
        """As the holder: what the lock protects is whole."""
        eph_store32(&self.lock.page.is_inconsistent, 0)

    cdef bint acquire(self, double timeout) except -1:
        """Return whether the lock is inconsistent. Raises StoreBusy after `timeout` seconds."""
        cdef int rc = eph_lock_try(&self.lock)
        cdef double waited = 0
        cdef timespec monotonic, wall
        while rc == EBUSY or rc == ETIMEDOUT:
            timeout = 0 if is_nonblocking() else min(timeout, self.patience)
            if waited >= timeout:
                raise StoreBusy(
                    f"the {self.name} lock is held by {self.describe_owner()}, and was not released"
                    f" within {timeout:g} s (lock_timeout)"
                )
            monotonic_after(&monotonic, WAIT_SLICE_MS)
            wall_after(&wall, WAIT_SLICE_MS)
            with nogil:
                rc = eph_lock_wait(&self.lock, &monotonic, &wall)
            waited += WAIT_SLICE_MS / 1000.0
            if rc == EBUSY or rc == ETIMEDOUT:
                PyErr_CheckSignals()
        if rc == 0:
            return self.lock.page.is_inconsistent != 0
        if rc == EDEADLK and self.abandoned == self.lock.acquisitions:
            # By a transaction that another thread collected: nobody can use it or end it any more.
            self.abandoned = 0
            self.lock.acquisitions += 1
            return self.lock.page.is_inconsistent != 0
        if rc == EDEADLK:
            raise InvalidArgument(
                "this thread is inside a transaction of the same store: write through it"
            )
        raise self._failure(rc)

    cdef void release(self) noexcept:
        eph_lock_release(&self.lock)

    cdef bint try_acquire(self) except -1:
        """Acquire the lock if it is free, or its holder died; not if this thread has it."""
        cdef int rc = eph_lock_try(&self.lock)
        if rc == EBUSY or rc == EDEADLK:
            return False
        if rc != 0:
            raise self._failure(rc)
        return True

    cdef object _failure(self, int rc):
        if rc == EBADF:
            return StoreClosed("the store was closed")  # by another thread, and the lock's file with it
        return StoreFailed(f"the {self.name} lock failed with error {rc}")

    @property
    def owner(self) -> int:
        """The pid of the process that holds the lock, or held it last; 0 before the first one."""
        return eph_load32(&self.lock.page.owner)

    def describe_owner(self) -> str:
        """Return the words for an error that says who holds the lock."""
        cdef uint32_t owner = eph_load32(&self.lock.page.owner)
        return "another thread of this process" if owner == self.lock.pid else f"process {owner}"

    def is_free(self) -> bool:
        """Whether nobody holds the lock at this moment."""
        if not self.try_acquire():
            return False
        self.release()
        return True

    def is_held_here(self) -> bool:
        """Whether this thread holds the lock."""
        return self.holds()

    cdef bint holds(self) noexcept:
        cdef int rc = eph_lock_try_checked(&self.lock)
        if rc == 0:
            self.release()
        return rc == EDEADLK

    def retire(self) -> bool:
        """Acquire and release the lock for the last time, unless a thread holds it; whether that was done."""
        if not self.try_acquire():
            return False
        eph_lock_retire(&self.lock)
        return True

    def detach(self) -> None:
        """In the child of a fork: forget the descriptor, and what the parent holds by it."""
        eph_lock_detach(&self.lock)

    def __dealloc__(self):
        eph_lock_detach(&self.lock)

    def reattach(self, int fd) -> None:
        """In the child of a fork: hold the lock by a descriptor of its own from now on."""
        cdef int rc = eph_lock_attach(&self.lock, self.lock.page, fd)
        if rc:
            raise StoreFailed(f"the {self.name} lock could not be set up: error {rc}")

    def take(self, double timeout) -> LockGuard:
        """Wait for the lock, for `timeout` seconds at most, and hold it."""
        cdef LockGuard guard = guard_of(self)
        self.acquire(timeout)
        guard.hold()
        return guard


@cython.no_gc
cdef class LockGuard:
    """A lock that is held from the making of this object to `leave`, or to its end.

    Whatever interrupts its holder, the lock is this object's and goes with it. Only the thread that acquired
    a lock can release it: when another thread collects this object, the lock is released when that thread
    next acquires it, or ends.
    """

    @property
    def is_ours(self) -> bool:
        """Whether this thread holds the lock, by this very acquisition of it.

        A thread's id does not tell: it is given to another thread when the first has ended, and its lock
        was handed on.
        """
        return self._is_ours()

    cdef void hold(self) noexcept:
        """The lock was just acquired for this object."""
        self.acquisition = self.lock.lock.acquisitions
        self.is_held = True

    def leave(self) -> None:
        """Give the lock back, if it is this thread's to give."""
        self.end()

    cdef bint _is_ours(self) noexcept:
        return self.acquisition == self.lock.lock.acquisitions and self.lock.holds()

    cdef void end(self) noexcept:
        if self.is_held and self._is_ours():
            self.is_held = False
            self.lock.release()

    def __enter__(self) -> LockGuard:
        return self

    def __exit__(self, *raised) -> None:
        self.end()

    def __dealloc__(self):
        self.end()
        if self.is_held and self.pid == getpid():
            # Another thread collects it, and the one that acquired the lock still holds it: the page must
            # stay mapped, for that thread's list of robust locks leads there until it ends.
            Py_INCREF(self.lock.memory)
            self.lock.abandoned = self.acquisition


cdef LockGuard guard_of(Lock lock):
    """What will hold the lock, made before that is taken, so that nothing can fail in between."""
    cdef LockGuard guard = LockGuard.__new__(LockGuard)
    guard.lock = lock
    guard.pid = getpid()
    return guard


@cython.no_gc
cdef class Control:
    """The mapped page. `memory` is any writable buffer of `CONTROL_BYTES`; `lock_fds` are descriptors
    for the locks, by name, where the system has no robust mutex. The first opener sets the rest.

    `writer`: who appends to segments and publishes. `syncer`: who leads a group commit. `checkpoint`: who
    moves segments to the base tier. `base_writer`: who changes the base tier, or copies it to compact it.
    `lmdb`: in front of LMDB's own writer mutex, for which nobody could wait with a bound, and of the
    opening and removal of its files; held for one transaction only.
    """

    def __cinit__(self, memory, *, bint is_first, lock_fds={},
                  uint64_t hash_seed=0, uint64_t size_limit=0):
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.has_buffer = True
        if self.buffer.len < CONTROL_BYTES:
            raise CorruptStore("control", None, f"{self.buffer.len} bytes, not {CONTROL_BYTES}")
        self.memory = memory
        self.page = <Page *> self.buffer.buf
        cdef char *start = <char *> self.buffer.buf
        if is_first:
            memset(start, 0, CONTROL_BYTES)
            self.page.hash_seed = hash_seed
            self.page.size_limit = size_limit
            for _, at in LOCKS:
                eph_lock_format(<eph_lock_page *> (start + <int> at))
            memcpy(self.page.magic, MAGIC, 8)
        elif memcmp(self.page.magic, MAGIC, 8) != 0:
            raise CorruptStore("control", 0, "no control page of this version")
        self.locks = {
            name: _lock(self, name, <eph_lock_page *> (start + <int> at), lock_fds.get(name, -1))
            for name, at in LOCKS
        }
        self.writer, self.syncer = self.locks["writer"], self.locks["sync"]
        self.checkpoint, self.base_writer = self.locks["checkpoint"], self.locks["base-tier"]
        self.lmdb = self.locks["LMDB"]

    def limit_waits(self, double seconds) -> None:
        """Let no wait for a lock in this process last longer, also of those that are under way."""
        cdef Lock lock
        for lock in self.locks.values():
            lock.patience = min(lock.patience, seconds)

    def detach(self) -> None:
        """In the child of a fork: forget the descriptors, which are the parent's, until `reattach`."""
        for lock in self.locks.values():
            lock.detach()

    def reattach(self, lock_fds) -> None:
        """In the child of a fork: hold the locks by descriptors of its own from now on."""
        for name, lock in self.locks.items():
            lock.reattach(lock_fds[name])

    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)

    @property
    def epoch(self) -> int:
        return eph_load64(&self.page.epoch)

    def publish(self) -> None:
        """Tell every process to look again."""
        eph_add64(&self.page.epoch, 1)

    @property
    def newest(self) -> int:
        """The number of the newest segment, whether it still takes writes or not."""
        return eph_load64(&self.page.newest)

    @newest.setter
    def newest(self, uint64_t number):
        eph_store64(&self.page.newest, number)

    @property
    def active(self) -> int:
        """The number of the segment that takes writes: the newest, or 0 when that one is frozen."""
        return eph_load64(&self.page.active)

    @active.setter
    def active(self, uint64_t number):
        eph_store64(&self.page.active, number)

    @property
    def applied(self) -> int:
        """The number of the last segment whose rows are all in the base tier."""
        return eph_load64(&self.page.applied)

    @applied.setter
    def applied(self, uint64_t number):
        eph_store64(&self.page.applied, number)

    @property
    def base(self) -> int:
        """The generation of the base tier's file."""
        return eph_load64(&self.page.base)

    @base.setter
    def base(self, uint64_t generation):
        eph_store64(&self.page.base, generation)

    def supersede_base(self, uint64_t former, uint64_t generation) -> None:
        """Let the next generation count, unless that was done and more since."""
        if eph_swap64(&self.page.base, former, generation):
            self.publish()

    @property
    def families(self) -> int:
        """Changes with the table of families."""
        return eph_load64(&self.page.families)

    @families.setter
    def families(self, uint64_t version):
        eph_store64(&self.page.families, version)

    def publish_families(self) -> None:
        """Tell every process to load the table of families again."""
        eph_add64(&self.page.families, 1)
        self.publish()

    @property
    def size_limit(self) -> int:
        """From how many bytes on the base tier takes no more rows, in every process."""
        return eph_load64(&self.page.size_limit)

    @property
    def map_bytes(self) -> int:
        """The size of LMDB's map in every process: `size_limit` and the reserve above it."""
        return eph_load64(&self.page.map_bytes)

    @map_bytes.setter
    def map_bytes(self, uint64_t size):
        eph_store64(&self.page.map_bytes, size)

    @property
    def full_rows(self) -> int:
        """The most rows that the base tier had since it reached `size_limit`; 0 while it is below."""
        return eph_load64(&self.page.full_rows)

    @full_rows.setter
    def full_rows(self, uint64_t rows):
        eph_store64(&self.page.full_rows, rows)

    @property
    def oldest_reader(self) -> tuple[int, int]:
        """The base tier's oldest state that is still read, by its transaction number, and since when
        it has been the oldest one. A hint: the two words are not changed together."""
        return eph_load64(&self.page.reader_txn), <int64_t> eph_load64(
            <uint64_t *> &self.page.reader_since_ms
        )

    @oldest_reader.setter
    def oldest_reader(self, state):
        eph_store64(<uint64_t *> &self.page.reader_since_ms, <uint64_t> <int64_t> state[1])
        eph_store64(&self.page.reader_txn, state[0])

    @property
    def hash_seed(self) -> int:
        return self.page.hash_seed

    @property
    def synced(self) -> tuple[int, int]:
        """The segment and the position in it up to which everything is on the disk."""
        cdef uint64_t word = eph_load64(&self.page.synced)
        return word >> 32, (word & 0xFFFFFFFF) * 8

    @synced.setter
    def synced(self, where):
        # One word, so that no reader ever sees half of a change.
        eph_store64(&self.page.synced, <uint64_t> where[0] << 32 | <uint64_t> where[1] // 8)

    def retire(self) -> list[str]:
        """Use the locks no more; return those that a thread still holds, whose descriptors must stay open.

        If there are any, the page stays mapped for good: when the holding thread ends, the kernel hands
        its lock on only if it still finds the page.
        """
        held = [name for name, lock in self.locks.items() if not lock.retire()]
        if held:
            Py_INCREF(self)
        return held

    def note_maintenance(self, int64_t now_ns) -> None:
        """Let others know that this process has just done the background maintenance."""
        self.page.maintainer = <uint64_t> getpid()
        eph_store64(&self.page.maintained_ns, <uint64_t> now_ns)

    @property
    def maintained(self) -> tuple[int, int]:
        """Which process did background maintenance last, and when (`elapsed_ns`)."""
        return eph_load64(&self.page.maintainer), eph_load64(&self.page.maintained_ns)

    @property
    def failed(self) -> bool:
        """Whether a sync failed: final until the store is recovered."""
        return eph_load64(&self.page.failed) != 0

    def fail(self) -> None:
        eph_store64(&self.page.failed, 1)


cdef Lock _lock(control, name, eph_lock_page *page, int fd):
    cdef Lock lock = Lock.__new__(Lock)
    lock.memory = control.memory
    lock.name = name
    lock.patience = INFINITY
    cdef int rc = eph_lock_attach(&lock.lock, page, fd)
    if rc:
        raise StoreFailed(f"the {name} lock could not be set up: error {rc}")
    return lock
