"""CONFIG: the settings of the running server."""

from __future__ import annotations

from ephemera.resp.replies import OK, Refused, Reply
from ephemera.server.glob import glob
from ephemera.server.session import Call
from ephemera.server.settings import BadSetting
from ephemera.server.table import Group

command = Group("server")

command.container("CONFIG", since="2.0.0", summary="Reads and changes settings.")


@command("CONFIG GET", arity=-3, flags="admin noscript loading stale", since="2.0.0",
         summary="The settings whose names match one of the patterns.")  # fmt: skip
def config_get(call: Call) -> Reply:
    patterns = [glob(pattern, ignores_case=True) for pattern in call.args[2:]]
    return {
        name.encode(): text.encode(errors="surrogateescape")
        for name, text in call.server.settings.show().items()
        if any(pattern.fullmatch(name.encode()) for pattern in patterns)
    }


@command("CONFIG SET", arity=-4, flags="admin noscript loading stale", since="2.0.0",
         tips="request_policy:all_nodes response_policy:all_succeeded",
         summary="Changes settings, all that are named or none.")  # fmt: skip
def config_set(call: Call) -> Reply:
    words = [word.decode(errors="surrogateescape") for word in call.args[2:]]
    if len(words) % 2:
        raise Refused("ERR wrong number of arguments for 'config|set' command")
    server = call.server
    try:
        server.settings.change(zip(words[::2], words[1::2], strict=True))
    except BadSetting as bad:
        raise Refused(_complaint(bad).encode(errors="surrogateescape")) from None
    server.review()
    return OK


def _complaint(bad: BadSetting) -> str:
    if not bad.reason:
        return f"ERR Unknown option or number of arguments for CONFIG SET - '{bad.name}'"
    return f"ERR CONFIG SET failed (possibly related to argument '{bad.name}') - {bad.reason}"


@command("CONFIG RESETSTAT", arity=2, flags="admin noscript loading stale", since="2.0.0",
         summary="Sets the counters that INFO shows back to zero.")  # fmt: skip
def config_resetstat(call: Call) -> Reply:
    call.server.reset_counters()
    return OK


@command("CONFIG REWRITE", arity=2, flags="admin noscript loading stale", since="2.8.0",
         summary="Refused: there is no file of settings to write to.")  # fmt: skip
def config_rewrite(call: Call) -> Reply:
    raise Refused("ERR The server is running without a config file")
