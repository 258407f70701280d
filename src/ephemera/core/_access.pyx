# cython: language_level=3
"""An engine's operations for compiled callers, whose keys and values lie in buffers of theirs.

They mean what `Access` in `keyvalue.py` says of `get`, `put`, `write`, `update` and `delete`; where they
do not take `durable`, with the durability that the store was opened with. An engine that has them offers them as `compiled`; whoever
calls them has checked that keys and values are of an allowed size.
"""


cdef class CompiledAccess:
    """The operations, which an engine's class overrides, and hints of what will be asked for.

    `is_behind` tells, as far as this process has seen, that who writes now may have to wait for long.
    """

    cdef uint64_t prefetch(self, object family, Slice key) noexcept:
        """Have the memory at hand at which an operation on this key will look first.

        What comes back is for `prefetch_more`, a little later: what it will look at then. Both are
        hints, and change nothing.
        """
        return 0

    cdef void prefetch_more(self, uint64_t hint) noexcept:
        pass

    cdef object find(self, object family, Slice key, int64_t now_ms, ValueRef *live):
        """What keeps the live value of a key in its place for as long as the caller has it, or None."""
        raise TypeError("find")

    cdef int store(
        self, object family, Slice key, Slice value, int64_t written_ms, int64_t deadline_ms,
        object durable
    ) except -1:
        """Store a value, whatever was there."""
        raise TypeError("store")

    cdef int store_all(
        self, object family, const Slice *pairs, Py_ssize_t count, int64_t written_ms
    ) except -1:
        """Store so many pairs, key and value in alternation, together and without a deadline."""
        raise TypeError("store_all")

    cdef int add(self, object family, Slice key, Addition addition) except -1:
        """Add to a counter, whose deadline stays; the addition says what came of it."""
        raise TypeError("add")

    cdef Py_ssize_t remove_all(self, object family, Slice *keys, Py_ssize_t count) except -1:
        """Remove so many keys together, each named once; how many were alive, which then come first."""
        raise TypeError("remove_all")

    cdef Touched renew(self, object family, Slice key, int64_t deadline_ms) except *:
        """Give a live key another deadline and leave its value, unless that deadline has passed."""
        raise TypeError("renew")
