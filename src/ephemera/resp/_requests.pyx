# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain requests, cut from a whole buffer in one pass.

Plain is what clients send: an array of bulk strings, whole, its numbers written as usual. The first request
that is anything else ends the pass, and is left to the byte-exact reading in `parser.py`, which alone
says what is wrong with it.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF

cdef enum:
    DIGITS_MAX = 9
    ARGUMENT_BYTES_MIN = 6     # "$0", its line end, and one more


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


cdef Py_ssize_t _cut(
    const char *start, Py_ssize_t size, list requests, Py_ssize_t bulk_bytes_max
) except -1:
    """Append the plain requests at the start of a buffer; how many bytes they took."""
    cdef const char *at = start
    cdef list request
    while True:
        request = _read_request(&at, start + size, bulk_bytes_max)
        if request is None:
            return at - start
        requests.append(request)


cdef class PlainParser:
    """Reads buffers that hold nothing but plain requests. `has_unread` says that there are bytes before
    the next buffer, or that all of them are to be read by `feed_exactly`."""

    def __init__(self, Limits limits not None):
        self.limits = limits

    cdef list read(self, bytes data):
        cdef list requests = []
        cdef Py_ssize_t done = 0
        if not self.has_unread and self.limits.is_trusted:
            done = _cut(
                PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), requests, self.limits.bulk_bytes_max
            )
            if done == PyBytes_GET_SIZE(data):
                return requests
        self.feed_exactly(data, done, requests)
        return requests

    def feed(self, bytes data not None) -> list:
        """The requests that these bytes complete."""
        return self.read(data)

    def feed_exactly(self, data, done, requests):
        raise TypeError("feed_exactly")

    def cut(self, bytearray buffer not None, Py_ssize_t at, list requests not None) -> int:
        """Read plain requests from a place of a buffer on; the place after them."""
        if not self.limits.is_trusted:
            return at
        return at + _cut(
            PyByteArray_AS_STRING(buffer) + at, PyByteArray_GET_SIZE(buffer) - at, requests,
            self.limits.bulk_bytes_max,
        )
