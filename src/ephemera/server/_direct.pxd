# What every request touches, for the compiled sockets. See _direct.pyx.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from ephemera.core._access cimport CompiledAccess, ValueRef, Slice, Touched
from ephemera.core._clock cimport Now
from ephemera.core._counter cimport Addition
from ephemera.resp._requests cimport PlainParser
from ephemera.server._latency cimport Histogram

cdef enum:
    AHEAD_MAX = 16
    SPARES = 16                # buffers that are kept: so many replies go out together
    SLICES_MAX = 1024          # arguments of requests that are found together
    PLACES = 128               # of Names: more than twice as many as there are names


cdef struct Ahead:
    # Requests that were found in a buffer, and where each ends.
    Py_ssize_t count
    Py_ssize_t firsts[AHEAD_MAX + 1]
    const char *ends[AHEAD_MAX]
    Slice slices[SLICES_MAX]


cdef struct Buffer:
    char *start
    Py_ssize_t room


cdef class Keys
cdef class RequestLoop

# Answers a request where its arguments lie; False, with nothing done, where it is not plain.
ctypedef bint (*InPlace)(RequestLoop, Keys, const Slice *, Py_ssize_t) except -1


cdef class SliceArray:
    cdef Slice *start


cdef class PendingReply:
    cdef int flush(self) except -1


cdef class ServerCounters:
    cdef public int64_t changes
    cdef public int64_t hits
    cdef public int64_t misses
    cdef public int64_t input_bytes
    cdef public int64_t output_bytes
    cdef public list listeners
    cdef public bint tells_new_keys
    cdef public bint tells_misses
    cdef public double slow_ns
    cdef public bint tracks_latency
    cdef public double processing_ns_max
    cdef public CompiledAccess paced
    cdef public object broadcast
    cdef readonly Now now
    cdef Buffer spares[SPARES]
    cdef int spares_count
    cdef list pending_replies

    cdef bint is_behind(self) noexcept
    cdef int flush_replies(self) except -1


cdef class CommandStats:
    cdef public object handler
    cdef public Py_ssize_t direct_arity
    cdef public int64_t calls
    cdef public int64_t failed
    cdef public int64_t rejected
    cdef public int64_t spent_ns
    cdef readonly Histogram latency
    cdef public bint is_write
    cdef InPlace in_place

    cdef bint takes_directly(self, Py_ssize_t count) noexcept


cdef class Names:
    cdef uint64_t names[PLACES]
    cdef PyObject *commands[PLACES]
    cdef list held
    cdef int _add(self, bytes name, CommandStats command) except -1
    cdef CommandStats find(self, Slice name)


cdef class Keys:
    cdef readonly ServerCounters counters
    cdef readonly int number
    cdef readonly object space
    cdef object space_get
    cdef object ref
    cdef object engine_get
    cdef object engine_put
    cdef object engine_update
    cdef bint has_default
    cdef CompiledAccess compiled
    cdef Addition addition

    cdef bint _is_plain(self, bytes key) noexcept
    cdef bint _has_default(self) except -1
    cdef object _value(self, bytes key)
    cdef bint _put_plainly(self, bytes key, bytes value, ttl_ms) except -1
    cdef int _changed(self, bytes key, event) except -1
    cdef bint takes_read(self, Slice key) noexcept
    cdef bint takes_write(self, Slice key) noexcept
    cdef bint _takes(self, Slice key) noexcept
    cdef object find(self, Slice key, ValueRef *live)
    cdef object _found(self, Slice key, int64_t now_ms, ValueRef *live)
    cdef int64_t left_ms(self, Slice key) except? -3
    cdef bint store(self, Slice key, Slice value, int64_t ttl_ms) except -1
    cdef bint store_all(self, const Slice *pairs, Py_ssize_t count) except -1
    cdef bint count(self, Slice key, int64_t step, int64_t *total) except -1
    cdef Py_ssize_t remove_all(self, Slice *keys, Py_ssize_t count) except -1
    cdef Touched renew(self, Slice key, int64_t ttl_ms) except *


cdef class Call:
    cdef public list args
    cdef public CommandStats command
    cdef public object keys
    cdef public object server
    cdef public object session


cdef class RequestLoop:
    cdef readonly ServerCounters counters
    cdef public Call call
    cdef public bint is_direct       # a handler may be called at once
    cdef public bint is_in_place     # and its command may be answered in place
    cdef public bint is_closing
    cdef public bint has_waiting
    cdef public bint is_postponed
    cdef public int protocol
    cdef public int64_t active_ms
    cdef readonly bint is_processing
    cdef readonly PlainParser parser
    cdef dict by_name
    cdef Names names
    cdef list messages
    cdef char *out
    cdef Py_ssize_t size, room, peak
    cdef int64_t began_ns, took_ns
    cdef double until_ns

    cdef int take(self, const char *data, Py_ssize_t size) except -1
    cdef bytes taken(self)
    cdef void give_back(self) noexcept
    cdef int _begin(self) except -1
    cdef bint _may_answer(self) noexcept
    cdef int _answer_all(self, const char *at, Py_ssize_t size) except -1
    cdef int _broadcast(self) except -1
    cdef const char *_answer_plain(self, const char *at, const char *end) except NULL
    cdef const char *_answer_next(self, const char *at, const char *end) except NULL
    cdef Py_ssize_t _look_ahead(self, const char *at, const char *end, Ahead *ahead) noexcept
    cdef int _prefetch(self, Ahead *ahead) except -1
    cdef bint _answer_listed(self, list args) except -1
    cdef bint _answer(self, const Slice *slices, Py_ssize_t count, list args) except -1
    cdef bint _answer_by_handler(self, list args) except -1
    cdef bint _counts(self, CommandStats command) noexcept
    cdef int _note_slow(self, CommandStats command, list args) except -1
    cdef bint _goes_on(self) noexcept
    cdef object _run(self, CommandStats command, list args)
    cdef bint _run_in_place(self, CommandStats command, const Slice *args, Py_ssize_t count) except -1
    cdef int _write_reply(self, reply) except -1
    cdef int write_value(self, Slice value) except -1
    cdef int write_none(self) except -1
    cdef int _write_encoded(self, reply) except -1
    cdef int _write_messages(self) except -1
    cdef int write_number(self, char kind, int64_t number) except -1
    cdef int append(self, const char *data, Py_ssize_t size) except -1
    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef int _grow(self, Py_ssize_t size) except -1
