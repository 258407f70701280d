# cython: language_level=3, boundscheck=False, wraparound=False
"""Scans: the keys of the segments and of the base tier merged in order, row by row.

One iterator does it all, since a row should pass through nothing else: it stands in each segment and in
the base tier's pages, and makes no object but what it hands out. Where a page is not what it should be,
or cannot be looked at, LMDB is asked from there on.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t

from ephemera.core._access cimport Slice, compare, slice_of
from ephemera.core._clock cimport Now
from ephemera.core._row cimport NEVER, RowHead, is_dead_ms, row_from_head
from ephemera.engines.local._base cimport ROW_AT, open_row
from ephemera.engines.local._pages cimport ABSENT, PRESENT, Look, Tree, Walk
from ephemera.engines.local._segment cimport (
    DELETED,
    Cursor,
    SegmentSnapshot,
    first_of,
    key_of,
    pass_key,
    row_of,
)

import os

from ephemera.core import forks
from ephemera.core.errors import InvalidArgument, StoreClosed

# How often this process's line has forked. An LMDB transaction of an earlier generation belongs to an
# ancestor: ending it here would free that process's reader slot.
cdef uint64_t _fork_generation = 0


def _note_fork():
    global _fork_generation
    _fork_generation += 1


os.register_at_fork(after_in_child=_note_fork)

cdef enum:
    FAMILY_BYTES = 4     # before the key in a base key
    ROWS_AT_ONCE = 1000      # that are passed, handed out or hidden, before other threads may go on


cdef class Closable:
    """Something that whoever uses it may find closed."""


def keep_for_ever(resource) -> None:
    """Never finalize an object, not even as the interpreter ends: an LMDB environment that was
    inherited would wait for threads that this process does not have."""
    Py_INCREF(resource)


cdef class OwnTransaction:
    """The `with` block of an LMDB transaction, which only the process that began it ends.

    A signal handler or a finalizer may fork inside the block: in the child it then ends with
    StoreClosed, and the transaction is left to the parent.
    """
    cdef object txn
    cdef uint64_t generation

    def __init__(self, txn):
        self.txn, self.generation = txn, _fork_generation

    def __enter__(self):
        return self.txn

    def __exit__(self, kind, error, trace):
        txn, self.txn = self.txn, None
        if self.generation == _fork_generation:
            return txn.__exit__(kind, error, trace)
        if kind is None:
            raise StoreClosed(forks.INHERITED)


cdef class ViewTransaction:
    """The read transaction of a view. Any thread may use it, and any thread may end it at any time.

    LMDB releases the GIL inside its calls, and crashes if the transaction ends meanwhile. So `end` refuses
    further calls, and the last call under way ends the transaction.
    """
    cdef object txn
    cdef uint64_t generation
    cdef Py_ssize_t calls       # under way, in all threads
    cdef bint is_over

    def __init__(self, txn):
        self.txn, self.generation = txn, _fork_generation

    @property
    def is_inherited(self) -> bool:
        """Whether the parent of this process began it, before a fork."""
        return self.generation != _fork_generation

    def must_be_open(self) -> None:
        """Raise StoreClosed when it has ended, or was begun by the parent of this process."""
        self._check()

    def run(self, function, *given):
        """Return `function(txn, *given)`; the transaction does not end meanwhile."""
        self._begin_call()
        try:
            return function(self.txn, *given)
        finally:
            self._end_call()

    def get(self, bytes key not None):
        """Return what LMDB has stored of a key, or None."""
        self._begin_call()
        try:
            return self.txn.get(key)
        finally:
            self._end_call()

    def end(self) -> None:
        """End the transaction, unless it is the parent's. InterruptSafeContext it twice is fine."""
        self.is_over = True
        if self.calls == 0:
            self._end()

    cdef object next_of(self, iterator):
        """Return the next item of an iterator that reads by this transaction, or None at its end."""
        self._begin_call()
        try:
            return next(iterator, None)
        finally:
            self._end_call()

    cdef inline int _check(self) except -1:
        if self.generation != _fork_generation:
            raise StoreClosed(forks.INHERITED)
        if self.is_over:
            raise StoreClosed("this snapshot, scan or transaction has ended")
        return 0

    cdef inline int _begin_call(self) except -1:
        self._check()
        self.calls += 1
        return 0

    cdef inline int _end_call(self) except -1:
        self.calls -= 1
        if self.is_over and self.calls == 0:
            self._end()
        return 0

    cdef int _end(self) except -1:
        txn, self.txn = self.txn, None
        if txn is not None and self.generation == _fork_generation:
            txn.abort()
        return 0


cdef class Scan:
    """(key, row) of what is alive between two base keys of a state, in order; after `pairs`, (key, value).

    Alive at `now_ms`, or without it when a row is handed out. With `ends_state` the state is closed
    once this ends or is forgotten.
    """
    cdef object state
    cdef ViewTransaction txn
    cdef Closable base
    cdef SegmentSnapshot snapshot
    cdef Tree tree
    cdef bytes start, end
    cdef Now now
    cdef int64_t instant
    cdef bint is_reverse, ends_state, is_plain
    cdef bint is_begun, is_running, is_over
    cdef list cursors
    cdef Walk walk
    cdef object asked, answer
    cdef Slice below_key, below_value    # the last row of the base tier that was read
    cdef bint has_below                  # whether it is not handed out yet
    cdef bint is_below_begun, is_below_over
    cdef Py_ssize_t passed
    cdef object __weakref__

    def __init__(
        self, state, bytes start not None, bytes end not None, *, bint is_reverse, clock, now_ms,
        bint ends_state
    ):
        # Nothing lies between bounds the wrong way round.
        self.start, self.end, self.is_reverse = min(start, end), end, is_reverse
        self.now = Now(clock) if now_ms is None else None
        self.instant = 0 if now_ms is None else now_ms
        self.base, self.snapshot, self.tree, self.txn = state.base, state.snapshot, state.tree, state.txn
        self.state, self.ends_state = state, ends_state

    def pairs(self):
        """This, which hands out (key, value) from now on and makes no rows."""
        self.is_plain = True
        return self

    def __iter__(self):
        return self

    def __next__(self):
        self._must_stand()
        if self.is_over:
            raise StopIteration
        self.is_running = True
        try:
            found = self._next()
        except:
            self.is_running = False
            self.close()
            raise
        self.is_running = False
        if found is None:
            self.close()
            raise StopIteration
        return found

    def close(self) -> None:
        """Hand out nothing more."""
        self._must_stand()
        state, self.state = self.state, None
        self._let_go()
        if self.ends_state and state is not None:
            state.close()

    def __del__(self):
        self.close()

    cdef inline int _must_stand(self) except -1:
        # While a step waits for a clock, or lets others go on, its place is in use.
        if self.is_running:
            raise InvalidArgument(
                "a step of this scan is under way, in another thread or in its clock:"
                " iterate it in one thread at a time"
            )
        return 0

    cdef int _let_go(self) except -1:
        self.is_over = True
        self.cursors = self.snapshot = self.walk = self.tree = self.asked = self.answer = None
        return 0

    cdef object _next(self):
        cdef Cursor best
        cdef int order
        while True:
            self.passed += 1
            if self.passed % ROWS_AT_ONCE == 0:
                # A list that is made of a scan runs no Python in between.
                with nogil:
                    pass
                PyErr_CheckSignals()
            if self.base.is_closed:
                self.state.must_be_open()
            self.txn._check()
            if not self.is_begun:
                self._begin()
            if self.walk is not None and not self.walk.tree.is_sure:
                self._ask()
            if not self.has_below and not self.is_below_over:
                self._read_below()
            best = self._first_above()
            if best is None and not self.has_below:
                return None
            order = self._order(best)
            found = self._take_below() if order > 0 else self._take_above(best, order == 0)
            if found is not None:
                return found

    cdef int _begin(self) except -1:
        cdef bytes bound = self.end if self.is_reverse else self.start
        self.cursors = self.snapshot.cursors(self.start, self.end, self.is_reverse)
        self.is_begun = True
        if self.tree is None:
            return self._ask()
        self.walk = Walk(self.tree, bound, is_reverse=self.is_reverse)
        return 0

    # -- the base tier

    cdef int _ask(self) except -1:
        """From here on, have LMDB say what the base tier holds."""
        cdef bytes start = self.start, end = self.end, last
        if self.is_below_begun:
            last = self.below_key.start[:self.below_key.size]
            if self.is_reverse:
                end = last + b"\0" if self.has_below else last
            else:
                start = last if self.has_below else last + b"\0"
        self.walk = None
        self.has_below = False
        self.asked = self.state.ask(start, end, self.is_reverse)
        return 0

    cdef int _read_below(self) except -1:
        """Read the next row of the base tier, if there is one."""
        cdef Slice key, value
        cdef Look look
        if self.walk is not None:
            look = self.walk.step(&key, &value)
            if look == PRESENT:
                return self._accept(key, value)
            if look == ABSENT:
                self.is_below_over = True
                return 0
            self._ask()
        self.answer = self.txn.next_of(self.asked)
        self.has_below = self.answer is not None
        self.is_below_over = not self.has_below
        if self.has_below:
            self.below_key, self.below_value = slice_of(self.answer[0]), slice_of(self.answer[1])
            self._must_have_family(self.below_key)
        return 0

    cdef inline int _must_have_family(self, Slice key) except -1:
        if key.size < FAMILY_BYTES:
            raise self.base.disorder(key.start[:key.size])
        return 0

    cdef int _accept(self, Slice key, Slice value) except -1:
        """Take a row of the base tier if it is within the bounds, and believe no page that is in disorder."""
        cdef Slice far = slice_of(self.start if self.is_reverse else self.end)
        cdef Slice last = slice_of(self.end if self.is_reverse else self.start)
        cdef int order
        self._must_have_family(key)
        if compare(key, far) < 0 if self.is_reverse else compare(key, far) >= 0:
            self.is_below_over = True
            return 0
        if self.is_below_begun:
            last = self.below_key
        order = compare(last, key) if self.is_reverse else compare(key, last)
        if order < 0 or (order == 0 and (self.is_below_begun or self.is_reverse)):
            raise self.base.disorder(key.start[:key.size])
        self.below_key, self.below_value = key, value
        self.has_below = self.is_below_begun = True
        return 0

    cdef object _take_below(self):
        cdef RowHead head
        self.has_below = False
        open_row(self.below_key, self.below_value, &head)
        # Whatever lies between the bounds begins with their family.
        return self._made(
            &head,
            Slice(self.below_key.start + FAMILY_BYTES, self.below_key.size - FAMILY_BYTES),
            Slice(self.below_value.start + ROW_AT, self.below_value.size - ROW_AT),
        )

    # -- the segments

    cdef inline Cursor _first_above(self):
        """Where the segments' next key is, or None."""
        cdef Py_ssize_t i
        if PyList_GET_SIZE(self.cursors) == 0:
            return None
        for i in range(PyList_GET_SIZE(self.cursors)):
            (<Cursor> PyList_GET_ITEM(self.cursors, i)).look_again()
        return first_of(self.cursors, self.is_reverse)

    cdef inline int _order(self, Cursor above) noexcept:
        """Greater than 0 when the base tier's row comes next, 0 when it has the same key, else less."""
        cdef int order
        if not self.has_below or above is None:
            return 1 if self.has_below else -1
        order = compare(
            Slice(key_of(above.record), above.record.key_size),
            Slice(self.below_key.start + FAMILY_BYTES, self.below_key.size - FAMILY_BYTES),
        )
        return -order if self.is_reverse else order

    cdef object _take_above(self, Cursor above, bint hides_below):
        cdef RowHead head
        cdef object found = None
        if hides_below:
            self.has_below = False
        above.segment.open_record(above.record, above.position, &head)
        if not above.record.mark & DELETED:
            found = self._made(
                &head,
                Slice(key_of(above.record), above.record.key_size),
                Slice(row_of(above.record), above.record.row_size),
            )
        pass_key(self.cursors, above)
        return found

    # -- what is handed out

    cdef object _made(self, RowHead *head, Slice key, Slice row):
        """What is handed out of a row, or None when it is dead."""
        cdef int64_t instant = self.instant
        cdef object made = None
        if head.deadline_ms != NEVER:
            if self.now is not None:
                if not self.now.is_compiled:
                    # A clock of Python may do anything before it returns: the row may be no more by then.
                    made = self._copied(head, key, row)
                instant = self.now.ms()
            if is_dead_ms(head.deadline_ms, instant):
                return None
        return self._copied(head, key, row) if made is None else made

    cdef inline object _copied(self, RowHead *head, Slice key, Slice row):
        cdef bytes name = PyBytes_FromStringAndSize(key.start, key.size)
        if not self.is_plain:
            return name, row_from_head(head, row.start, row.size)
        return name, PyBytes_FromStringAndSize(row.start + head.value_at, row.size - head.value_at)
