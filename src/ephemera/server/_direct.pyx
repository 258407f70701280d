# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The straight way through the server, from bytes to bytes, for requests about which nothing is special.

Bases of the classes that say what it means: `Tally` of Server, `Counted` of Command, `Keys` of Database,
`Answering` of Session, `Receiving` of Connection. They hold what every request touches, and the loop over
the requests of a buffer. Whatever is out of the ordinary is left to the Python above.
"""
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from ephemera.core._clock cimport elapsed_ns
from ephemera.core._counter cimport DIGITS_BYTES_MAX, Addition, strict_addition, write_digits
from ephemera.core._row cimport NEVER
from ephemera.resp._requests cimport PlainParser

from ephemera.core.arguments import KEY_BYTES_MAX, VALUE_BYTES_MAX
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.resp.encoder import encode
from ephemera.resp.replies import Refused, Simple
from ephemera.server.events import EXPIRE, INCRBY, KEYMISS, NEW, SET

POSTPONED = Simple(b"POSTPONED")
"""In place of a reply: the request waits, and those after it. Never sent."""
LARGE_REPLY_BYTES = 4096
OUTPUT_BYTES_PAUSE = 1024 * 1024
"""With so much in large replies to send, the rest of a pipeline waits until the client has read."""

cdef Py_ssize_t _KEY_BYTES_MAX = KEY_BYTES_MAX
cdef Py_ssize_t _VALUE_BYTES_MAX = VALUE_BYTES_MAX
cdef int64_t _DEADLINE_MS_MAX = DEADLINE_MS_MAX
cdef object _NEVER_MS = NEVER
cdef Py_ssize_t _LARGE_REPLY_BYTES = LARGE_REPLY_BYTES
cdef Py_ssize_t _OUTPUT_BYTES_PAUSE = OUTPUT_BYTES_PAUSE

cdef enum:
    OUTPUT_BYTES_FIRST = 512


cdef class Tally:
    """What a server counts, and what it has to tell whom."""
    cdef public int64_t changes
    cdef public int64_t hits
    cdef public int64_t misses
    cdef public int64_t input_bytes
    cdef public int64_t output_bytes
    cdef public list listeners
    cdef public bint tells_new_keys
    cdef public bint tells_misses
    cdef public object settings

    cdef double slow_ns(self) except -1:
        """From how many nanoseconds on `note_slow` wants to know of a command."""
        cdef double spike_ns, micros
        settings = self.settings
        if settings.latency_tracking:
            return 0
        micros = settings.slowlog_log_slower_than
        spike_ns = <double> settings.latency_monitor_threshold * 1e6 or INFINITY
        return spike_ns if micros < 0 else min(micros * 1000, spike_ns)


cdef class Counted:
    """What runs a command, and how often it ran. `direct_arity` is 0 where a handler is not to be called
    at once: for commands that have subcommands."""
    cdef public object handler
    cdef public Py_ssize_t direct_arity
    cdef public int64_t calls
    cdef public int64_t failed
    cdef public int64_t rejected
    cdef public int64_t spent_ns

    cdef inline bint takes_directly(self, Py_ssize_t count) noexcept:
        return self.direct_arity == count or -count <= self.direct_arity < 0


# ---------------------------------------------------------------------------------------------- keys


cdef class Keys:
    """The commonest reads and writes of a database, counted and told.

    With an engine's family, plain arguments go straight there; all others, and all of them inside a
    transaction, go through `space`, which checks them and knows every rule.
    """
    cdef readonly Tally tally
    cdef readonly int number
    cdef readonly object space
    cdef object space_get
    cdef object ref
    cdef object engine_get
    cdef object engine_put
    cdef object engine_update
    cdef object now_ms
    cdef bint has_default

    def __init__(self, Tally tally not None, int number, space, engine):
        self.tally = tally
        self.number = number
        self.space = space
        self.space_get = space.get
        if engine is not None:
            self.ref = engine.family(space.name, create=False)
            self.has_default = self.ref.default_ttl_ms is not None or space.default_ttl is not None
            self.engine_get, self.engine_put = engine.get, engine.put
            self.engine_update = engine.update
            self.now_ms = engine.clock.now_ms

    def put_by_rule(self, key, value, ttl_ms):
        raise TypeError("put_by_rule")

    def add_by_rule(self, key, addition):
        raise TypeError("add_by_rule")

    cdef inline bint _is_plain(self, bytes key) noexcept:
        return self.ref is not None and 0 < PyBytes_GET_SIZE(key) <= _KEY_BYTES_MAX

    cdef inline bint _has_default(self) except -1:
        """Whether what is stored without a lifetime may get one."""
        return self.has_default or self.ref.default_ttl_ms is not None

    cdef inline object _value(self, bytes key):
        if self._is_plain(key):
            return self.engine_get(self.ref, key, self.now_ms())
        return self.space_get(key)

    def peek(self, bytes key not None):
        """The value for a command that writes: neither counted, nor told if it is missing."""
        return self._value(key)

    def get(self, bytes key not None):
        """The value, counted as a hit or a miss."""
        value = self._value(key)
        if value is not None:
            self.tally.hits += 1
            return value
        self.tally.misses += 1
        if self.tally.tells_misses:
            self.tally.tell(self.number, key, KEYMISS)
        return None

    def put(self, bytes key not None, bytes value not None, ttl_ms=None, event=SET):
        """Store the value; the key's former deadline goes."""
        if not self._put_plainly(key, value, ttl_ms):
            self.put_by_rule(key, value, ttl_ms)
        self._changed(key, event)
        if ttl_ms is not None and self.tally.listeners:
            self.tally.tell(self.number, key, EXPIRE)

    cdef bint _put_plainly(self, bytes key, bytes value, ttl_ms) except -1:
        cdef int64_t now_ms, life_ms
        if not self._is_plain(key) or PyBytes_GET_SIZE(value) > _VALUE_BYTES_MAX:
            return False
        if self.tally.tells_new_keys or (ttl_ms is None and self._has_default()):
            return False
        instant = self.now_ms()
        deadline = _NEVER_MS
        if ttl_ms is not None:
            now_ms, life_ms = instant, ttl_ms
            if not 0 < life_ms <= _DEADLINE_MS_MAX - now_ms:
                return False
            deadline = now_ms + life_ms
        self.engine_put(self.ref, key, value, instant, deadline, 0, _NEVER_MS, None)
        return True

    def add(self, bytes key not None, int64_t step) -> Addition:
        """Add to a counter, whose deadline stays; what came of it."""
        cdef Addition addition = strict_addition(step)
        if not self._is_plain(key) or self._has_default():
            self.add_by_rule(key, addition)
            return addition
        self.engine_update(self.ref, key, addition, durable=None)
        if not addition.is_no_number and not addition.is_out_of_range:
            if addition.is_new and self.tally.tells_new_keys:
                self.tally.tell(self.number, key, NEW)
            self._changed(key, INCRBY)
        return addition

    cdef inline int _changed(self, bytes key, event) except -1:
        self.tally.changes += 1
        if self.tally.listeners:
            self.tally.tell(self.number, key, event)
        return 0


cdef class Call:
    """What a handler gets: its arguments, who asks, and the database in which it works.

    A session has one, used again for every request: handlers keep what they need of it.
    """
    cdef public list args
    cdef public Counted command
    cdef public object keys
    cdef public object server
    cdef public object session

    def __init__(self, session, Counted command not None):
        self.session = session
        self.server = session.server
        self.keys = session.server.database(0)
        self.command = command


# ------------------------------------------------------------------------------------------- answers


cdef class Answering:
    """One client's requests, answered in turn: the replies gather in one buffer."""
    cdef readonly Tally tally
    cdef public Call call
    cdef public bint is_direct
    cdef public bint is_closing
    cdef public bint has_waiting
    cdef public bint is_postponed
    cdef public int protocol
    cdef public int64_t active_ms
    cdef readonly bint is_answering
    cdef readonly PlainParser parser
    cdef dict by_name
    cdef object now_ms
    cdef list messages
    cdef char *out
    cdef Py_ssize_t size, room

    def __init__(self, Tally tally not None, PlainParser parser not None, dict by_name not None, now_ms):
        self.tally = tally
        self.parser = parser
        self.by_name = by_name
        self.now_ms = now_ms
        self.messages = []

    def __dealloc__(self):
        PyMem_Free(self.out)

    # -- what the subclass decides

    def answer_specially(self, args):
        raise TypeError("answer_specially")

    def refuse(self, command, error):
        raise TypeError("refuse")

    def postpone(self, args):
        raise TypeError("postpone")

    def keep_waiting(self, requests):
        raise TypeError("keep_waiting")

    def look_for_error(self):
        raise TypeError("look_for_error")

    # -- requests

    def feed(self, bytes data not None) -> bytes:
        """The replies to the requests that these bytes complete."""
        return self.reply_to(data)

    cdef bytes reply_to(self, bytes data):
        self.active_ms = self.now_ms()
        self.tally.input_bytes += PyBytes_GET_SIZE(data)
        rest = iter(self.parser.read(data))
        out = b"" if self.has_waiting else self.answer(rest)
        if self.has_waiting:
            self.keep_waiting(rest)
        return out

    def go_on_with(self, requests) -> bytes:
        """The replies to requests that waited."""
        return self.answer(requests)

    cdef bytes answer(self, requests):
        """The replies to these requests, up to one after which, or before which, the rest has to wait."""
        cdef list args
        cdef Counted command
        cdef PyObject *found
        cdef int64_t began_ns = elapsed_ns(), now_ns
        cdef double slow_ns = self.tally.slow_ns()
        cdef Py_ssize_t large = 0
        self.is_answering = True
        self.size = 0
        for args in requests:
            found = PyDict_GetItem(self.by_name, <object> PyList_GET_ITEM(args, 0))
            command = None if found == NULL else <Counted> found
            if found != NULL and self.is_direct and command.takes_directly(PyList_GET_SIZE(args)):
                reply = self._run(command, args)
            else:
                command, reply = self.answer_specially(args)
                if reply is POSTPONED:
                    self.postpone(args)
                    break
            large += self._write_reply(reply)
            now_ns = elapsed_ns()
            if command is not None:
                command.calls += 1
                command.spent_ns += now_ns - began_ns
                if now_ns - began_ns >= slow_ns:
                    self.tally.note_slow(self, command, args, now_ns - began_ns)
            began_ns = now_ns
            if large > _OUTPUT_BYTES_PAUSE or self.is_closing:
                self.has_waiting = not self.is_closing
                break
        else:
            if self.parser.has_unread:
                self.look_for_error()
        return self._take()

    cdef object _run(self, Counted command, list args):
        self.call.args = args
        self.call.command = command
        try:
            return command.handler(self.call)
        except Exception as error:
            return self.refuse(command, error)

    # -- replies

    def write(self, bytes data not None) -> None:
        """Add bytes to the replies under way."""
        self._append(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_after_this(self, bytes data not None) -> None:
        """Add bytes once the reply under way is written."""
        self.messages.append(data)

    cdef Py_ssize_t _write_reply(self, reply) except -1:
        """Write what `encode` would, the commonest kinds in place; how much that counts as large."""
        cdef Py_ssize_t large = 0
        cdef int overflow = 0
        cdef int64_t number
        if PyBytes_CheckExact(reply):
            self._write_number(c"$", PyBytes_GET_SIZE(reply))
            self._append(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
            self._append("\r\n", 2)
            large = PyBytes_GET_SIZE(reply) if PyBytes_GET_SIZE(reply) > _LARGE_REPLY_BYTES else 0
        elif type(reply) is Simple:
            self._append("+", 1)
            self._append(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
            self._append("\r\n", 2)
        elif reply is None and self.protocol == 2:
            self._append("$-1\r\n", 5)
        else:
            number = PyLong_AsLongLongAndOverflow(reply, &overflow) if PyLong_CheckExact(reply) else 0
            if PyLong_CheckExact(reply) and not overflow:
                self._write_number(c":", number)
            else:
                large = self._write_encoded(reply)
        if self.messages:
            self._write_messages()
        return large

    cdef Py_ssize_t _write_encoded(self, reply) except -1:
        cdef bytes data = encode(reply, self.protocol)
        if type(reply) is Refused:
            self.tally.errors[reply.code] += 1
        self._append(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return PyBytes_GET_SIZE(data)

    cdef int _write_messages(self) except -1:
        cdef list messages = self.messages
        self.messages = []
        for message in messages:
            self.write(message)
        return 0

    cdef int _write_number(self, char kind, int64_t number) except -1:
        """A line such as `$12`."""
        cdef char line[DIGITS_BYTES_MAX + 3]
        cdef Py_ssize_t size
        line[0] = kind
        size = 1 + write_digits(line + 1, number)
        line[size] = c"\r"
        line[size + 1] = c"\n"
        return self._append(line, size + 2)

    cdef int _append(self, const char *data, Py_ssize_t size) except -1:
        if size > self.room - self.size:
            self._grow(size)
        memcpy(self.out + self.size, data, size)
        self.size += size
        return 0

    cdef int _grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = max(OUTPUT_BYTES_FIRST, 2 * self.room, self.size + size)
        cdef char *out = <char *> PyMem_Realloc(self.out, room)
        if out == NULL:
            raise MemoryError
        self.out, self.room = out, room
        return 0

    cdef bytes _take(self):
        """All that was written; nothing of it is kept, since most clients are idle at any time."""
        cdef bytes out = PyBytes_FromStringAndSize(self.out, self.size)
        self.is_answering = False
        PyMem_Free(self.out)
        self.out = NULL
        self.size = self.room = 0
        self.tally.output_bytes += PyBytes_GET_SIZE(out)
        return out


cdef class Receiving:
    """A session at a transport: what arrives is answered through `write`."""
    cdef public Answering session
    cdef public object write

    def data_received(self, bytes data not None) -> None:
        cdef bytes out = self.session.reply_to(data)
        if self.session.is_closing or self.session.has_waiting:
            self.finish(out)
        elif PyBytes_GET_SIZE(out):
            self.write(out)

    def finish(self, out):
        raise TypeError("finish")
