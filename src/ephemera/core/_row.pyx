# cython: language_level=3, boundscheck=False, wraparound=False
"""The bytes of a row, and the one question whether it is dead.

    | flags u8 | written_ms i64 | deadline_ms i64 (if flagged) | idle_ms i64, hard_ms i64 (if flagged) | value |

Little endian. Segments, base tier and exports hold exactly these bytes; `docs/format.md` is the prose.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t fields)

NEVER_MS = NEVER

cdef object _NEVER_MS = NEVER
cdef object _Row = None

cdef enum:
    ROW_FIELDS = 5


cdef object row_from_head(RowHead *head, const char *row, Py_ssize_t size):
    global _Row
    if _Row is None:
        from ephemera.core.row import Row as _Row
    # Row's own constructor is Python, and takes longer than reading the row.
    made = PyType_GenericAlloc(_Row, ROW_FIELDS)
    _set(made, 0, PyBytes_FromStringAndSize(row + head.value_at, size - head.value_at))
    _set(made, 1, head.written_ms)
    _set(made, 2, _NEVER_MS if head.deadline_ms == NEVER else head.deadline_ms)
    _set(made, 3, head.idle_ms)
    _set(made, 4, _NEVER_MS if head.hard_ms == NEVER else head.hard_ms)
    return made


cdef inline int _set(made, Py_ssize_t at, field) except -1:
    Py_INCREF(field)     # the tuple takes this reference over
    PyTuple_SET_ITEM(made, at, field)
    return 0


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
