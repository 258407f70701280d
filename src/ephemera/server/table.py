"""The one table of commands. A handler is declared where it stands, and nothing is said twice.

    command = Group("string")

    @command("GET", arity=2, flags="readonly fast", keys=KeyRange(1), since="1.0.0", summary="…")
    def get(call: Call) -> Reply: ...

Flags are those of Redis's COMMAND. The arity counts the command's name; a negative one is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from ephemera import InvalidArgument
from ephemera.resp.replies import Refused, Reply, Simple
from ephemera.server._direct import CommandStats, Names
from ephemera.server._in_place import bind

if TYPE_CHECKING:
    from ephemera.server.session import Call

Handler = Callable[["Call"], Reply]

ARGUMENTS_SHOWN_MAX = 128
PROTECTED = {"debug"}
"""Commands that a setting allows, or does not."""
COUNTS_AS_WRITE = {"publish", "spublish"}
"""What changes no key, and yet something for others. Redis has a flag for it that COMMAND does not show."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from one position to another; a negative `last` counts from the end.

    `access` is what the command does to them, in the words of Redis's key specifications; without it, the
    command's own flags say so.
    """

    first: int
    last: int = 0
    step: int = 1
    access: str = ""

    def find(self, args: list[bytes]) -> list[bytes]:
        last = self.last or self.first
        return args[self.first : (last if last > 0 else len(args) + last) + 1 : self.step]


@dataclass(frozen=True, slots=True)
class KeyCount:
    """As many keys as the argument at this position says, right after it."""

    at: int
    access: str = ""

    def find(self, args: list[bytes]) -> list[bytes]:
        count = int(args[self.at]) if len(args) > self.at and args[self.at].isdigit() else -1
        if not 0 <= count <= len(args) - self.at - 1:
            raise Refused("ERR Invalid arguments specified for command")
        return args[self.at + 1 : self.at + 1 + count]


Keys = tuple[KeyRange | KeyCount, ...]


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is said about a command; the name of a subcommand is `container|subcommand`.

    `tips` are Redis's hints to cluster clients: where to send a request, and how to join the replies.
    """

    name: str
    arity: int
    flags: tuple[str, ...]
    keys: Keys
    group: str
    since: str
    summary: str
    handler: Handler
    tips: tuple[str, ...] = ()


TABLE: dict[str, Declaration] = {}
"""Every declaration by its name, in lower case; filled as the modules of handlers are imported."""


def _subcommands_alone(call: Call) -> Reply:
    raise AssertionError(f"{call.command.name} is called by its subcommands alone")


class Group:
    """Declares the commands of a group, as a decorator of their handlers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self,
        name: str,
        *,
        arity: int,
        since: str,
        summary: str,
        flags: str = "",
        keys: KeyRange | KeyCount | Keys = (),
        tips: str = "",
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            ranges = keys if isinstance(keys, tuple) else (keys,)
            self._add(name, arity, flags, since, summary, handler, keys=ranges, tips=tips)
            return handler

        return declare

    def container(self, name: str, *, since: str, summary: str) -> None:
        """A command that is nothing but its subcommands."""
        self._add(name, -2, "", since, summary, _subcommands_alone)
        self.help(name, since=since)

    def help(self, name: str, *, since: str) -> None:
        """The subcommand HELP, which says what the others are for."""
        self._add(f"{name} HELP", 2, "loading stale", since, "What there is.", _show_help)

    def _add(
        self,
        name: str,
        arity: int,
        flags: str,
        since: str,
        summary: str,
        handler: Handler,
        *,
        keys: Keys = (),
        tips: str = "",
    ) -> None:
        name = name.lower().replace(" ", "|")
        assert name not in TABLE, f"{name} is declared twice"
        TABLE[name] = Declaration(
            name,
            arity,
            tuple(flags.split()),
            keys,
            self.name,
            since,
            summary,
            handler,
            tuple(tips.split()),
        )


class Command(CommandStats):
    """A command of a running server: its declaration, its subcommands, and what it has done so far."""

    __slots__ = (
        "arity",
        "declaration",
        "flags",
        "is_protected",
        "is_tracked",
        "name",
        "subcommands",
    )

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.arity = declaration.arity
        self.flags = frozenset(declaration.flags)
        self.handler = declaration.handler
        self.subcommands: dict[bytes, Command] = {}
        self.is_write = "write" in self.flags or (self.is_script and "readonly" not in self.flags)
        # The keys of a script are tracked by the commands that it calls.
        self.is_tracked = "readonly" in self.flags and not self.is_script
        self.is_protected = self.name in PROTECTED
        # What the session compares with first; a container's own arity never sends it to a handler, a
        # script needs a stack first, and a protected command has to be allowed.
        self.direct_arity = 0 if self.is_script or self.is_protected else self.arity

    def add(self, subcommand: Command) -> None:
        self.subcommands[subcommand.name.partition("|")[2].encode()] = subcommand
        self.direct_arity = 0

    @property
    def is_script(self) -> bool:
        """Whether it runs one: MONITOR shows it before the commands inside it."""
        return "skip_monitor" in self.flags

    @property
    def counts_as_write(self) -> bool:
        """Whether a pause of writes holds it, and scripts that only read may not call it."""
        return self.is_write or self.name in COUNTS_AS_WRITE

    def keys_of(self, args: list[bytes]) -> list[bytes]:
        """The keys that a request names."""
        return [key for keys in self.declaration.keys for key in keys.find(args)]

    def takes(self, count: int) -> bool:
        """Whether it can be called with so many arguments, its name among them."""
        return count == self.arity or -count <= self.arity < 0


NO_COMMAND = Command(Declaration("NULL", 0, (), (), "", "", "", _subcommands_alone))
"""What a client that has asked nothing yet has asked."""


class Commands:
    """The commands of one server, by the names it gives them.

    `by_name` finds those written in lower or upper case at once; `find` all others too; `in_place` those
    that compiled code answers.
    """

    def __init__(self, renamed: dict[str, str]) -> None:
        """Raises InvalidArgument for a new name that is taken, or of a command that there is not."""
        self.all = {name: Command(declared) for name, declared in declarations().items()}
        self.by_name: dict[bytes, Command] = {}
        names = {old.lower(): new.lower() for old, new in renamed.items()}
        for name, command in self.all.items():
            container, _, subcommand = name.partition("|")
            if subcommand:
                self.all[container].add(command)
            elif (known_as := names.pop(name, name).encode()) in self.by_name:
                raise InvalidArgument(f"two commands cannot both be {known_as.decode()!r}")
            elif known_as:
                self.by_name[known_as] = command
        if names:
            raise InvalidArgument(f"there is no command {next(iter(names))!r} to rename")
        self.by_name |= {name.upper(): command for name, command in self.by_name.items()}
        bind(self.all)
        self.in_place = Names(self.by_name)

    @property
    def top(self) -> list[Command]:
        """Those that are no subcommands and have a name here."""
        return list(dict.fromkeys(self.by_name.values()))

    def named(self, name: bytes) -> Command | None:
        """The command of this name, a subcommand's written `container|subcommand`, or None."""
        container, _, subcommand = name.lower().partition(b"|")
        command = self.by_name.get(container)
        return command.subcommands.get(subcommand) if command and subcommand else command

    def find(self, args: list[bytes]) -> Command:
        """The command, or subcommand, that a request names. Raises Refused as Redis words it."""
        command = self.by_name.get(args[0]) or self.by_name.get(args[0].lower())
        if command is None:
            raise Refused(_unknown(args))
        if command.subcommands and len(args) > 1:
            subcommand = command.subcommands.get(args[1].lower())
            if subcommand is None:
                raise Refused(
                    b"ERR unknown subcommand '%b'. Try %b HELP."
                    % (_shown(args[1]), command.name.upper().encode())
                )
            command = subcommand
        if not command.takes(len(args)):
            command.rejected += 1
            raise Refused(f"ERR wrong number of arguments for '{command.name}' command")
        return command


def declarations() -> dict[str, Declaration]:
    """The whole table: every module of `commands` is loaded first."""
    from ephemera.server import commands

    for module in iter_modules(commands.__path__):
        import_module(f"{commands.__name__}.{module.name}")
    return TABLE


def _show_help(call: Call) -> Reply:
    name = call.command.name.partition("|")[0]
    lines = [f"{name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for subcommand in call.server.commands.all[name].subcommands.values():
        lines.append(subcommand.name.partition("|")[2].upper())
        lines.append(f"    {subcommand.declaration.summary}")
    return [Simple(line.encode()) for line in lines]


def _unknown(args: list[bytes]) -> bytes:
    shown = b""
    for argument in args[1:]:
        if len(shown) >= ARGUMENTS_SHOWN_MAX:
            break
        shown += b"'%b' " % _shown(argument)[: ARGUMENTS_SHOWN_MAX - len(shown)]
    return b"ERR unknown command '%b', with args beginning with: %b" % (_shown(args[0]), shown)


def _shown(argument: bytes) -> bytes:
    """As much of an argument as an error repeats; Redis stops at a zero byte too."""
    return argument[:ARGUMENTS_SHOWN_MAX].partition(b"\0")[0]
