"""One client without I/O: bytes in, bytes out, and what the server knows about it.

While nothing is special about the session (`is_direct`), a request is answered in place (`is_in_place`: unless
its reads are tracked) or goes from the table straight to its handler, however it arrived: that is
`RequestLoop`, in `_direct.pyx`. Otherwise `answer_specially` decides first.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator

from ephemera import EphemeraError, ReadOnly, StoreFull
from ephemera.core.clock import elapsed_ns
from ephemera.core.nonblocking import nonblocking
from ephemera.resp.encoder import encode
from ephemera.resp.parser import Limits, Parser, Request
from ephemera.resp.replies import NO_REPLY, Pushes, Refused, Reply, Simple
from ephemera.server._direct import OUTPUT_BYTES_PAUSE, POSTPONED, Call, RequestLoop
from ephemera.server.busy import BUSY
from ephemera.server.monitor import show
from ephemera.server.server import Server
from ephemera.server.table import NO_COMMAND, Command

_log = logging.getLogger("ephemera.server")

__all__ = ["OUTPUT_BYTES_PAUSE", "Call", "Session", "Silence"]

QUEUED = Simple(b"QUEUED")
NEVER_QUEUED = {"multi", "exec", "discard", "watch", "quit", "reset"}
IN_SUBSCRIPTION = {"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe",
                   "sunsubscribe", "ping", "quit", "reset"}  # fmt: skip
DEBUG_NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can '
    "run it from a local connection, otherwise you need to set this option in the configuration "
    "file, and then restart the server."
)
CROSS_PROTOCOL = {b"post", b"host:"}
"""What a browser that was tricked into talking to this port would say."""


class Silence(enum.Enum):
    """Which replies CLIENT REPLY keeps back."""

    NONE = "none"
    ALWAYS = "all from here on"
    AFTER_THIS = "the next one"
    NOW = "this one"


class Session(RequestLoop):
    """A client: its parser, its state, and the replies of the requests under way."""

    def __init__(self, server: Server, *, address: str = "", local_address: str = "") -> None:
        self._limits = Limits()
        commands = server.commands
        super().__init__(server, Parser(self._limits), commands.by_name, commands.in_place)
        self.server = server
        self.address = address
        self.local_address = local_address
        self.id = server.enter(self)
        self.call = Call(self, NO_COMMAND)
        self.library = {b"lib-name": b"", b"lib-ver": b""}
        self.created_ms = self.active_ms = server.now_ms()
        self.transmit: Callable[[bytes], object] = _discard
        self.wake: Callable[[], object] = _sleep_on
        self.fd = -1  # of the socket that carries it
        self.count_unsent: Callable[[], int] = _all_is_sent
        # Requests wait until their client has read, or others were answered (`has_waiting`), or for the end of
        # a pause, of a script's slice, or of a checkpoint (`is_postponed`): `go_on` answers them.
        self._postponed: Request | None = None
        self._rest = b""
        self.silence = Silence.NONE
        self.is_killed = False
        self.reset()

    def reset(self) -> None:
        """Be as after connecting: what RESET does, too."""
        self.protocol = 2
        self.name = b""
        self.is_authenticated = not self.server.settings.requirepass
        self.queue: list[tuple[Command, Request]] | None = None
        self.is_queue_broken = False
        self.executing: int | None = None  # how many commands the EXEC under way runs
        self.subscriptions = 0
        self.server.release(self)
        if self.silence is not Silence.NOW:  # the reply to RESET may be the one that SKIP is about
            self.silence = Silence.NONE
        self.marks: set[str] = set()  # the letters of CLIENT LIST for what the client asked for
        self.server.unmonitor(self)
        self.select(0)
        self.review()

    def review(self) -> None:
        """Look again whether anything is special: to be called after each change of such a state."""
        is_subscriber = self.subscriptions > 0 and self.protocol == 2
        self.is_direct = (
            self.is_authenticated
            and self.queue is None
            and not is_subscriber
            and self.silence is Silence.NONE
            and not self.server.tracking.may_choose(self)
            and not self.server.is_special
        )
        self.is_in_place = self.is_direct and not self.server.tracking.follows_reads(self)
        self._limits.is_trusted = self.is_authenticated
        self._limits.bulk_bytes_max = self.server.settings.proto_max_bulk_len
        self._limits.buffer_bytes_max = self.server.settings.client_query_buffer_limit

    @property
    def is_listener(self) -> bool:
        """Whether the client waits for what others do: nobody expects it to say anything."""
        return self.subscriptions > 0 or self in self.server.monitors

    @property
    def age_seconds(self) -> int:
        """For how long the client has been connected."""
        return (self.server.now_ms() - self.created_ms) // 1000

    def select(self, number: int) -> None:
        """Work in this database; to be called again where a transaction begins and ends."""
        self.call.keys = self.server.database(number)
        self.db = number

    def close(self) -> None:
        """The client is gone."""
        self.is_closing = True
        if self.server.busy.belongs_to(self):
            self.server.busy.end()
        self.has_waiting = False
        self.server.unmonitor(self)
        self.server.leave(self)

    def kill(self) -> None:
        """Close the connection, once replies under way are sent: at once if somebody else wants that and it does
        not read."""
        self.is_closing = True
        self.is_killed = not self.is_processing
        if self.is_killed:
            self.transmit(b"")

    # --- requests and replies -----------------------------------------------------------------

    @property
    def unread(self) -> int:
        """How many bytes are held of requests that are unfinished, or wait."""
        return self.parser.unread + len(self._rest)

    @property
    def request_bytes(self) -> int:
        """How many bytes the arguments of the request have that runs, or waits to."""
        args = self._postponed or (self.call.args if self.is_processing else [])
        return sum(map(len, args))

    @property
    def queued_bytes(self) -> int:
        """How many bytes the requests have that wait for EXEC."""
        return sum(len(argument) for _, args in self.queue or [] for argument in args)

    @property
    def memory_bytes(self) -> int:
        """What this client's requests and replies take."""
        held = self.unread + self.request_bytes + self.queued_bytes
        return held + self.reply_buffer[1] + self.count_unsent()

    def go_on(self) -> bytes:
        """The replies to requests that waited; a client is as active when it gets them as when it asks."""
        self.active_ms = self.server.now_ms()
        self.has_waiting = self.is_postponed = False
        pacing, postponed, rest = self.server.pacing, self._postponed, self._rest
        self._postponed, self._rest = None, b""
        if pacing.has_lost_patience(self):
            replies = nonblocking(self.go_on_with, postponed, rest)
        else:
            replies = self.go_on_with(postponed, rest)
        if not self.is_postponed:
            pacing.forget(self)
        return replies

    def push(self, reply: Reply) -> None:
        """Send what answers no request, in its place among the replies under way."""
        data = encode(reply, self.protocol)
        if self.is_processing:
            self.write(data)
        else:
            self.server.output_bytes += len(data)
            self.transmit(data)

    def deliver(self, message: bytes) -> None:
        """Send what another client, or this one's own command, caused: after the reply under way."""
        if self.is_processing:
            self.write_after_this(message)
        else:
            self.server.output_bytes += len(message)
            self.transmit(message)

    def postpone(self, args: Request) -> None:
        """Let a request wait until somebody wakes this session."""
        self._postponed = args
        self.has_waiting = self.is_postponed = True

    def keep_waiting(self, data: bytes) -> None:
        """Let these bytes wait behind those that do."""
        self._rest += data

    def look_for_error(self) -> None:
        """After the last whole request: say what was wrong with the bytes that followed it, if anything."""
        if self.parser.error is not None and self.silence is Silence.NONE:
            self.write(encode(Refused(b"ERR " + self.parser.error), self.protocol))
        if self.parser.error is not None or self.parser.is_over:
            self.is_closing = True

    def answer_specially(self, args: Request) -> tuple[Command | None, Reply]:
        """The command that ran, if any, and the reply, where not every command may simply run."""
        command, reply = self._decide(args)
        if reply is not POSTPONED and self.queue is None:
            self.server.tracking.end_caching(self, args[0])
        if self.silence is Silence.NONE or reply is POSTPONED:
            return command, reply
        is_silent = self.silence is not Silence.AFTER_THIS
        if self.silence is not Silence.ALWAYS:
            self.silence = Silence.NONE if is_silent else Silence.NOW
            self.review()
        # What answers a subscriber is pushed, as messages are: nobody keeps that back.
        return command, NO_REPLY if is_silent and not isinstance(reply, Pushes) else reply

    def _decide(self, args: Request) -> tuple[Command | None, Reply]:
        busy = self.server.busy
        if busy.belongs_to(self):
            return busy.command, busy.go_on()
        if args[0].lower() in CROSS_PROTOCOL:
            self.is_closing = True
            return None, NO_REPLY
        try:
            command = self.admit(args)
        except Refused as refused:
            return None, self._break_queue(args, refused)
        if self._must_wait(command, args):
            return None, POSTPONED
        if self.queue is not None and command.name not in NEVER_QUEUED:
            self.queue.append((command, args))
            return None, QUEUED
        if command.is_script or any(queued.is_script for queued, _ in self._run_by(command)):
            return command, busy.run(self, command, args)
        return command, self.run(command, args)

    def _run_by(self, command: Command) -> list[tuple[Command, Request]]:
        """The commands that EXEC would run."""
        return self.queue or [] if command.name == "exec" else []

    def _break_queue(self, args: Request, refused: Refused) -> Refused:
        """A request was refused. Inside MULTI, EXEC will be too; an EXEC that is wrong ends all of it."""
        self.is_queue_broken = True
        if args[0].lower() != b"exec":
            return refused
        self.queue = None
        self.server.watches.forget(self)
        self.review()
        reason = refused.text.removeprefix(b"ERR ")
        return Refused(b"EXECABORT Transaction discarded because of: " + reason)

    def _must_wait(self, command: Command, args: Request) -> bool:
        """Whether CLIENT PAUSE holds this command back, or a store that is behind its writers."""
        pacing = self.server.pacing
        if self._is_paused(command, args):
            pacing.forget(self)
            return True
        about_to_run = [(command, args)] if self.queue is None else self._run_by(command)
        is_write = any(each.is_write for each in self._without_harmless(about_to_run))
        return pacing.holds(self, args, is_write=is_write)

    def _is_paused(self, command: Command, args: Request) -> bool:
        server = self.server
        if not server.pause.until_ms:
            return False
        if server.pause.is_over(server.now_ms()):
            server.unpause()
            return False
        about_to_run = [(command, args), *self._run_by(command)]
        return server.pause.holds(self._without_harmless(about_to_run))

    def _without_harmless(self, requests: list[tuple[Command, Request]]) -> Iterator[Command]:
        """The commands of requests, but for scripts that say of themselves that they write nothing."""
        is_harmless = self.server.scripts.is_harmless
        return (command for command, args in requests if not is_harmless(command, args))

    def admit(self, args: Request) -> Command:
        """The command that a request names, if this session may use it now. Raises Refused."""
        command = self.server.commands.find(args)
        if command.is_protected and not self._may_debug:
            raise _rejected(command, DEBUG_NOT_ALLOWED)
        if not self.is_authenticated and "no_auth" not in command.flags:
            raise _rejected(command, "NOAUTH Authentication required.")
        if self.server.busy.is_on and "allow_busy" not in command.flags:
            raise _rejected(command, BUSY)
        if self.queue is not None and "no_multi" in command.flags:
            raise _rejected(command, "ERR Command not allowed inside a transaction")
        is_listening = self.subscriptions > 0 and self.protocol == 2
        if is_listening and command.name not in IN_SUBSCRIPTION:
            raise _rejected(
                command,
                f"ERR Can't execute '{command.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / "
                "PING / QUIT / RESET are allowed in this context",
            )
        return command

    @property
    def _may_debug(self) -> bool:
        """Whether `enable-debug-command` allows this client what it is about."""
        allowed = self.server.settings.enable_debug_command
        is_local = self.address.startswith(("127.", "[::1]", "(unix)", "/"))
        return allowed == "yes" or (allowed == "local" and is_local)

    def run(self, command: Command, args: Request) -> Reply:
        """The reply of a command that was admitted, an error among them."""
        self.call.args = args
        self.call.command = command
        if command.is_script and self.server.monitors:
            show(self, command, args, self.server.monitors)
        try:
            reply = command.handler(self.call)
        except Exception as error:
            reply = self.refuse(command, error)
        self.note_read(command, args)
        if self.server.monitors and not command.is_script:
            show(self, command, args, self.server.monitors)
        return reply

    def note_read(self, command: Command, args: Request) -> None:
        """Remember the keys that a command has read, if this client tracks them."""
        if command.is_tracked and self.server.tracking.modes:
            self.server.tracking.remember(self, command.keys_of(args))

    def refuse(self, command: Command, error: Exception) -> Refused:
        """What the client is told when a handler raises."""
        command.failed += 1
        if isinstance(error, Refused):
            return error
        if isinstance(error, StoreFull):
            return Refused(f"OOM {error}")
        if isinstance(error, ReadOnly):
            return Refused(f"READONLY {error}")
        if isinstance(error, EphemeraError):
            return Refused(f"ERR {error}")
        _log.error("%s failed", command.name, exc_info=error)
        return Refused("ERR internal error; the server's log has more")

    def run_inside(self, command: Command, args: Request) -> Reply:
        """The same for a command inside another (EXEC, a script), where nobody else counts it."""
        began_ns = elapsed_ns()
        reply = self.run(command, args)
        command.count_run(self.server, elapsed_ns() - began_ns)
        return reply


def _rejected(command: Command, text: str) -> Refused:
    command.rejected += 1
    return Refused(text)


def _discard(data: bytes) -> None:
    """Where pushed bytes go while nobody carries them."""


def _all_is_sent() -> int:
    """How many bytes of replies wait to be sent while nobody carries them."""
    return 0


def _sleep_on() -> None:
    """What waking does while nobody would call `go_on`."""
