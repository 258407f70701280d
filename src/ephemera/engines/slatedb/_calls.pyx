# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Calls into SlateDB's library, past the Python of its package, which takes 50 to 100 times as long.

The package `slatedb` is a library in Rust behind a C interface that the tool uniffi writes, and a Python
module that speaks it through ctypes. What is spoken here is the same interface:

    RustBuffer    an argument or a result: big-endian numbers, byte strings after their length (i32)
    handle        an object of the library; a method consumes one, so it is given a clone
    future        what an asynchronous method returns: polled until ready, completed, freed

A future is polled by whoever waits for it. What is in memory is there at the first poll, with no other thread in
between; for the rest a callback sets a completion, and the waiting thread sleeps without the GIL meanwhile.
Rows are encoded and decoded here too, so that no row costs a call of Python.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ephemera.core._clock cimport timespec, wall_after
from ephemera.core._row cimport (
    NEVER,
    RowHead,
    is_dead_ms,
    read_row_head,
    row_from_head,
    row_head_bytes,
    write_row_head,
)

from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import CorruptStore

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_destroy(pthread_cond_t *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *, const timespec *)

cdef struct RustBuffer:
    uint64_t capacity
    uint64_t len
    char *data

cdef struct CallStatus:
    int8_t code
    RustBuffer error

ctypedef void (*Continuation)(uint64_t, int8_t) noexcept nogil
ctypedef RustBuffer (*AllocBuffer)(uint64_t, CallStatus *) noexcept nogil
ctypedef void (*FreeBuffer)(RustBuffer, CallStatus *) noexcept nogil
ctypedef uint64_t (*CloneHandle)(uint64_t, CallStatus *) noexcept nogil
ctypedef void (*FreeHandle)(uint64_t, CallStatus *) noexcept nogil
ctypedef uint64_t (*NewHandle)(CallStatus *) noexcept nogil
ctypedef void (*PollFuture)(uint64_t, Continuation, uint64_t) noexcept nogil
ctypedef void (*FreeFuture)(uint64_t) noexcept nogil
ctypedef void (*CompleteVoid)(uint64_t, CallStatus *) noexcept nogil
ctypedef uint64_t (*CompleteHandle)(uint64_t, CallStatus *) noexcept nogil
ctypedef RustBuffer (*CompleteBuffer)(uint64_t, CallStatus *) noexcept nogil
ctypedef void (*BatchPut)(uint64_t, RustBuffer, RustBuffer, RustBuffer, CallStatus *) noexcept nogil
ctypedef void (*BatchDelete)(uint64_t, RustBuffer, CallStatus *) noexcept nogil
# Methods, by their arguments after the object: b is a buffer, h a handle, n a number.
ctypedef uint64_t (*Start)(uint64_t) noexcept nogil
ctypedef uint64_t (*StartB)(uint64_t, RustBuffer) noexcept nogil
ctypedef uint64_t (*StartBB)(uint64_t, RustBuffer, RustBuffer) noexcept nogil
ctypedef uint64_t (*StartBBB)(uint64_t, RustBuffer, RustBuffer, RustBuffer) noexcept nogil
ctypedef uint64_t (*StartH)(uint64_t, uint64_t) noexcept nogil
ctypedef uint64_t (*StartN)(uint64_t, uint32_t) noexcept nogil

cdef enum:
    # How a call ended, and how a poll did.
    CALL_SUCCESS = 0
    CALL_ERROR = 1
    POLL_READY = 0
    # What a future comes to.
    GIVES_NOTHING = 0
    GIVES_HANDLE = 1
    GIVES_BUFFER = 2
    # The state of a completion besides the codes of a poll.
    PENDING = -1
    SIGNALS_LOOK_MS = 100
    # How the library numbers the lifetimes of a row.
    TTL_NONE = 2
    TTL_AT = 4

NOTHING, HANDLE, BUFFER = GIVES_NOTHING, GIVES_HANDLE, GIVES_BUFFER

cdef struct Library:
    AllocBuffer alloc_buffer
    FreeBuffer free_buffer
    PollFuture[3] poll
    FreeFuture[3] free_future
    CompleteVoid complete_void
    CompleteHandle complete_handle
    CompleteBuffer complete_buffer
    NewHandle new_batch
    BatchPut batch_put
    BatchDelete batch_delete

cdef Library lib
cdef object _failure = None
cdef bint _is_abandoned = False


def bind(dict addresses not None, failure) -> None:
    """Take the addresses of the library's functions; `failure` makes an exception of what it reports:
    of the bytes of its own error, or of a str."""
    global _failure
    _failure = failure
    lib.alloc_buffer = <AllocBuffer> <uintptr_t> addresses["buffer_alloc"]
    lib.free_buffer = <FreeBuffer> <uintptr_t> addresses["buffer_free"]
    for gives, name in ((GIVES_NOTHING, "void"), (GIVES_HANDLE, "u64"), (GIVES_BUFFER, "rust_buffer")):
        lib.poll[<int> gives] = <PollFuture> <uintptr_t> addresses[f"future_poll_{name}"]
        lib.free_future[<int> gives] = <FreeFuture> <uintptr_t> addresses[f"future_free_{name}"]
    lib.complete_void = <CompleteVoid> <uintptr_t> addresses["future_complete_void"]
    lib.complete_handle = <CompleteHandle> <uintptr_t> addresses["future_complete_u64"]
    lib.complete_buffer = <CompleteBuffer> <uintptr_t> addresses["future_complete_rust_buffer"]
    lib.new_batch = <NewHandle> <uintptr_t> addresses["batch_new"]
    lib.batch_put = <BatchPut> <uintptr_t> addresses["batch_put"]
    lib.batch_delete = <BatchDelete> <uintptr_t> addresses["batch_delete"]


def abandon() -> None:
    """Let nothing be freed any more: in the child of a fork the library's threads are not there."""
    global _is_abandoned
    _is_abandoned = True


cdef bytes _take(RustBuffer buffer):
    """The bytes of a buffer, which is freed."""
    cdef CallStatus status
    data = PyBytes_FromStringAndSize(buffer.data, <Py_ssize_t> buffer.len)
    status.code = CALL_SUCCESS
    lib.free_buffer(buffer, &status)
    return data


cdef int _check(CallStatus *status) except -1:
    if status.code == CALL_SUCCESS:
        return 0
    told = _take(status.error)
    if status.code == CALL_ERROR:
        raise _failure(told)
    raise _failure(told.decode(errors="replace"))


cdef inline void _put_u32(char *out, uint32_t number) noexcept nogil:
    out[0] = <char> (number >> 24)
    out[1] = <char> (number >> 16)
    out[2] = <char> (number >> 8)
    out[3] = <char> number


cdef inline void _put_u64(char *out, uint64_t number) noexcept nogil:
    _put_u32(out, <uint32_t> (number >> 32))
    _put_u32(out + 4, <uint32_t> number)


cdef RustBuffer _alloc(Py_ssize_t size) noexcept nogil:
    cdef CallStatus status
    status.code = CALL_SUCCESS
    cdef RustBuffer buffer = lib.alloc_buffer(<uint64_t> size, &status)
    buffer.len = <uint64_t> size
    return buffer


cdef RustBuffer _buffer_of(bytes data):
    cdef RustBuffer buffer = _alloc(PyBytes_GET_SIZE(data))
    memcpy(buffer.data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return buffer


cdef RustBuffer _key_buffer(bytes prefix, bytes key):
    """A byte string of both, after its length."""
    cdef Py_ssize_t before = PyBytes_GET_SIZE(prefix), size = PyBytes_GET_SIZE(key)
    cdef RustBuffer buffer = _alloc(4 + before + size)
    _put_u32(buffer.data, <uint32_t> (before + size))
    memcpy(buffer.data + 4, PyBytes_AS_STRING(prefix), before)
    memcpy(buffer.data + 4 + before, PyBytes_AS_STRING(key), size)
    return buffer


# ------------------------------------------------------------------------------------------- objects


cdef class HandleType:
    """A class of the library: how its objects are cloned and freed, and whether they are open databases."""
    cdef CloneHandle clone
    cdef FreeHandle free
    cdef bint is_database

    def __init__(self, uintptr_t clone, uintptr_t free, *, bint is_database=False):
        self.clone = <CloneHandle> clone
        self.free = <FreeHandle> free
        self.is_database = is_database


cdef class Handle:
    """An object of the library, freed with this one; with an `owner`, that one frees it.

    `database` is the open database that a snapshot, transaction, iterator or write belongs to. A call on any of
    them that fails sets `has_failed` there: the database may have closed itself.
    """
    cdef readonly uint64_t value
    cdef public bint has_failed
    cdef readonly Handle database
    cdef object owner
    cdef CloneHandle clone_it
    cdef FreeHandle free_it    # NULL where the owner does it

    def __init__(self, HandleType kind not None, uint64_t value, owner=None, *, Handle database=None):
        self.value = value
        self.owner = owner
        self.database = None if kind.is_database else database
        self.clone_it = kind.clone
        self.free_it = kind.free if owner is None else NULL

    cdef uint64_t clone(self) noexcept:
        cdef CallStatus status
        status.code = CALL_SUCCESS
        return self.clone_it(self.value, &status)

    def cloned(self) -> int:
        """Return a clone of the library's handle, which the caller frees."""
        return self.clone()

    def __dealloc__(self):
        cdef CallStatus status
        if self.free_it is not NULL and not _is_abandoned:
            status.code = CALL_SUCCESS
            with nogil:
                self.free_it(self.value, &status)


# --------------------------------------------------------------------------------------------- calls


cdef struct Completion:
    pthread_mutex_t mutex
    pthread_cond_t done
    int state           # PENDING, or the code that the last poll came to
    int holders         # the call, and the callback that is still to come
    PyObject *listener  # called when it sets, if any


cdef Completion *_new_completion() noexcept:
    cdef Completion *completion = <Completion *> malloc(sizeof(Completion))
    if completion is not NULL:
        pthread_mutex_init(&completion.mutex, NULL)
        pthread_cond_init(&completion.done, NULL)
        completion.state = PENDING
        completion.holders = 1
        completion.listener = NULL
    return completion


cdef void _let_go(Completion *completion) noexcept nogil:
    """With its mutex held, which this gives back."""
    completion.holders -= 1
    cdef bint is_last = completion.holders == 0
    pthread_mutex_unlock(&completion.mutex)
    if is_last:
        pthread_cond_destroy(&completion.done)
        pthread_mutex_destroy(&completion.mutex)
        free(completion)


cdef void _complete(uint64_t data, int8_t code) noexcept nogil:
    """What the library calls, in any thread, once for each poll."""
    cdef Completion *completion = <Completion *> <uintptr_t> data
    cdef PyObject *listener
    pthread_mutex_lock(&completion.mutex)
    completion.state = code
    listener = completion.listener
    completion.listener = NULL
    pthread_cond_signal(&completion.done)
    _let_go(completion)
    if listener is not NULL:
        with gil:
            _tell(listener)


cdef void _tell(PyObject *listener) noexcept:
    callback = <object> listener
    Py_DECREF(callback)
    try:
        callback()
    except RuntimeError:
        pass  # its loop was closed: nobody waits any more


cdef class LibraryCall:
    """A method under way. It is cancelled when nobody holds it any more."""
    cdef uint64_t future
    cdef int gives
    cdef HandleType kind
    cdef Handle database
    cdef Completion *completion
    cdef readonly bint is_done

    def __dealloc__(self):
        cdef Completion *completion = self.completion
        if completion is NULL or _is_abandoned:
            return
        # Without the GIL: the library may be about to complete it, and wait for the GIL in there.
        with nogil:
            if self.future:
                lib.free_future[self.gives](self.future)
            pthread_mutex_lock(&completion.mutex)
            _let_go(completion)

    cdef int begin(self, uint64_t future) except -1:
        self.future = future
        self.completion = _new_completion()
        if self.completion is NULL:
            raise MemoryError
        return self.poll()

    cdef int poll(self) except -1:
        """Poll until it is done, or has to be waited for."""
        cdef Completion *completion = self.completion
        cdef int state
        while not self.is_done:
            with nogil:
                pthread_mutex_lock(&completion.mutex)
                completion.state = PENDING
                completion.holders += 1
                pthread_mutex_unlock(&completion.mutex)
                lib.poll[self.gives](self.future, _complete, <uint64_t> <uintptr_t> completion)
                pthread_mutex_lock(&completion.mutex)
                state = completion.state
                pthread_mutex_unlock(&completion.mutex)
            if state == PENDING:
                return 0
            self.is_done = state == POLL_READY
        return 0

    def block(self, double limit_s) -> bool:
        """Wait until it is done, for `limit_s` at most, and return whether it is.

        An interrupt of this thread gets through.
        """
        cdef Completion *completion = self.completion
        cdef timespec until
        cdef bint is_pending
        if self.is_done:
            return True
        cdef int64_t end_ns = elapsed_ns() + <int64_t> (limit_s * 1e9)
        while not self.is_done:
            with nogil:
                pthread_mutex_lock(&completion.mutex)
                if completion.state == PENDING:
                    wall_after(&until, SIGNALS_LOOK_MS)
                    pthread_cond_timedwait(&completion.done, &completion.mutex, &until)
                is_pending = completion.state == PENDING
                pthread_mutex_unlock(&completion.mutex)
            if not is_pending:
                self.heard()
                continue
            PyErr_CheckSignals()
            if elapsed_ns() >= end_ns:
                return False
        return True

    cdef int heard(self) except -1:
        """Look what the last poll has come to by now."""
        cdef int state
        with nogil:
            pthread_mutex_lock(&self.completion.mutex)
            state = self.completion.state
            pthread_mutex_unlock(&self.completion.mutex)
        if state == POLL_READY:
            self.is_done = True
        elif state != PENDING:
            self.poll()
        return 0

    def notify(self, callback) -> bool:
        """Have `callback`, and no other, called once from a thread of the library when `go_on` has something to
        do; False when it has already. It must not ask `go_on` itself: the library holds a lock on
        the call meanwhile."""
        cdef Completion *completion = self.completion
        with nogil:
            pthread_mutex_lock(&completion.mutex)
        cdef bint is_pending = completion.state == PENDING
        cdef PyObject *former = NULL
        if is_pending:
            Py_INCREF(callback)
            former = completion.listener
            completion.listener = <PyObject *> callback
        pthread_mutex_unlock(&completion.mutex)
        if former is not NULL:
            Py_DECREF(<object> former)
        return is_pending

    def go_on(self) -> None:
        """After the callback, or at any time: poll again if there is a reason to."""
        if not self.is_done:
            self.heard()

    def result(self):
        """What it came to, once. Raises what the library reports."""
        cdef CallStatus status
        cdef uint64_t future = self.future, handle = 0
        cdef RustBuffer buffer
        if not self.is_done or not future:
            raise RuntimeError("a call has one result, once it is done")
        self.future = 0
        status.code = CALL_SUCCESS
        with nogil:
            if self.gives == GIVES_HANDLE:
                handle = lib.complete_handle(future, &status)
            elif self.gives == GIVES_BUFFER:
                buffer = lib.complete_buffer(future, &status)
            else:
                lib.complete_void(future, &status)
            lib.free_future[self.gives](future)
        if status.code != CALL_SUCCESS:
            self.database.has_failed = True
        _check(&status)
        if self.gives == GIVES_HANDLE:
            return Handle(self.kind, handle, database=self.database)
        return _take(buffer) if self.gives == GIVES_BUFFER else None


cdef class Method:
    """An asynchronous method of the library; calling it begins a `LibraryCall`.

    Its arguments after the object are bytes (what a buffer holds), one handle, or one number.
    """
    cdef uintptr_t address
    cdef int gives
    cdef HandleType kind

    def __init__(self, uintptr_t address, int gives, HandleType kind=None):
        self.address = address
        self.gives = gives
        self.kind = kind

    cdef LibraryCall call(self, Handle of, uint64_t future):
        cdef LibraryCall call = LibraryCall.__new__(LibraryCall)
        call.database = of if of.database is None else of.database
        call.gives = self.gives
        call.kind = self.kind
        call.begin(future)
        return call

    def __call__(self, Handle of not None, *given):
        cdef uint64_t future
        cdef Py_ssize_t count = len(given)
        if count == 0:
            future = (<Start> self.address)(of.clone())
        elif count == 1 and isinstance(given[0], Handle):
            future = (<StartH> self.address)(of.clone(), (<Handle> given[0]).clone())
        elif count == 1 and isinstance(given[0], int):
            future = (<StartN> self.address)(of.clone(), <uint32_t> given[0])
        elif count == 1:
            future = (<StartB> self.address)(of.clone(), _buffer_of(given[0]))
        elif count == 2:
            future = (<StartBB> self.address)(of.clone(), _buffer_of(given[0]), _buffer_of(given[1]))
        else:
            future = (<StartBBB> self.address)(
                of.clone(), _buffer_of(given[0]), _buffer_of(given[1]), _buffer_of(given[2])
            )
        return self.call(of, future)

    def of_key(self, Handle of not None, bytes prefix not None, bytes key not None):
        """With one argument: a key, in two parts."""
        return self.call(of, (<StartB> self.address)(of.clone(), _key_buffer(prefix, key)))

    def of_row(self, Handle of not None, bytes prefix not None, bytes key not None, row, bint has_deadline):
        """With three: a key, the row to store there, and how long it lives."""
        return self.call(
            of,
            (<StartBBB> self.address)(
                of.clone(),
                _key_buffer(prefix, key),
                _row_buffer(row[0], row[1], row[2], row[3], row[4]),
                _ttl_buffer(row[2] if has_deadline else NEVER),
            ),
        )


# ---------------------------------------------------------------------------------------------- rows


cdef RustBuffer _row_buffer(
    bytes value, int64_t written_ms, int64_t deadline_ms, int64_t idle_ms, int64_t hard_ms
):
    """The bytes of a row, after their length."""
    cdef uint32_t head = row_head_bytes(deadline_ms, idle_ms)
    cdef Py_ssize_t size = head + PyBytes_GET_SIZE(value)
    cdef RustBuffer buffer = _alloc(4 + size)
    _put_u32(buffer.data, <uint32_t> size)
    write_row_head(buffer.data + 4, written_ms, deadline_ms, idle_ms, hard_ms)
    memcpy(buffer.data + 4 + head, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return buffer


cdef RustBuffer _ttl_buffer(int64_t deadline_ms) noexcept:
    cdef RustBuffer buffer
    if deadline_ms == NEVER:
        buffer = _alloc(4)
        _put_u32(buffer.data, TTL_NONE)
        return buffer
    buffer = _alloc(12)
    _put_u32(buffer.data, TTL_AT)
    _put_u64(buffer.data + 4, <uint64_t> deadline_ms)
    return buffer


cdef class WriteBatch:
    """Writes that are to happen all together.

    `has_deadlines` tells the library the deadlines too, so that it removes the dead by its own clock.
    """
    cdef readonly Handle handle
    cdef bint has_deadlines

    def __init__(self, HandleType kind not None, *, bint has_deadlines):
        cdef CallStatus status
        status.code = CALL_SUCCESS
        self.handle = Handle(kind, lib.new_batch(&status))
        self.has_deadlines = has_deadlines

    cpdef int put(
        self,
        bytes prefix,
        bytes key,
        bytes value,
        int64_t written_ms,
        int64_t deadline_ms,
        int64_t idle_ms,
        int64_t hard_ms,
    ) except -1:
        return self._put(
            _key_buffer(prefix, key),
            _row_buffer(value, written_ms, deadline_ms, idle_ms, hard_ms),
            deadline_ms if self.has_deadlines else NEVER,
        )

    def put_all(
        self,
        bytes prefix not None,
        dict values not None,
        int64_t written_ms,
        int64_t deadline_ms,
        int64_t idle_ms,
        int64_t hard_ms,
    ) -> None:
        """Values by their keys, all of one lifetime."""
        cdef bytes key, value
        for key, value in values.items():
            self.put(prefix, key, value, written_ms, deadline_ms, idle_ms, hard_ms)

    def put_plain(self, bytes key not None, bytes value not None) -> None:
        """Store what is no row: the engine's own records."""
        self._put(_key_buffer(b"", key), _key_buffer(b"", value), NEVER)

    def delete(self, bytes prefix not None, bytes key not None) -> None:
        cdef CallStatus status
        status.code = CALL_SUCCESS
        lib.batch_delete(self.handle.clone(), _key_buffer(prefix, key), &status)
        _check(&status)

    def add(self, writes) -> None:
        """Writes as the engine is given them (`core.keyvalue.Write`), in their order."""
        known = prefix = None
        for family, key, row in writes:
            if family is not known:
                known, prefix = family, family.prefix
            if row is None:
                self.delete(prefix, key)
            else:
                value, written_ms, deadline_ms, idle_ms, hard_ms = row
                self.put(prefix, key, value, written_ms, deadline_ms, idle_ms, hard_ms)

    cdef int _put(self, RustBuffer key, RustBuffer value, int64_t deadline_ms) except -1:
        cdef CallStatus status
        status.code = CALL_SUCCESS
        lib.batch_put(self.handle.clone(), key, value, _ttl_buffer(deadline_ms), &status)
        return _check(&status)


cdef struct Reading:
    const char *at
    const char *end


cdef inline uint32_t _read_u32(Reading *reading) noexcept nogil:
    cdef const uint8_t *at = <const uint8_t *> reading.at
    if reading.end - reading.at < 4:
        reading.at = reading.end + 1
        return 0
    reading.at += 4
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef struct Found:
    const char *key
    Py_ssize_t key_bytes
    const char *row
    Py_ssize_t row_bytes
    bint has_deadline
    int64_t deadline_ms


cdef int _read_found(Reading *reading, Found *found) except -1:
    """One key and value: key, value, sequence number, time of creation, deadline if it has one."""
    cdef uint64_t deadline
    found.key_bytes = _read_u32(reading)
    found.key = reading.at
    reading.at += found.key_bytes
    found.row_bytes = _read_u32(reading)
    found.row = reading.at
    reading.at += found.row_bytes + 16
    if reading.end - reading.at < 1:
        raise CorruptStore("SlateDB's answer", None, "less than a row")
    found.has_deadline = reading.at[0] != 0
    reading.at += 1
    if found.has_deadline:
        deadline = <uint64_t> _read_u32(reading) << 32
        found.deadline_ms = <int64_t> (deadline | _read_u32(reading))
    if reading.at > reading.end:
        raise CorruptStore("SlateDB's answer", None, "less than a row")
    return 0


cdef int _read_head(Found *found, RowHead *head) except -1:
    if not read_row_head(found.row, found.row_bytes, head):
        key = found.key[:found.key_bytes]
        raise CorruptStore(f"the row at {key!r}", None, f"{found.row_bytes} bytes that are no row")
    return 0


cdef object _row(Found *found):
    cdef RowHead head
    _read_head(found, &head)
    return row_from_head(&head, found.row, found.row_bytes)


cdef bint _read_optional(bytes answer, Found *found) except -1:
    """Whether the answer is a key and value; otherwise it is that there is none."""
    cdef Reading reading
    reading.at = PyBytes_AS_STRING(answer)
    reading.end = reading.at + PyBytes_GET_SIZE(answer)
    if PyBytes_GET_SIZE(answer) < 1 or reading.at[0] == 0:
        return False
    reading.at += 1
    _read_found(&reading, found)
    return True


def live_value(bytes answer not None, int64_t now_ms):
    """The value in the answer to a get, None when there is none or it is dead."""
    cdef Found found
    cdef RowHead head
    if not _read_optional(answer, &found):
        return None
    _read_head(&found, &head)
    if is_dead_ms(head.deadline_ms, now_ms):
        return None
    return PyBytes_FromStringAndSize(found.row + head.value_at, found.row_bytes - head.value_at)


def live_row(bytes answer not None, int64_t now_ms):
    """The row in the answer to a get, None when there is none or it is dead."""
    cdef Found found
    if not _read_optional(answer, &found):
        return None
    row = _row(&found)
    return None if is_dead_ms(row[2], now_ms) else row


def plain_value(bytes answer not None):
    """The engine's own record in the answer to a get, or None."""
    cdef Found found
    if not _read_optional(answer, &found):
        return None
    return PyBytes_FromStringAndSize(found.row, found.row_bytes)


def rows(bytes answer not None, Py_ssize_t prefix_bytes) -> list:
    """The keys, without their prefix, and the rows in a batch of a scan; the dead among them."""
    cdef Reading reading
    cdef Found found
    cdef list pairs = []
    reading.at = PyBytes_AS_STRING(answer)
    reading.end = reading.at + PyBytes_GET_SIZE(answer)
    for _ in range(_read_u32(&reading)):
        _read_found(&reading, &found)
        key = PyBytes_FromStringAndSize(found.key + prefix_bytes, found.key_bytes - prefix_bytes)
        pairs.append((key, _row(&found)))
    return pairs


def count_live(bytes answer not None, int64_t now_ms) -> tuple:
    """How many rows are in a batch of a scan, and how many of them are alive."""
    cdef Reading reading
    cdef Found found
    cdef RowHead head
    cdef uint32_t count, live = 0
    reading.at = PyBytes_AS_STRING(answer)
    reading.end = reading.at + PyBytes_GET_SIZE(answer)
    count = _read_u32(&reading)
    for _ in range(count):
        _read_found(&reading, &found)
        _read_head(&found, &head)
        live += not is_dead_ms(head.deadline_ms, now_ms)
    return count, live


def plain_rows(bytes answer not None) -> list:
    """The whole keys, the bytes stored there and the library's deadline (or None) in a batch of a scan."""
    cdef Reading reading
    cdef Found found
    cdef list found_all = []
    reading.at = PyBytes_AS_STRING(answer)
    reading.end = reading.at + PyBytes_GET_SIZE(answer)
    for _ in range(_read_u32(&reading)):
        _read_found(&reading, &found)
        key = PyBytes_FromStringAndSize(found.key, found.key_bytes)
        value = PyBytes_FromStringAndSize(found.row, found.row_bytes)
        found_all.append((key, value, found.deadline_ms if found.has_deadline else None))
    return found_all
