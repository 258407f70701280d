"""Commands on values: storing, reading, changing them in place, and counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ephemera.resp.replies import OK, Refused, Reply
from ephemera.server import longdouble
from ephemera.server.arguments import (
    INTEGER_MIN,
    LIFETIMES,
    NOT_AN_INTEGER,
    SYNTAX_ERROR,
    integer,
    lifetime,
    places,
)
from ephemera.server.events import APPEND, INCRBYFLOAT, SETRANGE
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("string")


@command("GET", arity=2, flags="readonly fast", keys=KeyRange(1), since="1.0.0",
         summary="The value of a key.")  # fmt: skip
def get(call: Call) -> Reply:
    return call.keys.get(call.args[1])


@command("MGET", arity=-2, flags="readonly fast", keys=KeyRange(1, -1), since="1.0.0",
         tips="request_policy:multi_shard",
         summary="The values of several keys.")  # fmt: skip
def mget(call: Call) -> Reply:
    return [call.keys.get(key) for key in call.args[1:]]


# --- SET ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SetOptions:
    """What follows key and value in SET; `life` and `time` are an option of LIFETIMES and its operand."""

    life: bytes = b""
    time: bytes = b""
    condition: bytes = b""
    expected: bytes = b""
    keeps_ttl: bool = False
    returns_old: bool = False

    def allow(self, old: bytes | None) -> bool:
        if self.condition == b"ifeq":
            return old == self.expected
        return not self.condition or (old is None) == (self.condition == b"nx")


@command("SET", arity=-3, flags="write denyoom",
         keys=KeyRange(1, access="RW access update variable_flags"), since="1.0.0",
         summary="Stores a value, on conditions and with a lifetime if so told.")  # fmt: skip
def set_(call: Call) -> Reply:
    args, keys = call.args, call.keys
    if len(args) == 3:
        keys.put(args[1], args[2])
        return OK
    if len(args) == 5 and (unit := args[3].lower()) in (b"ex", b"px"):
        return _store_for(call, args[1], args[2], unit, args[4])
    options = _set_options(args)
    _, key, value = args[:3]
    life = None
    if options.life:
        life = lifetime(options.life, options.time, now_ms=call.keys.now_ms(), command="set")
    old = None
    if options.returns_old:
        old = keys.get(key)
    elif options.condition or options.keeps_ttl:
        old = keys.peek(key)
    is_stored = options.allow(old)
    if is_stored:
        if options.keeps_ttl:
            keys.replace(key, old, value)
        elif life is None or life.deadline_ms is None:
            keys.put(key, value, None if life is None else life.ttl_ms)
        else:
            keys.put_until(key, value, life.deadline_ms)
    if options.returns_old:
        return old
    return OK if is_stored else None


def _set_options(args: list[bytes]) -> SetOptions:
    options = SetOptions()
    rest = iter(args[3:])
    for given in rest:
        option = given.lower()
        if option in LIFETIMES and options.life in (b"", option) and not options.keeps_ttl:
            options.life, options.time = option, _operand(rest)
        elif option == b"keepttl" and not options.life:
            options.keeps_ttl = True
        elif option == b"get":
            options.returns_old = True
        elif option in (b"nx", b"xx") and options.condition in (b"", option):
            options.condition = option
        elif option == b"ifeq" and not options.condition:
            options.condition, options.expected = option, _operand(rest)
        else:
            raise Refused(SYNTAX_ERROR)
    return options


def _operand(rest: Iterator[bytes]) -> bytes:
    operand = next(rest, None)
    if operand is None:
        raise Refused(SYNTAX_ERROR)
    return operand


# --- the older ways to store ----------------------------------------------------------------------


@command("SETNX", arity=3, flags="write denyoom fast",
         keys=KeyRange(1, access="OW insert"), since="1.0.0",
         summary="Stores a value unless the key is there.")  # fmt: skip
def setnx(call: Call) -> Reply:
    _, key, value = call.args
    if call.keys.peek(key) is not None:
        return 0
    call.keys.put(key, value)
    return 1


@command("SETEX", arity=4, flags="write denyoom",
         keys=KeyRange(1, access="OW update"), since="2.0.0",
         summary="Stores a value for so many seconds.")  # fmt: skip
def setex(call: Call) -> Reply:
    _, key, time, value = call.args
    return _store_for(call, key, value, b"ex", time)


@command("PSETEX", arity=4, flags="write denyoom",
         keys=KeyRange(1, access="OW update"), since="2.6.0",
         summary="Stores a value for so many milliseconds.")  # fmt: skip
def psetex(call: Call) -> Reply:
    _, key, time, value = call.args
    return _store_for(call, key, value, b"px", time)


def _store_for(call: Call, key: bytes, value: bytes, unit: bytes, time: bytes) -> Reply:
    life = lifetime(unit, time, now_ms=call.keys.now_ms(), command=call.command.name)
    call.keys.put(key, value, life.ttl_ms)
    return OK


@command("MSET", arity=-3, flags="write denyoom",
         keys=KeyRange(1, -1, 2, access="OW update"), since="1.0.1",
         tips="request_policy:multi_shard response_policy:all_succeeded",
         summary="Stores several values at once.")  # fmt: skip
def mset(call: Call) -> Reply:
    call.keys.put_many(_pairs(call))
    return OK


@command("MSETNX", arity=-3, flags="write denyoom",
         keys=KeyRange(1, -1, 2, access="OW insert"), since="1.0.1",
         tips="request_policy:multi_shard response_policy:agg_min",
         summary="Stores several values at once unless one of the keys is there.")  # fmt: skip
def msetnx(call: Call) -> Reply:
    pairs = _pairs(call)
    if any(call.keys.peek(key) is not None for key in pairs):
        return 0
    call.keys.put_many(pairs)
    return 1


def _pairs(call: Call) -> dict[bytes, bytes]:
    if len(call.args) % 2 == 0:
        raise Refused(f"ERR wrong number of arguments for '{call.command.name}' command")
    return dict(zip(call.args[1::2], call.args[2::2], strict=True))


# --- reading and changing in one go ---------------------------------------------------------------


@command("GETSET", arity=3, flags="write denyoom fast", keys=KeyRange(1), since="1.0.0",
         summary="Stores a value and answers with the one before it.")  # fmt: skip
def getset(call: Call) -> Reply:
    _, key, value = call.args
    old = call.keys.get(key)
    call.keys.put(key, value)
    return old


@command("GETDEL", arity=2, flags="write fast",
         keys=KeyRange(1, access="RW access delete"), since="6.2.0",
         summary="The value of a key, which goes.")  # fmt: skip
def getdel(call: Call) -> Reply:
    value = call.keys.get(call.args[1])
    if value is not None:
        call.keys.delete(call.args[1])
    return value


@command("GETEX", arity=-2, flags="write fast", keys=KeyRange(1), since="6.2.0",
         summary="The value of a key, which gets a new lifetime, or with PERSIST none.")  # fmt: skip
def getex(call: Call) -> Reply:
    key = call.args[1]
    option, time = _getex_options(call.args)
    value = call.keys.get(key)
    if value is None:
        return None
    if option == b"persist":
        call.keys.persist(key)
    elif option:
        now_ms = call.keys.now_ms()
        life = lifetime(option, time, now_ms=now_ms, command="getex")
        call.keys.expire(key, life.ends_ms(now_ms))
    return value


def _getex_options(args: list[bytes]) -> tuple[bytes, bytes]:
    """The option, or nothing, and its operand."""
    chosen = time = b""
    rest = iter(args[2:])
    for given in rest:
        option = given.lower()
        if chosen not in (b"", option) or option not in LIFETIMES | {b"persist"}:
            raise Refused(SYNTAX_ERROR)
        chosen = option
        if option != b"persist":
            time = _operand(rest)
    return chosen, time


# --- parts of a value -----------------------------------------------------------------------------


@command("STRLEN", arity=2, flags="readonly fast", keys=KeyRange(1, access="RO"), since="2.2.0",
         summary="How many bytes the value has.")  # fmt: skip
def strlen(call: Call) -> Reply:
    return len(call.keys.get(call.args[1]) or b"")


@command("APPEND", arity=3, flags="write denyoom fast",
         keys=KeyRange(1, access="RW insert"), since="2.0.0",
         summary="Adds bytes to the end of the value; how many it has then.")  # fmt: skip
def append(call: Call) -> Reply:
    _, key, tail = call.args
    old = call.keys.peek(key)
    value = (old or b"") + tail
    _check_size(call, len(value))
    call.keys.replace(key, old, value, APPEND)
    return len(value)


@command("SETRANGE", arity=4, flags="write denyoom",
         keys=KeyRange(1, access="RW update"), since="2.2.0",
         summary="Writes over a part of the value, from a place on; how many bytes it has then.")  # fmt: skip
def setrange(call: Call) -> Reply:
    _, key, place, part = call.args
    offset = integer(place)
    if offset < 0:
        raise Refused("ERR offset is out of range")
    old = call.keys.peek(key)
    if not part:
        return len(old or b"")
    _check_size(call, offset + len(part))
    value = bytearray((old or b"").ljust(offset, b"\0"))
    value[offset : offset + len(part)] = part
    call.keys.replace(key, old, bytes(value), SETRANGE)
    return len(value)


def _check_size(call: Call, size: int) -> None:
    if size > call.server.settings.proto_max_bulk_len:
        raise Refused("ERR string exceeds maximum allowed size (proto-max-bulk-len)")


@command("GETRANGE", arity=4, flags="readonly", keys=KeyRange(1), since="2.4.0",
         summary="A part of the value, from one place to another; negative ones count from its end.")  # fmt: skip
def getrange(call: Call) -> Reply:
    start, end = integer(call.args[2]), integer(call.args[3])
    value = call.keys.get(call.args[1]) or b""
    if end < start < 0:
        return b""
    found = places(start, end, len(value))
    return value[found.start : found.stop]


@command("SUBSTR", arity=4, flags="readonly", keys=KeyRange(1), since="1.0.0",
         summary="GETRANGE by its older name.")  # fmt: skip
def substr(call: Call) -> Reply:
    return getrange(call)


# --- counters -------------------------------------------------------------------------------------


@command("INCR", arity=2, flags="write denyoom fast", keys=KeyRange(1), since="1.0.0",
         summary="Adds one to a counter, which begins at 0.")  # fmt: skip
def incr(call: Call) -> Reply:
    return _add(call, 1)


@command("DECR", arity=2, flags="write denyoom fast", keys=KeyRange(1), since="1.0.0",
         summary="Takes one from a counter, which begins at 0.")  # fmt: skip
def decr(call: Call) -> Reply:
    return _add(call, -1)


@command("INCRBY", arity=3, flags="write denyoom fast", keys=KeyRange(1), since="1.0.0",
         summary="Adds a whole number to a counter, which begins at 0.")  # fmt: skip
def incrby(call: Call) -> Reply:
    return _add(call, integer(call.args[2]))


@command("DECRBY", arity=3, flags="write denyoom fast", keys=KeyRange(1), since="1.0.0",
         summary="Takes a whole number from a counter, which begins at 0.")  # fmt: skip
def decrby(call: Call) -> Reply:
    step = integer(call.args[2])
    if step == INTEGER_MIN:
        raise Refused("ERR decrement would overflow")
    return _add(call, -step)


def _add(call: Call, step: int) -> int:
    addition = call.keys.add(call.args[1], step)
    if addition.is_no_number:
        raise Refused(NOT_AN_INTEGER)
    if addition.is_out_of_range:
        raise Refused("ERR increment or decrement would overflow")
    return addition.total


@command("INCRBYFLOAT", arity=3, flags="write denyoom fast", keys=KeyRange(1), since="2.6.0",
         summary="Adds a number with decimals to a counter, which begins at 0.")  # fmt: skip
def incrbyfloat(call: Call) -> Reply:
    _, key, step = call.args
    old = call.keys.peek(key)
    number = longdouble.ZERO if old is None else longdouble.parse(old)
    total = longdouble.add(number, longdouble.parse(step))
    shown = longdouble.show(total)
    call.keys.replace(key, old, shown, INCRBYFLOAT)
    return shown
