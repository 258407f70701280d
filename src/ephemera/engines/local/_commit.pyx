# cython: language_level=3, boundscheck=False, wraparound=False
"""Group commit: one sync serves every writer that waits, in all threads and processes of a store.

Who gets the syncer's lock leads: it gives those that the last sync covered a moment to come again, and
syncs all that is published by then. The others sleep at one of two gates, those that this sync will
cover at one, those that must wait for the next at the other, so that writers go on working, and
gather, while a sync is under way. Nobody needs the GIL to lead, or to find out that it is covered;
those that are covered go back for it one after the other.
"""
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.limits cimport INT_MAX
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

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
    eph_swap64,
)
from ephemera.engines.local._mapping cimport sync_mapped
from ephemera.engines.local._segment cimport Segment

import os

from ephemera.core.errors import StoreFailed

cdef extern from "<errno.h>" nogil:
    int EBUSY

cdef extern from "_shared.h" nogil:
    bint eph_word_wait(uint32_t *word, uint32_t seen, long us)
    void eph_word_wake(uint32_t *word, int count)
    uint32_t eph_add32(uint32_t *at, int v)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    WAIT_SLICE_US = 50000
    # A leader waits for others as long as the last sync took, and not for longer than this.
    GATHER_NS_MAX = 500000
    # How long one that went back for the GIL may be away before the next goes, in about microseconds.
    RETURN_US_MAX = 40
    # What became of a wait for a sync; else it is the errno of a lock or a sync that failed.
    COVERED = 0
    LEADS = -1
    FAILED = -2
    WAITED = -3


cdef class GroupCommit:
    """The waits for a sync in one process.

    `sync()` puts everything on the disk, of all segments, and returns how often it had to sync;
    `syncs_directly` tells that such a sync is one msync, no more. `timeout` is how many seconds to wait
    for another leader, which may be stopped: after that `sync_alone()` does the same without being one.
    """

    def __init__(
        self, Control control not None, *, now_ms, sync, sync_alone, bint syncs_directly,
        double timeout
    ):
        self.control = control
        self.now_ms = now_ms
        self.sync = sync
        self.sync_alone = sync_alone
        self.syncs_directly = syncs_directly
        self.timeout = timeout

    cpdef int wait(self, Segment segment, uint64_t number, uint64_t position) except -1:
        """Return once everything up to this position of the segment of this number is on the disk.

        `segment` is None when that is not mapped any more.
        """
        cdef Page *page = self.control.page
        cdef uint64_t wanted = number << 32 | position // 8
        cdef int64_t now_ms = self.now_ms()
        cdef double waited = 0
        cdef int found
        eph_add32(&self.arrivals, 1)
        eph_add32(&page.sync_arrivals, 1)
        while True:
            with nogil:
                found = self._join(wanted)
                if found == LEADS:
                    found = self._lead(segment, wanted, now_ms)
                if found == COVERED:
                    self._return_in_turn()
            if found == LEADS:
                self._lead_slowly()
                return 0    # covered, or its segment is in the base tier by now
            if found == COVERED:
                return 0
            if found == FAILED:
                raise StoreFailed("a sync of this store failed: close it and open it again")
            if found != WAITED:
                raise StoreFailed(f"syncing segment {number} failed: {os.strerror(found)}")
            waited += WAIT_SLICE_US / 1e6
            if waited >= min(self.timeout, self.control.syncer.patience):
                self.syncs += self.sync_alone()
                return 0
            PyErr_CheckSignals()

    cdef int _join(self, uint64_t wanted) noexcept nogil:
        """Wait for the sync that covers `wanted`, or lead it with the syncer's lock; not for long."""
        cdef Page *page = self.control.page
        cdef uint32_t begun, seen
        cdef uint32_t *gate
        cdef uint32_t *slept_at = NULL
        cdef int found
        while True:
            # The gate before the look: whoever leads may end in between.
            begun = eph_load32(&page.syncs_begun)
            gate = &page.sync_gates[(begun + 1) & 1]
            seen = eph_load32(gate)
            found = self._look(wanted)
            if found != WAITED:
                if slept_at != NULL and found != LEADS:
                    # Of those that wait for the next sync one was woken, to lead it.
                    eph_word_wake(slept_at, 1)
                return found
            if eph_load32(&page.syncs_begun) == begun:
                slept_at = gate
                if eph_word_wait(gate, seen, WAIT_SLICE_US):
                    return WAITED

    cdef int _look(self, uint64_t wanted) noexcept nogil:
        """Whether it is covered, failed, or leads now; WAITED when another leads."""
        cdef int rc
        if eph_load64(&self.control.page.synced) >= wanted:
            return COVERED
        if eph_load64(&self.control.page.failed):
            return FAILED
        rc = eph_lock_try(&self.control.syncer.lock)
        if rc == 0:
            # Also after a leader that died: all that it changed are single words, each set when it holds.
            return LEADS
        return WAITED if rc == EBUSY else rc

    cdef void _return_in_turn(self) noexcept nogil:
        """Go when the one that went before is back, or away for good: many at once would only wait
        for the GIL, wake when they cannot have it, and keep the one that has it from coming back."""
        cdef uint64_t last
        cdef uint32_t arrivals, now
        while True:
            last = eph_load64(&self.last_return)
            arrivals = eph_load32(&self.arrivals)
            now = <uint32_t> (elapsed_ns() >> 10)
            if last >> 32 != arrivals or now - <uint32_t> last > <uint32_t> RETURN_US_MAX:
                if eph_swap64(&self.last_return, last, <uint64_t> arrivals << 32 | now):
                    return
            sched_yield()

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
        if not start < head <= segment.size:
            return LEADS
        began_ns = elapsed_ns()
        if sync_mapped(segment.start, start, head):
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

    cdef _lead_slowly(self):
        cdef Page *page = self.control.page
        cdef int64_t began_ns = elapsed_ns()
        try:
            self.syncs += self.sync()
            page.sync_ns = elapsed_ns() - began_ns
        finally:
            self._end()

    cdef void _end(self) noexcept nogil:
        """Give up the lock; let all go that were covered, and one of the others lead."""
        cdef Page *page = self.control.page
        cdef uint32_t begun = page.syncs_begun
        # Complete is the next group when all of this one came again, with those that wait already.
        eph_store32(&page.sync_group_full, eph_load32(&page.sync_arrivals) + page.sync_group)
        eph_lock_release(&self.control.syncer.lock)
        eph_add32(&page.sync_gates[0], 1)
        eph_add32(&page.sync_gates[1], 1)
        eph_word_wake(&page.sync_gates[(begun + 1) & 1], 1)
        eph_word_wake(&page.sync_gates[begun & 1], INT_MAX)

    cdef void _gather(self) noexcept nogil:
        """Wait for those that are expected, if it is not for long."""
        cdef Page *page = self.control.page
        cdef uint32_t full = eph_load32(&page.sync_group_full)
        cdef uint32_t arrivals = eph_load32(&page.sync_arrivals)
        cdef int64_t until_ns = elapsed_ns() + min(page.sync_ns, <uint64_t> GATHER_NS_MAX)
        # Awake: to sleep and be woken takes longer than most need to come.
        while <int32_t> (full - arrivals) > 0 and elapsed_ns() < until_ns:
            sched_yield()
            arrivals = eph_load32(&page.sync_arrivals)
        page.sync_group = arrivals - page.sync_group_from
        page.sync_group_from = arrivals
