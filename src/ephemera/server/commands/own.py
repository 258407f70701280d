"""Ephemera's own commands, about deadlines: PURGE, EXPIRYLAG, DEADLINES."""

from __future__ import annotations

from ephemera.core.row import NEVER_MS
from ephemera.resp.replies import Refused, Reply
from ephemera.server.arguments import NOT_AN_INTEGER, SYNTAX_ERROR, integer
from ephemera.server.session import Call
from ephemera.server.table import Group

command = Group("ephemera")

DEADLINES_SHOWN = 10


@command("PURGE", arity=-1, flags="write no_multi noscript", since="7.2.0",
         summary="Removes dead keys now, at most so many; how many went. It happens by itself too.")  # fmt: skip
def purge(call: Call) -> Reply:
    if len(call.args) > 2:
        raise Refused("ERR wrong number of arguments for 'purge' command")
    limit = _count(call.args[1]) if len(call.args) == 2 else None
    return call.server.store.purge_expired(limit)


@command("EXPIRYLAG", arity=1, flags="fast", since="7.2.0",
         summary="Milliseconds between the deadlines and the events of the keys that died last.")  # fmt: skip
def expirylag(call: Call) -> Reply:
    lag = call.server.expiry_lag.measured()
    next_ms = call.server.store.stats().get("next_deadline_ms", NEVER_MS)
    return {
        b"last": lag.last_ms,
        b"p50": lag.p50_ms,
        b"p99": lag.p99_ms,
        b"max": lag.max_ms,
        b"keys": lag.keys,
        b"next": None if next_ms == NEVER_MS else next_ms,
    }


@command("DEADLINES", arity=-1, flags="readonly", since="7.2.0",
         summary="What dies next in the current database: keys and deadlines in milliseconds. "
         "Reads every key.")  # fmt: skip
def deadlines(call: Call) -> Reply:
    options = call.args[1:]
    if options and (len(options) != 2 or options[0].lower() != b"count"):
        raise Refused(SYNTAX_ERROR)
    count = _count(options[1]) if options else DEADLINES_SHOWN
    return [
        [key, round(deadline.timestamp() * 1000)]
        for key, deadline in call.keys.space.next_deadlines(count)
    ]


def _count(argument: bytes) -> int:
    number = integer(argument)
    if number < 0:
        raise Refused(NOT_AN_INTEGER)
    return number
