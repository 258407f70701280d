"""Commands about the server: what it can do, saving, and stopping it."""

from __future__ import annotations

from collections.abc import Iterable

from ephemera import __version__
from ephemera.resp.replies import NO_REPLY, OK, Refused, Reply, Simple, Unordered, Verbatim
from ephemera.server.arguments import SYNTAX_ERROR
from ephemera.server.busy import BUSY
from ephemera.server.glob import glob
from ephemera.server.session import Call
from ephemera.server.table import Command, Group, KeyRange

command = Group("server")

CATEGORIES_OF_FLAGS = {
    "readonly": "read",
    "write": "write",
    "admin": "admin",
    "pubsub": "pubsub",
    "blocking": "blocking",
}
CATEGORIES_OF_GROUPS = {
    "generic": "keyspace",
    "string": "string",
    "bitmap": "bitmap",
    "connection": "connection",
    "transactions": "transaction",
    "scripting": "scripting",
}


SAVE_IN_PROGRESS = "ERR Background save already in progress"
REWRITE_IN_PROGRESS = "ERR Background append only file rewriting already in progress"
REWRITE_FIRST = (
    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in "
    "order to schedule a BGSAVE whenever possible."
)

MORE_CATEGORIES = {
    "dbsize": ("keyspace",),
    "flushall": ("keyspace", "dangerous"),
    "flushdb": ("keyspace", "dangerous"),
    "info": ("dangerous",),
    "keys": ("dangerous",),
    "lastsave": ("admin", "dangerous"),
    "restore": ("dangerous",),
    "role": ("admin", "dangerous"),
    "swapdb": ("keyspace", "dangerous"),
}
"""What neither group nor flags say."""


@command("COMMAND", arity=-1, flags="loading stale", since="2.8.13",
         summary="What is declared about every command.")  # fmt: skip
def command_(call: Call) -> Reply:
    return [_details(each) for each in call.server.commands.top]


command.help("COMMAND", since="5.0.0")


@command("COMMAND COUNT", arity=2, flags="loading stale", since="2.8.13",
         summary="How many commands there are.")  # fmt: skip
def command_count(call: Call) -> Reply:
    return len(call.server.commands.top)


@command("COMMAND INFO", arity=-2, flags="loading stale", since="2.8.13",
         summary="What is declared about some commands.")  # fmt: skip
def command_info(call: Call) -> Reply:
    if len(call.args) == 2:
        return command_(call)
    found = [call.server.commands.named(name) for name in call.args[2:]]
    return [None if each is None else _details(each) for each in found]


@command("COMMAND DOCS", arity=-2, flags="loading stale", since="7.0.0",
         summary="What commands are for, since when.")  # fmt: skip
def command_docs(call: Call) -> Reply:
    commands = call.server.commands
    wanted = [commands.named(name) for name in call.args[2:]] if call.args[2:] else commands.top
    return {each.name.encode(): _docs(each) for each in wanted if each is not None}


@command("COMMAND GETKEYS", arity=-3, flags="loading stale", since="2.8.13",
         summary="Which arguments of a command are keys.")  # fmt: skip
def command_getkeys(call: Call) -> Reply:
    args = call.args[2:]
    asked = call.server.commands.named(b"|".join(args[:2])) or call.server.commands.named(args[0])
    if asked is None:
        raise Refused("ERR Invalid command specified")
    if asked.declaration.keys is None:
        raise Refused("ERR The command has no key arguments")
    if not asked.takes(len(args)):
        raise Refused("ERR Invalid number of arguments specified for command")
    return asked.declaration.keys.find(args)


@command("COMMAND LIST", arity=-2, flags="loading stale", since="7.0.0",
         summary="The names of all commands, or of those of a category or like a pattern.")  # fmt: skip
def command_list(call: Call) -> Reply:
    options = [option.lower() for option in call.args[2:4]] + call.args[4:]
    commands = list(call.server.commands.all.values())
    if options:
        if len(options) != 3 or options[0] != b"filterby":
            raise Refused(SYNTAX_ERROR)
        _, kind, wanted = options
        if kind == b"pattern":
            pattern = glob(wanted, ignores_case=True)
            commands = [each for each in commands if pattern.fullmatch(each.name.encode())]
        elif kind == b"aclcat":
            commands = [each for each in commands if wanted.decode("latin-1") in categories(each)]
        elif kind == b"module":
            commands = []
        else:
            raise Refused(SYNTAX_ERROR)
    return [each.name.encode() for each in commands]


# --- time, saving, the end ------------------------------------------------------------------------


@command("TIME", arity=1, flags="loading stale fast", since="2.6.0",
         summary="The server's time: seconds since 1970, and microseconds.")  # fmt: skip
def time(call: Call) -> Reply:
    now_ms = call.server.now_ms()
    return [b"%d" % (now_ms // 1000), b"%d" % (now_ms % 1000 * 1000)]


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


# --- how a command is described -------------------------------------------------------------------


def _details(each: Command) -> Reply:
    keys = each.declaration.keys
    flags = [
        *each.declaration.flags,
        *([] if isinstance(keys, KeyRange | None) else ["movablekeys"]),
    ]
    places = (
        (keys.first, keys.last or keys.first, keys.step)
        if isinstance(keys, KeyRange)
        else (0, 0, 0)
    )
    return [
        each.name.encode(),
        each.arity,
        _words(flags),
        *places,
        _words(f"@{category}" for category in categories(each)),
        [],  # tips: for clusters
        _key_specifications(each),
        [_details(subcommand) for subcommand in each.subcommands.values()],
    ]


def _docs(each: Command) -> Reply:
    about = {
        b"summary": each.declaration.summary.encode(),
        b"since": each.declaration.since.encode(),
        b"group": each.declaration.group.encode(),
    }
    if each.subcommands:
        inner = {
            subcommand.name.encode(): _docs(subcommand) for subcommand in each.subcommands.values()
        }
        return about | {b"subcommands": inner}
    return about


def categories(each: Command) -> list[str]:
    """The categories of access control that a command belongs to."""
    of_flags = [
        CATEGORIES_OF_FLAGS[flag] for flag in each.declaration.flags if flag in CATEGORIES_OF_FLAGS
    ]
    of_group = CATEGORIES_OF_GROUPS.get(each.declaration.group)
    speed = "fast" if "fast" in each.flags else "slow"
    dangerous = ["dangerous"] if "admin" in each.flags else []
    more = MORE_CATEGORIES.get(each.name, ())
    return [*of_flags, *([of_group] if of_group else []), speed, *dangerous, *more]


def _key_specifications(each: Command) -> Reply:
    keys = each.declaration.keys
    if keys is None:
        return []
    if isinstance(keys, KeyRange):
        # Counted from the first key on, or from the end.
        last = keys.last if keys.last < 0 else max(keys.last - keys.first, 0)
        begin, kind = keys.first, b"range"
        found = {b"lastkey": last, b"keystep": keys.step, b"limit": 0}
    else:
        begin, kind = keys.at, b"keynum"
        found = {b"keynumidx": 0, b"firstkey": 1, b"keystep": 1}
    return [
        {
            b"flags": _words(
                ["RW", "access", "update"] if "write" in each.flags else ["RO", "access"]
            ),
            b"begin_search": {b"type": b"index", b"spec": {b"index": begin}},
            b"find_keys": {b"type": kind, b"spec": found},
        }
    ]


def _words(words: Iterable[str]) -> Unordered:
    return Unordered(Simple(word.encode()) for word in words)
