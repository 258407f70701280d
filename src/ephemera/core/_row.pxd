# The row format and the death predicate, for compiled callers. See _row.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    # Stored on disk; never renumber.
    ROW_DEADLINE = 1
    ROW_IDLE = 2
    ROW_FLAGS_KNOWN = 3

cdef extern from *:
    """
    #define EPHEMERA_NEVER_MS INT64_MAX
    """
    const int64_t NEVER "EPHEMERA_NEVER_MS"

cdef struct RowHead:
    int64_t written_ms
    int64_t deadline_ms
    int64_t idle_ms
    int64_t hard_ms
    uint32_t value_at      # where the value begins within the row


cdef inline bint is_dead_ms(int64_t deadline_ms, int64_t now_ms) noexcept nogil:
    # The one predicate: every engine, scan, count, sweep and event asks this.
    return deadline_ms <= now_ms


cdef inline uint32_t row_head_bytes(int64_t deadline_ms, int64_t idle_ms) noexcept nogil:
    return 9 + (8 if deadline_ms != NEVER else 0) + (16 if idle_ms else 0)


cdef inline uint32_t write_row_head(
    char *out, int64_t written_ms, int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms
) noexcept nogil:
    cdef uint8_t flags = 0
    cdef uint32_t at = 9
    memcpy(out + 1, &written_ms, 8)
    if deadline_ms != NEVER:
        flags |= ROW_DEADLINE
        memcpy(out + at, &deadline_ms, 8)
        at += 8
    if idle_ms:
        flags |= ROW_IDLE
        memcpy(out + at, &idle_ms, 8)
        memcpy(out + at + 8, &hard_ms, 8)
        at += 16
    out[0] = flags
    return at


cdef inline bint read_row_head(const char *row, Py_ssize_t size, RowHead *head) noexcept nogil:
    # False when these bytes are no row.
    cdef uint8_t flags
    cdef uint32_t at = 9
    if size < 9:
        return False
    flags = <uint8_t> row[0]
    if flags & ~ROW_FLAGS_KNOWN:
        return False
    head.deadline_ms = NEVER
    head.idle_ms = 0
    head.hard_ms = NEVER
    memcpy(&head.written_ms, row + 1, 8)
    if size < 9 + (8 if flags & ROW_DEADLINE else 0) + (16 if flags & ROW_IDLE else 0):
        return False
    if flags & ROW_DEADLINE:
        memcpy(&head.deadline_ms, row + at, 8)
        at += 8
    if flags & ROW_IDLE:
        memcpy(&head.idle_ms, row + at, 8)
        memcpy(&head.hard_ms, row + at + 8, 8)
        at += 16
    head.value_at = at
    return True


cdef object row_from_head(RowHead *head, const char *row, Py_ssize_t size)
