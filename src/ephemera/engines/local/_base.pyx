# cython: language_level=3, boundscheck=False, wraparound=False
"""The bytes of the base tier's rows, and reading and writing them.

    key    family id u32 big endian, then the key: so keys sort by family, then by key
    value  crc32c u32 little endian over that key and the row, then the row (core/_row.pyx)
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy

from ephemera.core._access cimport Slice, compare, slice_of
from ephemera.core._row cimport NEVER, RowHead, is_dead_ms, read_row_head, row_from_head
from ephemera.engines.local._pages cimport PRESENT, UNSURE, Look, Tree

from ephemera.core.errors import CorruptStore

eph_crc_setup()

cdef enum:
    DEADLINE_BYTES = 8     # before the base key in an index entry


cdef inline void _put_be32(char *out, uint32_t n) noexcept nogil:
    out[0] = <char> (n >> 24)
    out[1] = <char> (n >> 16)
    out[2] = <char> (n >> 8)
    out[3] = <char> n


cdef bytes pack_key_of(uint32_t family, const char *key, Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + size)
    pack_key_to(PyBytes_AS_STRING(out), family, Slice(key, size))
    return out


cdef Py_ssize_t pack_key_to(char *out, uint32_t family, Slice key) noexcept nogil:
    """Write a base key where there is room for it; how long it is."""
    _put_be32(out, family)
    memcpy(out + 4, key.start, key.size)
    return 4 + key.size


cdef inline uint32_t _family_of(bytes base_key) noexcept:
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(base_key)
    if PyBytes_GET_SIZE(base_key) < 4:
        return 0
    return <uint32_t> p[0] << 24 | <uint32_t> p[1] << 16 | <uint32_t> p[2] << 8 | p[3]


def pack_key(uint32_t family, bytes key not None) -> bytes:
    """The base tier's key: family id, big endian, then the key."""
    return pack_key_of(family, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


cdef bytes pack_row_of(bytes base_key, const char *row, Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + size)
    cdef char *start = PyBytes_AS_STRING(out)
    cdef uint32_t crc = eph_crc32c(0, PyBytes_AS_STRING(base_key), PyBytes_GET_SIZE(base_key))
    crc = eph_crc32c(crc, row, size)
    memcpy(start, &crc, 4)
    memcpy(start + 4, row, size)
    return out


def pack_row(bytes base_key not None, bytes row not None) -> bytes:
    """The base tier's value: crc32c over key and row, then the row."""
    return pack_row_of(base_key, PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))


cdef bint open_row(Slice base_key, Slice stored, RowHead *head) except -1:
    """Check a base value's bytes before any of them is believed; the row begins at `ROW_AT`."""
    cdef uint32_t crc, kept
    if stored.size >= 13:
        memcpy(&kept, stored.start, 4)
        crc = eph_crc32c(0, base_key.start, base_key.size)
        crc = eph_crc32c(crc, stored.start + 4, stored.size - 4)
        if crc == kept and read_row_head(stored.start + 4, stored.size - 4, head):
            return True
    raise CorruptStore(
        "base tier", None, f"the row of key {base_key.start[:base_key.size]!r} is damaged"
    )


def unpack_row(bytes base_key not None, bytes stored not None):
    """The row of a base tier's value. Raises CorruptStore when the checksum does not hold."""
    return _row(base_key, stored)


cdef object _row(bytes base_key, bytes stored):
    cdef RowHead head
    open_row(slice_of(base_key), slice_of(stored), &head)
    return row_from_head(&head, PyBytes_AS_STRING(stored) + 4, PyBytes_GET_SIZE(stored) - 4)


def unpack_value(bytes base_key not None, bytes stored not None, int64_t now_ms):
    """The value of a base tier's row that is alive, else None."""
    return _value(base_key, stored, now_ms)


cdef object _value(bytes base_key, bytes stored, int64_t now_ms):
    cdef RowHead head
    open_row(slice_of(base_key), slice_of(stored), &head)
    if is_dead_ms(head.deadline_ms, now_ms):
        return None
    return PyBytes_FromStringAndSize(
        PyBytes_AS_STRING(stored) + 4 + head.value_at,
        PyBytes_GET_SIZE(stored) - 4 - head.value_at,
    )


def unpack_deadline(bytes stored not None) -> int:
    """The deadline of a base tier's value, unchecked; NEVER_MS when it has none."""
    return _deadline_ms(stored)


cdef int64_t _deadline_ms(bytes stored) noexcept:
    cdef RowHead head
    if PyBytes_GET_SIZE(stored) < 4 or not read_row_head(
        PyBytes_AS_STRING(stored) + 4, PyBytes_GET_SIZE(stored) - 4, &head
    ):
        return NEVER
    return head.deadline_ms


# -- index entries: deadline i64 big endian, then the base key


def entry_of(int64_t deadline_ms, bytes base_key not None) -> bytes:
    """The index entry of a row."""
    return _entry(deadline_ms, base_key)


cdef bytes _entry(int64_t deadline_ms, bytes base_key):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 8 + PyBytes_GET_SIZE(base_key))
    cdef char *start = PyBytes_AS_STRING(out)
    _put_be32(start, <uint32_t> (<uint64_t> deadline_ms >> 32))
    _put_be32(start + 4, <uint32_t> deadline_ms)
    memcpy(start + 8, PyBytes_AS_STRING(base_key), PyBytes_GET_SIZE(base_key))
    return out


def dies_as(bytes entry not None, bytes stored not None) -> bool:
    """Whether an index entry speaks for this base value."""
    return _dies_as(slice_of(entry), slice_of(stored))


cdef bint _dies_as(Slice entry, Slice stored) noexcept:
    cdef RowHead head
    cdef const uint8_t *p = <const uint8_t *> entry.start
    cdef int64_t deadline_ms = 0
    cdef int i
    if entry.size < DEADLINE_BYTES or stored.size < ROW_AT:
        return False
    for i in range(DEADLINE_BYTES):
        deadline_ms = deadline_ms << 8 | p[i]
    return (
        read_row_head(stored.start + ROW_AT, stored.size - ROW_AT, &head)
        and head.deadline_ms == deadline_ms
    )


# -- batches: `rows` is a cursor of a write transaction


def store_rows(rows, list changes not None, live_ids, int64_t now_ms):
    """Store the rows (base key, base value, deadline) that are alive and of a living family, in this
    order. A deletion (no value), or a row that is not stored, still removes the older one below it.

    Returns the index entries that go and those that come.
    """
    cdef list gone = [], fresh = []
    cdef bytes base_key, stored, old
    cdef int64_t deadline_ms, old_ms
    cdef uint32_t family, last_family = 0
    cdef bint is_living = False
    replace, pop = rows.replace, rows.pop
    for base_key, stored, deadline_ms in changes:
        family = _family_of(base_key)
        if family != last_family:
            last_family, is_living = family, family in live_ids
        if stored is None or not is_living or is_dead_ms(deadline_ms, now_ms):
            old, deadline_ms = pop(base_key), NEVER
        else:
            old = replace(base_key, stored)
        old_ms = NEVER if old is None else _deadline_ms(old)
        if old_ms != deadline_ms:
            if old_ms != NEVER:
                gone.append(_entry(old_ms, base_key))
            if deadline_ms != NEVER:
                fresh.append(_entry(deadline_ms, base_key))
    return gone, fresh


def remove_rows(rows, list entries not None) -> list:
    """Remove the rows that these index entries speak for, and return their base keys.

    An entry whose row says otherwise is stale: the row stays.
    """
    cdef list removed = []
    cdef bytes base_key, stored
    cdef Slice key
    cdef Py_ssize_t i, count = PyList_GET_SIZE(entries)
    cdef Slice *found = <Slice *> PyMem_RawMalloc((count + 1) * sizeof(Slice))
    if found == NULL:
        raise MemoryError()
    put, pop = rows.put, rows.pop
    try:
        for i in range(count):
            found[i] = slice_of(entries[i])
        # In the order of the rows, page after page. To sort so many takes long, and nobody waits for it.
        with nogil:
            qsort(found, count, sizeof(Slice), &_by_base_key)
        for i in range(count):
            key = _base_key_in(found[i])
            base_key = PyBytes_FromStringAndSize(key.start, key.size)
            stored = pop(base_key)
            if stored is None:
                continue
            if _dies_as(found[i], slice_of(stored)):
                removed.append(base_key)
            else:
                put(base_key, stored)
    finally:
        PyMem_RawFree(found)
    return removed


cdef int _by_base_key(const void *a, const void *b) noexcept nogil:
    return compare(_base_key_in((<const Slice *> a)[0]), _base_key_in((<const Slice *> b)[0]))


cdef inline Slice _base_key_in(Slice entry) noexcept nogil:
    cdef Py_ssize_t skipped = min(entry.size, <Py_ssize_t> DEADLINE_BYTES)
    return Slice(entry.start + skipped, entry.size - skipped)


def remove_entries(deadlines, list entries not None) -> None:
    """Remove entries of the index, those that are there."""
    cdef bytes entry
    pop = deadlines.pop
    for entry in sorted(entries):
        pop(entry)


cdef class RowReader:
    """Reads rows in one state of the base tier, until `renew`.

    `pin` gives the tree of rows as it is now, or None; `ask` what LMDB says of one key.
    """

    def __init__(self, pin, ask):
        self.pin = pin
        self.ask = ask

    def get(self, bytes base_key not None):
        """The base value of a key, or None."""
        cdef Slice stored
        if self.find(slice_of(base_key), &stored) is None:
            return None
        return PyBytes_FromStringAndSize(stored.start, stored.size)

    cdef object find(self, Slice base_key, Slice *stored):
        """What keeps the base value of a key in its place until the file is closed, or None."""
        cdef Tree tree = self._pinned() if self.tree is None else self.tree
        cdef Look look
        cdef bytes answer
        look = UNSURE if tree is None else tree.find(base_key.start, base_key.size, stored)
        if look != UNSURE:
            return tree if look == PRESENT else None
        answer = self.ask(base_key.start[:base_key.size])
        if answer is not None:
            stored[0] = slice_of(answer)
        return answer

    cdef Tree _pinned(self):
        cdef uint64_t renewals = self.renewals
        cdef Tree tree = self.pin()
        # Whoever has renewed this meanwhile shows segments that this tree does not belong below: it
        # serves the one who was already looking, and nobody else.
        if tree is not None and tree.is_sure and renewals == self.renewals:
            self.tree = tree
        return tree

    def renew(self) -> None:
        """From now on read what is committed now, and pin nothing older."""
        self.renewals += 1
        self.tree = None
