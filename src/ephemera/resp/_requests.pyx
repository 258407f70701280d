# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain requests, cut from a buffer where they lie.

Plain is what clients send: an array of bulk strings, whole, its numbers written as usual. A request
that is anything else is left to the byte-exact reading in `parser.py`, which alone says what is wrong
with it; those behind it may be plain again.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF

cdef enum:
    DIGITS_MAX = 9
    ARGUMENT_BYTES_MIN = 6     # "$0", its line end, and one more
    EXACT_BYTES = 1024         # that are read exactly at a time: more than most requests have


cdef class Limits:
    """What a client may ask of the parser; `is_trusted` once it need not give a password (any more)."""

    def __init__(
        self, Py_ssize_t bulk_bytes_max=512 * 1024 * 1024,
        Py_ssize_t buffer_bytes_max=1024 * 1024 * 1024, bint is_trusted=True
    ):
        self.bulk_bytes_max = bulk_bytes_max
        self.buffer_bytes_max = buffer_bytes_max
        self.is_trusted = is_trusted


cdef inline const char *_read_number(
    const char *at, const char *end, char kind, Py_ssize_t *number
) noexcept nogil:
    """The place after a line such as `$12`; NULL when there is none, or it is not plain."""
    cdef Py_ssize_t value = 0
    cdef const char *first = at + 1
    if at >= end or at[0] != kind:
        return NULL
    at = first
    while at < end and c"0" <= at[0] <= c"9":
        if at - first == DIGITS_MAX:
            return NULL
        value = value * 10 + (at[0] - c"0")
        at += 1
    if end - at < 2 or at[0] != c"\r" or at[1] != c"\n":
        return NULL
    if at == first or (first[0] == c"0" and at - first > 1):
        return NULL
    number[0] = value
    return at + 2


cdef Py_ssize_t split_request(
    const char **start, const char *end, Py_ssize_t bulk_bytes_max, Piece *pieces, Py_ssize_t room
) noexcept nogil:
    """Where the arguments of the request at `start` lie, and how many; `start` moves past it.

    0 when it is not plain and whole, or has more of them than there is room for.
    """
    cdef Py_ssize_t count = 0, size = 0, i
    cdef const char *at = _read_number(start[0], end, c"*", &count)
    if at == NULL or not 0 < count <= room:
        return 0
    for i in range(count):
        at = _read_number(at, end, c"$", &size)
        if at == NULL or size > bulk_bytes_max or size + 2 > end - at:
            return 0
        pieces[i].start, pieces[i].size = at, size
        at += size + 2  # two bytes that Redis does not look at either
    start[0] = at
    return count


cdef list _read_request(const char **start, const char *end, Py_ssize_t bulk_bytes_max):
    """The request that begins at `start`, which moves past it; None when it is not plain and whole."""
    cdef Py_ssize_t count = 0, size = 0, i
    cdef const char *at = _read_number(start[0], end, c"*", &count)
    cdef list request
    cdef bytes argument
    # The second question bounds the list by the bytes that are there.
    if at == NULL or not 0 < count <= (end - at) // ARGUMENT_BYTES_MIN:
        return None
    request = PyList_New(count)
    for i in range(count):
        at = _read_number(at, end, c"$", &size)
        if at == NULL or size > bulk_bytes_max or size + 2 > end - at:
            return None
        argument = PyBytes_FromStringAndSize(at, size)
        Py_INCREF(argument)
        PyList_SET_ITEM(request, i, argument)
        at += size + 2  # two bytes that Redis does not look at either
    start[0] = at
    return request


cdef class PlainParser:
    """Reads plain requests by itself, and has all others read by `read_exactly`.

    `has_unread` says that the next bytes are for that too: it has begun to read a request, or found an error.
    `missing` is how many bytes it needs at least.
    """

    def __init__(self, Limits limits not None):
        self.limits = limits

    cdef list next(self, const char **start, const char *end):
        """The request that begins or goes on at `start`, which moves past it; None, all bytes read, when
        they do not complete one."""
        cdef list request = None
        if not self.has_unread and self.limits.is_trusted:
            request = _read_request(start, end, self.limits.bulk_bytes_max)
        while request is None and start[0] != end:
            request = self._next_exactly(start, end)
        return request

    cdef list _next_exactly(self, const char **start, const char *end):
        """The same for a few bytes: the exact reading copies them, and takes no more than one request."""
        cdef Py_ssize_t size = min(end - start[0], max(EXACT_BYTES, self.missing))
        cdef Py_ssize_t taken
        request, taken = self.read_exactly(PyBytes_FromStringAndSize(start[0], size))
        start[0] += taken
        return request

    cdef list read(self, const char *start, const char *end):
        cdef list requests = [], request
        while start != end:
            request = self.next(&start, end)
            if request is not None:
                requests.append(request)
        return requests

    def feed(self, bytes data not None) -> list:
        """The requests that these bytes complete."""
        cdef const char *start = PyBytes_AS_STRING(data)
        return self.read(start, start + PyBytes_GET_SIZE(data))

    def read_exactly(self, data):
        raise TypeError("read_exactly")
