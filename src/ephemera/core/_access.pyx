# cython: language_level=3
"""`get` and `put` of an engine as compiled callers reach them: without a Python call in between.

An engine that is compiled derives from this, and offers it as its `direct`. What holds for `Access`
(`core/keyvalue.py`) holds here, since it is the same two operations.
"""


cdef class DirectAccess:
    """A compiled engine's reads and writes of one key."""

    cdef object live_value(self, object family, bytes key, int64_t now_ms):
        """The live value of a key, or None: `Access.get`."""
        raise TypeError("live_value")

    cdef int store(
        self, object family, bytes key, bytes value, int64_t written_ms, int64_t deadline_ms,
        int64_t idle_ms, int64_t hard_ms, object durable
    ) except -1:
        """Store a row, whatever was there: `Access.put`."""
        raise TypeError("store")
