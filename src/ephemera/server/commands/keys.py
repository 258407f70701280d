"""Commands on single keys, whatever they hold: deleting, naming, copying, asking about them."""

from __future__ import annotations

from collections.abc import Iterator

from ephemera.core.expiry import is_dead
from ephemera.formats import rdb
from ephemera.resp.replies import OK, Refused, Reply, Simple
from ephemera.server.arguments import (
    INTEGER,
    INTEGER_MAX,
    INTEGER_MIN,
    SYNTAX_ERROR,
    database_number,
    integer,
)
from ephemera.server.database import PERMANENT, MovedFrom, StoredValue
from ephemera.server.events import COPY_TO, MOVE_FROM, MOVE_TO, RENAME_FROM, RENAME_TO, RESTORE
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("generic")

SAME_OBJECT = "ERR source and destination objects are the same"
EMBEDDED_BYTES_MAX = 44
SHARED_INTEGERS = 10_000
SHARED_REFCOUNT = 2**31 - 1
"""Up to here Redis keeps a value in one piece with its header."""


@command("DEL", arity=-2, flags="write", keys=KeyRange(1, -1, access="RM delete"), since="1.0.0",
         tips="request_policy:multi_shard response_policy:agg_sum",
         summary="Takes keys away; how many of them were there.")  # fmt: skip
def delete(call: Call) -> Reply:
    if len(call.args) == 2:
        return int(call.keys.delete(call.args[1]))
    return call.keys.delete_many(call.args[1:])


@command("UNLINK", arity=-2, flags="write fast",
         keys=KeyRange(1, -1, access="RM delete"), since="4.0.0",
         tips="request_policy:multi_shard response_policy:agg_sum",
         summary="DEL by another name: what a key held is given back in the background anyway.")  # fmt: skip
def unlink(call: Call) -> Reply:
    return delete(call)


@command("EXISTS", arity=-2, flags="readonly fast",
         keys=KeyRange(1, -1, access="RO"), since="1.0.0",
         tips="request_policy:multi_shard response_policy:agg_sum",
         summary="How many of these keys are there; one that is named twice counts twice.")  # fmt: skip
def exists(call: Call) -> Reply:
    return sum(call.keys.has(key) for key in call.args[1:])


@command("TOUCH", arity=-2, flags="readonly fast", keys=KeyRange(1, -1, access="RO"), since="3.2.1",
         tips="request_policy:multi_shard response_policy:agg_sum",
         summary="How many of these keys are there; reading changes nothing.")  # fmt: skip
def touch(call: Call) -> Reply:
    return exists(call)


@command("TYPE", arity=2, flags="readonly fast", keys=KeyRange(1, access="RO"), since="1.0.0",
         summary="What a key holds: string, or none without the key.")  # fmt: skip
def type_(call: Call) -> Reply:
    return Simple(b"string" if call.keys.has(call.args[1]) else b"none")


# --- under another name, in another place ---------------------------------------------------------


@command("RENAME", arity=3, flags="write",
         keys=(KeyRange(1, access="RW access delete"), KeyRange(2, access="OW update")), since="1.0.0",
         summary="Gives a key another name; a key that has that name goes.")  # fmt: skip
def rename(call: Call) -> Reply:
    _rename(call, replaces=True)
    return OK


@command("RENAMENX", arity=3, flags="write fast",
         keys=(KeyRange(1, access="RW access delete"), KeyRange(2, access="OW insert")), since="1.0.0",
         summary="Gives a key another name unless a key has that name.")  # fmt: skip
def renamenx(call: Call) -> Reply:
    return int(_rename(call, replaces=False))


def _rename(call: Call, *, replaces: bool) -> bool:
    _, key, name = call.args
    with call.server.transaction():
        keys = call.server.database(call.keys.number)
        stored = keys.stored(key)
        if stored is None:
            raise Refused("ERR no such key")
        is_taken = keys.stored(name) is not None
        if key == name or (is_taken and not replaces):
            return False
        keys.place(name, stored, RENAME_TO, source=MovedFrom(keys, key, RENAME_FROM))
        return True


@command("COPY", arity=-3, flags="write denyoom",
         keys=(KeyRange(1, access="RO access"), KeyRange(2, access="OW update")), since="6.2.0",
         summary="Copies a key with its deadline, to another database if so told.")  # fmt: skip
def copy(call: Call) -> Reply:
    key, name = call.args[1:3]
    number, replaces = call.keys.number, False
    rest = iter(call.args[3:])
    for given in rest:
        option = given.lower()
        if option == b"replace":
            replaces = True
        elif option == b"db" and (operand := next(rest, None)) is not None:
            number = database_number(operand)
        else:
            raise Refused(SYNTAX_ERROR)
    if key == name and number == call.keys.number:
        raise Refused(SAME_OBJECT)
    stored = call.keys.stored(key)
    call.keys.count_read(key, is_hit=stored is not None)
    target = call.server.database(number)
    if stored is None or (target.stored(name) is not None and not replaces):
        return 0
    target.place(name, stored, COPY_TO)
    return 1


@command("MOVE", arity=3, flags="write fast", keys=KeyRange(1), since="1.0.0",
         summary="Moves a key with its deadline to another database, unless it is there already.")  # fmt: skip
def move(call: Call) -> Reply:
    key, number = call.args[1], database_number(call.args[2])
    if number == call.keys.number:
        raise Refused(SAME_OBJECT)
    with call.server.transaction():
        source, target = call.server.database(call.keys.number), call.server.database(number)
        stored = source.stored(key)
        if stored is None or target.stored(key) is not None:
            return 0
        target.place(key, stored, MOVE_TO, source=MovedFrom(source, key, MOVE_FROM))
    return 1


# --- in and out as bytes --------------------------------------------------------------------------


@command("DUMP", arity=2, flags="readonly", keys=KeyRange(1), since="2.6.0",
         tips="nondeterministic_output",
         summary="The value in the form that RESTORE takes, here and in Redis.")  # fmt: skip
def dump(call: Call) -> Reply:
    value = call.keys.get(call.args[1])
    return None if value is None else rdb.dump(value)


@command("RESTORE", arity=-4, flags="write denyoom",
         keys=KeyRange(1, access="OW update"), since="2.6.0",
         summary="Stores what DUMP gave, with a lifetime in milliseconds, or 0 for none.")  # fmt: skip
def restore(call: Call) -> Reply:
    _, key, time, payload = call.args[:4]
    options = _restore_options(call.args[4:])
    if b"replace" not in options and call.keys.peek(key) is not None:
        raise Refused("BUSYKEY Target key name already exists.")
    time_ms = integer(time)
    if time_ms < 0:
        raise Refused("ERR Invalid TTL value, must be >= 0")
    value = _restored(payload)
    now_ms = call.keys.now_ms()
    deadline_ms = time_ms if b"absttl" in options else now_ms + time_ms
    if time_ms and is_dead(deadline_ms, now_ms):
        call.keys.delete(key)
    else:
        stored = StoredValue(value, deadline_ms if time_ms else PERMANENT, now_ms)
        call.keys.place(key, stored, RESTORE)
    return OK


def _restored(payload: bytes) -> bytes:
    try:
        return rdb.load(payload)
    except rdb.WrongFooter:
        raise Refused("ERR DUMP payload version or checksum are wrong") from None
    except rdb.Malformed:
        raise Refused("ERR Bad data format") from None


def _restore_options(args: list[bytes]) -> set[bytes]:
    """The options that are given. Of IDLETIME and FREQ nothing is kept: nothing here is evicted."""
    options: set[bytes] = set()
    rest = iter(args)
    for given in rest:
        option = given.lower()
        if option in (b"replace", b"absttl"):
            pass
        elif option == b"idletime" and b"freq" not in options:
            if _number(rest) < 0:
                raise Refused("ERR Invalid IDLETIME value, must be >= 0")
        elif option == b"freq" and b"idletime" not in options:
            if not 0 <= _number(rest) <= 255:
                raise Refused("ERR Invalid FREQ value, must be >= 0 and <= 255")
        else:
            raise Refused(SYNTAX_ERROR)
        options.add(option)
    return options


def _number(rest: Iterator[bytes]) -> int:
    operand = next(rest, None)
    if operand is None:
        raise Refused(SYNTAX_ERROR)
    return integer(operand)


# --- OBJECT ---------------------------------------------------------------------------------------

command.container("OBJECT", since="2.2.3", summary="Asks how a value is kept.")


@command("OBJECT ENCODING", arity=3, flags="readonly", keys=KeyRange(2, access="RO"), since="2.2.3",
         tips="nondeterministic_output",
         summary="How Redis would keep the value: int, embstr or raw.")  # fmt: skip
def object_encoding(call: Call) -> Reply:
    stored = _asked(call)
    if stored is None:
        return None
    value = stored.value
    if _is_integer(value):
        return b"int"
    return b"embstr" if len(value) <= EMBEDDED_BYTES_MAX else b"raw"


@command("OBJECT FREQ", arity=3, flags="readonly", keys=KeyRange(2, access="RO"), since="4.0.0",
         tips="nondeterministic_output",
         summary="Always refused: how often a key is read is not counted.")  # fmt: skip
def object_freq(call: Call) -> Reply:
    if _asked(call) is None:
        return None
    raise Refused(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note "
        "that when switching between policies at runtime LRU and LFU data will take some time to "
        "adjust."
    )


@command("OBJECT IDLETIME", arity=3, flags="readonly", keys=KeyRange(2, access="RO"), since="2.2.3",
         tips="nondeterministic_output",
         summary="The seconds since the value was written; reading leaves no trace.")  # fmt: skip
def object_idletime(call: Call) -> Reply:
    stored = _asked(call)
    return None if stored is None else (call.server.now_ms() - stored.written_ms) // 1000


@command("OBJECT REFCOUNT", arity=3, flags="readonly", keys=KeyRange(2, access="RO"), since="2.2.3",
         tips="nondeterministic_output",
         summary="As Redis: 2147483647 for an integer from 0 to 9999, which all keys share there, else 1.")  # fmt: skip
def object_refcount(call: Call) -> Reply:
    stored = _asked(call)
    if stored is None:
        return None
    is_shared = _is_integer(stored.value) and 0 <= int(stored.value) < SHARED_INTEGERS
    return SHARED_REFCOUNT if is_shared else 1


def _is_integer(value: bytes) -> bool:
    """Whether Redis would keep the value as an integer."""
    return bool(INTEGER.fullmatch(value)) and INTEGER_MIN <= int(value) <= INTEGER_MAX


def _asked(call: Call) -> StoredValue | None:
    """What the key in question holds; a miss is counted, and nobody is told of it."""
    stored = call.keys.stored(call.args[2])
    call.keys.count_read(call.args[2], is_hit=stored is not None, tells_miss=False)
    return stored
