"""COMMAND: what the table declares about every command, in the shape that clients read."""

from __future__ import annotations

from collections.abc import Iterable

from ephemera.resp.replies import Refused, Reply, Simple, Unordered
from ephemera.server.arguments import SYNTAX_ERROR
from ephemera.server.commands.bitfield import WRITING, split
from ephemera.server.glob import glob
from ephemera.server.session import Call
from ephemera.server.table import Command, Group, KeyCount, KeyRange

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

CATEGORIES_OF_NAMES = {
    "asking": ("connection",),
    "command": ("connection",),
    "dbsize": ("keyspace",),
    "flushall": ("keyspace", "dangerous"),
    "flushdb": ("keyspace", "dangerous"),
    "info": ("dangerous",),
    "keys": ("keyspace", "dangerous"),
    "lastsave": ("admin", "dangerous"),
    "readonly": ("connection",),
    "readwrite": ("connection",),
    "restore": ("keyspace", "dangerous"),
    "role": ("admin", "dangerous"),
    "swapdb": ("keyspace", "dangerous"),
    "wait": ("connection",),
    "waitaof": ("connection",),
}
"""Commands, with their subcommands, whose categories are not those of their group."""


@command("COMMAND", arity=-1, flags="loading stale", since="2.8.13",
         tips="nondeterministic_output_order",
         summary="What is declared about every command.")  # fmt: skip
def command_(call: Call) -> Reply:
    return [_details(each) for each in call.server.commands.top]


command.help("COMMAND", since="5.0.0")


@command("COMMAND COUNT", arity=2, flags="loading stale", since="2.8.13",
         summary="How many commands there are.")  # fmt: skip
def command_count(call: Call) -> Reply:
    return len(call.server.commands.top)


@command("COMMAND INFO", arity=-2, flags="loading stale", since="2.8.13",
         tips="nondeterministic_output_order",
         summary="What is declared about some commands.")  # fmt: skip
def command_info(call: Call) -> Reply:
    if len(call.args) == 2:
        return command_(call)
    found = [call.server.commands.named(name) for name in call.args[2:]]
    return [None if each is None else _details(each) for each in found]


@command("COMMAND DOCS", arity=-2, flags="loading stale", since="7.0.0",
         tips="nondeterministic_output_order",
         summary="What commands are for, since when.")  # fmt: skip
def command_docs(call: Call) -> Reply:
    commands = call.server.commands
    wanted = [commands.named(name) for name in call.args[2:]] if call.args[2:] else commands.top
    return {each.name.encode(): _docs(each) for each in wanted if each is not None}


@command("COMMAND GETKEYS", arity=-3, flags="loading stale", since="2.8.13",
         summary="Which arguments of a command are keys.")  # fmt: skip
def command_getkeys(call: Call) -> Reply:
    asked, args = _asked_about(call)
    return asked.keys_of(args)


@command("COMMAND GETKEYSANDFLAGS", arity=-3, flags="loading stale", since="7.0.0",
         summary="Which arguments of a command are keys, and what it does to each.")  # fmt: skip
def command_getkeysandflags(call: Call) -> Reply:
    asked, args = _asked_about(call)
    return [
        [key, _words(_access(asked, keys, args))]
        for keys in asked.declaration.keys
        for key in keys.find(args)
    ]


def _asked_about(call: Call) -> tuple[Command, list[bytes]]:
    """The command that a request asks about, and that command's arguments."""
    args = call.args[2:]
    asked = call.server.commands.named(b"|".join(args[:2])) or call.server.commands.named(args[0])
    if asked is None:
        raise Refused("ERR Invalid command specified")
    if not asked.declaration.keys:
        raise Refused("ERR The command has no key arguments")
    if not asked.takes(len(args)):
        raise Refused("ERR Invalid number of arguments specified for command")
    return asked, args


@command("COMMAND LIST", arity=-2, flags="loading stale", since="7.0.0",
         tips="nondeterministic_output_order",
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


# --- how a command is described -------------------------------------------------------------------


def _details(each: Command) -> Reply:
    keys = each.declaration.keys
    flags = [*each.declaration.flags, *(["movablekeys"] if _has_key_count(each) else [])]
    return [
        each.name.encode(),
        each.arity,
        _words(flags),
        *_key_range(each),
        _words(f"@{category}" for category in categories(each)),
        _words(each.declaration.tips),
        [_key_specification(each, spec) for spec in keys],
        [_details(subcommand) for subcommand in each.subcommands.values()],
    ]


def _has_key_count(each: Command) -> bool:
    return any(isinstance(keys, KeyCount) for keys in each.declaration.keys)


def _key_range(each: Command) -> tuple[int, int, int]:
    """First, last and step of all keys together, for clients that know no key specifications."""
    ranges = [keys for keys in each.declaration.keys if isinstance(keys, KeyRange)]
    if not ranges:
        return 0, 0, 0
    return ranges[0].first, ranges[-1].last or ranges[-1].first, ranges[0].step


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
    """The categories of access control that a command belongs to, as Redis assigns them."""
    speed = "fast" if "fast" in each.flags else "slow"
    if each.subcommands and each.arity == -2:
        return [speed]
    group = each.declaration.group
    of_flags = [
        CATEGORIES_OF_FLAGS[flag]
        for flag in each.declaration.flags
        if flag in CATEGORIES_OF_FLAGS and not (flag == "readonly" and group == "scripting")
    ]
    of_name = CATEGORIES_OF_NAMES.get(each.name.partition("|")[0])
    of_group = CATEGORIES_OF_GROUPS.get(group)
    more = of_name if of_name is not None else (of_group,) if of_group else ()
    dangerous = ["dangerous"] if "admin" in each.flags else []
    return list(dict.fromkeys([*of_flags, *more, speed, *dangerous]))


def _access(each: Command, keys: KeyRange | KeyCount, args: list[bytes]) -> list[str]:
    """What a command does to these keys when it has these arguments."""
    access = _declared_access(each, keys)
    if "variable_flags" in access:
        return VARIABLE_ACCESS[each.name](args).split()
    return access


def _declared_access(each: Command, keys: KeyRange | KeyCount) -> list[str]:
    reads = "readonly" in each.flags
    return (keys.access or ("RO access" if reads else "RW access update")).split()


def _access_of_set(args: list[bytes]) -> str:
    has_get = b"get" in (argument.lower() for argument in args[3:])
    return "RW access update" if has_get else "OW update"


def _access_of_bitfield(args: list[bytes]) -> str:
    try:
        is_write = any(name in WRITING for name, _ in split(args[2:]))
    except Refused:
        is_write = True
    return "RW access update" if is_write else "RO access"


VARIABLE_ACCESS = {"bitfield": _access_of_bitfield, "set": _access_of_set}


def _key_specification(each: Command, keys: KeyRange | KeyCount) -> Reply:
    if isinstance(keys, KeyRange):
        # Counted from the first key on, or from the end.
        last = keys.last if keys.last < 0 else max(keys.last - keys.first, 0)
        begin, kind = keys.first, b"range"
        found = {b"lastkey": last, b"keystep": keys.step, b"limit": 0}
    else:
        begin, kind = keys.at, b"keynum"
        found = {b"keynumidx": 0, b"firstkey": 1, b"keystep": 1}
    return {
        b"flags": _words(_declared_access(each, keys)),
        b"begin_search": {b"type": b"index", b"spec": {b"index": begin}},
        b"find_keys": {b"type": kind, b"spec": found},
    }


def _words(words: Iterable[str]) -> Unordered:
    return Unordered(Simple(word.encode()) for word in words)
