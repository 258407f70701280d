# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The straight way through the server, from bytes to bytes, for requests about which nothing is special.

Bases of the classes that say what it means: `ServerCounters` of Server, `CommandStats` of Command, `Keys`
of Database, `RequestLoop` of Session. They hold what every request touches, and the loop over the requests of
a buffer. The commonest commands are answered where their bytes lie (`_in_place.pyx`), others by their
handlers. Whatever is out of the ordinary is left to the Python above.
"""
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from ephemera.core._access cimport TOO_LATE, TOUCHED, ValueRef, Slice, Touched, slice_of
from ephemera.core._clock cimport elapsed_ns
from ephemera.core._counter cimport DIGITS_BYTES_MAX, Addition, strict_addition, write_digits
from ephemera.core._row cimport NEVER
from ephemera.resp._requests cimport Limits, PlainParser, split_request
from ephemera.server._latency cimport count_duration

from ephemera.core.arguments import KEY_BYTES_MAX, VALUE_BYTES_MAX
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.resp.encoder import encode
from ephemera.resp.replies import Refused, Simple
from ephemera.server.events import EXPIRE, INCRBY, KEYMISS, NEW, SET

POSTPONED = Simple(b"POSTPONED")
"""In place of a reply: the request waits, and those after it. Never sent."""
OUTPUT_BYTES_PAUSE = 1024 * 1024
"""With so much to send, the rest of a pipeline waits until the client has read."""

cdef Py_ssize_t _KEY_BYTES_MAX = KEY_BYTES_MAX
cdef Py_ssize_t _VALUE_BYTES_MAX = VALUE_BYTES_MAX
cdef int64_t _DEADLINE_MS_MAX = DEADLINE_MS_MAX
cdef object _NEVER_MS = NEVER
cdef Py_ssize_t _OUTPUT_BYTES_PAUSE = OUTPUT_BYTES_PAUSE

cdef enum:
    OUTPUT_BYTES_FIRST = 4096
    OUTPUT_BYTES_KEPT = 256 * 1024
    NAME_BYTES_MAX = 8


cdef class SliceArray:
    """Room for more slices than a function's own."""

    def __cinit__(self, Py_ssize_t count):
        self.start = <Slice *> PyMem_Malloc(count * sizeof(Slice))
        if self.start == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.start)


cdef class PendingReply:
    """A client with a reply that is not yet sent."""

    cdef int flush(self) except -1:
        raise TypeError("flush")


cdef class ServerCounters:
    """The counters of a server, and what its request loops ask of it.

    `slow_ns` is the duration from which a command enters the slow log. `tracks_latency` tells whether each
    command keeps a histogram. `processing_ns_max` is how long one client's requests are answered before the
    rest wait for those of other clients. `paced` is the store whose back-pressure holds writes up.
    `broadcast` sends the invalidations that wait until the requests under way are answered, and is None
    without any.

    It also keeps a few buffers for replies: most sessions of a server are idle at any time.
    """

    def __init__(self, clock):
        self.now = Now(clock)
        self.processing_ns_max = float("inf")
        self.pending_replies = []

    def __dealloc__(self):
        cdef int i
        for i in range(self.spares_count):
            PyMem_Free(self.spares[i].start)

    cdef bint is_behind(self) noexcept:
        """Whether writes may have to wait: somebody has to ask."""
        return self.paced is not None and self.paced.is_behind

    def send_broadcast(self) -> None:
        """Send the invalidations that wait, if any do."""
        broadcast, self.broadcast = self.broadcast, None
        if broadcast is not None:
            broadcast()

    cdef int flush_replies(self) except -1:
        """Send the pending replies of the clients that were answered in this event-loop tick."""
        cdef list pending = self.pending_replies
        cdef PendingReply client
        if PyList_GET_SIZE(pending):
            self.pending_replies = []
            for client in pending:
                try:
                    client.flush()
                except Exception as error:
                    client.failed(error)
        return 0


cdef class CommandStats:
    """The handler of a command, and the statistics of its calls. `direct_arity` is 0 where the handler is not
    to be called at once: for commands that have subcommands. `is_write` tells that it may change keys."""

    def __cinit__(self, *_):
        self.latency = Histogram()

    cdef bint takes_directly(self, Py_ssize_t count) noexcept:
        return self.direct_arity == count or -count <= self.direct_arity < 0

    def count_run(self, ServerCounters counters not None, int64_t took_ns) -> None:
        """Count a call that ran inside another one."""
        _count_run(self, counters, took_ns)

    def reset_counters(self) -> None:
        self.calls = self.failed = self.rejected = self.spent_ns = 0
        self.latency.reset()


cdef inline void _count_run(CommandStats command, ServerCounters counters, int64_t took_ns) noexcept:
    command.calls += 1
    command.spent_ns += took_ns
    if counters.tracks_latency:
        count_duration(command.latency, took_ns)


cdef inline uint64_t _packed(Slice name) noexcept:
    """A name of up to eight bytes as one number, whatever its case; 0 for others."""
    cdef uint64_t packed = 0
    cdef Py_ssize_t i
    cdef unsigned char letter
    if name.size > NAME_BYTES_MAX:
        return 0
    for i in range(name.size):
        letter = <unsigned char> name.start[i]
        if letter == 0:
            return 0     # in front it would be lost
        if c"A" <= letter <= c"Z":
            letter |= 0x20
        packed = packed << 8 | letter
    return packed


cdef inline int _place(uint64_t packed) noexcept:
    return <int> ((packed * <uint64_t> 0x9E3779B97F4A7C15) >> 57)


cdef class Names:
    """The commands that can be answered in place, by the names that a server gives them."""

    def __init__(self, dict by_name not None):
        cdef CommandStats command
        self.held = []
        for name, command in by_name.items():
            if command.in_place != NULL and len(self.held) < PLACES // 2:
                self._add(name, command)

    cdef int _add(self, bytes name, CommandStats command) except -1:
        cdef uint64_t packed = _packed(slice_of(name))
        cdef int place = _place(packed)
        while packed and self.names[place] != packed:
            if self.names[place] == 0:
                self.held.append(command)
                self.names[place] = packed
                self.commands[place] = <PyObject *> command
                return 0
            place = (place + 1) % PLACES
        return 0

    cdef CommandStats find(self, Slice name):
        """The command of this name, or None."""
        cdef uint64_t packed = _packed(name)
        cdef int place = _place(packed)
        while self.names[place]:
            if self.names[place] == packed:
                return <CommandStats> self.commands[place]
            place = (place + 1) % PLACES
        return None


# ---------------------------------------------------------------------------------------------- keys


cdef class Keys:
    """The commonest reads and writes of a database, counted and told.

    With an engine's family, plain arguments go straight there; all others, and all of them inside a
    transaction, go through `space`, which checks them and knows every rule.
    """

    def __init__(self, ServerCounters counters not None, int number, space, engine):
        self.counters = counters
        self.number = number
        self.space = space
        self.space_get = space.get
        if engine is not None:
            self.ref = engine.family(space.name, create=False)
            self.has_default = self.ref.default_ttl_ms is not None or space.default_ttl is not None
            self.engine_get, self.engine_put = engine.get, engine.put
            self.engine_update = engine.update
            self.compiled = getattr(engine, "compiled", None)
            self.addition = strict_addition(0)

    def put_by_rule(self, key, value, ttl_ms):
        raise TypeError("put_by_rule")

    def add_by_rule(self, key, addition):
        raise TypeError("add_by_rule")

    cdef bint _is_plain(self, bytes key) noexcept:
        return self.ref is not None and 0 < PyBytes_GET_SIZE(key) <= _KEY_BYTES_MAX

    cdef bint _has_default(self) except -1:
        """Whether what is stored without a lifetime may get one."""
        return self.has_default or self.ref.default_ttl_ms is not None

    cdef object _value(self, bytes key):
        if self._is_plain(key):
            return self.engine_get(self.ref, key, self.counters.now.ms())
        return self.space_get(key)

    def peek(self, bytes key not None):
        """The value for a command that writes: neither counted, nor told if it is missing."""
        return self._value(key)

    def get(self, bytes key not None):
        """The value, counted as a hit or a miss."""
        value = self._value(key)
        if value is not None:
            self.counters.hits += 1
            return value
        self.counters.misses += 1
        if self.counters.tells_misses:
            self.counters.tell(self.number, key, KEYMISS)
        return None

    def put(self, bytes key not None, bytes value not None, ttl_ms=None, event=SET):
        """Store the value; the key's former deadline goes."""
        if not self._put_plainly(key, value, ttl_ms):
            self.put_by_rule(key, value, ttl_ms)
        self._changed(key, event)
        if ttl_ms is not None and self.counters.listeners:
            self.counters.tell(self.number, key, EXPIRE)

    cdef bint _put_plainly(self, bytes key, bytes value, ttl_ms) except -1:
        cdef int64_t now_ms, life_ms
        if not self._is_plain(key) or PyBytes_GET_SIZE(value) > _VALUE_BYTES_MAX:
            return False
        if self.counters.tells_new_keys or (ttl_ms is None and self._has_default()):
            return False
        instant = self.counters.now.ms()
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
            if addition.is_new and self.counters.tells_new_keys:
                self.counters.tell(self.number, key, NEW)
            self._changed(key, INCRBY)
        return addition

    cdef int _changed(self, bytes key, event) except -1:
        self.counters.changes += 1
        if self.counters.listeners:
            self.counters.tell(self.number, key, event)
        return 0

    # -- the same for keys and values that lie in a buffer, of which nobody is told

    cdef bint takes_read(self, Slice key) noexcept:
        """Whether this key may be read by what follows here."""
        return self._takes(key) and not self.counters.tells_misses

    cdef bint takes_write(self, Slice key) noexcept:
        """Whether this key may be written by what follows here: whoever has to wait does so elsewhere."""
        return (
            self._takes(key)
            and not self.compiled.is_behind
            and PyList_GET_SIZE(self.counters.listeners) == 0
            and not self.counters.tells_new_keys
        )

    cdef bint _takes(self, Slice key) noexcept:
        return self.compiled is not None and 0 < key.size <= _KEY_BYTES_MAX

    cdef object find(self, Slice key, ValueRef *live):
        """What keeps a live value in its place, or None; counted as a hit or a miss."""
        return self._found(key, self.counters.now.ms(), live)

    cdef object _found(self, Slice key, int64_t now_ms, ValueRef *live):
        holder = self.compiled.find(self.ref, key, now_ms, live)
        if holder is None:
            self.counters.misses += 1
        else:
            self.counters.hits += 1
        return holder

    cdef int64_t left_ms(self, Slice key) except? -3:
        """The milliseconds that a key has left: -1 without a deadline, -2 without the key; counted as
        a hit or a miss."""
        cdef ValueRef live
        cdef int64_t now_ms = self.counters.now.ms()
        if self._found(key, now_ms, &live) is None:
            return -2
        return -1 if live.deadline_ms == NEVER else live.deadline_ms - now_ms

    cdef bint store(self, Slice key, Slice value, int64_t ttl_ms) except -1:
        """Store a value for so many milliseconds (0: for ever); False where a rule decides."""
        cdef int64_t now_ms, deadline_ms = NEVER
        if value.size > _VALUE_BYTES_MAX or (ttl_ms == 0 and self._has_default()):
            return False
        now_ms = self.counters.now.ms()
        if ttl_ms:
            if not 0 < ttl_ms <= _DEADLINE_MS_MAX - now_ms:
                return False
            deadline_ms = now_ms + ttl_ms
        self.compiled.store(self.ref, key, value, now_ms, deadline_ms, None)
        self.counters.changes += 1
        return True

    cdef bint store_all(self, const Slice *pairs, Py_ssize_t count) except -1:
        """Store so many pairs, or none; False where a rule decides."""
        cdef Py_ssize_t i
        if self._has_default():
            return False
        for i in range(0, 2 * count, 2):
            if not 0 < pairs[i].size <= _KEY_BYTES_MAX or pairs[i + 1].size > _VALUE_BYTES_MAX:
                return False
        self.compiled.store_all(self.ref, pairs, count, self.counters.now.ms())
        self.counters.changes += count
        return True

    cdef bint count(self, Slice key, int64_t step, int64_t *total) except -1:
        """Add to a counter; False, with nothing changed, where that cannot be or a rule decides."""
        cdef Addition addition = self.addition
        if self._has_default():
            return False
        addition.by = step
        self.compiled.add(self.ref, key, addition)
        if addition.is_no_number or addition.is_out_of_range:
            return False
        total[0] = addition.total
        self.counters.changes += 1
        return True

    cdef Py_ssize_t remove_all(self, Slice *keys, Py_ssize_t count) except -1:
        """Remove keys, each named once, all or none; how many were there, which then come first."""
        cdef Py_ssize_t found = self.compiled.remove_all(self.ref, keys, count)
        self.counters.changes += found
        return found

    cdef Touched renew(self, Slice key, int64_t ttl_ms) except *:
        """Let a key live for so many milliseconds from now on."""
        cdef int64_t now_ms = self.counters.now.ms()
        cdef Touched touched
        if not 0 < ttl_ms <= _DEADLINE_MS_MAX - now_ms:
            return TOO_LATE
        touched = self.compiled.renew(self.ref, key, now_ms + ttl_ms)
        self.counters.changes += touched == TOUCHED
        return touched


cdef class Call:
    """What a handler gets: its arguments, who asks, and the database in which it works.

    A session has one, used again for every request: handlers keep what they need of it.
    """

    def __init__(self, session, CommandStats command not None):
        self.session = session
        self.server = session.server
        self.keys = session.server.database(0)
        self.command = command


# ------------------------------------------------------------------------------------------- answers


cdef class RequestLoop:
    """Answer one client's requests in their order, and gather the replies in one buffer."""

    def __init__(
        self, ServerCounters counters not None, PlainParser parser not None, dict by_name not None,
        Names names not None
    ):
        self.counters = counters
        self.parser = parser
        self.by_name = by_name
        self.names = names
        self.messages = []

    def __dealloc__(self):
        PyMem_Free(self.out)

    # -- what the subclass decides

    def answer_specially(self, args):
        raise TypeError("answer_specially")

    def note_read(self, command, args):
        raise TypeError("note_read")

    def refuse(self, command, error):
        raise TypeError("refuse")

    def postpone(self, args):
        raise TypeError("postpone")

    def keep_waiting(self, data):
        raise TypeError("keep_waiting")

    def look_for_error(self):
        raise TypeError("look_for_error")

    # -- requests

    def feed(self, bytes data not None) -> bytes:
        """The replies to the requests that these bytes complete."""
        self.take(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return self.taken()

    def go_on_with(self, list request, bytes rest not None) -> bytes:
        """The replies to a request that waited, if one did, and to what came after it."""
        self._begin()
        if request is not None:
            self._answer_listed(request)
        self._answer_all(PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
        return self.taken()

    cdef int take(self, const char *data, Py_ssize_t size) except -1:
        """Answer the requests that these bytes complete, into `out`: `taken` has it, or `give_back`."""
        self._begin()
        self.active_ms = self.counters.now.ms()
        self.counters.input_bytes += size
        return self._answer_all(data, size)

    cdef int _answer_all(self, const char *at, Py_ssize_t size) except -1:
        """Answer up to a request after which, or before which, the rest has to wait. That stays as it is: what
        runs before it may change how it is to be read."""
        cdef const char *end = at + size
        while at != end and self._may_answer():
            if self.parser.has_unread():
                at = self._answer_next(at, end)
            else:
                at = self._answer_plain(at, end)
        if self.has_waiting and not self.is_closing:
            self.keep_waiting(PyBytes_FromStringAndSize(at, end - at))
        elif self.parser.has_unread() and not self.is_closing:
            self.look_for_error()
        if self.counters.broadcast is not None:
            self._broadcast()
        return 0

    cdef int _broadcast(self) except -1:
        """Send the invalidations that these requests have caused before their replies go out; to this client,
        after them."""
        self.counters.send_broadcast()
        self._write_messages()
        return 0

    cdef bint _may_answer(self) noexcept:
        return not self.has_waiting and not self.is_closing

    cdef int _begin(self) except -1:
        cdef Buffer spare
        self.is_processing = True
        self.size = 0
        self.began_ns = elapsed_ns()
        self.until_ns = self.began_ns + self.counters.processing_ns_max
        if self.out == NULL and self.counters.spares_count:
            self.counters.spares_count -= 1
            spare = self.counters.spares[self.counters.spares_count]
            self.out, self.room = spare.start, spare.room
        return 0

    cdef const char *_answer_plain(self, const char *at, const char *end) except NULL:
        """Answer plain requests as far as they reach, and the next one, or until the rest has to wait; the
        place after."""
        cdef Ahead ahead
        cdef Py_ssize_t i
        while at != end and self._look_ahead(at, end, &ahead):
            if self.is_in_place:
                self._prefetch(&ahead)
            for i in range(ahead.count):
                at = ahead.ends[i]
                if not self._answer(
                    ahead.slices + ahead.firsts[i], ahead.firsts[i + 1] - ahead.firsts[i], None
                ):
                    return at
        return at if at == end else self._answer_next(at, end)

    cdef const char *_answer_next(self, const char *at, const char *end) except NULL:
        """Answer the request that begins or goes on here, of whatever kind; the place after."""
        cdef list args = self.parser.next(&at, end)
        if args is not None:
            self._answer_listed(args)
        return at

    cdef Py_ssize_t _look_ahead(self, const char *at, const char *end, Ahead *ahead) noexcept:
        """Find the next plain requests; how many."""
        cdef Limits limits = self.parser.limits
        cdef Py_ssize_t used = 0, size
        ahead.count = 0
        while limits.is_trusted and ahead.count < AHEAD_MAX and at != end:
            size = split_request(
                &at, end, limits.bulk_bytes_max, ahead.slices + used, SLICES_MAX - used
            )
            if size == 0:
                break
            ahead.firsts[ahead.count] = used
            ahead.ends[ahead.count] = at
            ahead.count += 1
            used += size
        ahead.firsts[ahead.count] = used
        return ahead.count

    cdef int _prefetch(self, Ahead *ahead) except -1:
        """Have the memory of all these requests' keys fetched at once, in place of one after another."""
        cdef Keys keys = self.call.keys
        cdef uint64_t hints[AHEAD_MAX]
        cdef Py_ssize_t i
        if keys.compiled is None:
            return 0
        for i in range(ahead.count):
            # A first argument that is no key does no harm.
            hints[i] = 0
            if ahead.firsts[i + 1] - ahead.firsts[i] > 1:
                hints[i] = keys.compiled.prefetch(keys.ref, ahead.slices[ahead.firsts[i] + 1])
        for i in range(ahead.count):
            if hints[i]:
                keys.compiled.prefetch_more(hints[i])
        return 0

    cdef bint _answer_listed(self, list args) except -1:
        """Answer one request that was taken apart; whether the next may follow."""
        cdef Slice few[SLICES_MAX]
        cdef Py_ssize_t count = PyList_GET_SIZE(args), i
        cdef SliceArray many = SliceArray(count) if count > SLICES_MAX else None
        cdef Slice *slices = &few[0] if many is None else many.start
        for i in range(count):
            slices[i] = slice_of(<bytes?> PyList_GET_ITEM(args, i))
        return self._answer(slices, count, args)

    cdef bint _answer(self, const Slice *slices, Py_ssize_t count, list args) except -1:
        """The same for one whose arguments lie here; `args` are None where they are no objects yet."""
        cdef CommandStats command
        if self.is_in_place:
            command = self.names.find(slices[0])
            if command is not None and self._run_in_place(command, slices, count):
                self.call.command = command
                if self._counts(command):
                    self._note_slow(command, _listed(slices, count))
                return self._goes_on()
        return self._answer_by_handler(_listed(slices, count) if args is None else args)

    cdef bint _answer_by_handler(self, list args) except -1:
        self.counters.flush_replies()
        cdef PyObject *found = PyDict_GetItem(self.by_name, <object> PyList_GET_ITEM(args, 0))
        cdef CommandStats command = None if found == NULL else <CommandStats> found
        if (
            found != NULL
            and self.is_direct
            and command.takes_directly(PyList_GET_SIZE(args))
            and not (command.is_write and self.counters.is_behind())
        ):
            reply = self._run(command, args)
        else:
            command, reply = self.answer_specially(args)
            if reply is POSTPONED:
                self.postpone(args)
                return False
        self._write_reply(reply)
        if command is None:
            self.began_ns = elapsed_ns()
        elif self._counts(command):
            self._note_slow(command, args)
        return self._goes_on()

    cdef bint _counts(self, CommandStats command) noexcept:
        """Count a command that ran; whether it took so long that this is to be noted, in `took_ns`."""
        cdef int64_t now_ns = elapsed_ns()
        self.took_ns = now_ns - self.began_ns
        self.began_ns = now_ns
        _count_run(command, self.counters, self.took_ns)
        return self.took_ns >= self.counters.slow_ns

    cdef int _note_slow(self, CommandStats command, list args) except -1:
        self.counters.note_slow(self, command, args, self.took_ns)
        return 0

    cdef bint _goes_on(self) noexcept:
        if self.size <= _OUTPUT_BYTES_PAUSE and not self.is_closing and self.began_ns < self.until_ns:
            return True
        self.has_waiting = not self.is_closing
        return False

    cdef bint _run_in_place(self, CommandStats command, const Slice *args, Py_ssize_t count) except -1:
        """Whether the command was answered; an error of the store is an answer."""
        cdef Py_ssize_t size = self.size
        try:
            return command.in_place(self, self.call.keys, args, count)
        except Exception as error:
            self.size = size
            self._write_reply(self.refuse(command, error))
            return True

    cdef object _run(self, CommandStats command, list args):
        self.call.args = args
        self.call.command = command
        try:
            reply = command.handler(self.call)
        except Exception as error:
            reply = self.refuse(command, error)
        if not self.is_in_place:
            self.note_read(command, args)
        return reply

    # -- replies

    @property
    def reply_buffer(self) -> tuple[int, int, int]:
        """The bytes of replies under way, the size of their buffer, and the most that it ever held."""
        return self.size, self.room, max(self.peak, self.size)

    def write(self, bytes data not None) -> None:
        """Add bytes to the replies under way."""
        self.append(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_after_this(self, bytes data not None) -> None:
        """Add bytes once the reply under way is written."""
        self.messages.append(data)

    cdef int _write_reply(self, reply) except -1:
        """Write what `encode` would, the commonest kinds in place."""
        cdef int overflow = 0
        cdef int64_t number
        if PyBytes_CheckExact(reply):
            self.write_value(slice_of(reply))
        elif type(reply) is Simple:
            self.append("+", 1)
            self.append(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
            self.append("\r\n", 2)
        elif reply is None:
            self.write_none()
        else:
            number = PyLong_AsLongLongAndOverflow(reply, &overflow) if PyLong_CheckExact(reply) else 0
            if PyLong_CheckExact(reply) and not overflow:
                self.write_number(c":", number)
            else:
                self._write_encoded(reply)
        if self.messages:
            self._write_messages()
        return 0

    cdef int write_value(self, Slice value) except -1:
        self.write_number(c"$", value.size)
        self._reserve(value.size + 2)
        memcpy(self.out + self.size, value.start, value.size)
        memcpy(self.out + self.size + value.size, "\r\n", 2)
        self.size += value.size + 2
        return 0

    cdef int write_none(self) except -1:
        return self.append("$-1\r\n", 5) if self.protocol == 2 else self.append("_\r\n", 3)

    cdef int _write_encoded(self, reply) except -1:
        cdef bytes data = encode(reply, self.protocol)
        if type(reply) is Refused:
            self.counters.errors[reply.code] += 1
        return self.append(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int _write_messages(self) except -1:
        cdef list messages = self.messages
        self.messages = []
        for message in messages:
            self.write(message)
        return 0

    cdef int write_number(self, char kind, int64_t number) except -1:
        """A line such as `$12`."""
        cdef char line[DIGITS_BYTES_MAX + 3]
        cdef Py_ssize_t size
        line[0] = kind
        size = 1 + write_digits(line + 1, number)
        line[size] = c"\r"
        line[size + 1] = c"\n"
        return self.append(line, size + 2)

    cdef int append(self, const char *data, Py_ssize_t size) except -1:
        if size == 0:
            return 0  # there may be no buffer yet
        self._reserve(size)
        memcpy(self.out + self.size, data, size)
        self.size += size
        return 0

    cdef int _reserve(self, Py_ssize_t size) except -1:
        return self._grow(size) if size > self.room - self.size else 0

    cdef int _grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = max(OUTPUT_BYTES_FIRST, 2 * self.room, self.size + size)
        cdef char *out = <char *> PyMem_Realloc(self.out, room)
        if out == NULL:
            raise MemoryError
        self.out, self.room = out, room
        return 0

    cdef bytes taken(self):
        """All that was written."""
        cdef bytes out = PyBytes_FromStringAndSize(self.out, self.size)
        self.give_back()
        return out

    cdef void give_back(self) noexcept:
        """What was written has been sent, or copied: the next session to answer gets the buffer."""
        self.counters.output_bytes += self.size
        self.peak = max(self.peak, self.size)
        self.is_processing = False
        if self.out != NULL and self.counters.spares_count < SPARES and self.room <= OUTPUT_BYTES_KEPT:
            self.counters.spares[self.counters.spares_count].start = self.out
            self.counters.spares[self.counters.spares_count].room = self.room
            self.counters.spares_count += 1
        else:
            PyMem_Free(self.out)
        self.out = NULL
        self.size = self.room = 0


cdef list _listed(const Slice *slices, Py_ssize_t count):
    """The arguments of a request as objects."""
    cdef list args = PyList_New(count)
    cdef bytes argument
    cdef Py_ssize_t i
    for i in range(count):
        argument = PyBytes_FromStringAndSize(slices[i].start, slices[i].size)
        Py_INCREF(argument)
        PyList_SET_ITEM(args, i, argument)
    return args
