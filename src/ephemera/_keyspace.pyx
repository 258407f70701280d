# cython: language_level=3, cdivision=True, binding=False, embedsignature=True, embedsignature.format=clinic
"""`get` and `put` of a keyspace, compiled: from what a program gives to the engine and back.

These two are what programs call a million times, and in Python they took longer than the engine
does. Here are the usual arguments only: whatever is unusual, or wrong, goes to the functions that say
what is allowed. With a compiled engine (`core/_access.pyx`) and the system's clock nothing is made on
the way but the value that is returned; any other engine and any other clock are called as they are.
"""
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.math cimport rint
from libc.stdint cimport INT64_MIN, int64_t

from ephemera.core._access cimport CompiledAccess, ValueRef, slice_of
from ephemera.core._clock cimport Now
from ephemera.core._row cimport NEVER, is_dead_ms

from ephemera.core.arguments import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    check_durable,
    encode_key,
    encode_value,
)
from ephemera.core.expiry import DEADLINE_MS_MAX, duration_ms

cdef Py_ssize_t _KEY_BYTES_MAX = KEY_BYTES_MAX
cdef Py_ssize_t _VALUE_BYTES_MAX = VALUE_BYTES_MAX
cdef int64_t _DEADLINE_MS_MAX = DEADLINE_MS_MAX

cdef enum:
    USUAL_SECONDS_MAX = 1000000000     # of a TTL; longer ones are worked out with every check


cdef inline bytes _copied(ValueRef *live):
    return PyBytes_FromStringAndSize(live.value.start, live.value.size)


cdef class OneKey:
    """What a keyspace stands on, and the reading and writing of one key.

    `access` is where the rows are, `ref` its handle of the family, `clock` tells the instant of each
    operation, and `store_ttl_ms` is the store's default. A subclass supplies `_lifetime`, which knows
    every rule about `ttl`, `at` and `idle`.
    """
    cdef readonly object _access
    cdef readonly object _ref
    cdef readonly object _now_ms
    cdef readonly object _store_ttl_ms
    cdef object access_get
    cdef object access_put
    cdef CompiledAccess compiled
    cdef Now now

    def __init__(self, access, ref, clock, store_ttl_ms):
        self._access = access
        self._ref = ref
        self._now_ms = clock.now_ms
        self._store_ttl_ms = store_ttl_ms
        self.access_get = access.get
        self.access_put = access.put
        self.compiled = getattr(access, "compiled", None)
        self.now = Now(clock)

    def _lifetime(self, now_ms, ttl, at, idle):
        raise TypeError("_lifetime")

    def get(self, key, default=None, max_age=None):
        """The value, or `default` when the key is absent, dead, or written longer ago than `max_age`.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("name", "ada")
        >>> store.get("name"), store.get("absent"), store.get("absent", b"-")
        (b'ada', None, b'-')
        """
        cdef bytes data = _key(key)
        if max_age is not None:
            return self._get_young(data, default, max_age)
        value = self._value(data)
        return default if value is None else value

    cdef inline object _value(self, bytes key):
        cdef ValueRef live
        cdef int64_t now_ms
        cdef bytes value = None
        if self.compiled is None:
            return self.access_get(self._ref, key, self.now.ms())
        # To read the clock is a quarter of a quick look-up, and what has no deadline needs none.
        holder = self.compiled.find(self._ref, slice_of(key), INT64_MIN, &live)
        if holder is not None and live.deadline_ms != NEVER:
            if not self.now.is_compiled:
                # A clock of Python may do anything before it returns: what was found may be no more by then.
                value = _copied(&live)
            now_ms = self.now.ms()
            if is_dead_ms(live.deadline_ms, now_ms):
                # It may have been replaced meanwhile, when it lived: what is there now counts.
                value = None
                holder = self.compiled.find(self._ref, slice_of(key), now_ms, &live)
        if holder is None:
            return None
        return _copied(&live) if value is None else value

    cdef object _get_young(self, bytes key, default, max_age):
        max_age_ms = duration_ms(max_age, name="max_age")
        now_ms = self._now_ms()
        row = self._access.row(self._ref, key, now_ms)
        return default if row is None or now_ms - row.written_ms > max_age_ms else row.value

    def put(self, key, value, *, ttl=None, at=None, idle=None, durable=None):
        """Store the value. Without a lifetime the key gets the family's default, or is permanent.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock())
        >>> store.put("code", "492817", ttl=60)
        >>> store.put("code", "permanent from here on")
        >>> store.ttl("code") is None
        True
        """
        cdef bytes name = _key(key)
        cdef bytes data
        cdef int64_t now_ms, deadline_ms
        if PyBytes_CheckExact(value) and PyBytes_GET_SIZE(value) <= _VALUE_BYTES_MAX:
            data = <bytes> value
        else:
            data = encode_value(value)
        if durable is not None:
            check_durable(durable)
        now_ms = self.now.ms()
        if at is None and idle is None:
            deadline_ms = self._usual_deadline(now_ms, ttl)
            if deadline_ms:
                self._store(name, data, now_ms, deadline_ms, durable)
                return
        life = self._lifetime(now_ms, ttl, at, idle)
        self.access_put(self._ref, name, data, now_ms, *life, durable)

    cdef int64_t _usual_deadline(self, int64_t now_ms, ttl) except? -1:
        """The deadline of a usual TTL; 0 when `_lifetime` has to decide."""
        cdef int64_t ttl_ms
        cdef int is_too_large
        cdef double seconds
        if ttl is None:
            is_permanent = self._store_ttl_ms is None and self._ref.default_ttl_ms is None
            return NEVER if is_permanent else 0
        if PyFloat_CheckExact(ttl):
            seconds = PyFloat_AS_DOUBLE(ttl)
            if not 0.0 < seconds <= USUAL_SECONDS_MAX:
                return 0
            # As Python rounds: halves to even. The shortest life is one millisecond.
            ttl_ms = <int64_t> rint(seconds * 1000.0) or 1
        elif PyLong_CheckExact(ttl):
            ttl_ms = PyLong_AsLongLongAndOverflow(ttl, &is_too_large)
            if is_too_large or not 0 < ttl_ms <= USUAL_SECONDS_MAX:
                return 0
            ttl_ms *= 1000
        else:
            return 0
        return now_ms + ttl_ms if now_ms <= _DEADLINE_MS_MAX - ttl_ms else 0

    cdef inline int _store(
        self, bytes key, bytes value, int64_t now_ms, int64_t deadline_ms, durable
    ) except -1:
        if self.compiled is not None:
            return self.compiled.store(
                self._ref, slice_of(key), slice_of(value), now_ms, deadline_ms, durable
            )
        self.access_put(self._ref, key, value, now_ms, deadline_ms, 0, NEVER, durable)
        return 0


def pairs_of(rows):
    """(key, value) of each (key, row); without the rows, where whoever gives them offers that."""
    pairs = getattr(rows, "pairs", None)
    return _pairs_of(rows) if pairs is None else pairs()


def _pairs_of(rows):
    for key, row in rows:
        yield key, row[0]


cdef inline bytes _key(key):
    if PyBytes_CheckExact(key) and 0 < PyBytes_GET_SIZE(key) <= _KEY_BYTES_MAX:
        return <bytes> key
    return encode_key(key)
