"""Scripts in Lua. There are no libraries of functions: FUNCTION says so."""

from __future__ import annotations

from collections.abc import Callable

from ephemera.resp.replies import OK, Refused, Reply
from ephemera.server.arguments import integer
from ephemera.server.busy import BUSY
from ephemera.server.scripts import Script
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyCount

command = Group("scripting")

NO_LIBRARIES_DUMPED = b"\x0b\x004D\xe13\xf2\xe0KS"
"""What Redis 7.2 dumps where there are none: the version of the format, and a checksum of it."""


@command("EVAL", arity=-3, flags="noscript stale skip_monitor no_mandatory_keys", keys=KeyCount(2),
         since="2.6.0",
         summary="Runs a script as one transaction. While one takes longer than busy-reply-threshold, others "
                 "are told BUSY.")  # fmt: skip
def eval_(call: Call) -> Reply:
    return _run(call, call.server.scripts.load)


@command("EVAL_RO", arity=-3, flags="readonly noscript stale skip_monitor no_mandatory_keys",
         keys=KeyCount(2), since="7.0.0", summary="The same for a script that writes nothing.")  # fmt: skip
def eval_ro(call: Call) -> Reply:
    return _run(call, call.server.scripts.load, is_readonly=True)


@command("EVALSHA", arity=-3, flags="noscript stale skip_monitor no_mandatory_keys",
         keys=KeyCount(2), since="2.6.0", summary="Runs the known script with this SHA1.")  # fmt: skip
def evalsha(call: Call) -> Reply:
    return _run(call, call.server.scripts.find)


@command("EVALSHA_RO", arity=-3, flags="readonly noscript stale skip_monitor no_mandatory_keys",
         keys=KeyCount(2), since="7.0.0",
         summary="The same for a script that writes nothing.")  # fmt: skip
def evalsha_ro(call: Call) -> Reply:
    return _run(call, call.server.scripts.find, is_readonly=True)


def _run(call: Call, find: Callable[[bytes], Script], *, is_readonly: bool = False) -> Reply:
    count = integer(call.args[2])
    rest = call.args[3:]
    if count > len(rest):
        raise Refused("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise Refused("ERR Number of keys can't be negative")
    script = find(call.args[1])
    return call.server.scripts.run(
        call.session, script, rest[:count], rest[count:], is_readonly=is_readonly
    )


# --- SCRIPT ---------------------------------------------------------------------------------------

command.container("SCRIPT", since="2.6.0", summary="Keeps and forgets scripts.")


@command("SCRIPT LOAD", arity=3, flags="noscript stale", since="2.6.0",
         tips="request_policy:all_nodes response_policy:all_succeeded",
         summary="Keeps a script without running it; its SHA1.")  # fmt: skip
def script_load(call: Call) -> Reply:
    return call.server.scripts.load(call.args[2]).sha


@command("SCRIPT EXISTS", arity=-3, flags="noscript", since="2.6.0",
         tips="request_policy:all_shards response_policy:agg_logical_and",
         summary="Which of these SHA1s belong to known scripts.")  # fmt: skip
def script_exists(call: Call) -> Reply:
    return [int(call.server.scripts.knows(sha)) for sha in call.args[2:]]


@command("SCRIPT FLUSH", arity=-2, flags="noscript", since="2.6.0",
         tips="request_policy:all_nodes response_policy:all_succeeded",
         summary="Forgets all scripts.")  # fmt: skip
def script_flush(call: Call) -> Reply:
    options = [option.lower() for option in call.args[2:]]
    if options not in ([], [b"sync"], [b"async"]):
        raise Refused("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    call.server.scripts.flush()
    return OK


@command("SCRIPT KILL", arity=2, flags="noscript allow_busy", since="2.6.0",
         tips="request_policy:all_shards response_policy:one_succeeded",
         summary="Ends and undoes a script that takes longer than busy-reply-threshold.")  # fmt: skip
def script_kill(call: Call) -> Reply:
    call.server.scripts.kill()
    return OK


# --- FUNCTION -------------------------------------------------------------------------------------

command.container("FUNCTION", since="7.0.0", summary="Tells that there are no libraries.")


@command("FUNCTION LIST", arity=-2, flags="noscript", since="7.0.0",
         tips="nondeterministic_output_order",
         summary="The libraries: none.")  # fmt: skip
def function_list(call: Call) -> Reply:
    allowed = {b"withcode", b"libraryname"}
    options = iter(call.args[2:])
    for option in options:
        if option.lower() not in allowed:
            raise Refused(b"ERR Unknown argument %b" % option)
        allowed.remove(option.lower())
        if option.lower() == b"libraryname" and next(options, None) is None:
            raise Refused("ERR library name argument was not given")
    return []


@command("FUNCTION FLUSH", arity=-2, flags="write noscript", since="7.0.0",
         tips="request_policy:all_shards response_policy:all_succeeded",
         summary="Forgets all libraries.")  # fmt: skip
def function_flush(call: Call) -> Reply:
    if len(call.args) > 3:
        raise Refused(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try FUNCTION HELP."
            % call.args[1]
        )
    if len(call.args) == 3 and call.args[2].lower() not in (b"sync", b"async"):
        raise Refused("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


@command("FUNCTION DUMP", arity=2, flags="noscript", since="7.0.0",
         summary="All libraries, as Redis restores them.")  # fmt: skip
def function_dump(call: Call) -> Reply:
    return NO_LIBRARIES_DUMPED


@command("FUNCTION STATS", arity=2, flags="noscript allow_busy", since="7.0.0",
         tips="nondeterministic_output request_policy:all_shards response_policy:special",
         summary="Which function runs, and how many there are.")  # fmt: skip
def function_stats(call: Call) -> Reply:
    if call.server.busy.is_on:
        raise Refused(BUSY)
    return {
        b"running_script": None,
        b"engines": {b"LUA": {b"libraries_count": 0, b"functions_count": 0}},
    }
