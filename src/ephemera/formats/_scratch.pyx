# cython: language_level=3, boundscheck=False, wraparound=False
"""A place to keep keys while a log is replayed: values on the disk, 32 bytes a key in memory.

    record   family id u32 | key bytes u32 | value bytes u32 | deadline_ms i64 | key | value

Records are only appended, to a file that nobody else sees and that goes with the process; a table
of hashes and offsets knows the newest one of each key. A family that is cleared gets a new id, and
what bears the old one is passed over.
"""
import os
import tempfile

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

cdef enum:
    SLOTS_AT_FIRST = 1024
    HEAD_BYTES = 20
    TAIL_BYTES_MAX = 1 << 20
    REMOVED = -1

cdef struct Slot:
    uint64_t hash
    int64_t place           # 0 never used, -1 removed, else the offset plus one

cdef struct Head:
    uint32_t family
    uint32_t key_bytes
    uint32_t value_bytes
    int64_t deadline_ms


cdef inline Head _head(const char *record) noexcept:
    cdef Head head
    memcpy(&head.family, record, 4)
    memcpy(&head.key_bytes, record + 4, 4)
    memcpy(&head.value_bytes, record + 8, 4)
    memcpy(&head.deadline_ms, record + 12, 8)
    return head


cdef class Scratch:
    """Families of keys that hold a value and a deadline.

    With fewer `hash_bits` more keys share a hash, which tests make use of.
    """

    cdef object _file
    cdef int64_t _file_bytes
    cdef bytearray _tail
    cdef Slot *_slots
    cdef uint64_t _mask, _hash_mask
    cdef uint64_t _used     # removed ones too: a search goes on past them
    cdef dict _ids
    cdef uint32_t _next_id
    cdef readonly Py_ssize_t count

    def __cinit__(self) -> None:
        self._slots = <Slot *> calloc(SLOTS_AT_FIRST, sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError()
        self._mask = SLOTS_AT_FIRST - 1

    def __init__(self, *, int hash_bits=64) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)
        self._tail = bytearray()
        self._ids = {}
        self._hash_mask = (<uint64_t> -1) >> (64 - hash_bits)

    def __dealloc__(self) -> None:
        free(self._slots)

    def get(self, str family not None, bytes key not None):
        """What the key holds, or None."""
        cdef uint32_t number = self._id(family)
        cdef Slot *slot = self._find(number, key, self._hash(number, key))
        cdef Head head
        if slot == NULL:
            return None
        record = self._read(slot.place - 1, HEAD_BYTES)
        head = _head(PyBytes_AS_STRING(record))
        value = self._read(slot.place - 1 + HEAD_BYTES + head.key_bytes, head.value_bytes)
        return value, head.deadline_ms

    def put(self, str family not None, bytes key not None, held) -> None:
        """HeldLock this, a value and its deadline, or nothing (None)."""
        cdef uint32_t number = self._id(family)
        cdef uint64_t hash = self._hash(number, key)
        cdef Slot *slot = self._find(number, key, hash)
        if held is None:
            if slot != NULL:
                slot.place = REMOVED
                self.count -= 1
            return
        value, deadline_ms = held
        cdef int64_t offset = self._append(number, key, value, deadline_ms)
        if slot != NULL:
            slot.place = offset + 1
        else:
            self._add(hash, offset)

    def clear(self, str family not None) -> None:
        """HeldLock nothing in this family."""
        self._ids.pop(family, None)

    def clear_all(self) -> None:
        self._ids.clear()

    def swap(self, str one not None, str other not None) -> None:
        """Let two families trade what they hold."""
        self._ids[one], self._ids[other] = self._id(other), self._id(one)

    def __iter__(self):
        """Family, key, value and deadline of everything, in the order in which it was last written."""
        cdef Head head
        cdef Py_ssize_t at = 0, size
        cdef int64_t base = 0
        cdef bytes data = b"", key, value
        self._flush()
        self._file.seek(0)
        names = {number: name for name, number in self._ids.items()}
        while True:
            size = PyBytes_GET_SIZE(data) - at
            if size >= HEAD_BYTES:
                head = _head(PyBytes_AS_STRING(data) + at)
                size -= HEAD_BYTES + <Py_ssize_t> head.key_bytes + head.value_bytes
            if size < 0 or PyBytes_GET_SIZE(data) - at < HEAD_BYTES:
                more = self._file.read(max(TAIL_BYTES_MAX, -size))
                if not more:
                    return
                base += at
                data, at = data[at:] + more, 0
                continue
            key = _part(data, at + HEAD_BYTES, head.key_bytes)
            if head.family in names and self._is_newest(head.family, key, base + at):
                value = _part(data, at + HEAD_BYTES + head.key_bytes, head.value_bytes)
                yield names[head.family], key, value, head.deadline_ms
            at += HEAD_BYTES + <Py_ssize_t> head.key_bytes + head.value_bytes

    def close(self) -> None:
        self._file.close()

    # -- families and hashes

    cdef uint32_t _id(self, str family) except? 0xFFFFFFFF:
        number = self._ids.get(family)
        if number is None:
            number = self._ids[family] = self._next_id
            self._next_id += 1
        return number

    cdef uint64_t _hash(self, uint32_t number, bytes key):
        # A factor for the family, and the high bits mixed into the low ones, which pick the slot.
        cdef uint64_t mixed = (<uint64_t> hash(key) + number) * <uint64_t> 0x9E3779B97F4A7C15
        return (mixed ^ mixed >> 32) & self._hash_mask

    # -- the table

    cdef Slot *_find(self, uint32_t number, bytes key, uint64_t hash) except? NULL:
        cdef uint64_t at = hash & self._mask
        while self._slots[at].place:
            if self._slots[at].hash == hash and self._slots[at].place > 0:
                if self._is_of(self._slots[at].place - 1, number, key):
                    return &self._slots[at]
            at = at + 1 & self._mask
        return NULL

    cdef bint _is_newest(self, uint32_t number, bytes key, int64_t offset):
        cdef uint64_t hash = self._hash(number, key)
        cdef uint64_t at = hash & self._mask
        while self._slots[at].place:
            if self._slots[at].place == offset + 1:
                return True
            at = at + 1 & self._mask
        return False

    cdef int _add(self, uint64_t hash, int64_t offset) except -1:
        if (self._used + 1) * 2 > self._mask:
            self._grow()
        _place(self._slots, self._mask, Slot(hash, offset + 1))
        self._used += 1
        self.count += 1
        return 0

    cdef int _grow(self) except -1:
        cdef uint64_t size = self._mask + 1, at
        cdef uint64_t new_size = size * 2 if <uint64_t> self.count * 4 > size else size
        cdef Slot *slots = <Slot *> calloc(new_size, sizeof(Slot))
        if slots == NULL:
            raise MemoryError()
        for at in range(size):
            if self._slots[at].place > 0:
                _place(slots, new_size - 1, self._slots[at])
        free(self._slots)
        self._slots = slots
        self._mask = new_size - 1
        self._used = self.count
        return 0

    # -- the file

    cdef int64_t _append(
        self, uint32_t number, bytes key, bytes value, int64_t deadline_ms
    ) except -1:
        # Where the record lies now.
        cdef uint32_t key_bytes = PyBytes_GET_SIZE(key), value_bytes = PyBytes_GET_SIZE(value)
        cdef Py_ssize_t at = PyByteArray_GET_SIZE(self._tail)
        cdef int64_t offset = self._file_bytes + at
        PyByteArray_Resize(self._tail, at + HEAD_BYTES + key_bytes + value_bytes)
        cdef char *record = PyByteArray_AS_STRING(self._tail) + at
        memcpy(record, &number, 4)
        memcpy(record + 4, &key_bytes, 4)
        memcpy(record + 8, &value_bytes, 4)
        memcpy(record + 12, &deadline_ms, 8)
        memcpy(record + HEAD_BYTES, PyBytes_AS_STRING(key), key_bytes)
        memcpy(record + HEAD_BYTES + key_bytes, PyBytes_AS_STRING(value), value_bytes)
        if PyByteArray_GET_SIZE(self._tail) >= TAIL_BYTES_MAX:
            self._flush()
        return offset

    cdef bint _is_of(self, int64_t offset, uint32_t number, bytes key) except -1:
        # Whether the record there is one of this key.
        cdef bytes record = self._read(offset, HEAD_BYTES + PyBytes_GET_SIZE(key))
        cdef Head head
        if PyBytes_GET_SIZE(record) < HEAD_BYTES + PyBytes_GET_SIZE(key):
            return False
        head = _head(PyBytes_AS_STRING(record))
        return (
            head.family == number
            and head.key_bytes == <uint32_t> PyBytes_GET_SIZE(key)
            and memcmp(
                PyBytes_AS_STRING(record) + HEAD_BYTES, PyBytes_AS_STRING(key), head.key_bytes
            ) == 0
        )

    cdef bytes _read(self, int64_t offset, Py_ssize_t size):
        # Fewer bytes where the file ends. A record lies in the file or in the tail, never in both.
        cdef int64_t at = offset - self._file_bytes
        if at < 0:
            return os.pread(self._file.fileno(), size, offset)
        size = min(size, PyByteArray_GET_SIZE(self._tail) - at)
        return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self._tail) + at, size)

    cdef int _flush(self) except -1:
        cdef Py_ssize_t written = 0, size = PyByteArray_GET_SIZE(self._tail)
        while written < size:
            written += self._file.write(memoryview(self._tail)[written:])
        self._file_bytes += size
        self._tail = bytearray()
        return 0


cdef inline void _place(Slot *slots, uint64_t mask, Slot slot) noexcept:
    cdef uint64_t at = slot.hash & mask
    while slots[at].place:
        at = at + 1 & mask
    slots[at] = slot


cdef inline bytes _part(bytes data, Py_ssize_t at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + at, size)
