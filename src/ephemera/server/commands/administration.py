"""Commands about the server: its time, saving, and stopping it."""

from __future__ import annotations

from ephemera import __version__
from ephemera.resp.replies import NO_REPLY, OK, Refused, Reply, Simple, Verbatim
from ephemera.server.arguments import SYNTAX_ERROR
from ephemera.server.busy import BUSY
from ephemera.server.session import Call
from ephemera.server.table import Group

command = Group("server")

SAVE_IN_PROGRESS = "ERR Background save already in progress"
REWRITE_IN_PROGRESS = "ERR Background append only file rewriting already in progress"
REWRITE_FIRST = (
    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in "
    "order to schedule a BGSAVE whenever possible."
)


@command("TIME", arity=1, flags="loading stale fast", since="2.6.0",
         tips="nondeterministic_output",
         summary="The server's time: seconds since 1970, and microseconds.")  # fmt: skip
def time(call: Call) -> Reply:
    seconds, micros = divmod(call.server.now.us(), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


@command("SAVE", arity=1, flags="admin noscript no_async_loading no_multi", since="1.0.0",
         summary="Writes exports/dump.rdb in the store's directory, while everybody waits.")  # fmt: skip
def save(call: Call) -> Reply:
    saving = call.server.saving
    if saving.running is saving.rdb:
        raise Refused(SAVE_IN_PROGRESS)
    saving.save(saving.rdb)
    return OK


@command("BGSAVE", arity=-1, flags="admin noscript no_async_loading", since="1.0.0",
         summary="As SAVE, in the background.")  # fmt: skip
def bgsave(call: Call) -> Reply:
    if [option.lower() for option in call.args[1:]] not in ([], [b"schedule"]):
        raise Refused(SYNTAX_ERROR)
    saving = call.server.saving
    saving.check_directory()
    if saving.running is saving.rdb:
        raise Refused(SAVE_IN_PROGRESS)
    if saving.running is saving.aof and len(call.args) == 1:
        raise Refused(REWRITE_FIRST)
    is_free = saving.running is None
    call.server.after_commit(lambda: saving.start(saving.rdb))
    return Simple(b"Background saving started" if is_free else b"Background saving scheduled")


@command("BGREWRITEAOF", arity=1, flags="admin noscript no_async_loading", since="1.0.0",
         summary="As BGSAVE, an append-only file: exports/appendonly.aof.")  # fmt: skip
def bgrewriteaof(call: Call) -> Reply:
    saving = call.server.saving
    saving.check_directory()
    if saving.running is saving.aof:
        raise Refused(REWRITE_IN_PROGRESS)
    word = b"started" if saving.running is None else b"scheduled"
    call.server.after_commit(lambda: saving.start(saving.aof))
    return Simple(b"Background append only file rewriting " + word)


@command("LASTSAVE", arity=1, flags="loading stale fast", since="1.0.0",
         tips="nondeterministic_output",
         summary="When dump.rdb was last written, in seconds since 1970.")  # fmt: skip
def lastsave(call: Call) -> Reply:
    return call.server.saving.saved_ms // 1000


@command("SHUTDOWN", arity=-1, flags="admin noscript loading stale no_multi allow_busy",
         since="1.0.0",
         summary="Stops the server; nothing is lost, whatever the options.")  # fmt: skip
def shutdown(call: Call) -> Reply:
    options = [option.lower() for option in call.args[1:]]
    is_known = set(options) <= {b"save", b"nosave", b"now", b"force", b"abort"}
    if not is_known or {b"save", b"nosave"} <= set(options):
        raise Refused(SYNTAX_ERROR)
    if b"abort" in options:
        if len(options) > 1:
            raise Refused(SYNTAX_ERROR)
        raise Refused("ERR No shutdown in progress.")
    if call.server.busy.is_on and b"nosave" not in options:
        raise Refused(BUSY)
    call.session.is_closing = True
    call.server.stop()
    return NO_REPLY


# --- trifles --------------------------------------------------------------------------------------

command.container("MODULE", since="4.0.0", summary="Modules, of which there are none.")


@command("MODULE LIST", arity=2, flags="admin noscript", since="4.0.0",
         tips="nondeterministic_output_order",
         summary="No modules: none can be loaded.")  # fmt: skip
def module_list(call: Call) -> Reply:
    return []


HOURGLASS = r"""
   _______
  (_______)
   \ ::: /
    \ : /
     ) (
    / . \
   / ::: \
  (_______)
"""


@command("LOLWUT", arity=-1, flags="readonly fast", since="5.0.0",
         summary="A small picture, and the version.")  # fmt: skip
def lolwut(call: Call) -> Reply:
    return Verbatim(f"{HOURGLASS}\nEphemera ver. {__version__}\n".encode())
