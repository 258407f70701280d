"""Scripts: those that are known, by their SHA1, and how one is run.

A script is one transaction of the store, or a part of the one that EXEC runs. Where it fails, what it wrote
stays, as in Redis. Where it takes too much memory, or somebody sends SCRIPT KILL, it is ended and nothing of
it stays. Where it takes longer than `busy-reply-threshold`, others are served between its slices: see `busy`.

A script is interrupted every few milliseconds: see `_lua_guard`. One call of C is not, and neither is one command.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from hashlib import sha1
from sys import getsizeof
from typing import TYPE_CHECKING

from ephemera.core.clock import elapsed_ns
from ephemera.resp.encoder import double
from ephemera.resp.replies import Refused, Reply
from ephemera.server.lua import (
    KILOBYTES_MAX,
    Failed,
    Function,
    Lua,
    LuaValue,
)
from ephemera.server.lua_libraries import libraries
from ephemera.server.settings import REDIS_VERSION

if TYPE_CHECKING:
    from ephemera.server.server import Server
    from ephemera.server.session import Session
    from ephemera.server.table import Command

_log = logging.getLogger("ephemera.server")
LOG_LEVELS = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING)

CONSTANTS = {
    **{name: level for level, name in enumerate(("LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"))},
    "REPL_NONE": 0, "REPL_AOF": 1, "REPL_SLAVE": 2, "REPL_REPLICA": 2, "REPL_ALL": 3,
}  # fmt: skip
FLAGS = {b"no-writes", b"allow-oom", b"allow-stale", b"no-cluster", b"allow-cross-slot-keys"}
BY_HASH = {"evalsha", "evalsha_ro"}
WHOLE_MAX = 2**62
"""Whole numbers below this are passed to commands with all their digits."""
SLICE_NS = 5_000_000
"""How long a script that has passed the threshold runs before others are served again."""
NEVER_NS = 2**63 - 1
KILLED = "ERR Script killed by user with SCRIPT KILL..."
ALONE = "ERR Script ended and undone: its client is gone or the server stops"
TOO_LARGE = f"ERR Script ended and undone: it held more than {KILOBYTES_MAX} kilobytes"
WRONG_ARGUMENTS = Refused("ERR wrong number or type of arguments")


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was compiled. Its flags are None where it does not begin with `#!lua`."""

    sha: bytes
    function: Function
    flags: frozenset[bytes] | None

    @property
    def memory_bytes(self) -> int:
        """What is kept of it outside the interpreter."""
        return getsizeof(self) + getsizeof(self.sha)


@dataclass(slots=True)
class ScriptRun:
    """A script that is running."""

    session: Session
    slice_ends_ns: int
    is_readonly: bool
    protocol: int = 2
    end: str = ""
    """Why it has to end."""


class Scripts:
    """The scripts of a server. The interpreter is made when the first one comes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[bytes, Script] = {}
        self._lua: Lua | None = None
        self._running: ScriptRun | None = None

    # --- scripts by their hash ----------------------------------------------------------------

    def load(self, body: bytes) -> Script:
        """Keep a script. Raises Refused where it is none.

        Scripts take memory of the interpreter, which is bounded: where they take too much, all others are forgotten.
        """
        sha = sha1(body).hexdigest().encode()
        known = self._known.get(sha)
        if known is None:
            flags, code = _shebang(body)
            if self._interpreter().is_crowded:
                self.flush()
            try:
                function = self._interpreter().compile(code)
            except Failed as error:
                raise Refused(b"ERR Error compiling script (new function): " + error.text) from None
            known = self._known[sha] = Script(sha, function, flags)
        return known

    def find(self, sha: bytes) -> Script:
        """The script with this hash. Raises Refused where it is not known."""
        found = self._known.get(sha.lower())
        if found is None:
            raise Refused("NOSCRIPT No matching script. Please use EVAL.")
        return found

    def knows(self, sha: bytes) -> bool:
        return sha.lower() in self._known

    @property
    def count(self) -> int:
        """How many scripts are kept."""
        return len(self._known)

    @property
    def memory_bytes(self) -> int:
        """What is kept of all scripts outside the interpreter: of each the same."""
        return self.count * next((each.memory_bytes for each in self._known.values()), 0)

    @property
    def interpreter_bytes(self) -> int:
        """What the interpreter holds; 0 before the first script."""
        return 0 if self._lua is None else self._lua.memory_bytes

    def is_harmless(self, command: Command, args: list[bytes]) -> bool:
        """Whether a request runs a script that says of itself that it writes nothing."""
        if not command.is_script:
            return False
        if command.name in BY_HASH:
            known = self._known.get(args[1].lower())
            flags = known.flags if known is not None else None
        else:
            flags = _declared(args[1])
        return b"no-writes" in (flags or ())

    def flush(self) -> None:
        """Forget all scripts, and with them whatever the interpreter holds."""
        self._known.clear()
        self._lua = None

    def _interpreter(self) -> Lua:
        if self._lua is None:
            members = Api(self).members()
            self._lua = Lua(
                members,
                libraries,
                explain=_explain,
                look=self.has_to_end,
                check=self.check,
            )
        return self._lua

    # --- running ------------------------------------------------------------------------------

    @property
    def lua(self) -> Lua:
        """The interpreter, for what a script calls."""
        assert self._lua is not None  # made for the first script
        return self._lua

    @property
    def is_running(self) -> bool:
        """Whether the command under way is called by a script."""
        return self._running is not None and not self._server.busy.is_paused

    @property
    def running(self) -> ScriptRun:
        """The script that is running, for what it calls."""
        assert self._running is not None  # only a script calls
        return self._running

    def run(
        self,
        session: Session,
        script: Script,
        keys: list[bytes],
        arguments: list[bytes],
        *,
        is_readonly: bool,
    ) -> Reply:
        """What the script answers; a failure is an answer too."""
        if is_readonly and script.flags is not None and b"no-writes" not in script.flags:
            raise Refused("ERR Can not execute a script with write flag using *_ro command.")
        is_readonly = is_readonly or b"no-writes" in (script.flags or ())
        limit_ms = self._server.settings.busy_reply_threshold
        slice_ends_ns = elapsed_ns() + limit_ms * 1_000_000 if limit_ms else NEVER_NS
        call, db = session.call, session.db
        args, command = call.args, call.command
        self._running = ScriptRun(session, slice_ends_ns, is_readonly)
        if self._server.busy.is_ending:
            self._running.end = ALONE
        try:
            with self._server.transaction():
                session.select(db)
                return self._answer(script, keys, arguments)
        finally:
            self._running = None
            session.select(db)  # a script's SELECT ends with it
            call.args, call.command = args, command

    def _answer(self, script: Script, keys: list[bytes], arguments: list[bytes]) -> Reply:
        run = self.running
        place = b""
        # One that has to end before it began, since nobody waits for it, looks at once.
        self.lua.guard.set_slice(0 if run.end else run.slice_ends_ns)
        try:
            value = self.lua.run(script.function, keys, arguments)
            reply = self.lua.to_reply(value, run.protocol)
        except Failed as error:
            reply = Refused(error.text + _where(script, error.place))
            place = error.place
        except Refused as refused:  # by what made a reply of its value
            reply = Refused(refused.text)  # one without a traceback, which would keep that value
        if run.end:
            reply = Refused(run.end.encode() + _where(script, place))
            self._server.abandon(reply)
        return reply

    def has_to_end(self, is_large: bool) -> bool:
        """Look at the running script, which may hold too much; let others be served if its slice is over."""
        run = self.running
        if is_large:
            run.end = run.end or TOO_LARGE
        if not run.end and elapsed_ns() >= run.slice_ends_ns:
            if not self._server.busy.pause():
                run.end = run.end or ALONE
            run.slice_ends_ns = elapsed_ns() + SLICE_NS
            self.lua.guard.set_slice(run.slice_ends_ns)
        return bool(run.end)

    def check(self) -> None:
        """The look of what runs outside the interpreter. Raises Refused where the script has to end."""
        if self.has_to_end(is_large=False):
            raise Refused(self.running.end)

    def kill(self) -> None:
        """Let the script that others wait for end with its next slice. Raises Refused where there is none."""
        if self._running is None or not self._server.busy.is_on:
            raise Refused("NOTBUSY No scripts in execution right now.")
        self._running.end = KILLED


def _where(script: Script, place: bytes) -> bytes:
    return b" script: %b, on %b." % (script.sha, place) if place else b""


def _explain(error: object) -> bytes:
    """The text of an error that a function of ours raised."""
    if isinstance(error, Refused):
        return error.text
    if isinstance(error, TypeError | AttributeError) or not isinstance(error, BaseException):
        return WRONG_ARGUMENTS.text  # how Python refuses them, or a function that was thrown
    _log.error("a function called by a script failed", exc_info=error)
    return b"ERR internal error; the server's log has more"


def _shebang(body: bytes) -> tuple[frozenset[bytes] | None, bytes]:
    """The flags of a script that begins with `#!lua`, and its code, of which no line goes. Raises Refused."""
    if not body.startswith(b"#!"):
        return None, body
    line, newline, _ = body.partition(b"\n")
    if not newline:
        raise Refused("ERR Invalid script shebang")
    engine, *options = line.split()
    if engine != b"#!lua":
        raise Refused(b"ERR Unexpected engine in script shebang: %b" % engine)
    flags: set[bytes] = set()
    for option in options:
        if not option.startswith(b"flags="):
            raise Refused(b"ERR Unknown lua shebang option: %b" % option)
        flags.update(flag for flag in option.removeprefix(b"flags=").split(b",") if flag)
    for flag in flags - FLAGS:
        raise Refused(b"ERR Unexpected flag in script shebang: %b" % flag)
    return frozenset(flags), body[len(line) :]


def _declared(body: bytes) -> frozenset[bytes] | None:
    """The flags of a script that may be none."""
    try:
        return _shebang(body)[0]
    except Refused:
        return None


class Api:
    """What scripts find in `redis`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def members(self) -> dict[str, object]:
        major, minor, patch = map(int, REDIS_VERSION.split("."))
        return {
            "call": self.call,
            "error_reply": self.error_reply,
            "status_reply": self.status_reply,
            "sha1hex": self.sha1hex,
            "log": self.log,
            "setresp": self.setresp,
            "set_repl": self.set_repl,
            "replicate_commands": lambda *_: True,
            "breakpoint": lambda *_: False,
            "debug": lambda *_: None,
            "acl_check_cmd": self.acl_check_cmd,
            "REDIS_VERSION": REDIS_VERSION.encode(),
            "REDIS_VERSION_NUM": major << 16 | minor << 8 | patch,
            **CONSTANTS,
        }

    # --- commands -----------------------------------------------------------------------------

    def call(self, *arguments: LuaValue) -> LuaValue:
        reply = self._perform(arguments)
        if isinstance(reply, Refused):
            raise reply
        return self._scripts.lua.from_reply(reply, self._scripts.running.protocol)

    def _perform(self, arguments: tuple[LuaValue, ...]) -> Reply:
        run = self._scripts.running
        if not arguments:
            raise Refused("ERR Please specify at least one argument for this redis lib call")
        args = [_argument(each) for each in arguments]
        command = self._find(args)
        if command is None:
            raise Refused("ERR Unknown Redis command called from script")
        if not command.takes(len(args)):
            raise Refused("ERR Wrong number of args calling Redis command from script")
        if "noscript" in command.flags:
            raise Refused("ERR This Redis command is not allowed from script")
        if command.counts_as_write and run.is_readonly:
            raise Refused("ERR Write commands are not allowed from read-only scripts.")
        return run.session.run_inside(command, args)

    def _find(self, args: list[bytes]) -> Command | None:
        commands = self._scripts.running.session.server.commands
        command = commands.by_name.get(args[0].lower())
        if command is not None and command.subcommands and len(args) > 1:
            return command.subcommands.get(args[1].lower())
        return command

    def acl_check_cmd(self, *arguments: LuaValue) -> bool:
        if not arguments:
            raise Refused(
                "ERR Please specify at least one argument for this redis.acl_check_cmd() call"
            )
        if self._find([_argument(each) for each in arguments]) is None:
            raise Refused("ERR Invalid command passed to redis.acl_check_cmd()")
        return True

    # --- the rest -----------------------------------------------------------------------------

    def error_reply(self, *arguments: LuaValue) -> LuaValue:
        if len(arguments) != 1 or not isinstance(arguments[0], bytes):
            return self._scripts.lua.from_reply(WRONG_ARGUMENTS, 2)
        text = arguments[0].removeprefix(b"-")
        return self._scripts.lua.table({b"err": text if b" " in text else b"ERR " + text})

    def status_reply(self, *arguments: LuaValue) -> LuaValue:
        if len(arguments) != 1 or not isinstance(arguments[0], bytes):
            return self._scripts.lua.from_reply(WRONG_ARGUMENTS, 2)
        return self._scripts.lua.table({b"ok": arguments[0]})

    def sha1hex(self, *arguments: LuaValue) -> bytes:
        if len(arguments) != 1:
            raise Refused("ERR wrong number of arguments")
        text = arguments[0]
        # What is no text and no number counts as empty.
        data = _argument(text) if isinstance(text, bytes | int | float) else b""
        return sha1(data).hexdigest().encode()

    def log(self, *arguments: LuaValue) -> None:
        if len(arguments) < 2:
            raise Refused("ERR redis.log() requires two arguments or more.")
        level, *words = arguments
        if type(level) is not int:
            raise Refused("ERR First argument must be a number (log level).")
        if not 0 <= level < len(LOG_LEVELS):
            raise Refused("ERR Invalid debug level.")
        text = b" ".join(word for word in words if isinstance(word, bytes))
        _log.log(LOG_LEVELS[level], "%s", text.decode(errors="replace"))

    def setresp(self, *arguments: LuaValue) -> None:
        if len(arguments) != 1:
            raise Refused("ERR redis.setresp() requires one argument.")
        if arguments[0] not in (2, 3):
            raise Refused("ERR RESP version must be 2 or 3.")
        self._scripts.running.protocol = arguments[0]

    def set_repl(self, *arguments: LuaValue) -> None:
        """There is nobody to replicate to."""
        if len(arguments) != 1:
            raise Refused("ERR redis.set_repl() requires two arguments.")


def _argument(value: LuaValue) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        is_short = number.is_integer() and abs(number) < WHOLE_MAX
        return b"%d" % number if is_short else double(number)
    raise Refused("ERR Lua redis lib command arguments must be strings or integers")
