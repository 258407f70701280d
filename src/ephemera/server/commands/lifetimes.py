"""Commands on how long keys live: setting, asking and lifting deadlines, exact to the millisecond."""

from __future__ import annotations

from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.resp.replies import Refused, Reply
from ephemera.server.arguments import INTEGER_MIN, integer
from ephemera.server.database import ABSENT, PERMANENT
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("generic")

CONDITIONS = {b"nx", b"xx", b"gt", b"lt"}


@command("EXPIRE", arity=-3, flags="write fast",
         keys=KeyRange(1, access="RW update"), since="1.0.0",
         summary="Lets a key live for so many seconds from now on, on conditions if so told.")  # fmt: skip
def expire(call: Call) -> Reply:
    return _expire(call, unit_ms=1000, from_ms=call.keys.now_ms())


@command("PEXPIRE", arity=-3, flags="write fast",
         keys=KeyRange(1, access="RW update"), since="2.6.0",
         summary="Lets a key live for so many milliseconds from now on, on conditions if so told.")  # fmt: skip
def pexpire(call: Call) -> Reply:
    return _expire(call, unit_ms=1, from_ms=call.keys.now_ms())


@command("EXPIREAT", arity=-3, flags="write fast",
         keys=KeyRange(1, access="RW update"), since="1.2.0",
         summary="Lets a key live until an instant in seconds, on conditions if so told.")  # fmt: skip
def expireat(call: Call) -> Reply:
    return _expire(call, unit_ms=1000, from_ms=0)


@command("PEXPIREAT", arity=-3, flags="write fast",
         keys=KeyRange(1, access="RW update"), since="2.6.0",
         summary="Lets a key live until an instant in milliseconds, on conditions if so told.")  # fmt: skip
def pexpireat(call: Call) -> Reply:
    return _expire(call, unit_ms=1, from_ms=0)


def _expire(call: Call, *, unit_ms: int, from_ms: int) -> Reply:
    key, number = call.args[1:3]
    conditions = _conditions(call.args[3:])
    time_ms = integer(number) * unit_ms
    if not INTEGER_MIN <= time_ms <= DEADLINE_MS_MAX - from_ms:
        raise Refused(f"ERR invalid expire time in '{call.command.name}' command")
    deadline_ms = from_ms + time_ms
    if conditions:
        old_ms = call.keys.deadline_ms(key)
        if old_ms == ABSENT or not _allow(conditions, old_ms, deadline_ms):
            return 0
    return int(call.keys.expire(key, deadline_ms))


def _conditions(args: list[bytes]) -> set[bytes]:
    for given in args:
        if given.lower() not in CONDITIONS:
            raise Refused(b"ERR Unsupported option %b" % given)
    conditions = {given.lower() for given in args}
    if b"nx" in conditions and len(conditions) > 1:
        raise Refused("ERR NX and XX, GT or LT options at the same time are not compatible")
    if conditions >= {b"gt", b"lt"}:
        raise Refused("ERR GT and LT options at the same time are not compatible")
    return conditions


def _allow(conditions: set[bytes], old_ms: int, new_ms: int) -> bool:
    """Whether a key with this deadline may get that one; having none counts as the latest of all."""
    if old_ms == PERMANENT:
        return conditions <= {b"nx", b"lt"}
    is_refused = (
        b"nx" in conditions
        or (b"gt" in conditions and new_ms <= old_ms)
        or (b"lt" in conditions and new_ms >= old_ms)
    )
    return not is_refused


@command("PERSIST", arity=2, flags="write fast",
         keys=KeyRange(1, access="RW update"), since="2.2.0",
         summary="Takes a key's deadline away; whether there was one.")  # fmt: skip
def persist(call: Call) -> Reply:
    return int(call.keys.persist(call.args[1]))


# --- asking ---------------------------------------------------------------------------------------


@command("TTL", arity=2, flags="readonly fast", keys=KeyRange(1), since="1.0.0",
         tips="nondeterministic_output",
         summary="The seconds that a key has left; -1 without a deadline, -2 without the key.")  # fmt: skip
def ttl(call: Call) -> Reply:
    return _seconds(_counted(call, call.keys.ttl_ms(call.args[1])))


@command("PTTL", arity=2, flags="readonly fast", keys=KeyRange(1), since="2.6.0",
         tips="nondeterministic_output",
         summary="The milliseconds that a key has left; -1 without a deadline, -2 without the key.")  # fmt: skip
def pttl(call: Call) -> Reply:
    return _counted(call, call.keys.ttl_ms(call.args[1]))


@command("EXPIRETIME", arity=2, flags="readonly fast", keys=KeyRange(1), since="7.0.0",
         summary="When a key dies, in seconds; -1 without a deadline, -2 without the key.")  # fmt: skip
def expiretime(call: Call) -> Reply:
    return _seconds(_counted(call, call.keys.deadline_ms(call.args[1])))


@command("PEXPIRETIME", arity=2, flags="readonly fast", keys=KeyRange(1), since="7.0.0",
         summary="When a key dies, in milliseconds; -1 without a deadline, -2 without the key.")  # fmt: skip
def pexpiretime(call: Call) -> Reply:
    return _counted(call, call.keys.deadline_ms(call.args[1]))


def _counted(call: Call, milliseconds: int) -> int:
    """The answer, once the question is counted as a read of the key."""
    call.keys.count_read(call.args[1], is_hit=milliseconds != ABSENT)
    return milliseconds


def _seconds(milliseconds: int) -> int:
    """To the nearest second; ABSENT and PERMANENT are what they are."""
    return milliseconds if milliseconds < 0 else (milliseconds + 500) // 1000
