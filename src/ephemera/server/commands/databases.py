"""Commands on whole databases: counting, finding and visiting keys, emptying, exchanging.

What they cost: SCAN, and KEYS with a pattern that begins with plain bytes, visit a range of the ordered
keys; RANDOMKEY goes from key to key a few dozen times at most; KEYS of anything, DBSIZE and
SWAPDB visit every key.
"""

from __future__ import annotations

import random
import re

from ephemera.resp.replies import OK, Refused, Reply
from ephemera.server.arguments import SYNTAX_ERROR, integer, integer32
from ephemera.server.database import Database
from ephemera.server.glob import glob, literal_prefix
from ephemera.server.session import Call
from ephemera.server.settings import DATABASES
from ephemera.server.table import Group

command = Group("generic")
server_command = Group("server")

CURSOR = re.compile(rb"[0-9]{1,20}")
SCAN_KEYS = 10
RANDOM_STEPS_MAX = 32


# --- finding keys ---------------------------------------------------------------------------------


@command("KEYS", arity=2, flags="readonly", since="1.0.0",
         tips="nondeterministic_output_order request_policy:all_shards",
         summary="All keys that match a pattern. SCAN does it in steps.")  # fmt: skip
def keys(call: Call) -> Reply:
    pattern = call.args[1]
    matches = glob(pattern).fullmatch
    return [key for key, _ in call.keys.scan(literal_prefix(pattern)) if matches(key)]


@command("SCAN", arity=-2, flags="readonly", since="2.8.0",
         tips="nondeterministic_output request_policy:special",
         summary="Some keys, and the cursor with which the next call goes on; 0 begins and ends.")  # fmt: skip
def scan(call: Call) -> Reply:
    """Keys come in their order, so one that is there all the while is always met."""
    cursor = _cursor(call.args[1])
    pattern, count, kind = _scan_options(call.args[2:])
    if kind.lower() != b"string":
        return [b"0", []]
    cursors, matches = call.server.cursors, glob(pattern).fullmatch
    start = cursors.find(cursor) if cursor else b""
    seen = [key for key, _ in call.keys.scan(literal_prefix(pattern), start=start, limit=count + 1)]
    following = cursors.add(seen.pop(), began_with=cursor) if len(seen) > count else 0
    return [b"%d" % following, [key for key in seen if matches(key)]]


def _cursor(argument: bytes) -> int:
    if not CURSOR.fullmatch(argument) or int(argument) >= 2**64:
        raise Refused("ERR invalid cursor")
    return int(argument)


def _scan_options(args: list[bytes]) -> tuple[bytes, int, bytes]:
    """The pattern, how many keys to visit, and the type."""
    pattern, count, kind = b"*", SCAN_KEYS, b"string"
    rest = iter(args)
    for given in rest:
        option, operand = given.lower(), next(rest, None)
        if operand is None:
            raise Refused(SYNTAX_ERROR)
        if option == b"count":
            count = integer(operand)
            if count < 1:
                raise Refused(SYNTAX_ERROR)
        elif option == b"match":
            pattern = operand
        elif option == b"type":
            kind = operand
        else:
            raise Refused(SYNTAX_ERROR)
    return pattern, count, kind


@command("RANDOMKEY", arity=1, flags="readonly", since="1.0.0",
         tips="nondeterministic_output request_policy:all_shards",
         summary="Any key.")  # fmt: skip
def randomkey(call: Call) -> Reply:
    return _random_key(call.keys)


def _random_key(database: Database) -> bytes | None:
    """Go down the keys as down a tree: at each fork, take any byte between the first and the last.

    Where the keys fork evenly all are equally likely; it never takes more than a few dozen steps.
    """
    prefix, first = b"", _first_two(database, b"", b"")
    for _ in range(RANDOM_STEPS_MAX):
        high = next((key for key, _ in database.scan(prefix, reverse=True, limit=1)), b"")
        if len(first) < 2 or first[0] >= high:
            break
        low, second = first
        fork = _shared(low, high)
        # A key that ends at the fork is a branch beside those that go on.
        least = second[len(fork)] - 1 if low == fork else low[len(fork)]
        byte = random.randint(least, high[len(fork)])
        if low == fork and byte == least:
            break
        first = _first_two(database, fork, fork + bytes([byte])) or first
        prefix = first[0][: len(fork) + 1]
    return first[0] if first else None


def _first_two(database: Database, prefix: bytes, start: bytes) -> list[bytes]:
    return [key for key, _ in database.scan(prefix, start=start, limit=2)]


def _shared(low: bytes, high: bytes) -> bytes:
    """What both begin with."""
    fork = next((at for at, byte in enumerate(low) if byte != high[at]), len(low))
    return low[:fork]


# --- databases as a whole -------------------------------------------------------------------------


@server_command("DBSIZE", arity=1, flags="readonly fast", since="1.0.0",
                tips="request_policy:all_shards response_policy:agg_sum",
                summary="How many keys are alive in the current database.")  # fmt: skip
def dbsize(call: Call) -> Reply:
    return call.keys.count()


@server_command("FLUSHDB", arity=-1, flags="write", since="1.0.0",
                tips="request_policy:all_shards response_policy:all_succeeded",
                summary="Takes every key of the current database away.")  # fmt: skip
def flushdb(call: Call) -> Reply:
    _check_flush(call.args)
    call.keys.clear()
    call.server.after_commit(call.server.tracking.flush)
    return OK


@server_command("FLUSHALL", arity=-1, flags="write", since="1.0.0",
                tips="request_policy:all_shards response_policy:all_succeeded",
                summary="Takes every key of every database away.")  # fmt: skip
def flushall(call: Call) -> Reply:
    _check_flush(call.args)
    for number in range(len(call.server.families)):
        call.server.database(number).clear()
    call.server.after_commit(call.server.tracking.flush)
    return OK


def _check_flush(args: list[bytes]) -> None:
    """SYNC and ASYNC mean the same here: a database is emptied at once and swept in the background."""
    if len(args) > 2 or (len(args) == 2 and args[1].lower() not in (b"sync", b"async")):
        raise Refused(SYNTAX_ERROR)


@server_command("SWAPDB", arity=3, flags="write fast", since="4.0.0",
                summary="Exchanges the keys of two databases.")  # fmt: skip
def swapdb(call: Call) -> Reply:
    numbers = []
    for argument, which in zip(call.args[1:], ("first", "second"), strict=True):
        try:
            numbers.append(integer32(argument))
        except Refused:
            raise Refused(f"ERR invalid {which} DB index") from None
    if not all(0 <= number < DATABASES for number in numbers):
        raise Refused("ERR DB index is out of range")
    with call.server.transaction():
        one, other = (call.server.database(number) for number in numbers)
        rows = list(one.all_stored())
        one.refill(list(other.all_stored()))
        other.refill(rows)
        call.server.after_commit(call.server.tracking.flush)
    return OK
