# cython: language_level=3, boundscheck=False, wraparound=False
"""The bytes of a row, and the one question whether it is dead.

    | flags u8 | written_ms i64 | deadline_ms i64 (if flagged) | idle_ms i64, hard_ms i64 (if flagged) | value |

Little endian. Segments, base tier and exports hold exactly these bytes; `docs/format.md` is the prose.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

NEVER_MS = NEVER

cdef object _Row = None
cdef object _new_tuple = tuple.__new__


cdef object row_from_head(RowHead *head, const char *row, Py_ssize_t size):
    global _Row
    if _Row is None:
        from ephemera.core.row import Row as _Row
    value = PyBytes_FromStringAndSize(row + head.value_at, size - head.value_at)
    # Row's own constructor is Python, and takes longer than reading the row.
    return _new_tuple(
        _Row, (value, head.written_ms, head.deadline_ms, head.idle_ms, head.hard_ms)
    )


def is_dead(int64_t deadline_ms, int64_t now_ms) -> bool:
    """Whether something with this deadline is dead at `now_ms`: the deadline itself is."""
    return is_dead_ms(deadline_ms, now_ms)


def encode_row(row) -> bytes:
    """The bytes of a row."""
    cdef bytes value = row.value
    cdef int64_t deadline_ms = row.deadline_ms
    cdef int64_t idle_ms = row.idle_ms
    cdef uint32_t at = row_head_bytes(deadline_ms, idle_ms)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, at + PyBytes_GET_SIZE(value))
    cdef char *start = PyBytes_AS_STRING(out)
    write_row_head(start, row.written_ms, deadline_ms, idle_ms, row.hard_ms)
    memcpy(start + at, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return out


def decode_row(bytes data not None):
    """The row of these bytes. Raises ValueError when they are none."""
    cdef RowHead head
    if not read_row_head(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &head):
        raise ValueError(f"{len(data)} bytes that are no row")
    return row_from_head(&head, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
