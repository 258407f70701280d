# cython: language_level=3, boundscheck=False, wraparound=False
"""Group commit: one sync serves every writer that waits, in all threads and processes of a store.

Who gets the syncer's lock leads: it gives as many as came for the last sync a moment to come again,
and syncs all that is published by then. The others sleep at one of two gates, those that this sync
will cover at one, those that must wait for the next at the other, so that writers go on working, and
gather, while a sync is under way. Nobody needs the GIL to lead, or to find out that it is covered.
"""
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from posix.mman cimport MS_SYNC, msync
from posix.unistd cimport _SC_PAGESIZE, sysconf

from ephemera.core._clock cimport elapsed_ns
from ephemera.engines.local._control cimport (
    Control,
    Page,
    eph_load32,
    eph_load64,
    eph_lock_release,
    eph_lock_try,
    eph_store32,
    eph_store64,
)
from ephemera.engines.local._segment cimport Segment

import os

from ephemera.core.errors import StoreFailed

cdef extern from "<errno.h>" nogil:
    int EBUSY
    int EOWNERDEAD

cdef extern from "_shared.h" nogil:
    bint eph_word_wait(uint32_t *word, uint32_t seen, long us)
    void eph_word_wake_one(uint32_t *word)
    uint32_t eph_add32(uint32_t *at, int v)

cdef enum:
    WAIT_SLICE_US = 50000
    # A leader waits for others as long as the last sync took, and not for longer than this.
    GATHER_US_MAX = 2000
    # What became of a wait for a sync; else it is the errno of a lock or a sync that failed.
    COVERED = 0
    LEADS = -1
    FAILED = -2
    WAITED = -3


cdef class GroupCommit:
    """The waits for a sync in one process. `syncs_directly` tells that a sync is one msync, no more."""
    cdef Control control
    cdef bint syncs_directly
    cdef readonly uint64_t syncs
    """How many this process did."""

    def __init__(self, Control control not None, *, bint syncs_directly):
        self.control = control
        self.syncs_directly = syncs_directly

    def wait(
        self, Segment segment, uint64_t number, uint64_t position, int64_t now_ms, sync, double timeout
    ):
        """Return once everything up to this position of the segment of this number is on the disk.

        `segment` is None when that is not mapped any more. `sync()` puts everything on the disk, of
        all segments; it returns how often it had to sync.
        """
        cdef Page *page = self.control.page
        cdef uint64_t wanted = number << 32 | position // 8
        cdef double waited = 0
        cdef uint32_t *gate
        cdef int found
        if eph_add32(&page.sync_arrivals, 1) == eph_load32(&page.sync_group_full):
            eph_word_wake_one(&page.sync_arrivals)
        while True:
            with nogil:
                found = self._join(wanted, &gate)
                if found == LEADS:
                    found = self._lead(segment, wanted, now_ms)
            if found == LEADS:
                self._lead_slowly(sync)
                found = COVERED    # or its segment is in the base tier by now
            if found != WAITED:
                # One wakes the next, when it has the GIL: all at once would only wait for that.
                eph_word_wake_one(gate)
            if found == COVERED:
                return
            if found == FAILED:
                raise StoreFailed("a sync of this store failed: close it and open it again")
            if found != WAITED:
                raise StoreFailed(f"syncing segment {number} failed: {os.strerror(found)}")
            waited += WAIT_SLICE_US / 1e6
            if waited >= timeout:
                raise StoreFailed(
                    f"no sync came to an end within {timeout:g} s: what was just written is"
                    " visible, and whether it is on the disk is unknown"
                )
            PyErr_CheckSignals()

    cdef int _join(self, uint64_t wanted, uint32_t **gate) noexcept nogil:
        """Wait for the sync that covers `wanted`, or lead it with the syncer's lock; not for long."""
        cdef Page *page = self.control.page
        cdef uint32_t begun, seen
        cdef int rc
        while True:
            begun = eph_load32(&page.syncs_begun)
            gate[0] = &page.sync_gates[(begun + 1) & 1]
            seen = eph_load32(gate[0])
            if eph_load64(&page.synced) >= wanted:
                return COVERED
            if eph_load64(&page.failed):
                return FAILED
            rc = eph_lock_try(&self.control.syncer.lock)
            if rc == 0 or rc == EOWNERDEAD:
                return LEADS
            if rc != EBUSY:
                return rc
            if eph_load32(&page.syncs_begun) != begun:
                continue
            if eph_word_wait(gate[0], seen, WAIT_SLICE_US):
                return WAITED
            if eph_load64(&page.synced) >= wanted:
                return COVERED
            if eph_load32(gate[0]) != seen:
                # This one has still to wait, or to lead; another may be done.
                eph_word_wake_one(gate[0])

    cdef int _lead(self, Segment segment, uint64_t wanted, int64_t now_ms) noexcept nogil:
        """Sync what is published in the one segment where anything is new; LEADS, with the lock, when
        that is not so simple."""
        cdef Page *page = self.control.page
        cdef uint64_t done, start, head
        cdef int64_t began_ns
        cdef int error
        self._gather()
        done = eph_load64(&page.synced)
        if done >= wanted:
            self._end()
            return COVERED
        eph_add32(&page.syncs_begun, 1)
        if not self.syncs_directly or segment is None or done >> 32 != segment.number:
            return LEADS
        head = segment.published()
        start = <uint64_t> <uint32_t> done * 8
        start -= start % sysconf(_SC_PAGESIZE)
        if not start < head <= segment.size:
            return LEADS
        began_ns = elapsed_ns()
        if msync(segment.start + start, head - start, MS_SYNC):
            error = errno
            # The kernel may have dropped the pages: a second try would lie.
            eph_store64(&page.failed, 1)
            self._end()
            return error
        page.sync_ns = elapsed_ns() - began_ns
        segment.note_synced(head, now_ms)
        eph_store64(&page.synced, segment.number << 32 | head // 8)
        self.syncs += 1
        self._end()
        return COVERED

    cdef _lead_slowly(self, sync):
        cdef Page *page = self.control.page
        cdef int64_t began_ns = elapsed_ns()
        try:
            self.syncs += sync()
            page.sync_ns = elapsed_ns() - began_ns
        finally:
            self._end()

    cdef void _end(self) noexcept nogil:
        """Give up the lock, and let one of those that were not covered lead."""
        cdef Page *page = self.control.page
        cdef uint32_t begun = page.syncs_begun
        eph_lock_release(&self.control.syncer.lock)
        eph_add32(&page.sync_gates[0], 1)
        eph_add32(&page.sync_gates[1], 1)
        eph_word_wake_one(&page.sync_gates[(begun + 1) & 1])

    cdef void _gather(self) noexcept nogil:
        """Wait for as many as came for the last sync, if it is not for long."""
        cdef Page *page = self.control.page
        cdef uint32_t full = eph_load32(&page.sync_group_full)
        cdef uint32_t arrivals = eph_load32(&page.sync_arrivals)
        cdef long us = min(page.sync_ns // 1000, <uint64_t> GATHER_US_MAX)
        cdef bint is_late = us == 0
        while <int32_t> (full - arrivals) > 0 and not is_late:
            is_late = eph_word_wait(&page.sync_arrivals, arrivals, us)
            arrivals = eph_load32(&page.sync_arrivals)
        # The next group is complete when as many came as to this one.
        eph_store32(&page.sync_group_full, arrivals + (arrivals - page.sync_group_from))
        page.sync_group_from = arrivals
