# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The segment: log and memtable in one mapped file. This module alone knows its layout.

    | header 4096 | slots u32 × slot count | records ... |

A record is appended by copy, linked into the chain of its slot, and becomes visible when the head
that follows it (or the last record of its batch) is published. Chains hold one record per key,
the newest; the versions of a key hang off it in a chain of their own, so that a key written a hundred
thousand times slows none of its neighbours. Links only ever change from one complete record to
another, so a reader needs no lock: it walks at any time, and a snapshot is the same walk that
passes over what lies at or beyond its head.

Header, little endian; stored on disk, never renumber:
      0  magic            8   16  number   u64    40  previous head  u64   128  head   u64 (live only)
      8  format version  u32  24  size     u64    48  salt           u64   192  stamp  u64 synced head,
     12  crc32c of 16..64     32  slots    u64    56  created_ms     i64        i64 clock_ms, u32 crc32c
    136  first deadline  u64 (live only): the position of the first record that has one
    256  delivered  i64 deadline, u64 segment, u64 position, u32 crc32c
Record, 8-aligned:
      0  chain    u32   position / 8 of the next record of this slot      (derived, unchecked)
      4  older    u32   position / 8 of the older version of this key     (derived, unchecked)
      8  crc32c   u32   over segment, position, and the bytes from 12 to the end of the row
     12  row size u32   16  family u32   20  key size u16   22  mark u8   23  zero u8
     24  key, row (core/_row.pyx), zeros up to the next multiple of 8

Every position that is followed is checked against the file's size first, whoever wrote it.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ephemera.core._access cimport Slice
from ephemera.core._row cimport NEVER, RowHead, read_row_head, row_from_head, write_row_head
from ephemera.engines.local._base cimport (
    eph_crc32c,
    eph_crc_setup,
    pack_key_of,
    pack_row_of,
)
from ephemera.engines.local._control cimport eph_load32, eph_load64, eph_store32, eph_store64
from ephemera.engines.local._mapping cimport LINE_BYTES, eph_prefetch

import sys

from ephemera.core.errors import CorruptStore, InvalidArgument

cdef extern from "_crc32c.h" nogil:
    uint32_t eph_crc32c_portable(uint32_t crc, const void *data, size_t n)

eph_crc_setup()

FORMAT_VERSION = 1
HEADER_BYTES = HEADER_SIZE
RECORD_HEAD_BYTES = RECORD_BYTES
SEGMENT_BYTES_MAX = 8 * 0xFFFFFFFF
cdef const char *MAGIC = b"EPHSEG\r\n"

cdef enum:
    HEAD_AT = 128
    FIRST_DEADLINE_AT = 136
    STAMP_AT = 192
    TOLD_AT = 256
    RADIX_FROM = 256         # so many records are sorted byte by byte; fewer are not worth the tables
    RADIX_DEPTH_MAX = 8      # times that a group is sorted so again; each takes 16 KiB of the stack
    BYTES_PER_SLOT = 128     # records of an ordinary size fill a segment before chains grow
    SLOTS_MIN = 64
    RECORDS_FORESEEN = 16    # by a walk in the order of keys
    FOLLOWED_AHEAD = 1024    # bytes, by a walk in the order of writing


def slots_for(uint64_t size) -> int:
    """How many slots a segment of this many bytes has."""
    cdef uint64_t slots = SLOTS_MIN
    while slots * 2 * BYTES_PER_SLOT <= size:
        slots *= 2
    return slots


def segment_bytes_for(uint64_t records_bytes, uint64_t usual) -> int:
    """The size of a segment that holds at least these bytes of records: the usual one if it does."""
    cdef uint64_t size = usual
    if records_bytes + HEADER_SIZE + 4 * <uint64_t> slots_for(usual) > usual:
        size = records_bytes + records_bytes // 16 + 2 * HEADER_SIZE
    return (size + HEADER_SIZE - 1) // HEADER_SIZE * HEADER_SIZE


def crc32c(bytes data not None, uint32_t crc=0, *, bint portable=False) -> int:
    """The checksum of all records and rows, exposed for tests and for `check()`."""
    if portable:
        return eph_crc32c_portable(crc, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return eph_crc32c(crc, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


# --------------------------------------------------------------------------------------- the segment


cdef inline void _prefetch_lines(const char *record) noexcept nogil:
    """Fetch the lines of an ordinary record at once, and not each when the one before it has come.

    A prefetch from anywhere is harmless, so the place needs no check yet.
    """
    eph_prefetch(record)
    eph_prefetch(record + LINE_BYTES)
    eph_prefetch(record + 2 * LINE_BYTES)


@cython.final
@cython.no_gc
cdef class Segment:
    """One segment in mapped memory (any writable buffer)."""

    def __cinit__(self, memory, path, *, uint64_t hash_seed):
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.has_buffer = True
        self.memory = memory
        self.path = path
        self.start = <char *> self.buffer.buf
        self.size = self.buffer.len
        self.header = <Header *> self.start
        self.hash_seed = hash_seed
        self._attach()

    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)

    cdef int _attach(self) except -1:
        cdef Header *h = self.header
        if self.size < HEADER_SIZE:
            raise CorruptStore(self.path, 0, f"a segment of {self.size} bytes has no header")
        if memcmp(h.magic, MAGIC, 8) != 0:
            raise CorruptStore(self.path, 0, "not a segment")
        if h.version != FORMAT_VERSION:
            raise CorruptStore(self.path, 8, f"format version {h.version}, not {FORMAT_VERSION}")
        if h.checksum != eph_crc32c(0, self.start + 16, 48):
            raise CorruptStore(self.path, 12, "the header's checksum does not hold")
        if h.slots == 0 or h.slots & (h.slots - 1) or h.slots > h.size // 4:
            raise CorruptStore(self.path, 32, f"{h.slots} slots")
        self.data_at = aligned(HEADER_SIZE + 4 * h.slots)
        if self.size < self.data_at or self.size > h.size:
            raise CorruptStore(self.path, self.size, f"cut from {h.size} bytes")
        self.mask = h.slots - 1
        self.slots = <uint32_t *> (self.start + HEADER_SIZE)
        self.head = <uint64_t *> (self.start + HEAD_AT)
        self.first_deadline = <uint64_t *> (self.start + FIRST_DEADLINE_AT)
        self.number = h.number
        self.checksum_seed = eph_crc32c(eph_crc32c(0, &h.number, 8), &h.salt, 8)
        return 0

    @property
    def previous_head(self) -> int:
        """The final head of the segment before this one; 0 when none before it was left to apply."""
        return self.header.previous_head

    @property
    def created_ms(self) -> int:
        return self.header.created_ms

    @property
    def position(self) -> int:
        """The published head: where the next record goes."""
        return self.published()

    @property
    def records_bytes(self) -> int:
        return self.published() - self.data_at

    cdef uint64_t published(self) noexcept nogil:
        # Never beyond the memory nor before the records, whatever the word says.
        cdef uint64_t head = eph_load64(self.head)
        return self.data_at if head < self.data_at else self.size if head > self.size else head

    cdef bint holds(self, uint64_t position) noexcept nogil:
        # Whether a whole record can lie here.
        cdef const Record *r
        if position < self.data_at or position + RECORD_BYTES > self.size:
            return False
        r = <const Record *> (self.start + position)
        return position + RECORD_BYTES + r.key_size + <uint64_t> r.row_size <= self.size

    cdef inline uint32_t _checksum(self, const Record *r, uint64_t position) noexcept nogil:
        cdef uint32_t crc = eph_crc32c(self.checksum_seed, &position, 8)
        return eph_crc32c(crc, &r.row_size, 12 + r.key_size + <size_t> r.row_size)

    cdef int damaged(self, uint64_t position, reason) except -1:
        raise CorruptStore(self.path, position, reason)

    # -- reading

    cdef bint find(
        self, uint32_t family, const char *key, uint16_t size, uint64_t hash, uint64_t limit,
        Found *found
    ) except -1:
        """The newest version of a key below `limit`, and whether there is one."""
        cdef uint64_t steps = 0, position, older
        cdef Record *r
        position = 8 * <uint64_t> eph_load32(&self.slots[hash & self.mask])
        _prefetch_lines(self.start + position)
        while position:
            if not self.holds(position):
                self.damaged(position, "a link points outside the records")
            r = <Record *> (self.start + position)
            if is_key(r, family, key, size):
                while position >= limit:
                    older = 8 * <uint64_t> r.older
                    if older == 0:
                        return False
                    if older >= position or not self.holds(older):
                        self.damaged(position, "an older version that is not older")
                    position = older
                    r = <Record *> (self.start + position)
                if not is_key(r, family, key, size):
                    self.damaged(position, "a version of another key")
                found.record = r
                found.position = position
                return True
            steps += 1
            if steps > self.size // RECORD_BYTES:
                self.damaged(position, "a chain without an end")
            position = 8 * <uint64_t> eph_load32(&r.chain)
        return False

    cdef void prefetch(self, uint64_t hash) noexcept nogil:
        """Fetch the slot that `find` will ask, without waiting for it."""
        eph_prefetch(&self.slots[hash & self.mask])

    cdef bint prefetch_record(self, uint64_t hash) noexcept nogil:
        """Fetch the record that this slot leads to first, if any: its head and key, and most small values."""
        cdef uint64_t position = 8 * <uint64_t> eph_load32(&self.slots[hash & self.mask])
        if position:
            _prefetch_lines(self.start + position)
        return position != 0

    cdef int open_record(self, const Record *r, uint64_t position, RowHead *head) except -1:
        """Check a record's bytes before any of them is believed."""
        if r.checksum != self._checksum(r, position):
            self.damaged(position, "a record's checksum does not hold")
        if not read_row_head(row_of(r), r.row_size, head):
            self.damaged(position, "a record without a row")
        return 0

    # -- writing: under the writer's lock only

    cdef bint has_room(self, uint64_t size) noexcept nogil:
        # A head that was damaged is no place to write to.
        cdef uint64_t head = eph_load64(self.head)
        return head == self.published() and head % 8 == 0 and head + size <= self.size

    cdef uint64_t append(
        self, uint64_t position, uint32_t family, Slice key, Slice value, uint8_t mark, RowHead *times
    ) noexcept:
        """Write and link a record where there is room; returns the position after it."""
        cdef Record *r = <Record *> (self.start + position)
        cdef uint16_t key_size = <uint16_t> key.size
        cdef char *row = self.start + position + RECORD_BYTES + key_size
        cdef uint32_t head_size = write_row_head(
            row, times.written_ms, times.deadline_ms, times.idle_ms, times.hard_ms
        )
        cdef uint64_t end, after
        cdef uint64_t hash = eph_hash(self.hash_seed, family, key.start, key_size)
        eph_prefetch(&self.slots[hash & self.mask])
        r.row_size = head_size + <uint32_t> value.size
        r.family = family
        r.key_size = key_size
        r.mark = mark
        r.zero = 0
        memcpy(self.start + position + RECORD_BYTES, key.start, key_size)
        memcpy(row + head_size, value.start, value.size)
        end = position + RECORD_BYTES + key_size + r.row_size
        after = aligned(end)
        memset(self.start + end, 0, after - end)
        # What `_link` looks at comes while the checksum is made.
        eph_prefetch(self.start + 8 * <uint64_t> self.slots[hash & self.mask])
        r.checksum = self._checksum(r, position)
        self._link(r, position, hash)
        self._note_deadline(times, position)
        return after

    cdef void _note_deadline(self, const RowHead *times, uint64_t position) noexcept nogil:
        if times.deadline_ms != NEVER and self.first_deadline[0] == 0:
            eph_store64(self.first_deadline, position)

    cdef void _link(self, Record *r, uint64_t position, uint64_t hash) noexcept nogil:
        """Put a complete record in front of its key's versions and into its slot's chain.

        The walk is bounded as a reader's is: a chain that damage has bent must not hold the lock.
        """
        cdef uint32_t *slot = &self.slots[hash & self.mask]
        cdef uint32_t *link = slot
        cdef uint32_t mine = <uint32_t> (position // 8)
        cdef uint64_t at, steps = 0
        cdef Record *other
        while link[0]:
            at = 8 * <uint64_t> link[0]
            steps += 1
            if at >= position or not self.holds(at) or steps > self.size // RECORD_BYTES:
                break
            other = <Record *> (self.start + at)
            if is_key(other, r.family, key_of(r), r.key_size):
                r.older = link[0]
                r.chain = other.chain
                eph_store32(link, mine)
                return
            link = &other.chain
        r.older = 0
        r.chain = slot[0]
        eph_store32(slot, mine)

    cdef void publish(self, uint64_t position) noexcept nogil:
        eph_store64(self.head, position)

    def stamp(self, uint64_t synced, int64_t clock_ms) -> None:
        """Note that all up to `synced` is on the disk, and what time it was."""
        self.note_synced(synced, clock_ms)

    cdef void note_synced(self, uint64_t synced, int64_t clock_ms) noexcept nogil:
        cdef Stamp *s = <Stamp *> (self.start + STAMP_AT)
        s.synced = synced
        s.clock_ms = clock_ms
        s.checksum = eph_crc32c(self.checksum_seed, s, 16)

    def read_stamp(self) -> tuple[int, int]:
        """What `stamp` noted last; (0, 0) when nothing whole is there."""
        cdef Stamp *s = <Stamp *> (self.start + STAMP_AT)
        if s.checksum != eph_crc32c(self.checksum_seed, s, 16):
            return 0, 0
        return s.synced, s.clock_ms

    @property
    def delivered(self) -> tuple[int, int, int]:
        """How far the deaths in this segment and in those before it were delivered: a deadline, and the segment
        and the position of its record. (-1, 0, 0) when nothing whole is there."""
        cdef Delivered *t = <Delivered *> (self.start + TOLD_AT)
        if t.checksum != eph_crc32c(self.checksum_seed, t, 24):
            return -1, 0, 0
        return t.deadline_ms, t.number, t.position

    @delivered.setter
    def delivered(self, last):
        cdef Delivered *t = <Delivered *> (self.start + TOLD_AT)
        t.deadline_ms, t.number, t.position = last
        t.checksum = eph_crc32c(self.checksum_seed, t, 24)

    # -- recovery: nobody else uses the segment

    def recover(self, uint64_t limit) -> tuple[int, int, int]:
        """Find the intact prefix, whole batches only and not beyond `limit` (0: as far as it goes),
        index it anew, and publish its end.

        Returns that end, the latest write time, and the number of records.
        """
        cdef uint64_t position = self.data_at, whole = self.data_at, bound = self.size
        cdef uint64_t records = 0, in_batch = 0
        cdef int64_t latest_ms = 0, whole_ms = 0
        cdef RowHead head
        cdef Record *r
        head.written_ms = 0
        if limit and limit < bound:
            bound = limit
        with nogil:
            while self.holds(position):
                r = <Record *> (self.start + position)
                if (
                    r.key_size == 0
                    or position + record_bytes_of(r.key_size, r.row_size) > bound
                    or r.checksum != self._checksum(r, position)
                    or not read_row_head(row_of(r), r.row_size, &head)
                ):
                    break
                if head.written_ms > latest_ms and not r.mark & AHEAD:
                    latest_ms = head.written_ms
                in_batch += 1
                position += record_bytes_of(r.key_size, r.row_size)
                if not r.mark & MORE:
                    whole = position
                    whole_ms = latest_ms
                    records += in_batch
                    in_batch = 0
            self._reindex(whole)
            self.publish(whole)
        self.sorted = None
        return whole, whole_ms, records

    cdef void _reindex(self, uint64_t end) noexcept nogil:
        cdef uint64_t position = self.data_at
        cdef Record *r
        cdef RowHead head
        memset(self.slots, 0, 4 * (self.mask + 1))
        self.first_deadline[0] = 0
        while position < end:
            r = <Record *> (self.start + position)
            if read_row_head(row_of(r), r.row_size, &head):
                self._note_deadline(&head, position)
            self._link(
                r, position, eph_hash(self.hash_seed, r.family, key_of(r), r.key_size)
            )
            position += record_bytes_of(r.key_size, r.row_size)

    def problems(self) -> list[str]:
        """Every disagreement between the records and the index up to the head."""
        cdef uint64_t position = self.data_at, end = self.published(), records = 0
        cdef Record *r
        cdef RowHead head
        cdef list out = []
        while position < end:
            r = <Record *> (self.start + position)
            if not self.holds(position) or r.key_size == 0:
                out.append(f"{self.path} at offset {position}: no record below the head")
                return out
            try:
                self.open_record(r, position, &head)
            except CorruptStore as error:
                out.append(str(error))
            records += 1
            position += record_bytes_of(r.key_size, r.row_size)
        indexed = self._count_indexed(end)
        if indexed != records:
            out.append(f"{self.path}: {records} records, of which the index reaches {indexed}")
        return out

    cdef uint64_t _count_indexed(self, uint64_t end) except? 0:
        """How many records below `end` the slots lead to; each is counted where it belongs."""
        cdef uint64_t slot, chained, position, steps = 0, found = 0
        cdef Record *r
        for slot in range(self.mask + 1):
            chained = 8 * <uint64_t> self.slots[slot]
            while chained and steps <= self.size // RECORD_BYTES and self.holds(chained):
                position = chained
                r = <Record *> (self.start + position)
                chained = 8 * <uint64_t> r.chain
                if eph_hash(self.hash_seed, r.family, key_of(r), r.key_size) & self.mask != slot:
                    break
                while position and self.holds(position) and steps <= self.size // RECORD_BYTES:
                    steps += 1
                    found += position < end
                    r = <Record *> (self.start + position)
                    position = 8 * <uint64_t> r.older
        return found

    def count_records(self) -> int:
        """How many records lie below the head."""
        cdef uint64_t position = self.data_at, end = self.published(), n = 0
        cdef Record *r
        while position < end and self.holds(position):
            r = <Record *> (self.start + position)
            n += 1
            position += record_bytes_of(r.key_size, r.row_size)
        return n

    def image(self, uint64_t limit) -> bytes:
        """This segment as it is below `limit`, with an empty index: a copy to be recovered."""
        cdef bytes out
        cdef char *copy
        cdef Stamp stamp
        if not self.data_at <= limit <= self.published():
            raise ValueError(f"nothing is published at {limit}")
        out = PyBytes_FromStringAndSize(NULL, limit)
        copy = PyBytes_AS_STRING(out)
        memset(copy, 0, self.data_at)
        memcpy(copy, self.start, sizeof(Header))
        memcpy(copy + self.data_at, self.start + self.data_at, limit - self.data_at)
        stamp.synced = limit
        stamp.clock_ms = self.read_stamp()[1]
        stamp.checksum = eph_crc32c(self.checksum_seed, &stamp, 16)
        memcpy(copy + STAMP_AT, &stamp, sizeof(Stamp))
        memcpy(copy + TOLD_AT, self.start + TOLD_AT, sizeof(Delivered))
        return out

    # -- order

    cdef SortedIndex sorted_index(self, uint64_t limit):
        """All records below `limit` (and perhaps more) in order of family, key, newest first."""
        if self.sorted is None or self.sorted.until < limit:
            self.sorted = _extend_index(self, self.sorted, self.published())
        return self.sorted


def format_segment(memory, *, uint64_t number, uint64_t previous_head, uint64_t salt, int64_t created_ms):
    """Write the header of an empty segment into zeroed memory."""
    cdef char[::1] view = memory
    cdef uint64_t size = view.shape[0]
    cdef uint64_t slots = slots_for(size)
    cdef Header *h = <Header *> &view[0]
    if size > SEGMENT_BYTES_MAX or size < HEADER_SIZE + 4 * slots:
        raise InvalidArgument(f"a segment cannot have {size} bytes")
    memcpy(h.magic, MAGIC, 8)
    h.version = FORMAT_VERSION
    h.number = number
    h.size = size
    h.slots = slots
    h.previous_head = previous_head
    h.salt = salt
    h.created_ms = created_ms
    h.checksum = eph_crc32c(0, &view[16], 48)
    eph_store64(<uint64_t *> &view[HEAD_AT], aligned(HEADER_SIZE + 4 * slots))


# ------------------------------------------------------------------------------------- the sorted index


cdef class SortedIndex:
    """The records of a segment below `until`, sorted; positions / 8. Never changes once made."""

    def __dealloc__(self):
        PyMem_RawFree(self.at)
        PyMem_RawFree(self.repeats)


cdef inline int _compare_keys(
    uint32_t family_a, const char *a, size_t size_a, uint32_t family_b, const char *b, size_t size_b
) noexcept nogil:
    cdef int order
    if family_a != family_b:
        return -1 if family_a < family_b else 1
    order = memcmp(a, b, size_a if size_a < size_b else size_b)
    if order:
        return order
    return 0 if size_a == size_b else -1 if size_a < size_b else 1


cdef inline int _compare_records(const char *start, uint32_t a, uint32_t b) noexcept nogil:
    cdef const Record *x = <const Record *> (start + 8 * <uint64_t> a)
    cdef const Record *y = <const Record *> (start + 8 * <uint64_t> b)
    cdef int order = _compare_keys(x.family, key_of(x), x.key_size, y.family, key_of(y), y.key_size)
    if order:
        return order
    return -1 if a > b else 1


cdef struct Sortable:
    # A record's place, and the bytes of its key that most likely tell it from others: comparing those
    # spares a look at records that lie anywhere in the segment.
    uint64_t sample
    uint32_t place


cdef inline const Record *_record_of(const char *start, const Sortable *one) noexcept nogil:
    return <const Record *> (start + 8 * <uint64_t> one.place)


cdef inline bint _is_same_key(const char *start, const Sortable *a, const Sortable *b) noexcept nogil:
    cdef const Record *x = _record_of(start, a)
    return is_key(_record_of(start, b), x.family, key_of(x), x.key_size)


cdef inline bint _comes_first(const char *start, const Sortable *a, const Sortable *b) noexcept nogil:
    if a.sample != b.sample:
        return a.sample < b.sample
    return _compare_records(start, a.place, b.place) < 0


cdef void _merge(
    const char *start, const uint32_t *a, Py_ssize_t na, const uint32_t *b, Py_ssize_t nb, uint32_t *out
) noexcept nogil:
    cdef Py_ssize_t i = 0, j = 0, k = 0
    if na and nb and _compare_records(start, a[na - 1], b[0]) < 0:
        memcpy(out, a, 4 * na)
        memcpy(out + na, b, 4 * nb)
        return
    while i < na and j < nb:
        if _compare_records(start, a[i], b[j]) < 0:
            out[k] = a[i]
            i += 1
        else:
            out[k] = b[j]
            j += 1
        k += 1
    memcpy(out + k, a + i, 4 * (na - i))
    memcpy(out + k + na - i, b + j, 4 * (nb - j))


cdef void _sort(const char *start, Sortable *at, Sortable *spare, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j, k, half = n // 2
    cdef Sortable x
    if n <= 8:
        for i in range(1, n):
            x = at[i]
            j = i
            while j and _comes_first(start, &x, &at[j - 1]):
                at[j] = at[j - 1]
                j -= 1
            at[j] = x
        return
    _sort(start, at, spare, half)
    _sort(start, at + half, spare, n - half)
    # The first half moves out of the way of the merged ones, which never catch up with the second.
    memcpy(spare, at, half * sizeof(Sortable))
    i, j, k = 0, half, 0
    while i < half and j < n:
        if _comes_first(start, &spare[i], &at[j]):
            at[k] = spare[i]
            i += 1
        else:
            at[k] = at[j]
            j += 1
        k += 1
    memcpy(at + k, spare + i, (half - i) * sizeof(Sortable))


cdef void _sort_samples(Sortable *at, Sortable *spare, Py_ssize_t n) noexcept nogil:
    """Sort by samples alone, byte by byte from the last, and leave those alike in the order in which they are."""
    cdef Py_ssize_t counts[8][256]
    cdef Py_ssize_t i, before, count
    cdef Sortable *source = at
    cdef Sortable *target = spare
    cdef int byte, value
    memset(counts, 0, sizeof(counts))
    for i in range(n):
        for byte in range(8):
            counts[byte][at[i].sample >> 8 * byte & 0xFF] += 1
    for byte in range(8):
        if counts[byte][at[0].sample >> 8 * byte & 0xFF] == n:
            continue
        before = 0
        for value in range(256):
            count = counts[byte][value]
            counts[byte][value] = before
            before += count
        for i in range(n):
            value = <int> (source[i].sample >> 8 * byte & 0xFF)
            target[counts[byte][value]] = source[i]
            counts[byte][value] += 1
        source, target = target, source
    if source != at:
        memcpy(at, source, n * sizeof(Sortable))


cdef void _sort_all(
    const char *start, Sortable *at, Sortable *spare, Py_ssize_t n, uint8_t *repeats, int depth=0
) noexcept nogil:
    """Sort records that come newest first, and say of each whether it `repeats` the key of the one before it.

    Many are put in order by their samples; those that these do not tell apart, again by what follows.
    """
    cdef bint is_telling = _take_samples(start, at, n)
    cdef Py_ssize_t i = 0, j
    if n < RADIX_FROM or depth == RADIX_DEPTH_MAX:
        _sort(start, at, spare, n)
        for j in range(n):
            repeats[j] = j > 0 and _is_same_key(start, &at[j - 1], &at[j])
        return
    _sort_samples(at, spare, n)
    while i < n:
        j = i + 1
        while j < n and at[j].sample == at[i].sample:
            j += 1
        if is_telling or j == i + 1:
            memset(repeats + i, 1, j - i)
            repeats[i] = 0
        else:
            # Where no sample tells any apart, none will.
            _sort_all(start, at + i, spare, j - i, repeats + i, depth + 1 if j - i < n else RADIX_DEPTH_MAX)
        i = j


cdef inline size_t _shared_bytes(const Record *a, const Record *b, size_t most) noexcept nogil:
    """How many bytes, up to `most`, the keys of two records of one family begin with alike."""
    cdef size_t n = 0
    while n < most and n < b.key_size and key_of(a)[n] == key_of(b)[n]:
        n += 1
    return n


cdef inline uint64_t _sample(const Record *r, size_t skipped) noexcept nogil:
    """Eight bytes of a key, as a number that orders as they do; a key that ends before has zeros."""
    cdef uint64_t sample = 0
    cdef size_t i
    for i in range(skipped, skipped + 8):
        sample = sample << 8 | (<uint8_t> key_of(r)[i] if i < r.key_size else 0)
    return sample


cdef bint _take_samples(const char *start, Sortable *at, Py_ssize_t n) noexcept nogil:
    """What most likely tells these records apart: their families, or in one family the first bytes of their
    keys that are not alike. Returns whether two with the same sample have the same key for sure."""
    cdef const Record *first = _record_of(start, at)
    cdef const Record *r
    cdef size_t shared = first.key_size
    cdef bint is_one_family = True, is_one_size = True
    cdef Py_ssize_t i
    for i in range(n):
        r = _record_of(start, at + i)
        is_one_family = is_one_family and r.family == first.family
        is_one_size = is_one_size and r.key_size == first.key_size
        shared = _shared_bytes(first, r, shared)
    for i in range(n):
        r = _record_of(start, at + i)
        at[i].sample = _sample(r, shared) if is_one_family else r.family
    return is_one_family and is_one_size and first.key_size <= shared + 8


cdef void _gather(const char *start, uint64_t position, Sortable *out, Py_ssize_t count) noexcept nogil:
    """The records from a position on, newest first."""
    cdef const Record *r
    cdef Py_ssize_t i
    for i in range(count - 1, -1, -1):
        r = <const Record *> (start + position)
        out[i].place = <uint32_t> (position // 8)
        position += record_bytes_of(r.key_size, r.row_size)


cdef Py_ssize_t _count(Segment segment, uint64_t *position, uint64_t until) noexcept nogil:
    """How many records lie from a position on, which goes past them; -1 where it met something else."""
    cdef Py_ssize_t count = 0
    cdef const Record *r
    while position[0] < until:
        r = <const Record *> (segment.start + position[0])
        if not segment.holds(position[0]) or r.key_size == 0:
            return -1
        count += 1
        position[0] += record_bytes_of(r.key_size, r.row_size)
    return count


cdef SortedIndex _extend_index(Segment segment, SortedIndex known, uint64_t until):
    """Return a sorted index that also holds the records from where `known` ends up to `until`."""
    cdef uint64_t position = segment.data_at if known is None else known.until
    cdef uint64_t first = position
    cdef Py_ssize_t known_size = 0 if known is None else known.size
    cdef Py_ssize_t fresh, i
    cdef Sortable *found
    cdef uint32_t *tail
    cdef uint8_t *repeats
    cdef SortedIndex index = SortedIndex.__new__(SortedIndex)
    with nogil:
        fresh = _count(segment, &position, until)
    if fresh < 0:
        segment.damaged(position, "no record below the head")
    index.at = <uint32_t *> PyMem_RawMalloc(4 * (known_size + fresh) + 4)
    found = <Sortable *> PyMem_RawMalloc((2 * fresh + 1) * sizeof(Sortable))
    repeats = <uint8_t *> PyMem_RawMalloc(fresh + 1)
    if index.at == NULL or found == NULL or repeats == NULL:
        PyMem_RawFree(found)
        PyMem_RawFree(repeats)
        raise MemoryError()
    index.size = known_size + fresh
    index.until = position
    with nogil:
        if fresh:
            _gather(segment.start, first, found, fresh)
            _sort_all(segment.start, found, found + fresh, fresh, repeats)
        tail = index.at if known_size == 0 else <uint32_t *> found
        for i in range(fresh):
            tail[i] = found[i].place
        if known_size == 0:
            index.repeats = repeats
        else:
            PyMem_RawFree(repeats)
            _merge(segment.start, known.at, known_size, tail, fresh, index.at)
        PyMem_RawFree(found)
    return index

cdef inline uint32_t _get_be32(const char *at) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *> at
    return <uint32_t> p[0] << 24 | <uint32_t> p[1] << 16 | <uint32_t> p[2] << 8 | p[3]



cdef inline Record *_record_at(Segment segment, uint32_t place) except NULL:
    """The record of an entry of the sorted index, which is checked anew: its bytes may have been damaged since."""
    if not segment.holds(8 * <uint64_t> place):
        segment.damaged(8 * <uint64_t> place, "no record where there was one")
    return <Record *> (segment.start + 8 * <uint64_t> place)


cdef Py_ssize_t _lower_bound(Segment segment, SortedIndex index, bytes base_key) except -1:
    """The first record of the index whose family and key are not before `base_key`."""
    cdef Py_ssize_t low = 0, high = index.size, middle
    cdef const char *key = PyBytes_AS_STRING(base_key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(base_key)
    cdef Record *r
    if size < 4:
        return 0
    while low < high:
        middle = (low + high) // 2
        r = _record_at(segment, index.at[middle])
        if _compare_keys(r.family, key_of(r), r.key_size, _get_be32(key), key + 4, size - 4) < 0:
            low = middle + 1
        else:
            high = middle
    return low


# ------------------------------------------------------------------------------------------- a snapshot


cdef class SegmentSnapshot:
    """Some segments, newest first, each up to a fixed head: what a snapshot and a checkpoint read."""

    def __init__(self, list segments not None, list limits not None):
        self.segments = segments
        self.limits = limits

    def row(self, uint32_t family, bytes key not None):
        """The newest version below the heads: a Row, None for a deletion, or `BELOW`."""
        cdef Segment segment
        cdef Found found
        cdef uint64_t hash
        cdef Py_ssize_t i
        for i in range(len(self.segments)):
            segment = self.segments[i]
            hash = eph_hash(segment.hash_seed, family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            if segment.find(
                family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), hash, self.limits[i], &found
            ):
                return row_or_none(segment, found)
        return BELOW

    @staticmethod
    def whole(segments: list) -> SegmentSnapshot:
        """All of these segments, which are frozen and come oldest first."""
        newest_first = segments[::-1]
        return SegmentSnapshot(newest_first, [segment.position for segment in newest_first])

    @property
    def records(self) -> int:
        """How many versions these segments hold, and perhaps some beyond the heads."""
        cdef Segment segment
        cdef Py_ssize_t count = 0
        for segment, limit in zip(self.segments, self.limits):
            count += segment.sorted_index(limit).size
        return count

    def chunk(self, bytes start not None, bytes end, bint is_reverse, Py_ssize_t keys_max) -> list:
        """Up to `keys_max` keys in order as (base key, base value or None for a deletion, deadline).

        `start` and `end` are base keys, the end not included; None is the end of everything.
        """
        cdef list cursors = self.cursors(start, end, is_reverse), out = []
        cdef Cursor best
        while cursors and PyList_GET_SIZE(out) < keys_max:
            best = first_of(cursors, is_reverse)
            out.append(_packed(best))
            pass_key(cursors, best)
        return out

    cdef list cursors(self, bytes start, bytes end, bint is_reverse):
        """Walks over these segments, newest first, those that have anything between the bounds."""
        cdef list cursors = []
        cdef Cursor cursor
        cdef Py_ssize_t i
        for i in range(len(self.segments)):
            cursor = _cursor(self.segments[i], self.limits[i], start, end, is_reverse)
            if cursor.record != NULL:
                cursors.append(cursor)
        return cursors


cdef class Cursor:
    """A walk over one segment in the order of keys, within bounds, one key at a time, its newest version below a limit."""

    cdef inline bint _repeats(self, Py_ssize_t i) except -1:
        """Whether an entry has the key of the one before it."""
        cdef Record *a
        if self.sorted.repeats != NULL:
            return self.sorted.repeats[i]
        a = _record_at(self.segment, self.sorted.at[i - 1])
        return is_key(_record_at(self.segment, self.sorted.at[i]), a.family, key_of(a), a.key_size)

    cdef inline void _prefetch(self) noexcept:
        """Have the records that follow fetched: in the order of their keys they lie anywhere."""
        cdef Py_ssize_t until = min(self.low + RECORDS_FORESEEN, self.high)
        self.prefetched = max(self.prefetched, self.low)
        while self.prefetched < until:
            if self.sorted.repeats == NULL or not self.sorted.repeats[self.prefetched]:
                eph_prefetch(self.segment.start + 8 * <uint64_t> self.sorted.at[self.prefetched])
                eph_prefetch(self.segment.start + 8 * <uint64_t> self.sorted.at[self.prefetched] + LINE_BYTES)
            self.prefetched += 1

    cdef int advance(self) except -1:
        """Stand on the next key that has a version below the limit."""
        cdef Py_ssize_t first, last, i
        self.record = NULL
        while self.low < self.high and self.record == NULL:
            if self.is_reverse:
                last = first = self.high - 1
                while first > self.low and self._repeats(first):
                    first -= 1
                self.high = first
            else:
                first = last = self.low
                while last + 1 < self.high and self._repeats(last + 1):
                    last += 1
                self.low = last + 1
                self._prefetch()
            for i in range(first, last + 1):
                if 8 * <uint64_t> self.sorted.at[i] < self.limit:
                    self.record = _record_at(self.segment, self.sorted.at[i])
                    self.position = 8 * <uint64_t> self.sorted.at[i]
                    break
        return 0

    cdef int look_again(self) except -1:
        """Where the walk has stood for a while: the record's bytes may have been damaged since."""
        _record_at(self.segment, <uint32_t> (self.position >> 3))
        return 0


cdef Cursor _cursor(Segment segment, uint64_t limit, bytes start, bytes end, bint is_reverse):
    cdef Cursor cursor = Cursor.__new__(Cursor)
    cursor.segment = segment
    cursor.limit = limit
    cursor.is_reverse = is_reverse
    cursor.sorted = segment.sorted_index(limit)
    cursor.low = cursor.prefetched = _lower_bound(segment, cursor.sorted, start)
    cursor.high = cursor.sorted.size if end is None else _lower_bound(segment, cursor.sorted, end)
    cursor.advance()
    return cursor


cdef int _order(Cursor a, Cursor b) noexcept:
    return _compare_keys(
        a.record.family, key_of(a.record), a.record.key_size,
        b.record.family, key_of(b.record), b.record.key_size,
    )


cdef Cursor first_of(list cursors, bint is_reverse):
    """The one of these, of at least one, whose key is next; where several stand on it, the newest segment's."""
    cdef Cursor best = <Cursor> PyList_GET_ITEM(cursors, 0)
    cdef Cursor cursor
    cdef Py_ssize_t i
    cdef int order
    for i in range(1, PyList_GET_SIZE(cursors)):
        cursor = <Cursor> PyList_GET_ITEM(cursors, i)
        order = _order(cursor, best)
        if order > 0 if is_reverse else order < 0:
            best = cursor
    return best


cdef tuple _packed(Cursor cursor):
    """Where a cursor stands, as the base tier stores it: key, value or None, deadline."""
    cdef Record *r = cursor.record
    cdef RowHead head
    cdef bytes key = pack_key_of(r.family, key_of(r), r.key_size)
    cursor.segment.open_record(r, cursor.position, &head)
    if r.mark & DELETED:
        return key, None, NEVER
    return key, pack_row_of(key, row_of(r), r.row_size), head.deadline_ms


cdef int pass_key(list cursors, Cursor best) except -1:
    """Move every cursor that stands on the key of `best` past it, that one last."""
    cdef Cursor cursor
    cdef bint ended = False
    for cursor in cursors:
        if cursor is not best and _order(cursor, best) == 0:
            cursor.advance()
            ended |= cursor.record == NULL
    best.advance()
    if ended or best.record == NULL:
        cursors[:] = [c for c in cursors if (<Cursor> c).record != NULL]
    return 0


cdef object row_or_none(Segment segment, Found found):
    cdef RowHead head
    segment.open_record(found.record, found.position, &head)
    if found.record.mark & DELETED:
        return None
    return row_from_head(&head, row_of(found.record), found.record.row_size)


class _Below:
    """Says that the segments know nothing of a key, so the base tier decides."""

    def __repr__(self):
        return "BELOW"


BELOW = _Below()


# ---------------------------------------------------------------------------------- what dies when


cdef class SegmentDeadlines:
    """The deadlines of one segment's records, earliest first, as far as its head was followed.

    Most come in order, because the keys of a store live a few lengths of time: each such length has
    a queue, and only the others wait in a heap.
    """

    def __init__(self, Segment segment not None):
        self.segment = segment
        self.followed = segment.data_at

    def __dealloc__(self):
        cdef int i
        for i in range(QUEUES):
            PyMem_RawFree(self.queues[i].at)
        PyMem_RawFree(self.heap.at)

    def __len__(self):
        cdef int i
        cdef Py_ssize_t count = self.heap.size
        for i in range(QUEUES):
            count += self.queues[i].size - self.queues[i].start
        return count

    def follow(self, Py_ssize_t records_max=sys.maxsize) -> bool:
        """Take in what was written since the last call, from the first record that has a deadline on;
        whether there is more than so many records."""
        cdef uint64_t end = self.segment.published()
        cdef uint64_t first = eph_load64(self.segment.first_deadline)
        cdef Record *r
        cdef RowHead head
        if first == 0:
            return False
        if first % 8 or first < self.segment.data_at:
            self.segment.damaged(first, "no record begins here")
        self.followed = max(self.followed, min(first, end))
        while self.followed < end and records_max > 0:
            records_max -= 1
            r = <Record *> (self.segment.start + self.followed)
            eph_prefetch(<char *> r + FOLLOWED_AHEAD)
            if not self.segment.holds(self.followed) or r.key_size == 0:
                self.segment.damaged(self.followed, "no record below the head")
            if not r.mark & DELETED and read_row_head(row_of(r), r.row_size, &head):
                if head.deadline_ms != NEVER:
                    self._push(head.deadline_ms, self.followed)
            self.followed += record_bytes_of(r.key_size, r.row_size)
        return self.followed < end

    @property
    def next_ms(self) -> int:
        """The earliest deadline; NEVER_MS when there is none."""
        cdef Due *due = self.first()
        return NEVER if due == NULL else due.deadline_ms

    def pop(self) -> int:
        """Remove the earliest and say where its record lies."""
        cdef Due *due = self.first()
        cdef uint64_t position
        if due == NULL:
            raise IndexError("no deadlines")
        position = due.position
        self.drop()
        return position

    cdef Due *first(self) noexcept:
        """The earliest, or NULL."""
        cdef Dues *dues = self._with_first()
        return NULL if dues == NULL else &dues.at[dues.start]

    cdef Due *ahead(self, Py_ssize_t count) noexcept:
        """The one that comes so many after the earliest, if they wait in one queue; else NULL."""
        cdef Dues *dues = self._with_first()
        if dues == NULL or dues == &self.heap or dues.size - dues.start <= count:
            return NULL
        return &dues.at[dues.start + count]

    cdef void drop(self) noexcept:
        """Remove the earliest of at least one."""
        cdef Dues *dues = self._with_first()
        self.earliest = NULL
        if dues == &self.heap:
            _drop_top(dues)
            return
        dues.start += 1
        if dues.start == dues.size:
            dues.start = dues.size = 0

    cdef Dues *_with_first(self) noexcept:
        """Where the earliest waits, or NULL."""
        if self.earliest == NULL:
            self.earliest = self._find_first()
        return self.earliest

    cdef Dues *_find_first(self) noexcept:
        cdef Dues *best = &self.heap if self.heap.size else NULL
        cdef Dues *queue
        cdef int i
        for i in range(QUEUES):
            queue = &self.queues[i]
            if queue.start != queue.size and (
                best == NULL or _earlier(&queue.at[queue.start], &best.at[best.start])
            ):
                best = queue
        return best

    cdef int _push(self, int64_t deadline_ms, uint64_t position) except -1:
        cdef Due mine = Due(deadline_ms, position)
        cdef Dues *queue = self._fitting(deadline_ms)
        self.earliest = NULL
        if queue == NULL:
            _make_room(&self.heap)
            _add(&self.heap, mine)
            return 0
        _make_room(queue)
        queue.at[queue.size] = mine
        queue.size += 1
        return 0

    cdef Dues *_fitting(self, int64_t deadline_ms) noexcept:
        """The queue at whose end this is in order, and that waits the least; an empty one if none
        does, else NULL."""
        cdef Dues *best = NULL
        cdef Dues *queue
        cdef int64_t last_ms, best_ms = 0
        cdef int i
        for i in range(QUEUES):
            queue = &self.queues[i]
            if queue.start == queue.size:
                if best == NULL:
                    best, best_ms = queue, INT64_MIN
                continue
            last_ms = queue.at[queue.size - 1].deadline_ms
            # Positions only grow, so an equal deadline is in order too.
            if last_ms <= deadline_ms and (best == NULL or last_ms > best_ms):
                best, best_ms = queue, last_ms
        return best


cdef int _make_room(Dues *dues) except -1:
    """For one more."""
    cdef Due *grown
    if dues.size == dues.room:
        grown = <Due *> PyMem_RawRealloc(dues.at, (2 * dues.room + 64) * sizeof(Due))
        if grown == NULL:
            raise MemoryError()
        dues.at = grown
        dues.room = 2 * dues.room + 64
    return 0


cdef void _add(Dues *heap, Due mine) noexcept:
    cdef Py_ssize_t at = heap.size, parent
    heap.size += 1
    while at:
        parent = (at - 1) // 2
        if not _earlier(&mine, &heap.at[parent]):
            break
        heap.at[at] = heap.at[parent]
        at = parent
    heap.at[at] = mine


cdef void _drop_top(Dues *heap) noexcept:
    cdef Due last
    cdef Py_ssize_t at = 0, child
    heap.size -= 1
    last = heap.at[heap.size]
    while True:
        child = 2 * at + 1
        if child >= heap.size:
            break
        if child + 1 < heap.size and _earlier(&heap.at[child + 1], &heap.at[child]):
            child += 1
        if not _earlier(&heap.at[child], &last):
            break
        heap.at[at] = heap.at[child]
        at = child
    heap.at[at] = last


cdef inline bint _earlier(Due *a, Due *b) noexcept nogil:
    if a.deadline_ms != b.deadline_ms:
        return a.deadline_ms < b.deadline_ms
    return a.position < b.position
