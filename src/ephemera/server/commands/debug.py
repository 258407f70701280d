"""DEBUG: what test suites call, where `enable-debug-command` allows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

from ephemera.resp.replies import OK, BigNumber, Push, Refused, Reply, Simple, Unordered, Verbatim
from ephemera.server.session import Call
from ephemera.server.table import Group

command = Group("server")

PROTOCOL_TYPES = "string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false"
SAMPLES: dict[bytes, Reply] = {
    b"string": b"Hello World",
    b"integer": 12345,
    b"double": 3.141,
    b"bignum": BigNumber(b"1234567999999999999999999999999999999"),
    b"null": None,
    b"array": [0, 1, 2],
    b"set": Unordered([0, 1, 2]),
    b"map": {0: False, 1: True, 2: False},
    b"verbatim": Verbatim(b"This is a verbatim\nstring"),
    b"true": True,
    b"false": False,
}


@command("DEBUG", arity=-2, flags="admin noscript loading stale", since="1.0.0",
         summary="For tests: SLEEP, OBJECT, RELOAD, ERROR and others.")  # fmt: skip
def debug(call: Call) -> Reply:
    run, count = HANDLERS.get(call.args[1].lower(), (_agree, -1))
    if count != len(call.args) - 2 and run is not _reload:
        raise Refused(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try DEBUG HELP."
            % call.args[1]
        )
    return run(call)


def _show_help(call: Call) -> Reply:
    names = sorted(name.upper() for name in HANDLERS)
    first = b"DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    return [Simple(line) for line in (first, *names)]


def _sleep(call: Call) -> Reply:
    """Stop everything for so many seconds, as Redis does."""
    with suppress(ValueError, OverflowError):
        time.sleep(float(call.args[2]))
    return OK


def _object(call: Call) -> Reply:
    value = call.keys.get(call.args[2])
    if value is None:
        raise Refused("ERR no such key")
    return Simple(
        b"Value at:0x%012x refcount:1 encoding:raw serializedlength:%d lru:0 lru_seconds_idle:0"
        % (id(value), len(value))
    )


def _reload(call: Call) -> Reply:
    """Everything to the disk, whatever the options: a restart would bring nothing else."""
    call.server.store.sync()
    call.server.store.checkpoint()
    return OK


def _change_repl_id(call: Call) -> Reply:
    call.server.run_id = token_hex(20)
    return OK


def _error(call: Call) -> Reply:
    return Refused(call.args[2])


def _protocol(call: Call) -> Reply:
    wanted = call.args[2].lower()
    if wanted == b"attrib":
        # Redis sends an attribute before it, which says nothing.
        return b"Some real reply following the attribute"
    if wanted == b"push":
        call.session.push(Push([b"server-cpu-usage", 42]))
        return b"Some real reply following the push reply"
    if wanted not in SAMPLES:
        raise Refused(
            "ERR Wrong protocol type name. Please use one of the following: " + PROTOCOL_TYPES
        )
    return SAMPLES[wanted]


def _agree(call: Call) -> Reply:
    """For switches that change nothing here: a dead key is gone whether it was swept or not."""
    return OK


HANDLERS: dict[bytes, tuple[Callable[[Call], Reply], int]] = {
    b"help": (_show_help, 0),
    b"sleep": (_sleep, 1),
    b"object": (_object, 1),
    b"reload": (_reload, 0),
    b"loadaof": (_reload, 0),
    b"change-repl-id": (_change_repl_id, 0),
    b"error": (_error, 1),
    b"log": (_agree, 1),
    b"protocol": (_protocol, 1),
    b"set-active-expire": (_agree, 1),
    b"quicklist-packed-threshold": (_agree, 1),
    b"set-disable-deny-scripts": (_agree, 1),
}
"""By name, with how many arguments follow it."""
