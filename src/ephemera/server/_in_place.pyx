# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The commonest commands, answered where their bytes lie: no object is made of an argument or a reply.

Each does what its handler under `commands/` does, for plain arguments and an engine that compiled code
can call. Where anything is not so it returns False and has changed nothing: the handler is called, and
says what is wrong.
"""
from libc.stdint cimport INT64_MIN, int64_t
from libc.stdlib cimport qsort

from ephemera.core._access cimport TOO_LATE, TOUCHED, ValueRef, Slice, Touched, compare
from ephemera.core._counter cimport read_digits
from ephemera.server._direct cimport SLICES_MAX, RequestLoop, CommandStats, Keys, SliceArray

cdef enum:
    SECOND_MS = 1000

cdef int64_t TTL_MAX = <int64_t> 1 << 50
"""In any unit: more than reaches the last deadline there is."""


def bind(dict commands not None) -> None:
    """Let the commands of a server that stand here be answered in place."""
    (<CommandStats?> commands["ping"]).in_place = _ping
    (<CommandStats?> commands["get"]).in_place = _get
    (<CommandStats?> commands["mget"]).in_place = _mget
    (<CommandStats?> commands["exists"]).in_place = _exists
    (<CommandStats?> commands["ttl"]).in_place = _ttl
    (<CommandStats?> commands["pttl"]).in_place = _pttl
    (<CommandStats?> commands["set"]).in_place = _set
    (<CommandStats?> commands["setex"]).in_place = _setex
    (<CommandStats?> commands["psetex"]).in_place = _psetex
    (<CommandStats?> commands["mset"]).in_place = _mset
    (<CommandStats?> commands["incr"]).in_place = _incr
    (<CommandStats?> commands["decr"]).in_place = _decr
    (<CommandStats?> commands["incrby"]).in_place = _incrby
    (<CommandStats?> commands["decrby"]).in_place = _decrby
    (<CommandStats?> commands["del"]).in_place = _del
    (<CommandStats?> commands["unlink"]).in_place = _del
    (<CommandStats?> commands["expire"]).in_place = _expire
    (<CommandStats?> commands["pexpire"]).in_place = _pexpire


cdef inline bint _read_time(Slice digits, int64_t unit_ms, int64_t *ttl_ms) noexcept:
    """Whether this is a number that can be a lifetime: the rest is for the handler to refuse."""
    cdef int64_t number = 0
    if not read_digits(digits.start, digits.size, True, &number) or not 0 < number < TTL_MAX:
        return False
    ttl_ms[0] = number * unit_ms
    return True


cdef bint _ping(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    if count != 1:
        return False
    to.append("+PONG\r\n", 7)
    return True


# --- reading --------------------------------------------------------------------------------------


cdef bint _get(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    if count != 2 or not keys.takes_read(args[1]):
        return False
    _write_found(to, keys, args[1])
    return True


cdef int _write_found(RequestLoop to, Keys keys, Slice key) except -1:
    cdef ValueRef live
    holder = keys.find(key, &live)
    return to.write_none() if holder is None else to.write_value(live.value)


cdef bint _mget(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef Py_ssize_t i
    if count < 2:
        return False
    for i in range(1, count):
        if not keys.takes_read(args[i]):
            return False
    to.write_number(c"*", count - 1)
    for i in range(1, count):
        _write_found(to, keys, args[i])
    return True


cdef bint _exists(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef ValueRef live
    cdef Py_ssize_t i, found = 0
    if count < 2:
        return False
    for i in range(1, count):
        if not keys.takes_read(args[i]):
            return False
    for i in range(1, count):
        found += keys.find(args[i], &live) is not None
    to.write_number(c":", found)
    return True


cdef bint _ttl(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef int64_t left_ms
    if count != 2 or not keys.takes_read(args[1]):
        return False
    left_ms = keys.left_ms(args[1])
    to.write_number(c":", left_ms if left_ms < 0 else (left_ms + SECOND_MS // 2) // SECOND_MS)
    return True


cdef bint _pttl(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    if count != 2 or not keys.takes_read(args[1]):
        return False
    to.write_number(c":", keys.left_ms(args[1]))
    return True


# --- storing --------------------------------------------------------------------------------------


cdef bint _set(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    if count == 3:
        return _store(to, keys, args[1], args[2], 0)
    if count != 5 or args[3].size != 2 or args[3].start[1] | 0x20 != c"x":
        return False
    if args[3].start[0] | 0x20 == c"e":
        return _store_for(to, keys, args[1], args[2], args[4], SECOND_MS)
    return args[3].start[0] | 0x20 == c"p" and _store_for(to, keys, args[1], args[2], args[4], 1)


cdef bint _setex(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 4 and _store_for(to, keys, args[1], args[3], args[2], SECOND_MS)


cdef bint _psetex(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 4 and _store_for(to, keys, args[1], args[3], args[2], 1)


cdef bint _store_for(
    RequestLoop to, Keys keys, Slice key, Slice value, Slice time, int64_t unit_ms
) except -1:
    cdef int64_t ttl_ms = 0
    return _read_time(time, unit_ms, &ttl_ms) and _store(to, keys, key, value, ttl_ms)


cdef bint _store(RequestLoop to, Keys keys, Slice key, Slice value, int64_t ttl_ms) except -1:
    if not keys.takes_write(key) or not keys.store(key, value, ttl_ms):
        return False
    to.append("+OK\r\n", 5)
    return True


cdef bint _mset(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef Slice few[SLICES_MAX]
    cdef SliceArray many = SliceArray(count) if count > SLICES_MAX else None
    cdef Py_ssize_t pairs = count // 2
    if count < 3 or count % 2 == 0 or not keys.takes_write(args[1]):
        return False
    if _sort(args + 1, 2, pairs, &few[0] if many is None else many.start) < pairs:
        return False
    if not keys.store_all(args + 1, pairs):
        return False
    to.append("+OK\r\n", 5)
    return True


cdef Py_ssize_t _sort(const Slice *keys, Py_ssize_t step, Py_ssize_t count, Slice *named) noexcept:
    """Put keys that lie so many slices apart in order, each of them once; how many these are."""
    cdef Py_ssize_t i, distinct = 1
    for i in range(count):
        named[i] = keys[i * step]
    qsort(named, count, sizeof(Slice), &_by_bytes)
    for i in range(1, count):
        if compare(named[i], named[distinct - 1]) != 0:
            named[distinct] = named[i]
            distinct += 1
    return distinct


cdef int _by_bytes(const void *a, const void *b) noexcept nogil:
    return compare((<const Slice *> a)[0], (<const Slice *> b)[0])


# --- counters -------------------------------------------------------------------------------------


cdef bint _incr(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 2 and _add(to, keys, args[1], 1)


cdef bint _decr(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 2 and _add(to, keys, args[1], -1)


cdef bint _incrby(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef int64_t step = 0
    if count != 3 or not read_digits(args[2].start, args[2].size, True, &step):
        return False
    return _add(to, keys, args[1], step)


cdef bint _decrby(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef int64_t step = 0
    if count != 3 or not read_digits(args[2].start, args[2].size, True, &step):
        return False
    # The least of all numbers has no opposite.
    return step != INT64_MIN and _add(to, keys, args[1], -step)


cdef bint _add(RequestLoop to, Keys keys, Slice key, int64_t step) except -1:
    cdef int64_t total = 0
    if not keys.takes_write(key) or not keys.count(key, step, &total):
        return False
    to.write_number(c":", total)
    return True


# --- deadlines and ends ---------------------------------------------------------------------------


cdef bint _del(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    cdef Slice few[SLICES_MAX]
    cdef SliceArray many = SliceArray(count) if count > SLICES_MAX else None
    cdef Slice *named = &few[0] if many is None else many.start
    cdef Py_ssize_t i
    if count < 2:
        return False
    for i in range(1, count):
        if not keys.takes_write(args[i]):
            return False
    to.write_number(c":", keys.remove_all(named, _sort(args + 1, 1, count - 1, named)))
    return True


cdef bint _expire(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 3 and _renew(to, keys, args[1], args[2], SECOND_MS)


cdef bint _pexpire(RequestLoop to, Keys keys, const Slice *args, Py_ssize_t count) except -1:
    return count == 3 and _renew(to, keys, args[1], args[2], 1)


cdef bint _renew(RequestLoop to, Keys keys, Slice key, Slice time, int64_t unit_ms) except -1:
    cdef int64_t ttl_ms = 0
    cdef Touched touched
    if not keys.takes_write(key) or not _read_time(time, unit_ms, &ttl_ms):
        return False
    touched = keys.renew(key, ttl_ms)
    if touched == TOO_LATE:
        return False
    to.write_number(c":", touched == TOUCHED)
    return True
