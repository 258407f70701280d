# cython: language_level=3, boundscheck=False, wraparound=False
"""Scans: the keys of the segments and of the base tier merged in order, row by row.

Generators, as they would be in Python, since a scan is left at any row; compiled, because a row passes
through each of them.
"""
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint32_t

from ephemera.core._clock cimport Now
from ephemera.core._row cimport is_dead_ms
from ephemera.engines.local._segment cimport Cut

from ephemera.engines.local._base import unpack_row

CHUNK_KEYS = 512
cdef Py_ssize_t _CHUNK_KEYS = CHUNK_KEYS

cdef enum:
    FAMILY_BYTES = 4     # before the key in a base key
    DEADLINE = 2         # where it stands in a Row


def merged_rows(Cut cut not None, below, bytes start not None, bytes end not None, bint is_reverse,
                errors):
    """(key, row) between two base keys; where both have a key, the segments' word counts.

    `below` iterates over (base key, base value) of the base tier, `errors` is entered for as long as
    that is read.
    """
    cdef list chunk
    cdef bytes key, waiting_key
    cdef Py_ssize_t i
    cdef bint is_more = bool(cut.segments)
    with errors:
        waiting = next(below, None)
        waiting_key = None if waiting is None else waiting[0][FAMILY_BYTES:]
        while is_more:
            chunk = cut.rows(start, end, is_reverse, _CHUNK_KEYS)
            for i in range(PyList_GET_SIZE(chunk)):
                pair = <object> PyList_GET_ITEM(chunk, i)
                key = <bytes> PyTuple_GET_ITEM(pair, 0)
                while waiting_key is not None and (
                    waiting_key > key if is_reverse else waiting_key < key
                ):
                    yield waiting_key, unpack_row(waiting[0], waiting[1])
                    waiting = next(below, None)
                    waiting_key = None if waiting is None else waiting[0][FAMILY_BYTES:]
                if waiting_key is not None and waiting_key == key:
                    waiting = next(below, None)
                    waiting_key = None if waiting is None else waiting[0][FAMILY_BYTES:]
                if <object> PyTuple_GET_ITEM(pair, 1) is not None:
                    yield pair
            is_more = PyList_GET_SIZE(chunk) == _CHUNK_KEYS
            if is_more and is_reverse:
                end = start[:FAMILY_BYTES] + key
            elif is_more:
                start = start[:FAMILY_BYTES] + key + b"\0"
        if waiting is not None:
            yield waiting_key, unpack_row(waiting[0], waiting[1])
            for base_key, stored in below:
                yield base_key[FAMILY_BYTES:], unpack_row(base_key, stored)


def live_rows(state, rows, clock, now_ms):
    """The rows that are alive at `now_ms`; without it, when they are handed out. Ends `state`."""
    cdef Now now = Now(clock) if now_ms is None else None
    cdef int64_t instant = 0 if now_ms is None else now_ms
    base = state.base
    try:
        for pair in rows:
            if now is not None:
                instant = now.ms()
            if not is_dead_ms(_deadline_ms(pair), instant):
                yield pair
                if base.is_closed:
                    state.must_be_open()
    finally:
        state.close()


cdef inline int64_t _deadline_ms(pair) except? -1:
    return <object> PyTuple_GET_ITEM(<object> PyTuple_GET_ITEM(pair, 1), DEADLINE)
