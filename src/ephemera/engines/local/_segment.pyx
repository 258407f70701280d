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
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ephemera.core._row cimport (
    NEVER,
    RowHead,
    is_dead_ms,
    read_row_head,
    row_from_head,
    row_head_bytes,
    write_row_head,
)
from ephemera.engines.local._control cimport (
    Control,
    eph_load32,
    eph_load64,
    eph_store32,
    eph_store64,
)

from ephemera.core.errors import CorruptStore, InvalidArgument, ReadOnly, StoreFailed

cdef extern from "_crc32c.h" nogil:
    void eph_crc_setup()
    uint32_t eph_crc32c(uint32_t crc, const void *data, size_t n)
    uint32_t eph_crc32c_portable(uint32_t crc, const void *data, size_t n)

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* A seeded hash by folded multiplication: whoever does not know the seed cannot make keys collide. */
    static inline uint64_t eph_fold(uint64_t a, uint64_t b) {
        unsigned __int128 wide = (unsigned __int128)a * b;
        return (uint64_t)wide ^ (uint64_t)(wide >> 64);
    }
    static inline uint64_t eph_hash(uint64_t seed, uint32_t family, const char *key, size_t n) {
        uint64_t h = eph_fold(seed ^ 0x9e3779b97f4a7c15ull, family ^ (n << 32) ^ 0xd1b54a32d192ed03ull), a, b;
        for (; n >= 16; n -= 16, key += 16) {
            memcpy(&a, key, 8); memcpy(&b, key + 8, 8);
            h = eph_fold(a ^ seed ^ h, b ^ 0x8bb84b93962eacc9ull);
        }
        a = b = 0;
        memcpy(&a, key, n < 8 ? n : 8);
        if (n > 8) memcpy(&b, key + 8, n - 8);
        return eph_fold(a ^ seed ^ h, b ^ 0x2d358dccaa6c78a5ull);
    }
    """
    uint64_t eph_hash(uint64_t seed, uint32_t family, const char *key, size_t n) nogil

eph_crc_setup()

FORMAT_VERSION = 1
HEADER_BYTES = _HEADER_BYTES
RECORD_HEAD_BYTES = _RECORD_BYTES
SEGMENT_BYTES_MAX = 8 * 0xFFFFFFFF
cdef const char *MAGIC = b"EPHSEG\r\n"

cdef enum:
    _HEADER_BYTES = 4096
    _RECORD_BYTES = 24
    HEAD_AT = 128
    STAMP_AT = 192
    BYTES_PER_SLOT = 128     # records of an ordinary size fill a segment before chains grow
    SLOTS_MIN = 64
    SUCCESSOR_STEPS_MAX = 64 # a key rewritten more often than this since its death counts as alive
    # Marks of a record; stored on disk, never renumber.
    DELETED = 1
    MORE = 2                 # the batch goes on with the next record

cdef enum:
    # What became of a version of a key.
    NEWEST
    REPLACED_ALIVE
    REPLACED_DEAD

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
    # A record and where it lies; `record` is NULL when there is none.
    Record *record
    uint64_t position
    Py_ssize_t index         # of its segment in a stack


cdef inline uint64_t _aligned(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t> 7


cdef inline uint64_t _record_bytes(uint64_t key_size, uint64_t row_size) noexcept nogil:
    return _aligned(_RECORD_BYTES + key_size + row_size)


cdef inline const char *_key_of(const Record *record) noexcept nogil:
    return <const char *> record + _RECORD_BYTES


cdef inline const char *_row_of(const Record *record) noexcept nogil:
    return <const char *> record + _RECORD_BYTES + record.key_size


cdef inline bint _is_key(const Record *record, uint32_t family, const char *key, uint16_t size) noexcept nogil:
    return (
        record.key_size == size
        and record.family == family
        and memcmp(_key_of(record), key, size) == 0
    )


def slots_for(uint64_t size) -> int:
    """How many slots a segment of this many bytes has."""
    cdef uint64_t slots = SLOTS_MIN
    while slots * 2 * BYTES_PER_SLOT <= size:
        slots *= 2
    return slots


def segment_bytes_for(uint64_t records_bytes, uint64_t usual) -> int:
    """The size of a segment that holds at least these bytes of records: the usual one if it does."""
    cdef uint64_t size = usual
    if records_bytes + _HEADER_BYTES + 4 * <uint64_t> slots_for(usual) > usual:
        size = records_bytes + records_bytes // 16 + 2 * _HEADER_BYTES
    return (size + _HEADER_BYTES - 1) // _HEADER_BYTES * _HEADER_BYTES


def record_bytes(Py_ssize_t key_size, Py_ssize_t value_size) -> int:
    """The most bytes that a record of such a key and value takes."""
    return _record_bytes(key_size, value_size + 33)


def crc32c(bytes data not None, uint32_t crc=0, *, bint portable=False) -> int:
    """The checksum of all records and rows, exposed for tests and for `check()`."""
    if portable:
        return eph_crc32c_portable(crc, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return eph_crc32c(crc, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef class FamilyRef:
    """A family's handle: it stays good when the family is cleared and so gets another id."""
    cdef readonly str name
    cdef public uint32_t id
    cdef public object default_ttl_ms

    def __init__(self, str name not None, uint32_t id, default_ttl_ms):
        self.name = name
        self.id = id
        self.default_ttl_ms = default_ttl_ms

    def __repr__(self):
        return f"FamilyRef({self.name!r}, id={self.id})"


# ---------------------------------------------------------------------------------- base-tier bytes
# The base tier holds what the segments hold, under these two encodings.


cdef inline void _put_be32(char *out, uint32_t n) noexcept nogil:
    out[0] = <char> (n >> 24)
    out[1] = <char> (n >> 16)
    out[2] = <char> (n >> 8)
    out[3] = <char> n


cdef inline uint32_t _get_be32(const char *at) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *> at
    return <uint32_t> p[0] << 24 | <uint32_t> p[1] << 16 | <uint32_t> p[2] << 8 | p[3]


cdef bytes _pack_key(uint32_t family, const char *key, Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + size)
    _put_be32(PyBytes_AS_STRING(out), family)
    memcpy(PyBytes_AS_STRING(out) + 4, key, size)
    return out


def pack_key(uint32_t family, bytes key not None) -> bytes:
    """The base tier's key: family id, big endian, then the key."""
    return _pack_key(family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


cdef bytes _pack_row(bytes base_key, const char *row, Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + size)
    cdef char *start = PyBytes_AS_STRING(out)
    cdef uint32_t crc = eph_crc32c(0, PyBytes_AS_STRING(base_key), PyBytes_GET_SIZE(base_key))
    crc = eph_crc32c(crc, row, size)
    memcpy(start, &crc, 4)
    memcpy(start + 4, row, size)
    return out


def pack_row(bytes base_key not None, bytes row not None) -> bytes:
    """The base tier's value: crc32c over key and row, then the row."""
    return _pack_row(base_key, PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))


cdef bint _open_row(bytes base_key, bytes stored, RowHead *head) except -1:
    cdef const char *start = PyBytes_AS_STRING(stored)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(stored)
    cdef uint32_t crc, kept
    if size >= 13:
        memcpy(&kept, start, 4)
        crc = eph_crc32c(0, PyBytes_AS_STRING(base_key), PyBytes_GET_SIZE(base_key))
        crc = eph_crc32c(crc, start + 4, size - 4)
        if crc == kept and read_row_head(start + 4, size - 4, head):
            return True
    raise CorruptStore("base tier", None, f"the row of key {bytes(base_key)!r} is damaged")


def unpack_row(bytes base_key not None, bytes stored not None):
    """The row of a base tier's value. Raises CorruptStore when the checksum does not hold."""
    cdef RowHead head
    _open_row(base_key, stored, &head)
    return row_from_head(&head, PyBytes_AS_STRING(stored) + 4, PyBytes_GET_SIZE(stored) - 4)


def unpack_value(bytes base_key not None, bytes stored not None, int64_t now_ms):
    """The value of a base tier's row that is alive, else None."""
    cdef RowHead head
    _open_row(base_key, stored, &head)
    if is_dead_ms(head.deadline_ms, now_ms):
        return None
    return PyBytes_FromStringAndSize(
        PyBytes_AS_STRING(stored) + 4 + head.value_at,
        PyBytes_GET_SIZE(stored) - 4 - head.value_at,
    )


def unpack_deadline(bytes stored not None) -> int:
    """The deadline of a base tier's value, unchecked; NEVER_MS when it has none."""
    cdef RowHead head
    if PyBytes_GET_SIZE(stored) < 4 or not read_row_head(
        PyBytes_AS_STRING(stored) + 4, PyBytes_GET_SIZE(stored) - 4, &head
    ):
        return NEVER
    return head.deadline_ms


# --------------------------------------------------------------------------------------- the segment


@cython.no_gc
cdef class Segment:
    """One segment in mapped memory (any writable buffer)."""
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef char *start
    cdef Header *header
    cdef uint32_t *slots
    cdef uint64_t *head
    cdef uint64_t mask
    cdef uint64_t size           # of the memory, which a cut file makes smaller than the header says
    cdef uint64_t hash_seed
    cdef uint32_t checksum_seed
    cdef readonly uint64_t number
    cdef readonly uint64_t data_at
    cdef readonly object path
    cdef readonly object memory
    cdef Run run
    cdef object __weakref__

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
        if self.size < _HEADER_BYTES:
            raise CorruptStore(self.path, 0, f"a segment of {self.size} bytes has no header")
        if memcmp(h.magic, MAGIC, 8) != 0:
            raise CorruptStore(self.path, 0, "not a segment")
        if h.version != FORMAT_VERSION:
            raise CorruptStore(self.path, 8, f"format version {h.version}, not {FORMAT_VERSION}")
        if h.checksum != eph_crc32c(0, self.start + 16, 48):
            raise CorruptStore(self.path, 12, "the header's checksum does not hold")
        if h.slots == 0 or h.slots & (h.slots - 1) or h.slots > h.size // 4:
            raise CorruptStore(self.path, 32, f"{h.slots} slots")
        self.data_at = _aligned(_HEADER_BYTES + 4 * h.slots)
        if self.size < self.data_at or self.size > h.size:
            raise CorruptStore(self.path, self.size, f"cut from {h.size} bytes")
        self.mask = h.slots - 1
        self.slots = <uint32_t *> (self.start + _HEADER_BYTES)
        self.head = <uint64_t *> (self.start + HEAD_AT)
        self.number = h.number
        self.checksum_seed = eph_crc32c(eph_crc32c(0, &h.number, 8), &h.salt, 8)
        return 0

    @property
    def previous_head(self) -> int:
        """The final head of the segment before this one; 0 when this one follows a recovery."""
        return self.header.previous_head

    @property
    def created_ms(self) -> int:
        return self.header.created_ms

    @property
    def position(self) -> int:
        """The published head: where the next record goes."""
        return self._head()

    @property
    def records_bytes(self) -> int:
        return self._head() - self.data_at

    cdef inline uint64_t _head(self) noexcept nogil:
        # Never beyond the memory, whatever the word says.
        cdef uint64_t head = eph_load64(self.head)
        return head if head <= self.size else self.size

    cdef inline bint _holds(self, uint64_t position) noexcept nogil:
        # Whether a whole record can lie here.
        cdef const Record *r
        if position < self.data_at or position + _RECORD_BYTES > self.size:
            return False
        r = <const Record *> (self.start + position)
        return position + _RECORD_BYTES + r.key_size + <uint64_t> r.row_size <= self.size

    cdef inline uint32_t _checksum(self, const Record *r, uint64_t position) noexcept nogil:
        cdef uint32_t crc = eph_crc32c(self.checksum_seed, &position, 8)
        return eph_crc32c(crc, &r.row_size, 12 + r.key_size + <size_t> r.row_size)

    cdef int _damaged(self, uint64_t position, reason) except -1:
        raise CorruptStore(self.path, position, reason)

    # -- reading

    cdef Found find(
        self, uint32_t family, const char *key, uint16_t size, uint64_t hash, uint64_t limit
    ) except *:
        """The newest version of a key below `limit`."""
        cdef Found found
        cdef uint64_t steps = 0, position, older
        cdef Record *r
        found.record = NULL
        found.position = 0
        found.index = 0
        position = 8 * <uint64_t> eph_load32(&self.slots[hash & self.mask])
        while position:
            if not self._holds(position):
                self._damaged(position, "a link points outside the records")
            r = <Record *> (self.start + position)
            if _is_key(r, family, key, size):
                while position >= limit:
                    older = 8 * <uint64_t> r.older
                    if older == 0:
                        return found
                    if older >= position or not self._holds(older):
                        self._damaged(position, "an older version that is not older")
                    position = older
                    r = <Record *> (self.start + position)
                if not _is_key(r, family, key, size):
                    self._damaged(position, "a version of another key")
                found.record = r
                found.position = position
                return found
            steps += 1
            if steps > self.size // _RECORD_BYTES:
                self._damaged(position, "a chain without an end")
            position = 8 * <uint64_t> eph_load32(&r.chain)
        return found

    cdef int open_record(self, const Record *r, uint64_t position, RowHead *head) except -1:
        """Check a record's bytes before any of them is believed."""
        if r.checksum != self._checksum(r, position):
            self._damaged(position, "a record's checksum does not hold")
        if not read_row_head(_row_of(r), r.row_size, head):
            self._damaged(position, "a record without a row")
        return 0

    # -- writing: under the writer's lock only

    cdef inline bint has_room(self, uint64_t size) noexcept nogil:
        return self._head() + size <= self.size

    cdef uint64_t append(
        self, uint64_t position, uint32_t family, bytes key, const char *value, uint32_t value_size,
        uint8_t mark, int64_t written_ms, int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms,
        uint64_t hash
    ) noexcept:
        """Write and link a record where there is room; returns the position after it."""
        cdef Record *r = <Record *> (self.start + position)
        cdef uint16_t key_size = <uint16_t> PyBytes_GET_SIZE(key)
        cdef char *row = self.start + position + _RECORD_BYTES + key_size
        cdef uint32_t head_size = write_row_head(row, written_ms, deadline_ms, idle_ms, hard_ms)
        cdef uint64_t end, after
        r.row_size = head_size + value_size
        r.family = family
        r.key_size = key_size
        r.mark = mark
        r.zero = 0
        memcpy(self.start + position + _RECORD_BYTES, PyBytes_AS_STRING(key), key_size)
        memcpy(row + head_size, value, value_size)
        end = position + _RECORD_BYTES + key_size + r.row_size
        after = _aligned(end)
        memset(self.start + end, 0, after - end)
        r.checksum = self._checksum(r, position)
        self._link(r, position, hash)
        return after

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
            if at >= position or not self._holds(at) or steps > self.size // _RECORD_BYTES:
                break
            other = <Record *> (self.start + at)
            if _is_key(other, r.family, _key_of(r), r.key_size):
                r.older = link[0]
                r.chain = other.chain
                eph_store32(link, mine)
                return
            link = &other.chain
        r.older = 0
        r.chain = slot[0]
        eph_store32(slot, mine)

    cdef inline void publish(self, uint64_t position) noexcept nogil:
        eph_store64(self.head, position)

    def stamp(self, uint64_t synced, int64_t clock_ms) -> None:
        """Note that all up to `synced` is on the disk, and what time it was."""
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

    # -- recovery: nobody else uses the segment

    def recover(self, uint64_t limit) -> tuple[int, int, int]:
        """Find the intact prefix, whole batches only and not beyond `limit` (0: as far as it goes),
        index it anew, and publish its end.

        Returns that end, the latest write time, and the number of records.
        """
        cdef uint64_t position = self.data_at, whole = self.data_at, bound = self.size
        cdef uint64_t records = 0
        cdef int64_t latest_ms = 0, whole_ms = 0
        cdef RowHead head
        cdef Record *r
        head.written_ms = 0
        if limit and limit < bound:
            bound = limit
        with nogil:
            while self._holds(position):
                r = <Record *> (self.start + position)
                if (
                    r.key_size == 0
                    or position + _record_bytes(r.key_size, r.row_size) > bound
                    or r.checksum != self._checksum(r, position)
                    or not read_row_head(_row_of(r), r.row_size, &head)
                ):
                    break
                if head.written_ms > latest_ms:
                    latest_ms = head.written_ms
                records += 1
                position += _record_bytes(r.key_size, r.row_size)
                if not r.mark & MORE:
                    whole = position
                    whole_ms = latest_ms
            self._reindex(whole)
            self.publish(whole)
        self.run = None
        return whole, whole_ms, records

    cdef void _reindex(self, uint64_t end) noexcept nogil:
        cdef uint64_t position = self.data_at
        cdef Record *r
        memset(self.slots, 0, 4 * (self.mask + 1))
        while position < end:
            r = <Record *> (self.start + position)
            self._link(
                r, position, eph_hash(self.hash_seed, r.family, _key_of(r), r.key_size)
            )
            position += _record_bytes(r.key_size, r.row_size)

    def problems(self) -> list[str]:
        """Every disagreement between the records and the index up to the head."""
        cdef uint64_t position = self.data_at, end = self._head()
        cdef Record *r
        cdef RowHead head
        cdef Found found
        cdef list out = []
        while position < end:
            r = <Record *> (self.start + position)
            if not self._holds(position) or r.key_size == 0:
                out.append(f"{self.path} at offset {position}: no record below the head")
                return out
            try:
                self.open_record(r, position, &head)
                found = self.find(
                    r.family, _key_of(r), r.key_size,
                    eph_hash(self.hash_seed, r.family, _key_of(r), r.key_size), position + 1,
                )
                if found.record == NULL or found.position != position:
                    out.append(f"{self.path} at offset {position}: a record that is not indexed")
            except CorruptStore as error:
                out.append(str(error))
            position += _record_bytes(r.key_size, r.row_size)
        return out

    def count_records(self) -> int:
        """How many records lie below the head."""
        cdef uint64_t position = self.data_at, end = self._head(), n = 0
        cdef Record *r
        while position < end and self._holds(position):
            r = <Record *> (self.start + position)
            n += 1
            position += _record_bytes(r.key_size, r.row_size)
        return n

    def image(self, uint64_t limit) -> tuple[bytes, bytes]:
        """The header, without what changes in it, and the records below `limit`: a copy to be recovered."""
        if limit > self._head():
            raise ValueError(f"nothing is published at {limit}")
        return (
            PyBytes_FromStringAndSize(self.start, sizeof(Header)),
            PyBytes_FromStringAndSize(self.start + self.data_at, limit - self.data_at),
        )

    # -- order

    cdef Run sorted_run(self, uint64_t limit):
        """All records below `limit` (and perhaps more) in order of family, key, newest first."""
        if self.run is None or self.run.until < limit:
            self.run = _extend_run(self, self.run, self._head())
        return self.run


def format_segment(memory, *, uint64_t number, uint64_t previous_head, uint64_t salt, int64_t created_ms):
    """Write the header of an empty segment into zeroed memory."""
    cdef char[::1] view = memory
    cdef uint64_t size = view.shape[0]
    cdef uint64_t slots = slots_for(size)
    cdef Header *h = <Header *> &view[0]
    if size > SEGMENT_BYTES_MAX or size < _HEADER_BYTES + 4 * slots:
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
    eph_store64(<uint64_t *> &view[HEAD_AT], _aligned(_HEADER_BYTES + 4 * slots))


# ------------------------------------------------------------------------------------- sorted runs


cdef class Run:
    """The records of a segment below `until`, sorted; positions / 8. Never changes once made."""
    cdef uint32_t *at
    cdef Py_ssize_t size
    cdef uint64_t until

    def __dealloc__(self):
        PyMem_RawFree(self.at)


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
    cdef int order = _compare_keys(x.family, _key_of(x), x.key_size, y.family, _key_of(y), y.key_size)
    if order:
        return order
    return -1 if a > b else 1


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


cdef void _sort(const char *start, uint32_t *at, uint32_t *spare, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j, half = n // 2
    cdef uint32_t x
    if n <= 8:
        for i in range(1, n):
            x = at[i]
            j = i
            while j and _compare_records(start, x, at[j - 1]) < 0:
                at[j] = at[j - 1]
                j -= 1
            at[j] = x
        return
    _sort(start, at, spare, half)
    _sort(start, at + half, spare, n - half)
    _merge(start, at, half, at + half, n - half, spare)
    memcpy(at, spare, 4 * n)


cdef Run _extend_run(Segment segment, Run known, uint64_t until):
    """A run that also holds the records from where `known` ends up to `until`."""
    cdef uint64_t position = segment.data_at if known is None else known.until
    cdef uint64_t first = position
    cdef Py_ssize_t known_size = 0 if known is None else known.size
    cdef Py_ssize_t fresh = 0
    cdef Record *r
    cdef uint32_t *tail
    cdef Run run = Run.__new__(Run)
    while position < until:
        r = <Record *> (segment.start + position)
        if not segment._holds(position) or r.key_size == 0:
            segment._damaged(position, "no record below the head")
        fresh += 1
        position += _record_bytes(r.key_size, r.row_size)
    run.at = <uint32_t *> PyMem_RawMalloc(4 * (known_size + fresh) + 4)
    tail = <uint32_t *> PyMem_RawMalloc(8 * fresh + 8)
    if run.at == NULL or tail == NULL:
        PyMem_RawFree(tail)
        raise MemoryError()
    run.size = known_size + fresh
    run.until = position
    position = first
    with nogil:
        for i in range(fresh):
            r = <Record *> (segment.start + position)
            tail[i] = <uint32_t> (position // 8)
            position += _record_bytes(r.key_size, r.row_size)
        _sort(segment.start, tail, tail + fresh, fresh)
        if known_size:
            _merge(segment.start, known.at, known_size, tail, fresh, run.at)
        else:
            memcpy(run.at, tail, 4 * fresh)
        PyMem_RawFree(tail)
    return run


cdef Py_ssize_t _lower_bound(Segment segment, Run run, bytes base_key) noexcept:
    """The first record of the run whose family and key are not before `base_key`."""
    cdef Py_ssize_t low = 0, high = run.size, middle
    cdef const char *key = PyBytes_AS_STRING(base_key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(base_key)
    cdef Record *r
    while low < high:
        middle = (low + high) // 2
        r = <Record *> (segment.start + 8 * <uint64_t> run.at[middle])
        if _compare_keys(r.family, _key_of(r), r.key_size, _get_be32(key), key + 4, size - 4) < 0:
            low = middle + 1
        else:
            high = middle
    return low


# ------------------------------------------------------------------------------------------- a cut


cdef class Cut:
    """Some segments, newest first, each up to a fixed head: what a snapshot and a checkpoint read."""
    cdef readonly list segments
    cdef readonly list limits

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
            found = segment.find(
                family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), hash, self.limits[i]
            )
            if found.record != NULL:
                return _row_or_none(segment, found)
        return BELOW

    def chunk(self, bytes start not None, bytes end, bint is_reverse, Py_ssize_t keys_max) -> list:
        """Up to `keys_max` keys in order as (base key, base value or None for a deletion, deadline).

        `start` and `end` are base keys, the end not included; None is the end of everything.
        """
        cdef list cursors = []
        cdef Cursor cursor
        cdef Py_ssize_t i
        for i in range(len(self.segments)):
            cursor = _cursor(self.segments[i], self.limits[i], start, end, is_reverse)
            if cursor.record != NULL:
                cursors.append(cursor)
        return _merge_cursors(cursors, is_reverse, keys_max)


cdef class Cursor:
    """A walk over one segment's run within bounds, one key at a time, its newest version below a limit."""
    cdef Segment segment
    cdef Run run
    cdef uint64_t limit
    cdef Py_ssize_t low, high      # what is left of the run: [low, high)
    cdef bint is_reverse
    cdef Record *record            # where the walk stands; NULL at its end
    cdef uint64_t position

    cdef inline Record *_at(self, Py_ssize_t i) noexcept:
        return <Record *> (self.segment.start + 8 * <uint64_t> self.run.at[i])

    cdef inline bint _same_key(self, Py_ssize_t i, Py_ssize_t j) noexcept:
        cdef Record *a = self._at(i)
        return _is_key(self._at(j), a.family, _key_of(a), a.key_size)

    cdef void advance(self) noexcept:
        """Stand on the next key that has a version below the limit."""
        cdef Py_ssize_t first, last, i
        self.record = NULL
        while self.low < self.high and self.record == NULL:
            if self.is_reverse:
                last = first = self.high - 1
                while first > self.low and self._same_key(first - 1, last):
                    first -= 1
                self.high = first
            else:
                first = last = self.low
                while last + 1 < self.high and self._same_key(first, last + 1):
                    last += 1
                self.low = last + 1
            for i in range(first, last + 1):
                if 8 * <uint64_t> self.run.at[i] < self.limit:
                    self.record = self._at(i)
                    self.position = 8 * <uint64_t> self.run.at[i]
                    break


cdef Cursor _cursor(Segment segment, uint64_t limit, bytes start, bytes end, bint is_reverse):
    cdef Cursor cursor = Cursor.__new__(Cursor)
    cursor.segment = segment
    cursor.limit = limit
    cursor.is_reverse = is_reverse
    cursor.run = segment.sorted_run(limit)
    cursor.low = _lower_bound(segment, cursor.run, start)
    cursor.high = cursor.run.size if end is None else _lower_bound(segment, cursor.run, end)
    cursor.advance()
    return cursor


cdef int _order(Cursor a, Cursor b) noexcept:
    return _compare_keys(
        a.record.family, _key_of(a.record), a.record.key_size,
        b.record.family, _key_of(b.record), b.record.key_size,
    )


cdef list _merge_cursors(list cursors, bint is_reverse, Py_ssize_t keys_max):
    """The keys of all cursors in order; where several hold a key the newest segment's counts."""
    cdef list out = []
    cdef Cursor best, cursor
    cdef RowHead head
    cdef bytes key
    cdef int order
    while cursors and PyList_GET_SIZE(out) < keys_max:
        best = cursors[0]
        for i in range(1, PyList_GET_SIZE(cursors)):
            cursor = cursors[i]
            order = _order(cursor, best)
            if order > 0 if is_reverse else order < 0:
                best = cursor
        best.segment.open_record(best.record, best.position, &head)
        key = _pack_key(best.record.family, _key_of(best.record), best.record.key_size)
        if best.record.mark & DELETED:
            out.append((key, None, NEVER))
        else:
            out.append((key, _pack_row(key, _row_of(best.record), best.record.row_size), head.deadline_ms))
        _pass_key(cursors, best)
    return out


cdef int _pass_key(list cursors, Cursor best) except -1:
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


cdef object _row_or_none(Segment segment, Found found):
    cdef RowHead head
    segment.open_record(found.record, found.position, &head)
    if found.record.mark & DELETED:
        return None
    return row_from_head(&head, _row_of(found.record), found.record.row_size)


class _Below:
    """Says that the segments know nothing of a key, so the base tier decides."""

    def __repr__(self):
        return "BELOW"


BELOW = _Below()


# ---------------------------------------------------------------------------------- what dies when


cdef struct Due:
    int64_t deadline_ms
    uint64_t position


cdef class SegmentDeadlines:
    """The deadlines of one segment's records, earliest first: a heap that follows the head."""
    cdef readonly Segment segment
    cdef uint64_t followed
    cdef Due *heap
    cdef Py_ssize_t size, room

    def __init__(self, Segment segment not None):
        self.segment = segment
        self.followed = segment.data_at

    def __dealloc__(self):
        PyMem_RawFree(self.heap)

    def __len__(self):
        return self.size

    def follow(self) -> None:
        """Take in what was written since the last call."""
        cdef uint64_t end = self.segment._head()
        cdef Record *r
        cdef RowHead head
        while self.followed < end:
            r = <Record *> (self.segment.start + self.followed)
            if not self.segment._holds(self.followed) or r.key_size == 0:
                self.segment._damaged(self.followed, "no record below the head")
            if not r.mark & DELETED and read_row_head(_row_of(r), r.row_size, &head):
                if head.deadline_ms != NEVER:
                    self._push(head.deadline_ms, self.followed)
            self.followed += _record_bytes(r.key_size, r.row_size)

    @property
    def next_ms(self) -> int:
        """The earliest deadline; NEVER_MS when there is none."""
        return self.heap[0].deadline_ms if self.size else NEVER

    @property
    def next_position(self) -> int:
        """Where the record with the earliest deadline lies."""
        if self.size == 0:
            raise IndexError("no deadlines")
        return self.heap[0].position

    def pop(self) -> None:
        """Remove the earliest."""
        cdef Due last
        cdef Py_ssize_t at = 0, child
        if self.size == 0:
            raise IndexError("no deadlines")
        self.size -= 1
        last = self.heap[self.size]
        while True:
            child = 2 * at + 1
            if child >= self.size:
                break
            if child + 1 < self.size and _earlier(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not _earlier(&self.heap[child], &last):
                break
            self.heap[at] = self.heap[child]
            at = child
        self.heap[at] = last

    cdef int _push(self, int64_t deadline_ms, uint64_t position) except -1:
        cdef Due *grown
        cdef Due mine
        cdef Py_ssize_t at, parent
        if self.size == self.room:
            self.room = 2 * self.room + 64
            grown = <Due *> PyMem_RawMalloc(self.room * sizeof(Due))
            if grown == NULL:
                raise MemoryError()
            if self.size:
                memcpy(grown, self.heap, self.size * sizeof(Due))
            PyMem_RawFree(self.heap)
            self.heap = grown
        mine.deadline_ms = deadline_ms
        mine.position = position
        at = self.size
        self.size += 1
        while at:
            parent = (at - 1) // 2
            if not _earlier(&mine, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = mine
        return 0


cdef inline bint _earlier(Due *a, Due *b) noexcept nogil:
    if a.deadline_ms != b.deadline_ms:
        return a.deadline_ms < b.deadline_ms
    return a.position < b.position


# ---------------------------------------------------------------------------------------- the stack


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
        found = segment.find(family, start, size, hash, segment._head())
        if found.record != NULL:
            found.index = i
            break
    return found


cdef inline int _check_family(FamilyRef family) except -1:
    if family.id == 0:
        raise InvalidArgument(
            f"family {family.name!r} was dropped: make it anew with store.family({family.name!r})"
        )
    return 0


cdef class SegmentStack:
    """The segments of a store as this process sees them, newest first, and the operations on them.

    A subclass supplies what an operation rarely needs: `refresh` when the epoch moved, `below` to look
    in the base tier, `make_room` for another segment, `wait_for_checkpoint` when too many wait,
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

    def below(self, uint32_t family, bytes key, int64_t now_ms):
        raise TypeError("below")

    def below_row(self, uint32_t family, bytes key):
        raise TypeError("below_row")

    def make_room(self, uint64_t size):
        raise TypeError("make_room")

    def wait_for_checkpoint(self):
        raise TypeError("wait_for_checkpoint")

    def writer_died(self):
        raise TypeError("writer_died")

    def acknowledge(self, uint64_t number, uint64_t position):
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

    # -- reads: no lock, no system call

    def get(self, FamilyRef family not None, bytes key not None, int64_t now_ms, /):
        """The live value of a key, or None."""
        cdef list segments
        cdef Found found
        cdef RowHead head
        self._look()
        _check_family(family)
        segments = self.segments
        found = _find(segments, self.control.page.hash_seed, family.id, key)
        if found.record == NULL:
            return self.below(family.id, key, now_ms)
        (<Segment> PyList_GET_ITEM(segments, found.index)).open_record(found.record, found.position, &head)
        if found.record.mark & DELETED or is_dead_ms(head.deadline_ms, now_ms):
            return None
        return PyBytes_FromStringAndSize(
            _row_of(found.record) + head.value_at, found.record.row_size - head.value_at
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
            row = self.below_row(family, key)
        else:
            row = _row_or_none(segments[found.index], found)
        if row is None or is_dead_ms(row.deadline_ms, now_ms):
            return None
        return row

    def outlived(self, Segment segment not None, uint64_t position):
        """What the record there held, if nothing replaced it before its deadline, else None:
        (family id, key, row, whether nothing has replaced it at all)."""
        cdef Record *r = <Record *> (segment.start + position)
        cdef RowHead head
        cdef bytes key
        cdef int fate
        if not segment._holds(position):
            segment._damaged(position, "no record here")
        self._look()
        segment.open_record(r, position, &head)
        key = PyBytes_FromStringAndSize(_key_of(r), r.key_size)
        fate = self._fate(r.family, key, segment.number, position, head.deadline_ms)
        if fate == REPLACED_ALIVE:
            return None
        return r.family, key, row_from_head(&head, _row_of(r), r.row_size), fate == NEWEST

    def outlived_below(self, uint32_t family, bytes key not None, int64_t deadline_ms):
        """The same of a row of the base tier: None, or whether nothing has replaced it at all."""
        cdef int fate
        self._look()
        fate = self._fate(family, key, 0, 0, deadline_ms)
        return None if fate == REPLACED_ALIVE else fate == NEWEST

    cdef int _fate(
        self, uint32_t family, bytes key, uint64_t number, uint64_t position, int64_t deadline_ms
    ) except -1:
        """What became of a version: the one that came next, if any, tells by when it was written."""
        cdef uint64_t hash = eph_hash(
            self.control.page.hash_seed, family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        )
        cdef Segment segment
        cdef Record *next_one = NULL
        cdef Record *r
        cdef Found found
        cdef RowHead head
        cdef int steps
        for segment in self.segments:
            if segment.number < number:
                break
            found = segment.find(
                family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), hash, segment._head()
            )
            if found.record == NULL or (segment.number == number and found.position == position):
                continue
            r = found.record
            for steps in range(SUCCESSOR_STEPS_MAX):
                if r.older == 0 or (segment.number == number and 8 * <uint64_t> r.older == position):
                    break
                if not segment._holds(8 * <uint64_t> r.older):
                    segment._damaged(found.position, "a link points outside the records")
                r = <Record *> (segment.start + 8 * <uint64_t> r.older)
            else:
                return REPLACED_ALIVE
            next_one = r
        if next_one == NULL:
            return NEWEST
        if read_row_head(_row_of(next_one), next_one.row_size, &head) and is_dead_ms(
            deadline_ms, head.written_ms
        ):
            return REPLACED_DEAD
        return REPLACED_ALIVE

    def cut(self) -> Cut:
        """What is published now, to be read later."""
        cdef Segment segment
        self._look()
        return Cut(list(self.segments), [(<Segment> segment)._head() for segment in self.segments])

    # -- writes: one at a time in all processes

    cdef int _enter(self) except -1:
        """Take the writer's turn, knowing all that happened before it."""
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")
        self._look()
        while True:
            if self.control.writer.acquire(self.lock_timeout):
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

    def enter(self) -> None:
        """Take the writer's turn for longer than one operation; `leave` gives it back."""
        self._enter()

    def leave(self) -> None:
        self.control.writer.release()

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
            self.acknowledge(segment.number, position)
        return 0

    def put(
        self, FamilyRef family not None, bytes key not None, bytes value not None, int64_t written_ms,
        int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms, durable, /
    ) -> None:
        """Store a row, whatever was there."""
        cdef Segment segment
        cdef uint64_t position
        cdef uint64_t size = _record_bytes(
            PyBytes_GET_SIZE(key), row_head_bytes(deadline_ms, idle_ms) + PyBytes_GET_SIZE(value)
        )
        self._enter()
        try:
            _check_family(family)
            segment = self._room(size)
            position = self._write(
                segment, segment._head(), family.id, key, value, 0,
                written_ms, deadline_ms, idle_ms, hard_ms,
            )
            segment.publish(position)
        finally:
            self.control.writer.release()
        self._acknowledge(segment, position, deadline_ms, durable)

    def update(self, FamilyRef family not None, bytes key not None, change, *, durable=None) -> None:
        """Give the live row (or None) and the time to `change` and store what it returns."""
        cdef int64_t now_ms
        self._enter()
        try:
            _check_family(family)
            now_ms = self.now_ms()
            row = self._live_row(family.id, key, now_ms)
            new = change(row, now_ms)
            if new is row:
                return
            where = self.append_batch([(family, key, new)], now_ms)
        finally:
            self.control.writer.release()
        self.acknowledge_batch(where, durable)

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
            size += _record_bytes(len(key), 33 + (0 if row is None else len(row.value)))
        try:
            return self._append_all(self._room(size), writes, now_ms)
        except:
            # What was linked must not be overwritten: leave it behind, as after a writer's death.
            self.writer_died()
            raise

    cdef tuple _append_all(self, Segment segment, writes, int64_t now_ms):
        cdef FamilyRef family
        cdef uint64_t position = segment._head()
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
