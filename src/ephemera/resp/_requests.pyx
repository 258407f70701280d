# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain requests, cut from a buffer where they lie.

Plain is what clients send: an array of bulk strings, its numbers written as usual. What is anything else,
or goes on in the next buffer, is left to the byte-exact reading in `parser.py`, which alone says what is
wrong with it: one argument at a time, for those behind it may be plain again.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE

cdef enum:
    DIGITS_MAX = 9
    EXACT_BYTES = 1024         # that are read exactly at a time: more than most arguments have


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
    const char **start, const char *end, Py_ssize_t bulk_bytes_max, Slice *slices, Py_ssize_t room
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
        slices[i].start, slices[i].size = at, size
        at += size + 2  # two bytes that Redis does not look at either
    start[0] = at
    return count


cdef class PlainParser:
    """Reads plain arguments by itself, and has all others read by `read_exactly`.

    `request` are the arguments so far of a request, `held` their bytes, `awaited` how many more it has.
    `is_inside` says that the next bytes are for the exact reading: it has begun an argument, of which it needs
    `missing` more of them at least, or found an error.
    """

    def __init__(self, Limits limits not None):
        self.limits = limits
        self.request = []

    cdef bint has_unread(self) noexcept:
        """Whether bytes wait for the rest of their request, or an error is to be told."""
        return self.is_inside or self.awaited > 0

    cdef bint _is_whole(self) noexcept:
        return self.awaited == 0 and PyList_GET_SIZE(self.request) > 0

    cdef list next(self, const char **start, const char *end):
        """The request that begins or goes on at `start`, which moves past it; None, all bytes read, when
        they do not complete one."""
        cdef list request
        while start[0] != end and not self._is_whole():
            if not self.is_inside and self.limits.is_trusted:
                self._read_plainly(start, end)
            if start[0] != end and not self._is_whole():
                self._read_exactly(start, end)
        if not self._is_whole():
            return None
        request, self.request, self.held = self.request, [], 0
        return request

    cdef int _read_plainly(self, const char **start, const char *end) except -1:
        """Read on, up to the end of the request or to what is not plain and whole."""
        cdef Py_ssize_t number = 0
        cdef const char *at
        if self.awaited == 0:
            at = _read_number(start[0], end, c"*", &number)
            if at == NULL:
                return 0
            start[0], self.awaited = at, number
        while self.awaited:
            at = _read_number(start[0], end, c"$", &number)
            if at == NULL or number > self.limits.bulk_bytes_max or number + 2 > end - at:
                return 0
            self.request.append(PyBytes_FromStringAndSize(at, number))
            self.held += number
            self.awaited -= 1
            start[0] = at + number + 2  # two bytes that Redis does not look at either
        return 0

    cdef int _read_exactly(self, const char **start, const char *end) except -1:
        """Have a few bytes read: they are copied for it."""
        cdef Py_ssize_t size = min(end - start[0], max(EXACT_BYTES, self.missing))
        start[0] += <Py_ssize_t> self.read_exactly(PyBytes_FromStringAndSize(start[0], size))
        return 0

    def feed(self, bytes data not None) -> list:
        """The requests that these bytes complete."""
        cdef const char *start = PyBytes_AS_STRING(data)
        cdef const char *end = start + PyBytes_GET_SIZE(data)
        cdef list requests = [], request
        while start != end:
            request = self.next(&start, end)
            if request is not None:
                requests.append(request)
        return requests

    def read_exactly(self, data):
        raise TypeError("read_exactly")
