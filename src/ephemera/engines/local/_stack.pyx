# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The stack: all segments of a store as one process sees them, and the operations on them.

The hot paths are here, from arguments that were checked to the mapped bytes and back. A read compares
one word of the control page and walks; a write takes the writer's lock, compares again, appends and
publishes. Everything that happens rarely is a hook, which `segments.py` fills in.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ephemera.core._access cimport DirectAccess
from ephemera.core._counter cimport DIGITS_BYTES_MAX, Addition, write_digits
from ephemera.core._row cimport (
    NEVER,
    RowHead,
    is_dead_ms,
    read_row_head,
    row_from_head,
    row_head_bytes,
)
from ephemera.engines.local._base cimport RowReader
from ephemera.engines.local._control cimport Control, Turn, eph_load64, turn_of
from ephemera.engines.local._segment cimport (
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
    row_or_none,
)

from ephemera.core.errors import ReadOnly, StoreFailed
from ephemera.core.keyvalue import family_dropped
from ephemera.engines.local._segment import Cut

cdef enum:
    SUCCESSOR_STEPS_MAX = 64 # a key rewritten more often than this since its death counts as alive

cdef enum:
    # What became of a version of a key.
    NEWEST
    REPLACED_ALIVE
    REPLACED_DEAD


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



cdef Found _find(list segments, uint64_t hash_seed, uint32_t family, bytes key) except *:
    """The newest published version of a key in a stack of segments, newest first."""
    cdef const char *start = PyBytes_AS_STRING(key)
    cdef uint16_t size = <uint16_t> PyBytes_GET_SIZE(key)
    cdef uint64_t hash = eph_hash(hash_seed, family, start, size)
    cdef Found found
    cdef Segment segment
    cdef Py_ssize_t i
    found.record = NULL
    found.position = 0
    found.index = 0
    for i in range(PyList_GET_SIZE(segments)):
        segment = <Segment> PyList_GET_ITEM(segments, i)
        found = segment.find(family, start, size, hash, segment.published())
        if found.record != NULL:
            found.index = i
            break
    return found


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
    """Whether it comes not after the last one that was told of."""
    if due.deadline_ms != last_ms:
        return due.deadline_ms < last_ms
    return number < last_number or (number == last_number and due.position <= last_position)


cdef inline int _check_family(FamilyRef family) except -1:
    if family.id == 0:
        raise family_dropped(family.name)
    return 0


cdef class SegmentStack(DirectAccess):
    """The segments of a store as this process sees them, newest first, and the operations on them.

    `reader` looks below them, in the base tier. A subclass supplies what an operation rarely needs:
    `refresh` when the epoch moved, `make_room` for another segment, `wait_for_checkpoint` when too many wait,
    `writer_died`, `acknowledge` to sync, and `wake` for a deadline earlier than `wake_before_ms`.
    """
    cdef readonly Control control
    cdef readonly list segments
    cdef Segment active
    cdef uint64_t epoch
    cdef public double lock_timeout
    cdef public bint is_read_only
    cdef public bint syncs_each
    cdef public bint is_behind
    cdef public int64_t wake_before_ms
    cdef public object now_ms
    cdef public RowReader reader

    def __init__(self, Control control not None, *, now_ms, double lock_timeout,
                 bint is_read_only, bint syncs_each):
        self.control = control
        self.now_ms = now_ms
        self.lock_timeout = lock_timeout
        self.is_read_only = is_read_only
        self.syncs_each = syncs_each
        self.wake_before_ms = INT64_MIN
        self.segments = []
        self.epoch = <uint64_t> -1

    # -- hooks

    def refresh(self):
        raise TypeError("refresh")

    def make_room(self, uint64_t size):
        raise TypeError("make_room")

    def wait_for_checkpoint(self):
        raise TypeError("wait_for_checkpoint")

    def writer_died(self):
        raise TypeError("writer_died")

    def acknowledge(self, Segment segment, uint64_t position):
        raise TypeError("acknowledge")

    def wake(self):
        raise TypeError("wake")

    # -- what the subclass tells

    def show(self, list segments not None, uint64_t epoch, bint takes_writes) -> None:
        """These are the segments as of `epoch`; the first takes writes, or none does."""
        self.segments = segments
        self.active = segments[0] if segments and takes_writes else None
        self.epoch = epoch

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

    # -- reads: no lock, no system call

    def get(self, FamilyRef family not None, bytes key not None, int64_t now_ms, /):
        """The live value of a key, or None."""
        return self.live_value(family, key, now_ms)

    cdef object live_value(self, object family_ref, bytes key, int64_t now_ms):
        cdef FamilyRef family = <FamilyRef?> family_ref
        cdef list segments
        cdef Found found
        cdef RowHead head
        self._look()
        _check_family(family)
        segments = self.segments
        found = _find(segments, self.control.page.hash_seed, family.id, key)
        if found.record == NULL:
            return self.reader.live_value(family.id, key, now_ms)
        (<Segment> PyList_GET_ITEM(segments, found.index)).open_record(found.record, found.position, &head)
        if found.record.mark & DELETED or is_dead_ms(head.deadline_ms, now_ms):
            return None
        return PyBytes_FromStringAndSize(
            row_of(found.record) + head.value_at, found.record.row_size - head.value_at
        )

    def row(self, FamilyRef family not None, bytes key not None, int64_t now_ms):
        """The live row of a key, or None."""
        self._look()
        _check_family(family)
        return self._live_row(family.id, key, now_ms)

    cdef object _live_row(self, uint32_t family, bytes key, int64_t now_ms):
        cdef list segments = self.segments
        cdef Found found = _find(segments, self.control.page.hash_seed, family, key)
        if found.record == NULL:
            row = self.reader.row(family, key)
        else:
            row = row_or_none(segments[found.index], found)
        if row is None or is_dead_ms(row.deadline_ms, now_ms):
            return None
        return row

    def pop_dead(
        self, list all_deadlines not None, tuple told not None, int64_t until_ms, Py_ssize_t keys_max,
        names, bint is_counting
    ):
        """Take from these deadlines of segments, oldest first, the keys that died up to `until_ms`.

        Returns up to `keys_max` of (deadline, family id, key, value, whether nothing replaced it), or
        none when only counting; how many nothing has replaced; and how far that went:
        deadline, segment, position. Left out is what was replaced while it lived, what had been
        `told`, and what is of no family in `names`.
        """
        cdef list dead = []
        cdef Py_ssize_t gone = 0
        cdef SegmentDeadlines deadlines
        cdef Segment segment
        cdef Due due
        cdef Record *r
        cdef RowHead head
        cdef int fate
        cdef int64_t last_ms = told[0]
        cdef uint64_t last_number = told[1], last_position = told[2]
        cdef int64_t known_family = -1
        self._look()
        while gone < keys_max:
            deadlines = _earliest(all_deadlines, until_ms)
            if deadlines is None:
                break
            due = deadlines.first()[0]
            segment = deadlines.segment
            if _is_up_to(&due, segment.number, last_ms, last_number, last_position):
                deadlines.drop()
                continue
            r = <Record *> (segment.start + due.position)
            segment.open_record(r, due.position, &head)
            fate = self._fate(
                r.family, key_of(r), r.key_size, segment.number, due.position, head.deadline_ms
            )
            deadlines.drop()
            last_ms, last_number, last_position = head.deadline_ms, segment.number, due.position
            if fate == REPLACED_ALIVE or (known_family != r.family and r.family not in names):
                continue
            known_family = r.family
            gone += fate == NEWEST
            if not is_counting:
                dead.append(_dead_tuple(r, &head, fate == NEWEST))
        return dead, gone, (last_ms, last_number, last_position)

    def outlived_below(self, uint32_t family, bytes key not None, int64_t deadline_ms):
        """None when a row of the base tier was replaced while it lived, else whether nothing has
        replaced it at all."""
        cdef int fate
        self._look()
        fate = self._fate(
            family, PyBytes_AS_STRING(key), <uint16_t> PyBytes_GET_SIZE(key), 0, 0, deadline_ms
        )
        return None if fate == REPLACED_ALIVE else fate == NEWEST

    cdef int _fate(
        self, uint32_t family, const char *key, uint16_t size, uint64_t number, uint64_t position,
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
        for segment in self.segments:
            if segment.number < number:
                break
            found = segment.find(family, key, size, hash, segment.published())
            if found.record == NULL or (segment.number == number and found.position == position):
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
        if read_row_head(row_of(next_one), next_one.row_size, &head) and is_dead_ms(
            deadline_ms, head.written_ms
        ):
            return REPLACED_DEAD
        return REPLACED_ALIVE

    def knows(self, uint32_t family, bytes key not None) -> bool:
        """Whether any segment holds a version of this key, alive or not."""
        self._look()
        return _find(self.segments, self.control.page.hash_seed, family, key).record != NULL

    def cut(self) -> Cut:
        """What is published now, to be read later."""
        cdef Segment segment
        self._look()
        return Cut(list(self.segments), [(<Segment> segment).published() for segment in self.segments])

    # -- writes: one at a time in all processes

    cdef int _enter(self) except -1:
        """Take the writer's turn, knowing all that happened before it."""
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")
        self._look()
        while True:
            if self.control.take_writer(self.lock_timeout):
                try:
                    self.writer_died()
                except:
                    self.control.writer.release()
                    raise
            try:
                self._look()
                if self.control.page.failed:
                    raise StoreFailed(
                        "a sync of this store failed: what was written since the last one may be lost;"
                        " close the store in every process and open it again"
                    )
            except:
                self.control.writer.release()
                raise
            if not self.is_behind:
                return 0
            self.control.writer.release()
            self.wait_for_checkpoint()

    def enter(self) -> Turn:
        """Take the writer's turn for longer than one operation."""
        cdef Turn turn = turn_of(self.control.writer)
        self._enter()
        turn.is_held = True
        return turn

    def turn(self) -> Turn:
        """Take the writer's turn for work on the segments themselves, however many wait."""
        cdef Turn turn = self.control.writer.take(self.lock_timeout)
        if self.control.note_death(turn.has_died):
            self.writer_died()
        return turn

    cdef Segment _room(self, uint64_t size):
        if self.active is None or not self.active.has_room(size):
            self.make_room(size)
        return self.active

    cdef uint64_t _write(
        self, Segment segment, uint64_t position, uint32_t family, bytes key, bytes value,
        uint8_t mark, int64_t written_ms, int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms
    ) noexcept:
        return segment.append(
            position, family, key, PyBytes_AS_STRING(value), <uint32_t> PyBytes_GET_SIZE(value),
            mark, written_ms, deadline_ms, idle_ms, hard_ms,
            eph_hash(segment.hash_seed, family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)),
        )

    cdef int _acknowledge(self, Segment segment, uint64_t position, int64_t deadline_ms, durable) except -1:
        if deadline_ms < self.wake_before_ms:
            self.wake()
        if self.syncs_each if durable is None else durable:
            self.acknowledge(segment, position)
        return 0

    def put(
        self, FamilyRef family not None, bytes key not None, bytes value not None, int64_t written_ms,
        int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms, durable, /
    ) -> None:
        """Store a row, whatever was there."""
        self.store(family, key, value, written_ms, deadline_ms, idle_ms, hard_ms, durable)

    cdef int store(
        self, object family_ref, bytes key, bytes value, int64_t written_ms, int64_t deadline_ms,
        int64_t idle_ms, int64_t hard_ms, object durable
    ) except -1:
        cdef FamilyRef family = <FamilyRef?> family_ref
        cdef Segment segment
        cdef uint64_t position
        cdef uint64_t size = record_bytes_of(
            PyBytes_GET_SIZE(key), row_head_bytes(deadline_ms, idle_ms) + PyBytes_GET_SIZE(value)
        )
        self._enter()
        try:
            _check_family(family)
            segment = self._room(size)
            position = self._write(
                segment, segment.published(), family.id, key, value, 0,
                written_ms, deadline_ms, idle_ms, hard_ms,
            )
            segment.publish(position)
        finally:
            self.control.writer.release()
        return self._acknowledge(segment, position, deadline_ms, durable)

    def update(self, FamilyRef family not None, bytes key not None, change, *, durable=None) -> None:
        """Give the live row (or None) and the time to `change` and store what it returns."""
        cdef int64_t now_ms
        self._enter()
        try:
            _check_family(family)
            now_ms = self.now_ms()
            if type(change) is Addition:
                where = self._add(family.id, key, <Addition> change, now_ms)
                if where is None:
                    return
            else:
                row = self._live_row(family.id, key, now_ms)
                new = change(row, now_ms)
                if new is row:
                    return
                where = self.append_batch([(family, key, new)], now_ms)
        finally:
            self.control.writer.release()
        self.acknowledge_batch(where, durable)

    cdef tuple _add(self, uint32_t family, bytes key, Addition addition, int64_t now_ms):
        """What `update` does with an addition, without making rows; None when nothing is to be stored."""
        cdef RowHead head
        cdef char digits[DIGITS_BYTES_MAX]
        cdef Py_ssize_t size
        cdef Segment segment
        cdef uint64_t position
        if not self._add_to_live(family, key, addition, now_ms, &head):
            return None
        size = write_digits(digits, addition.total)
        segment = self._room(
            record_bytes_of(
                PyBytes_GET_SIZE(key), row_head_bytes(head.deadline_ms, head.idle_ms) + size
            )
        )
        position = segment.append(
            segment.published(), family, key, digits, <uint32_t> size, 0,
            now_ms, head.deadline_ms, head.idle_ms, head.hard_ms,
            eph_hash(segment.hash_seed, family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)),
        )
        segment.publish(position)
        return segment, position, head.deadline_ms

    cdef bint _add_to_live(
        self, uint32_t family, bytes key, Addition addition, int64_t now_ms, RowHead *head
    ) except -1:
        """Whether there is a sum; `head` then has the lifetime of its row."""
        cdef list segments = self.segments
        cdef Found found = _find(segments, self.control.page.hash_seed, family, key)
        cdef bytes value = None
        head.deadline_ms, head.idle_ms, head.hard_ms = NEVER, 0, NEVER
        if found.record != NULL:
            (<Segment> PyList_GET_ITEM(segments, found.index)).open_record(
                found.record, found.position, head
            )
            if not found.record.mark & DELETED and not is_dead_ms(head.deadline_ms, now_ms):
                return addition.add_to(
                    row_of(found.record) + head.value_at, found.record.row_size - head.value_at
                )
            head.deadline_ms, head.idle_ms, head.hard_ms = NEVER, 0, NEVER
        else:
            row = self.reader.row(family, key)
            if row is not None and not is_dead_ms(row.deadline_ms, now_ms):
                value, _, head.deadline_ms, head.idle_ms, head.hard_ms = row
                return addition.add_to(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        addition.begin()
        if addition.life is not None:
            head.deadline_ms, head.idle_ms, head.hard_ms = addition.life(now_ms)
        return True

    def delete(self, FamilyRef family not None, bytes key not None, *, durable=None) -> bool:
        """Remove a key; whether it was alive."""
        cdef int64_t now_ms
        self._enter()
        try:
            _check_family(family)
            now_ms = self.now_ms()
            if self._live_row(family.id, key, now_ms) is None:
                return False
            where = self.append_batch([(family, key, None)], now_ms)
        finally:
            self.control.writer.release()
        self.acknowledge_batch(where, durable)
        return True

    def write(self, writes, *, durable=None) -> None:
        """Store and delete all of these together."""
        if not writes:
            return
        self._enter()
        try:
            where = self.append_batch(writes, self.now_ms())
        finally:
            self.control.writer.release()
        self.acknowledge_batch(where, durable)

    def append_batch(self, writes, int64_t now_ms):
        """Write a batch during the writer's turn; it becomes visible as a whole, at the end.

        Returns what `acknowledge_batch` takes.
        """
        cdef uint64_t size = 0
        for family, key, row in writes:
            _check_family(family)
            size += record_bytes_of(len(key), 33 + (0 if row is None else len(row.value)))
        try:
            return self._append_all(self._room(size), writes, now_ms)
        except:
            # What was linked must not be overwritten: leave it behind, as after a writer's death.
            self.writer_died()
            raise

    cdef tuple _append_all(self, Segment segment, writes, int64_t now_ms):
        cdef FamilyRef family
        cdef uint64_t position = segment.published()
        cdef int64_t earliest_ms = NEVER, written_ms, deadline_ms, idle_ms, hard_ms
        cdef uint8_t mark
        cdef Py_ssize_t left = len(writes)
        for family, key, row in writes:
            left -= 1
            mark = MORE if left else 0
            if row is None:
                position = self._write(
                    segment, position, family.id, key, b"", mark | DELETED, now_ms, NEVER, 0, NEVER
                )
            else:
                value, written_ms, deadline_ms, idle_ms, hard_ms = row
                earliest_ms = min(earliest_ms, deadline_ms)
                position = self._write(
                    segment, position, family.id, key, value, mark,
                    written_ms, deadline_ms, idle_ms, hard_ms,
                )
        segment.publish(position)
        return segment, position, earliest_ms

    def acknowledge_batch(self, where, durable) -> None:
        """After the turn: wake the watcher, and wait for the disk if that was asked."""
        self._acknowledge(where[0], where[1], where[2], durable)
