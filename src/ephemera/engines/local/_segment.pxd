# The segment's layout, for compiled callers. See _segment.pyx.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from ephemera.core._access cimport Slice
from ephemera.core._row cimport RowHead

cdef extern from "_hash.h" nogil:
    uint64_t eph_hash(uint64_t seed, uint32_t family, const char *key, size_t n)

cdef enum:
    HEADER_SIZE = 4096
    RECORD_BYTES = 24
    # Marks of a record; stored on disk, never renumber.
    DELETED = 1
    MORE = 2                 # the batch goes on with the next record
    AHEAD = 4                # it was written elsewhere, by a clock that was ahead of the store's

cdef struct Header:
    char magic[8]
    uint32_t version
    uint32_t checksum
    uint64_t number
    uint64_t size
    uint64_t slots
    uint64_t previous_head
    uint64_t salt
    int64_t created_ms

cdef struct Stamp:
    uint64_t synced
    int64_t clock_ms
    uint32_t checksum

cdef struct Delivered:
    int64_t deadline_ms
    uint64_t number
    uint64_t position
    uint32_t checksum

cdef struct Record:
    uint32_t chain
    uint32_t older
    uint32_t checksum
    uint32_t row_size
    uint32_t family
    uint16_t key_size
    uint8_t mark
    uint8_t zero

cdef struct Found:
    # A record and where it lies.
    Record *record
    uint64_t position
    Py_ssize_t index         # of its segment in a segment set


cdef inline uint64_t aligned(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t> 7


cdef inline uint64_t record_bytes_of(uint64_t key_size, uint64_t row_size) noexcept nogil:
    return aligned(RECORD_BYTES + key_size + row_size)


cdef inline const char *key_of(const Record *record) noexcept nogil:
    return <const char *> record + RECORD_BYTES


cdef inline const char *row_of(const Record *record) noexcept nogil:
    return <const char *> record + RECORD_BYTES + record.key_size


cdef inline bint is_key(const Record *record, uint32_t family, const char *key, uint16_t size) noexcept nogil:
    return (
        record.key_size == size
        and record.family == family
        and memcmp(key_of(record), key, size) == 0
    )


cdef class SortedIndex:
    cdef uint32_t *at
    cdef uint8_t *repeats        # or NULL: whether the one before has the same key
    cdef Py_ssize_t size
    cdef uint64_t until


@cython.final
cdef class Segment:
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef char *start
    cdef Header *header
    cdef uint32_t *slots
    cdef uint64_t *head
    cdef uint64_t *first_deadline
    cdef uint64_t mask
    cdef uint64_t size           # of the memory, smaller than the header says where the file was truncated
    cdef uint64_t hash_seed
    cdef uint32_t checksum_seed
    cdef readonly uint64_t number
    cdef readonly uint64_t data_at
    cdef readonly object path
    cdef readonly object memory
    cdef SortedIndex sorted
    cdef object __weakref__

    cdef int _attach(self) except -1
    cdef uint64_t published(self) noexcept nogil
    cdef bint holds(self, uint64_t position) noexcept nogil
    cdef uint32_t _checksum(self, const Record *r, uint64_t position) noexcept nogil
    cdef int damaged(self, uint64_t position, reason) except -1
    cdef bint find(
        self, uint32_t family, const char *key, uint16_t size, uint64_t hash, uint64_t limit,
        Found *found
    ) except -1
    cdef void prefetch(self, uint64_t hash) noexcept nogil
    cdef bint prefetch_record(self, uint64_t hash) noexcept nogil
    cdef int open_record(self, const Record *r, uint64_t position, RowHead *head) except -1
    cdef bint has_room(self, uint64_t size) noexcept nogil
    cdef uint64_t append(
        self, uint64_t position, uint32_t family, Slice key, Slice value, uint8_t mark, RowHead *times
    ) noexcept
    cdef void _note_deadline(self, const RowHead *times, uint64_t position) noexcept nogil
    cdef void _link(self, Record *r, uint64_t position, uint64_t hash) noexcept nogil
    cdef void publish(self, uint64_t position) noexcept nogil
    cdef void note_synced(self, uint64_t synced, int64_t clock_ms) noexcept nogil
    cdef void _reindex(self, uint64_t end) noexcept nogil
    cdef uint64_t _count_indexed(self, uint64_t end) except? 0
    cdef SortedIndex sorted_index(self, uint64_t limit)


cdef class SegmentSnapshot:
    cdef readonly list segments
    cdef readonly list limits
    cdef list cursors(self, bytes start, bytes end, bint is_reverse)


cdef class Cursor:
    cdef Segment segment
    cdef SortedIndex sorted
    cdef uint64_t limit
    cdef Py_ssize_t low, high      # what is left of the sorted index: [low, high)
    cdef Py_ssize_t prefetched       # up to where records are on their way from memory
    cdef bint is_reverse
    cdef Record *record            # where the walk stands; NULL at its end
    cdef uint64_t position

    cdef bint _repeats(self, Py_ssize_t i) except -1
    cdef void _prefetch(self) noexcept
    cdef int advance(self) except -1
    cdef int look_again(self) except -1


cdef Cursor first_of(list cursors, bint is_reverse)
cdef int pass_key(list cursors, Cursor best) except -1
cdef object row_or_none(Segment segment, Found found)


cdef struct Due:
    int64_t deadline_ms
    uint64_t position


cdef enum:
    QUEUES = 4


cdef struct Dues:
    # Those from `start` on, in room for more.
    Due *at
    Py_ssize_t start
    Py_ssize_t size
    Py_ssize_t room


cdef class SegmentDeadlines:
    cdef readonly Segment segment
    cdef uint64_t followed
    cdef Dues queues[QUEUES]
    cdef Dues heap
    cdef Dues *earliest          # the one whose first is; NULL when that has to be found out
    cdef Due *first(self) noexcept
    cdef Due *ahead(self, Py_ssize_t count) noexcept
    cdef void drop(self) noexcept
    cdef Dues *_with_first(self) noexcept
    cdef Dues *_find_first(self) noexcept
    cdef Dues *_fitting(self, int64_t deadline_ms) noexcept
    cdef int _push(self, int64_t deadline_ms, uint64_t position) except -1
