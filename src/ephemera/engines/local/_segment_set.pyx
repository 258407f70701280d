# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The segment set: all segments of a store as one process sees them, and the operations on them.

The hot paths are here, from arguments that were checked to the mapped bytes and back. A read compares
one word of the control page and walks; a write takes the writer's lock, compares again, appends and
publishes. Everything that happens rarely is a hook, which `segments.py` fills in.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ephemera.core._access cimport (
    NOT_THERE,
    TOO_LATE,
    TOUCHED,
    CompiledAccess,
    ValueRef,
    Slice,
    Touched,
    slice_of,
)
from ephemera.core._clock cimport Now
from ephemera.core._counter cimport DIGITS_BYTES_MAX, Addition, write_digits
from ephemera.core._row cimport (
    NEVER,
    RowHead,
    is_dead_ms,
    read_row_head,
    row_from_head,
    row_head_bytes,
)
from ephemera.engines.local._base cimport (
    BASE_KEY_BYTES_MAX,
    ROW_AT,
    RowReader,
    open_row,
    pack_key_to,
)
from ephemera.engines.local._commit cimport GroupCommit
from ephemera.engines.local._control cimport Control, LockGuard, eph_load64, guard_of
from ephemera.engines.local._segment cimport (
    AHEAD,
    DELETED,
    MORE,
    Due,
    Found,
    Record,
    Segment,
    SegmentDeadlines,
    eph_hash,
    key_of,
    record_bytes_of,
    row_of,
)

import logging

from ephemera.core.errors import CorruptStore, ReadOnly, StoreClosed, StoreFailed, StoreFull
from ephemera.core.keyvalue import family_dropped
from ephemera.engines.local._segment import SegmentSnapshot

_log = logging.getLogger("ephemera")

cdef enum:
    SUCCESSOR_STEPS_MAX = 64 # a key rewritten more often than this since its death counts as alive
    SEGMENTS_FORESEEN = 4
    DEATHS_FORESEEN = 12
    LOOK_BYTES = 4096        # to copy so much of a value takes about as long as to look at a deadline

cdef enum:
    # What became of a version of a key.
    NEWEST
    REPLACED_ALIVE
    REPLACED_DEAD
    DAMAGED

cdef struct Written:
    # What a write's acknowledgement needs: where it ends, and the earliest deadline in it.
    uint64_t number
    uint64_t position
    int64_t deadline_ms


cdef class FamilyRef:
    """A family's handle: it stays good when the family is cleared and so gets another id.

    `first_id` is the one that the family was made with, and tells it from others of its name; a
    dropped family has the id 0.
    """
    cdef readonly str name
    cdef readonly uint32_t first_id
    cdef public uint32_t id
    cdef public object default_ttl_ms

    def __init__(self, str name not None, uint32_t id, default_ttl_ms, uint32_t first_id=0):
        self.name = name
        self.id = id
        self.default_ttl_ms = default_ttl_ms
        self.first_id = first_id or id

    def __repr__(self):
        return f"FamilyRef({self.name!r}, id={self.id})"


cdef inline RowHead _times(int64_t written_ms, int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms) noexcept:
    cdef RowHead times
    times.written_ms, times.deadline_ms = written_ms, deadline_ms
    times.idle_ms, times.hard_ms = idle_ms, hard_ms
    times.value_at = 0
    return times


cdef bint _find(
    list segments, uint64_t hash_seed, uint32_t family, Slice key, Found *found
) except -1:
    """The newest published version of a key in a set of segments, newest first; whether there is one."""
    cdef uint16_t size = <uint16_t> key.size
    cdef uint64_t hash = eph_hash(hash_seed, family, key.start, size)
    cdef Segment segment
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(segments)):
        segment = <Segment> PyList_GET_ITEM(segments, i)
        if segment.find(family, key.start, size, hash, segment.published(), found):
            found.index = i
            return True
    return False


cdef tuple _dead_tuple(Record *r, RowHead *head, bint is_gone):
    return (
        head.deadline_ms,
        r.family,
        PyBytes_FromStringAndSize(key_of(r), r.key_size),
        PyBytes_FromStringAndSize(row_of(r) + head.value_at, r.row_size - head.value_at),
        is_gone,
    )


cdef SegmentDeadlines _earliest(list all_deadlines, int64_t until_ms):
    """Those whose first comes first; None when none is dead by `until_ms`."""
    cdef SegmentDeadlines deadlines, best = None
    cdef Due *due
    cdef int64_t best_ms = 0
    for deadlines in all_deadlines:
        due = deadlines.first()
        if due != NULL and (best is None or due.deadline_ms < best_ms):
            best, best_ms = deadlines, due.deadline_ms
    return best if best is not None and is_dead_ms(best_ms, until_ms) else None


cdef inline bint _is_up_to(
    const Due *due, uint64_t number, int64_t last_ms, uint64_t last_number, uint64_t last_position
) noexcept:
    """Whether it comes not after the last one that was delivered."""
    if due.deadline_ms != last_ms:
        return due.deadline_ms < last_ms
    return number < last_number or (number == last_number and due.position <= last_position)


cdef inline int _check_family(FamilyRef family) except -1:
    if family.id == 0:
        raise family_dropped(family.name)
    return 0


cdef inline bint _acquire_writer(SegmentSet segments) except -1:
    """Acquire the writer lock, and return whether it is inconsistent.

    The base tier's generation does not change while anybody holds it. If it changed before, the new one
    is opened first: that may wait for a process inside a base-tier transaction, which nobody does
    with the writer lock.
    """
    cdef bint is_inconsistent
    while True:
        is_inconsistent = segments.control.writer.acquire(segments.lock_timeout)
        if eph_load64(&segments.control.page.base) == segments.generation:
            return is_inconsistent
        segments.control.writer.release()
        segments.refresh()


cdef class SegmentSet(CompiledAccess):
    """The segments of a store as this process sees them, newest first, and the operations on them.

    `reader` looks below them, in the base tier; `commit` syncs the first. A subclass supplies what an operation rarely needs:
    `refresh` when the epoch moved, `make_room` for another segment, `wait_for_checkpoint` when too many wait
    (`has_backlog`) or the base tier `is_full`, and this thread is not one that `goes_on`, `refuse_growth`, `writer_died`, `acknowledge` to sync any of them, and `wake` for a deadline earlier than `wake_before_ms`.
    """
    cdef readonly Control control
    cdef readonly list segments
    cdef list readable           # those, and what was kept of the ones before them
    cdef Segment active
    cdef uint64_t epoch
    cdef public uint64_t generation      # of the base tier, as `reader` reads it
    cdef public bint is_closed
    cdef public double lock_timeout
    cdef public bint is_read_only
    cdef public bint syncs_each
    cdef public int64_t wake_before_ms
    cdef public bint has_backlog
    cdef public bint is_full
    cdef readonly object clock
    cdef Now now
    cdef public RowReader reader
    cdef public GroupCommit commit

    def __init__(self, Control control not None, *, clock, double lock_timeout,
                 bint is_read_only, bint syncs_each):
        self.control = control
        self.clock = clock
        self.now = Now(clock)
        self.lock_timeout = lock_timeout
        self.is_read_only = is_read_only
        self.syncs_each = syncs_each
        self.wake_before_ms = INT64_MIN
        self.segments = self.readable = []
        self.epoch = <uint64_t> -1

    # -- hooks

    def refresh(self):
        raise TypeError("refresh")

    def make_room(self, uint64_t size, bint grows):
        raise TypeError("make_room")

    def refuse_growth(self):
        raise TypeError("refuse_growth")

    def goes_on(self):
        raise TypeError("goes_on")

    def wait_for_checkpoint(self, bint grows):
        raise TypeError("wait_for_checkpoint")

    def writer_died(self):
        raise TypeError("writer_died")

    def acknowledge(self, uint64_t number, uint64_t position):
        raise TypeError("acknowledge")

    def wake(self):
        raise TypeError("wake")

    # -- what the subclass tells

    def show(
        self, list segments not None, uint64_t epoch, bint takes_writes, list kept not None=[]
    ) -> None:
        """These are the segments as of `epoch`; the first takes writes, or none does.

        `kept` are those right before them, newest first: the base tier has all that they hold, but a
        key is found sooner there. Raises StoreClosed after the end: what a signal handler has closed in the
        middle of a refresh, which then goes on, takes no more writes.
        """
        if self.is_closed:
            raise StoreClosed("the store was closed")
        self.segments = segments
        self.readable = segments + kept
        self.active = segments[0] if segments and takes_writes else None
        self.epoch = epoch

    def hide(self) -> None:
        """Show no segments."""
        self.segments = self.readable = []
        self.active = None
        self.forget()

    def forget(self) -> None:
        """Make the next operation look again, whatever the epoch."""
        self.epoch = <uint64_t> -1

    cdef inline int _look(self) except -1:
        if eph_load64(&self.control.page.epoch) != self.epoch:
            self.refresh()
        return 0

    def look(self) -> None:
        """Follow what others did, if they did anything."""
        self._look()

    # -- hints: a segment's memory is far away, and a caller with many keys need not wait for each

    cdef uint64_t prefetch(self, object family, Slice key) noexcept:
        return self._prefetch_in(self.readable, (<FamilyRef> family).id, key.start, key.size)

    cdef uint64_t _prefetch_in(
        self, list segments, uint32_t family, const char *key, Py_ssize_t size
    ) noexcept:
        cdef uint64_t hash = eph_hash(self.control.page.hash_seed, family, key, <uint16_t> size)
        cdef Py_ssize_t i
        for i in range(min(PyList_GET_SIZE(segments), SEGMENTS_FORESEEN)):
            (<Segment> PyList_GET_ITEM(segments, i)).prefetch(hash)
        return hash

    cdef void prefetch_more(self, uint64_t hint) noexcept:
        cdef list segments = self.readable
        cdef Py_ssize_t i
        # Most slots that lead somewhere lead to the key; what older segments hold of it is not asked then.
        for i in range(min(PyList_GET_SIZE(segments), SEGMENTS_FORESEEN)):
            if (<Segment> PyList_GET_ITEM(segments, i)).prefetch_record(hint):
                return

    # -- reads: no lock, no system call

    def get(self, FamilyRef family not None, bytes key not None, int64_t now_ms, /):
        """The live value of a key, or None."""
        cdef ValueRef live
        holder = self.find(family, slice_of(key), now_ms, &live)
        if holder is None:
            return None
        return PyBytes_FromStringAndSize(live.value.start, live.value.size)

    cdef object find(self, object family, Slice key, int64_t now_ms, ValueRef *live):
        cdef FamilyRef ref = family
        cdef RowHead head
        self._look()
        _check_family(ref)
        holder = self._live(ref.id, key, now_ms, &head, &live.value)
        live.deadline_ms = head.deadline_ms
        return holder

    def row(self, FamilyRef family not None, bytes key not None, int64_t now_ms):
        """The live row of a key, or None."""
        self._look()
        _check_family(family)
        return self._live_row(family.id, key, now_ms)

    cdef object _live_row(self, uint32_t family, bytes key, int64_t now_ms):
        cdef RowHead head
        cdef Slice value
        holder = self._live(family, slice_of(key), now_ms, &head, &value)
        if holder is None:
            return None
        return row_from_head(&head, value.start - head.value_at, value.size + head.value_at)

    cdef object _live(
        self, uint32_t family, Slice key, int64_t now_ms, RowHead *head, Slice *value
    ):
        """What keeps the live row of a key in its place for as long as the caller has it, or None.

        `head` and `value` are the row's, if there is one.
        """
        cdef list segments = self.readable
        cdef Segment segment
        cdef Found found
        if not _find(segments, self.control.page.hash_seed, family, key, &found):
            return self._live_below(family, key, now_ms, head, value)
        segment = <Segment> PyList_GET_ITEM(segments, found.index)
        segment.open_record(found.record, found.position, head)
        if found.record.mark & DELETED or is_dead_ms(head.deadline_ms, now_ms):
            return None
        value.start = row_of(found.record) + head.value_at
        value.size = found.record.row_size - head.value_at
        return segment

    cdef object _live_below(
        self, uint32_t family, Slice key, int64_t now_ms, RowHead *head, Slice *value
    ):
        cdef char buffer[BASE_KEY_BYTES_MAX]
        cdef Slice base_key, stored
        cdef RowReader reader
        if key.size > BASE_KEY_BYTES_MAX - 4:
            return None  # nobody could write it
        base_key.start, base_key.size = buffer, pack_key_to(buffer, family, key)
        reader = self.reader     # another thread may put a new one in its place meanwhile
        holder = reader.find(base_key, &stored)
        if holder is None:
            return None
        open_row(base_key, stored, head)
        value.start = stored.start + ROW_AT + head.value_at
        value.size = stored.size - ROW_AT - head.value_at
        return None if is_dead_ms(head.deadline_ms, now_ms) else holder

    def pop_dead(
        self, list all_deadlines not None, list followed not None, uint64_t newest, tuple delivered not None, int64_t until_ms,
        Py_ssize_t keys_max, Py_ssize_t looks_max, names, bint is_counting
    ):
        """Take from these deadlines of segments, oldest first, the keys that died up to `until_ms`.

        Whether something replaced them is looked for in the segments that were `followed`, retired or not, and in
        those that came after the `newest`.
        Returns up to `keys_max` of (deadline, family id, key, value, whether nothing replaced it), or
        none when only counting; how many nothing has replaced; and how far that went:
        deadline, segment, position. Left out is what was replaced while it lived, what had been
        `delivered`, and what is of no family in `names`. It ends after `looks_max` deadlines, or sooner with
        large values: no other thread runs meanwhile.
        """
        cdef list dead = []
        cdef Py_ssize_t gone = 0
        cdef SegmentDeadlines deadlines
        cdef Segment segment
        cdef Due due
        cdef Record *r
        cdef RowHead head
        cdef int fate
        cdef int64_t last_ms = delivered[0]
        cdef uint64_t last_number = delivered[1], last_position = delivered[2]
        cdef int64_t known_family = -1
        cdef list segments = self._after(newest) + followed
        while gone < keys_max and looks_max > 0:
            deadlines = _earliest(all_deadlines, until_ms)
            if deadlines is None:
                break
            looks_max -= 1
            due = deadlines.first()[0]
            segment = deadlines.segment
            if _is_up_to(&due, segment.number, last_ms, last_number, last_position):
                deadlines.drop()
                continue
            self._prefetch_death(deadlines)
            fate = self._fate_of(segments, segment, &due, &head)
            deadlines.drop()
            if fate == DAMAGED:
                continue
            r = <Record *> (segment.start + due.position)
            last_ms, last_number, last_position = head.deadline_ms, segment.number, due.position
            if fate == REPLACED_ALIVE or (known_family != r.family and r.family not in names):
                continue
            known_family = r.family
            gone += fate == NEWEST
            if not is_counting:
                dead.append(_dead_tuple(r, &head, fate == NEWEST))
                looks_max -= r.row_size // LOOK_BYTES
        return dead, gone, (last_ms, last_number, last_position)

    cdef int _fate_of(
        self, list segments, Segment segment, const Due *due, RowHead *head
    ) except -1:
        """What became of the version that dies then, whose row begins with `head`. Damage is said, and other deaths
        go on."""
        cdef Record *r = <Record *> (segment.start + due.position)
        try:
            if not segment.holds(due.position):
                segment.damaged(due.position, "no record where there was one")
            segment.open_record(r, due.position, head)
            return self._fate(
                segments, r.family, key_of(r), r.key_size, segment.number, due.position, head.deadline_ms
            )
        except CorruptStore as error:
            _log.error("the expiration of a key is not delivered: %s", str(error))
            return DAMAGED

    cdef void _prefetch_death(self, SegmentDeadlines deadlines) noexcept:
        """Those that die one after the other are mostly where they were written, but their slots are not."""
        cdef Due *due = deadlines.ahead(DEATHS_FORESEEN)
        cdef Record *r
        if due != NULL and deadlines.segment.holds(due.position):
            r = <Record *> (deadlines.segment.start + due.position)
            self._prefetch_in(self.segments, r.family, key_of(r), r.key_size)

    cdef list _after(self, uint64_t number):
        """The segments that came after that of this number, newest first."""
        self._look()
        return [segment for segment in self.segments if (<Segment> segment).number > number]

    def outlived_below(
        self, list followed not None, uint64_t newest, uint32_t family, bytes key not None, int64_t deadline_ms
    ):
        """None when a row of the base tier was replaced while it lived, else whether nothing has
        replaced it at all: in the segments that were `followed` when it was read, and after the `newest`."""
        cdef list segments = self._after(newest) + followed
        cdef int fate
        fate = self._fate(
            segments, family, PyBytes_AS_STRING(key), <uint16_t> PyBytes_GET_SIZE(key), 0, 0, deadline_ms
        )
        return None if fate == REPLACED_ALIVE else fate == NEWEST

    cdef int _fate(
        self, list segments, uint32_t family, const char *key, uint16_t size, uint64_t number, uint64_t position,
        int64_t deadline_ms
    ) except -1:
        """What became of a version: the one that came next, if any, tells by when it was written."""
        cdef uint64_t hash = eph_hash(self.control.page.hash_seed, family, key, size)
        cdef Segment segment
        cdef Record *next_one = NULL
        cdef Record *r
        cdef Found found
        cdef RowHead head
        cdef int steps
        for segment in segments:
            if segment.number < number:
                break
            if not segment.find(family, key, size, hash, segment.published(), &found):
                continue
            if segment.number == number and found.position == position:
                continue
            r = found.record
            for steps in range(SUCCESSOR_STEPS_MAX):
                if r.older == 0 or (segment.number == number and 8 * <uint64_t> r.older == position):
                    break
                if not segment.holds(8 * <uint64_t> r.older):
                    segment.damaged(found.position, "a link points outside the records")
                r = <Record *> (segment.start + 8 * <uint64_t> r.older)
            else:
                return REPLACED_ALIVE
            next_one = r
        if next_one == NULL:
            return NEWEST
        if next_one.mark & AHEAD:
            return REPLACED_ALIVE    # its clock says nothing of ours
        if read_row_head(row_of(next_one), next_one.row_size, &head) and is_dead_ms(
            deadline_ms, head.written_ms
        ):
            return REPLACED_DEAD
        return REPLACED_ALIVE

    def knows(self, uint32_t family, bytes key not None, uint64_t after) -> bool:
        """Whether a segment after that of this number holds a version of this key, alive or not."""
        cdef Found found
        return _find(self._after(after), self.control.page.hash_seed, family, slice_of(key), &found)

    def snapshot(self, uint64_t after=0) -> SegmentSnapshot:
        """What is published now, to be read later; of the segments after that of this number."""
        cdef list segments = self._after(after)
        return SegmentSnapshot(segments, [(<Segment> segment).published() for segment in segments])

    # -- writes: one at a time in all processes

    cdef int _enter(self, bint grows=True) except -1:
        """Acquire the writer lock, knowing all that happened before it.

        What only deletes (not `grows`) is let in however full the base tier is.
        """
        cdef bint is_inconsistent
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")
        self._look()
        while True:
            is_inconsistent = _acquire_writer(self)
            try:
                if is_inconsistent:
                    self._recover()
                self._look()
                if self.control.page.failed:
                    raise StoreFailed(
                        "a sync of this store failed: what was written since the last one may be lost;"
                        " close the store in every process and open it again"
                    )
                if not self.is_behind or self._passes(grows):
                    return 0
            except:
                self.control.writer.release()
                raise
            self.control.writer.release()
            self.wait_for_checkpoint(grows)

    cdef bint _passes(self, bint grows) except -1:
        """Whether this write need not wait, though others may have to."""
        if not (self.has_backlog or (grows and self.is_full)):
            return True
        if not self.goes_on():
            return False
        if grows and self.is_full:
            self.refuse_growth()
        return True

    cdef int _recover(self) except -1:
        """Put in order what a holder of the writer's lock that died, or was interrupted, left half done."""
        self.writer_died()
        self.control.writer.mark_consistent()
        return 0

    def enter(self) -> LockGuard:
        """Acquire the writer lock for longer than one operation.

        It may turn out to delete only, so a full base tier does not keep it out: `append_batch` refuses the rest.
        """
        cdef LockGuard guard = guard_of(self.control.writer)
        self._look()
        if self.is_full and not self.is_read_only and not self.goes_on():
            try:
                self.wait_for_checkpoint(True)
            except StoreFull:
                pass
        self._enter(False)
        guard.hold()
        return guard

    def writer_lock(self) -> LockGuard:
        """Acquire the writer lock for work on the segments themselves, however many wait."""
        self._look()
        cdef LockGuard guard = guard_of(self.control.writer)
        cdef bint is_inconsistent = _acquire_writer(self)
        guard.hold()
        if is_inconsistent:
            self._recover()
        return guard

    cdef Segment _room(self, uint64_t size, bint grows=True):
        cdef Segment segment = self.active
        if segment is None or not segment.has_room(size):
            self.make_room(size, grows)
            segment = self.active
            if segment is None:
                raise StoreClosed("the store was closed")
        return segment

    cdef int _append(
        self, uint32_t family, Slice key, Slice value, uint8_t mark, RowHead *times, Written *written
    ) except -1:
        """Write one record under the writer lock, and let it be seen."""
        cdef Segment segment = self._room(
            record_bytes_of(
                key.size, row_head_bytes(times.deadline_ms, times.idle_ms) + <uint64_t> value.size
            )
        )
        written.number = segment.number
        written.deadline_ms = times.deadline_ms
        written.position = segment.append(segment.published(), family, key, value, mark, times)
        segment.publish(written.position)
        return 0

    cdef int _acknowledge(self, Written *written, durable) except -1:
        if written.deadline_ms < self.wake_before_ms:
            self.wake()
        if not (self.syncs_each if durable is None else durable):
            return 0
        if self.commit is not None and self.active is not None and self.active.number == written.number:
            return self.commit.wait(self.active, written.number, written.position)
        self.acknowledge(written.number, written.position)
        return 0

    def put(
        self, FamilyRef family not None, bytes key not None, bytes value not None, int64_t written_ms,
        int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms, durable, /
    ) -> None:
        """Store a row, whatever was there."""
        cdef RowHead times = _times(written_ms, deadline_ms, idle_ms, hard_ms)
        self._put(family, slice_of(key), slice_of(value), &times, durable)

    cdef int store(
        self, object family, Slice key, Slice value, int64_t written_ms, int64_t deadline_ms,
        object durable
    ) except -1:
        cdef RowHead times = _times(written_ms, deadline_ms, 0, NEVER)
        return self._put(family, key, value, &times, durable)

    cdef int _put(self, FamilyRef family, Slice key, Slice value, RowHead *times, durable) except -1:
        cdef Written written
        self._enter()
        try:
            _check_family(family)
            self._append(family.id, key, value, 0, times, &written)
        finally:
            self.control.writer.release()
        return self._acknowledge(&written, durable)

    cdef int store_all(
        self, object family, const Slice *pairs, Py_ssize_t count, int64_t written_ms
    ) except -1:
        cdef FamilyRef ref = family
        cdef RowHead times = _times(written_ms, NEVER, 0, NEVER)
        cdef Written written
        cdef Segment segment
        cdef uint64_t size = 0
        cdef Py_ssize_t i
        for i in range(0, 2 * count, 2):
            size += record_bytes_of(pairs[i].size, row_head_bytes(NEVER, 0) + <uint64_t> pairs[i + 1].size)
        self._enter()
        try:
            _check_family(ref)
            segment = self._room(size)
            written.number, written.position, written.deadline_ms = segment.number, segment.published(), NEVER
            for i in range(0, 2 * count, 2):
                written.position = segment.append(
                    written.position, ref.id, pairs[i], pairs[i + 1],
                    MORE if i + 2 < 2 * count else 0, &times,
                )
            segment.publish(written.position)
        finally:
            self.control.writer.release()
        return self._acknowledge(&written, None)

    def update(self, FamilyRef family not None, bytes key not None, change, *, durable=None) -> None:
        """Give the live row (or None) and the time to `change` and store what it returns."""
        cdef int64_t now_ms
        if type(change) is Addition:
            self._add(family, slice_of(key), <Addition> change, durable)
            return
        where = None
        while where is None:
            self._enter(False)
            try:
                _check_family(family)
                now_ms = self.now.ms()
                row = self._live_row(family.id, key, now_ms)
                new = change(row, now_ms)
                if new is row:
                    return
                if new is None or not self.is_full or self.goes_on():
                    where = self.append_batch([(family, key, new)], now_ms)
            finally:
                self.control.writer.release()
            if where is None:
                self.wait_for_checkpoint(True)
        self.acknowledge_batch(where, durable)

    cdef int add(self, object family, Slice key, Addition addition) except -1:
        return self._add(family, key, addition, None)

    cdef int _add(self, FamilyRef family, Slice key, Addition addition, durable) except -1:
        """What `update` does with an addition, without making rows."""
        cdef Written written
        cdef bint is_stored
        self._enter()
        try:
            _check_family(family)
            is_stored = self._store_sum(family.id, key, addition, &written)
        finally:
            self.control.writer.release()
        return self._acknowledge(&written, durable) if is_stored else 0

    cdef bint _store_sum(
        self, uint32_t family, Slice key, Addition addition, Written *written
    ) except -1:
        """Whether there is a sum, which is then stored with the lifetime that the counter had."""
        cdef int64_t now_ms = self.now.ms()
        cdef RowHead times
        cdef Slice value
        cdef char digits[DIGITS_BYTES_MAX]
        holder = self._live(family, key, now_ms, &times, &value)
        if holder is not None:
            if not addition.add_to(value.start, value.size):
                return False
        else:
            addition.begin()
            times.deadline_ms, times.idle_ms, times.hard_ms = NEVER, 0, NEVER
            if addition.life is not None:
                times.deadline_ms, times.idle_ms, times.hard_ms = addition.life(now_ms)
        times.written_ms = now_ms
        value.start, value.size = digits, write_digits(digits, addition.total)
        self._append(family, key, value, 0, &times, written)
        return True

    def delete(self, FamilyRef family not None, bytes key not None, *, durable=None) -> bool:
        """Remove a key; whether it was alive."""
        cdef Slice one = slice_of(key)
        return self._delete(family, &one, 1, durable) == 1

    cdef Py_ssize_t remove_all(self, object family, Slice *keys, Py_ssize_t count) except -1:
        return self._delete(family, keys, count, None)

    cdef Py_ssize_t _delete(self, FamilyRef family, Slice *keys, Py_ssize_t count, durable) except -1:
        cdef Written written
        cdef Py_ssize_t found
        cdef int64_t now_ms
        self._enter(False)
        try:
            _check_family(family)
            now_ms = self.now.ms()
            found = self._sift(family.id, keys, count, now_ms)
            if found == 0:
                return 0
            self._append_ends(family.id, keys, found, now_ms, &written)
        finally:
            self.control.writer.release()
        self._acknowledge(&written, durable)
        return found

    cdef Py_ssize_t _sift(
        self, uint32_t family, Slice *keys, Py_ssize_t count, int64_t now_ms
    ) except -1:
        """Bring the keys that are alive to the front; how many."""
        cdef RowHead times
        cdef Slice value
        cdef Py_ssize_t found = 0, i
        for i in range(count):
            if self._live(family, keys[i], now_ms, &times, &value) is not None:
                keys[found], keys[i] = keys[i], keys[found]
                found += 1
        return found

    cdef int _append_ends(
        self, uint32_t family, const Slice *keys, Py_ssize_t count, int64_t now_ms, Written *written
    ) except -1:
        """Delete keys by one batch, under the writer lock."""
        cdef RowHead times = _times(now_ms, NEVER, 0, NEVER)
        cdef Slice nothing = slice_of(b"")
        cdef Segment segment
        cdef uint64_t size = 0
        cdef Py_ssize_t i
        for i in range(count):
            size += record_bytes_of(keys[i].size, row_head_bytes(NEVER, 0))
        segment = self._room(size, False)
        written.number, written.position, written.deadline_ms = segment.number, segment.published(), NEVER
        for i in range(count):
            written.position = segment.append(
                written.position, family, keys[i], nothing,
                DELETED | (MORE if i + 1 < count else 0), &times,
            )
        segment.publish(written.position)
        return 0

    cdef Touched renew(self, object family, Slice key, int64_t deadline_ms) except *:
        cdef FamilyRef ref = family
        cdef RowHead times
        cdef Slice value
        cdef Written written
        cdef int64_t now_ms
        self._enter()
        try:
            _check_family(ref)
            now_ms = self.now.ms()
            if is_dead_ms(deadline_ms, now_ms):
                return TOO_LATE
            holder = self._live(ref.id, key, now_ms, &times, &value)
            if holder is None:
                return NOT_THERE
            if times.deadline_ms == deadline_ms and times.idle_ms == 0:
                return TOUCHED
            times = _times(times.written_ms, deadline_ms, 0, NEVER)
            if type(holder) is not Segment:
                # To make room may take long, and somebody may close the file meanwhile.
                holder = PyBytes_FromStringAndSize(value.start, value.size)
                value = slice_of(<bytes> holder)
            self._append(ref.id, key, value, 0, &times, &written)
        finally:
            self.control.writer.release()
        self._acknowledge(&written, None)
        return TOUCHED

    def write(self, writes, *, durable=None) -> None:
        """Store and delete all of these together."""
        if not writes:
            return
        self._enter(any([row is not None for _, _, row in writes]))
        try:
            where = self.append_batch(writes, self.now.ms())
        finally:
            self.control.writer.release()
        self.acknowledge_batch(where, durable)

    def append_batch(self, writes, int64_t now_ms):
        """Write a batch under the writer lock; it becomes visible as a whole, at the end.

        Returns what `acknowledge_batch` takes. Raises StoreFull where the base tier is full, unless all of
        it are deletions.
        """
        cdef uint64_t size = 0
        cdef bint grows = False
        for family, key, row in writes:
            _check_family(family)
            grows = grows or row is not None
            size += record_bytes_of(len(key), 33 + (0 if row is None else len(row.value)))
        if grows and self.is_full:
            self.refuse_growth()
        segment = self._room(size, grows)
        # Whatever interrupts what follows, the next writer recovers then.
        self.control.writer.mark_inconsistent()
        try:
            where = self._append_all(segment, writes, now_ms)
        except:
            # What was linked must not be overwritten: leave it behind, as after a writer's death.
            self._recover()
            raise
        self.control.writer.mark_consistent()
        return where

    cdef tuple _append_all(self, Segment segment, writes, int64_t now_ms):
        cdef FamilyRef family
        cdef bytes key, value
        cdef RowHead times
        cdef uint64_t position = segment.published()
        cdef int64_t earliest_ms = NEVER
        cdef uint8_t mark
        cdef Py_ssize_t left = len(writes)
        for family, key, row in writes:
            left -= 1
            mark = MORE if left else 0
            if row is None:
                value, mark = b"", mark | DELETED
                times = _times(now_ms, NEVER, 0, NEVER)
            else:
                value, times.written_ms, times.deadline_ms, times.idle_ms, times.hard_ms = row
                if times.written_ms > now_ms:
                    mark |= AHEAD
                earliest_ms = min(earliest_ms, times.deadline_ms)
            position = segment.append(position, family.id, slice_of(key), slice_of(value), mark, &times)
        segment.publish(position)
        return segment, position, earliest_ms

    def acknowledge_batch(self, where, durable) -> None:
        """After the writer lock: wake the watcher, and wait for the disk if that was asked."""
        cdef Written written
        written.number = (<Segment?> where[0]).number
        written.position, written.deadline_ms = where[1], where[2]
        self._acknowledge(&written, durable)
