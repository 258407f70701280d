# The control page's layout, for compiled callers. See _control.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from "_shared.h" nogil:
    uint64_t eph_load64(const uint64_t *at)
    void eph_store64(uint64_t *at, uint64_t v)
    uint64_t eph_add64(uint64_t *at, uint64_t v)
    bint eph_swap64(uint64_t *at, uint64_t was, uint64_t to)
    uint32_t eph_load32(const uint32_t *at)
    void eph_store32(uint32_t *at, uint32_t v)
    ctypedef struct eph_lock_page:
        uint32_t is_inconsistent
        uint32_t owner
    ctypedef struct eph_lock:
        eph_lock_page *page
        uint32_t pid
        uint64_t acquisitions
    int eph_lock_format(eph_lock_page *page)
    int eph_lock_attach(eph_lock *lock, eph_lock_page *page, int fd)
    void eph_lock_detach(eph_lock *lock)
    void eph_lock_retire(eph_lock *lock)
    int eph_lock_try(eph_lock *lock)
    void eph_lock_release(eph_lock *lock)

cdef struct Page:
    char magic[8]
    uint64_t epoch
    uint64_t newest
    uint64_t active
    uint64_t applied
    uint64_t base
    uint64_t families
    int64_t clock_offset
    uint64_t hash_seed
    uint64_t synced
    uint32_t syncs_begun
    uint32_t sync_gates[2]
    uint32_t sync_arrivals
    uint32_t sync_group_from
    uint32_t sync_group_full
    uint32_t sync_group
    uint64_t sync_ns
    uint64_t failed
    uint64_t size_limit
    uint64_t map_bytes
    uint64_t full_rows
    uint64_t reader_txn
    int64_t reader_since_ms
    uint64_t maintainer
    uint64_t maintained_ns

cdef class Lock:
    cdef eph_lock lock
    cdef object memory
    cdef object name
    cdef public double patience
    cdef uint64_t abandoned      # the acquisition whose LockGuard another thread released; 0: none
    cdef bint holds(self) noexcept
    cdef bint acquire(self, double timeout) except -1
    cdef bint try_acquire(self) except -1
    cdef object _failure(self, int rc)
    cdef void release(self) noexcept
    cdef void mark_inconsistent(self) noexcept
    cdef void mark_consistent(self) noexcept

cdef class LockGuard:
    cdef Lock lock
    cdef uint64_t acquisition
    cdef long pid
    cdef readonly bint is_held
    cdef void hold(self) noexcept
    cdef bint _is_ours(self) noexcept
    cdef void end(self) noexcept

cdef LockGuard guard_of(Lock lock)

cdef class Control:
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef Page *page
    cdef readonly Lock writer
    cdef readonly Lock syncer
    cdef readonly Lock checkpoint
    cdef readonly Lock base_writer
    cdef readonly Lock lmdb
    cdef readonly dict locks
    cdef readonly object memory
