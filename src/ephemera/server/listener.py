"""The sockets: asyncio on uvloop around sessions, and everything that takes time.

A reply goes out once what it acknowledges is as safe as `durability` says. With "interval" that is when
the store has taken the write; with "commit", after one sync at the end of the event-loop tick, for
all clients of that tick together: replies wait in `_unsynced` until then. Where the store gathers the writes
of a tick (`gathering`), they wait until those have arrived, and the loop serves others meanwhile.

A client that does not read is not read from either, and one that leaves more unread than its limit
is cut off.

Plain sockets are read and answered by `Sockets`, in `_sockets.pyx`; their transports only send what a
socket did not take at once, and close it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from ephemera import EphemeraError, UnsupportedOperation
from ephemera.core._clock import elapsed_ns
from ephemera.resp.encoder import error
from ephemera.resp.replies import Refused
from ephemera.server._sockets import IS_AVAILABLE, Receiving, Sockets
from ephemera.server.gathering import Gathered, PendingTicks
from ephemera.server.server import Server
from ephemera.server.session import OUTPUT_BYTES_PAUSE, Session
from ephemera.server.settings import OutputLimit

_log = logging.getLogger("ephemera.server")

CRON_SECONDS = 1.0
"""How often the periodic work is done, which Redis does in serverCron."""
DRAIN_SECONDS = 5.0
"""How long clients may take to read their last replies when the server stops."""
SWITCH_SECONDS = 0.0005
"""How long requests wait for the GIL while a checkpoint has it."""
TICK_POLL_SECONDS = 0.005
PROCESSING_NS_MAX = 10_000_000
"""After so long the rest of what one client has sent waits until others were answered."""
BACKLOG = 511
FILES_BESIDE_CLIENTS = 128
"""How many files the store and the server itself may have open."""
INSTALL = "pip install 'ephemera-kv[server]'"
UNIX_SOCKET_MODE = 0o700
_LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

TOO_MANY = error(Refused("ERR max number of clients reached"))
PROTECTED = error(
    Refused(
        "DENIED Redis is running in protected mode because no password is set: only connections "
        "from this machine are accepted. Set a password (--requirepass) to serve others."
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to listen: a host and port, with TLS if there is a context, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 6379
    unix_path: str | None = None
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        if self.unix_path is not None:
            return f"unix://{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}"

    @property
    def local_url(self) -> str:
        """The URL by which a client on this machine reaches it: no client connects to 0.0.0.0."""
        return str(replace(self, host=_LOOPBACK_OF.get(self.host, self.host)))


class Connection(Receiving, asyncio.Protocol):
    """A session on a transport."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._fd: int | None = None  # of the socket, where `Sockets` reads it
        self._is_queued = False
        self._is_choked = False
        self._is_lost = False
        self._held = 0  # replies that wait until they are safe to say
        self._held_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None  # for the end of a pause
        self._soft_since_ms: int | None = None
        self._unsent = 0  # bytes, when last looked at
        self.holds_replies = listener.syncs_ticks
        self.send: Callable[[bytes], None] = self._hold if self.holds_replies else self.release

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.send if self.holds_replies else self._pass_on
        peer = transport.get_extra_info("peername")
        self.session = Session(
            self._listener.server,
            address=_address(peer),
            local_address=_address(transport.get_extra_info("sockname")),
        )
        self.session.transmit = self.send
        self.session.wake = self._wake
        self.session.fd = transport.get_extra_info("socket").fileno()
        self.session.count_unsent = self._count_unsent
        self._listener.connections.add(self)
        refusal = self._listener.refusal(peer)
        if refusal is not None:
            self._listener.server.refused_connections += 1
            self.transport.write(refusal)
            self.transport.close()
        elif IS_AVAILABLE and not self._has_tls:
            # The transport begins to read when this has returned, and would not be stopped now.
            self._listener.loop.call_soon(self._take_over)

    @property
    def _has_tls(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    def _take_over(self) -> None:
        """Let `Sockets` read from now on."""
        if not self.transport.is_closing():
            is_reading = self.transport.is_reading()
            self.transport.pause_reading()
            self._fd = self.transport.get_extra_info("socket").fileno()
            if is_reading:
                self._resume_reading()
            elif self._is_paused:
                self._await_end()

    def _resume_reading(self) -> None:
        if self._fd is None:
            self.transport.resume_reading()
        else:
            self._listener.sockets.watch(self, self._fd)

    def _pause_reading(self) -> None:
        if self._fd is None:
            self.transport.pause_reading()
        else:
            self._listener.sockets.leave(self)

    def _await_end(self) -> None:
        """A pause may be long: who leaves in it is no client any more, and its request is not done."""
        if self._fd is not None:
            self._listener.sockets.await_end(self, self._fd)

    def close(self) -> None:
        """Read no more, and end once all is sent."""
        self.flush_reply()
        self._listener.sockets.leave(self)
        self.transport.close()

    def abort(self) -> None:
        """End now; nothing more is answered."""
        self.session.is_closing = True
        self._listener.sockets.leave(self)
        self.transport.abort()

    # --- what `Sockets` finds -----------------------------------------------------------------

    def ended(self) -> None:
        """The client has sent its last byte; what it asked for before is still answered."""
        self._listener.sockets.leave(self)
        session = self.session
        # With TLS the end is heard of though nothing is read at the time, and it is the end of replies, too.
        until_ns = elapsed_ns() + PROCESSING_NS_MAX
        while (
            session.has_waiting
            and not (session.is_postponed or self._has_enough)
            and elapsed_ns() < until_ns
        ):
            self.send(session.go_on())
        if not self._may_go_on:
            session.is_closing = True
            self.send(b"")

    def eof_received(self) -> bool:
        self.ended()
        # Where there is TLS, an end of one direction is an end of both.
        return not self._has_tls

    def broke(self, number: int) -> None:
        """Reading failed: the connection was lost."""
        self.abort()

    def failed(self, error: Exception) -> None:
        """Answering failed in a way that no command accounts for."""
        self._listener.note_fault(self, error)
        self.abort()

    def has_caught_up(self) -> bool:
        """Whether the transport has sent all that it was given."""
        if self._is_queued or self.transport.get_write_buffer_size():
            return False
        self.is_behind = False
        return True

    def _pass_on(self, out: bytes) -> None:
        """Give bytes to the transport, which shows them in its buffer's size from the next tick on."""
        self.transport.write(out)
        self.is_behind = True
        if self._fd is not None and not self._is_queued:
            self._is_queued = True
            self._listener.loop.call_soon(self._note_tick)

    def _note_tick(self) -> None:
        self._is_queued = False

    # --- replies ------------------------------------------------------------------------------

    def finish(self, out: bytes) -> None:
        """Send replies after which the session is closed, or has more to answer."""
        if out or self.session.is_closing:
            self.send(out)
        if self.session.has_waiting:
            self._go_on_later()

    @property
    def _may_go_on(self) -> bool:
        """Whether there are requests that are done though their client leaves: no pause holds them back."""
        return self.session.has_waiting and not self._is_paused

    @property
    def _has_enough(self) -> bool:
        """Whether nothing more is to be answered: it has too much to read, or to wait for, or is to end."""
        if self.session.is_closing or self._is_lost:
            return self.session.is_closing
        if self.transport.is_closing():
            return True
        if self._listener.server.busy.belongs_to(self.session):
            return False  # its script keeps everybody waiting, and adds one reply
        return self._is_choked or self._held_bytes > OUTPUT_BYTES_PAUSE

    def _go_on(self) -> None:
        """Answer what waited while the client had too much to read, or others were answered."""
        if self.session.has_waiting and not self._has_enough:
            with self._guarded():
                self.finish(self.session.go_on())
                if not (self.session.has_waiting or self._has_enough or self._is_lost):
                    self._resume_reading()
        if self._is_lost and (self._has_enough or not self._may_go_on):
            self.session.close()

    def _go_on_later(self) -> None:
        """At the end of a pause, or of a checkpoint, when requests wait for that; otherwise in the next
        event-loop tick.

        Nothing is read before: what a client sends meanwhile waits in its socket, and not in memory.
        """
        if not self._is_lost:
            self._pause_reading()
        server = self._listener.server
        if not self.session.is_postponed:
            self._listener.loop.call_soon(self._go_on)
        elif server.busy.belongs_to(self.session):
            self._listener.loop.call_soon(self._wake)
        elif self._is_paused and not self._is_lost:
            left_ms = max(0, server.pause.until_ms - server.now_ms())
            self._cancel_alarm()
            self._alarm = self._listener.loop.call_later(left_ms / 1000, self._wake)
            self._await_end()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    @property
    def _is_paused(self) -> bool:
        """Whether requests wait for the end of a pause, and for nothing else that would wake them."""
        server = self._listener.server
        return (
            self.session.is_postponed
            and not server.busy.belongs_to(self.session)
            and not server.pacing.has(self.session)
        )

    def _wake(self) -> None:
        """The pause is over, or was ended; the store has caught up; or it is time for a script's next slice."""
        if self.session.is_postponed and (self._is_lost or not self.transport.is_closing()):
            self._listener.loop.call_soon(self._go_on)

    def _hold(self, out: bytes) -> None:
        if self._is_lost:
            return
        self.flush_reply()
        self._held += 1
        self._held_bytes += len(out)
        if self._held_bytes > OUTPUT_BYTES_PAUSE:
            self._pause_reading()
        self._listener.hold(self, out)

    def let_go(self, out: bytes) -> None:
        """What was held is safe to say."""
        had_enough = self._held_bytes > OUTPUT_BYTES_PAUSE
        self._held -= 1
        self._held_bytes -= len(out)
        self.release(out)
        if had_enough and not (self._has_enough or self._is_lost):
            self._resume_reading()
            self._go_on()

    def release(self, out: bytes) -> None:
        """Write what is safe to say; the last of it before the end, if that is to come."""
        if self._is_lost:
            return
        if not self.transport.is_closing():
            self.flush_reply()
            self._pass_on(out)
            if self._is_choked:
                self._check_output()
        if self.session.is_closing and not self._held:
            self._end()

    def _end(self) -> None:
        """Close; but who was killed by others is not waited for."""
        # With TLS nobody says what is left to send.
        has_unsent = self._has_tls or self.transport.get_write_buffer_size() > 0
        if self.session.is_killed and has_unsent:
            self.abort()
        else:
            self.close()

    def pause_writing(self) -> None:
        self._is_choked = True
        self._pause_reading()
        self._check_output()

    def resume_writing(self) -> None:
        self._is_choked = False
        if not self._has_enough:
            self._resume_reading()
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """What was read of it is still done, unless a pause holds it back."""
        self._is_lost = True
        self._listener.sockets.leave(self)
        self._fd = None  # others may get that number
        self._listener.lose(self)
        self._cancel_alarm()
        if self._may_go_on:
            self._listener.loop.call_soon(self._go_on)
        else:
            self.session.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let a fault of ours cost this connection and no other."""
        try:
            yield
        except Exception as error:
            self._listener.note_fault(self, error)
            self.abort()

    def _count_unsent(self) -> int:
        """How many bytes of replies the client has not read, or is not yet allowed to."""
        return self.transport.get_write_buffer_size() + self._held_bytes

    # --- limits -------------------------------------------------------------------------------

    def _limit(self) -> OutputLimit:
        limits = self._listener.server.settings.client_output_buffer_limit
        return limits.pubsub if self.session.is_listener else limits.normal

    def _check_output(self) -> None:
        hard = self._limit().hard
        if hard and self.transport.get_write_buffer_size() > hard:
            self.abort()

    def run_cron(self, now_ms: int) -> None:
        """Do the periodic work: to be called once a second."""
        with self._guarded():
            self._cut_off(now_ms)

    def _cut_off(self, now_ms: int) -> None:
        """Close who says nothing for too long, or does not read for too long."""
        if self._has_read() or self._held:
            self.session.active_ms = now_ms
        idle_ms_max = self._listener.server.settings.timeout * 1000
        is_idle = idle_ms_max and now_ms - self.session.active_ms > idle_ms_max
        if is_idle and not self.session.is_listener and not self.session.is_postponed:
            if self._unsent:
                self.abort()  # it takes nothing of what is left, and would keep it for ever
            else:
                self.close()
        limit = self._limit()
        if not limit.soft or self._unsent <= limit.soft:
            self._soft_since_ms = None
        elif self._soft_since_ms is None:
            self._soft_since_ms = now_ms
        elif now_ms - self._soft_since_ms > limit.soft_seconds * 1000:
            self.abort()

    def _has_read(self) -> bool:
        """Whether the client has taken some of what is left to send since this was last asked."""
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        return self._unsent < before


TickReplies = list[tuple[Connection, bytes]]
"""The replies of a tick, in their order."""


class Listener:
    """Serves one `Server` on any number of endpoints until it is stopped."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.sockets = Sockets(server)
        if IS_AVAILABLE:
            self.loop.add_reader(self.sockets.fd, self.sockets.serve)
        server.stop = self.stop
        server.processing_ns_max = PROCESSING_NS_MAX
        server.hand_over = self.loop.call_soon_threadsafe
        server.pacing.begin(self.loop.call_later)
        self._is_commit = server.settings.durability == "commit"
        self._pending_ticks: PendingTicks[TickReplies] | None = None
        if isinstance(server.store.engine, Gathered):
            self._pending_ticks = PendingTicks(
                server.store.engine,
                durable=self._is_commit,
                hand_over=server.hand_over,
                release=_release,
                fail=self._fail,
            )
        self.syncs_ticks = self._is_commit or self._pending_ticks is not None
        self._endings: list[Callable[[], None]] = []
        self._stopping = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._failure: EphemeraError | None = None
        self._unsynced: TickReplies = []
        self._synced_changes = server.changes
        self._synced_scripts = 0
        server.settings.maxclients = _allow_clients(server.settings.maxclients)

    # --- life ---------------------------------------------------------------------------------

    async def listen(self, endpoint: Endpoint) -> Endpoint:
        """Accept connections there; the endpoint, with the port it got if it asked for any (0)."""
        if endpoint.unix_path is not None:
            place = _unix_socket(endpoint.unix_path)
            server = await self.loop.create_unix_server(self._connect, sock=place, backlog=BACKLOG)
            self._endings.append(lambda: _remove_socket(str(endpoint.unix_path)))
            self.server.settings.unixsocket = endpoint.unix_path
        else:
            server = await self.loop.create_server(
                self._connect, endpoint.host, endpoint.port, ssl=endpoint.tls, backlog=BACKLOG
            )
            endpoint = replace(endpoint, port=server.sockets[0].getsockname()[1])
            self.server.settings.bind, self.server.settings.port = endpoint.host, endpoint.port
        self._endings.append(server.close)
        return endpoint

    def stop(self) -> None:
        """Let `serve` end; also called by signals."""
        self._stopping.set()

    async def serve(self) -> None:
        """Serve until stopped, then let clients read their last replies and close the store.

        Raises StoreFailed when the store lost a write: only opening it again tells what it kept.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.stop)
        self.loop.set_exception_handler(self._on_exception)
        cron = self.loop.create_task(self._run_cron())
        try:
            await self._stopping.wait()
        finally:
            cron.cancel()
            self.server.busy.stop()
            await self._drain()
            self.server.pacing.end()
            self.server.busy.end()
            self.server.store.close()
        if self._failure is not None:
            raise self._failure

    def stop_listening(self) -> None:
        """Accept no more connections; also to be called where `serve` never was: a loop does not close
        while a socket listens."""
        while self._endings:
            self._endings.pop()()

    async def _drain(self) -> None:
        self.stop_listening()
        if self._unsynced:
            self._end_tick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ticks_arrived(), DRAIN_SECONDS)
        for connection in tuple(self.connections):
            connection.close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), DRAIN_SECONDS)
        for connection in tuple(self.connections):
            connection.abort()
        if IS_AVAILABLE:
            self.loop.remove_reader(self.sockets.fd)
        self.sockets.close()

    async def _ticks_arrived(self) -> None:
        """Return when no tick's writes are under way."""
        while self._pending_ticks:
            await asyncio.sleep(TICK_POLL_SECONDS)

    async def _run_cron(self) -> None:
        while True:
            await asyncio.sleep(CRON_SECONDS)
            self.server.run_cron()
            if self._pending_ticks is not None:
                self._pending_ticks.run_cron([])
            elif self._is_commit and self.server.changes != self._synced_changes:
                self._end_tick()  # whoever wrote wants no replies
            now_ms = self.server.now_ms()
            for connection in tuple(self.connections):
                connection.run_cron(now_ms)

    # --- connections --------------------------------------------------------------------------

    def _connect(self) -> Connection:
        return Connection(self)

    def refusal(self, peer: object) -> bytes | None:
        """What a new connection is told if it is not served."""
        settings = self.server.settings
        if len(self.connections) > settings.maxclients:
            return TOO_MANY
        is_protected = settings.protected_mode and not settings.requirepass
        return PROTECTED if is_protected and not _is_local(peer) else None

    def lose(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._stopping.is_set() and not self.connections:
            self._is_empty.set()

    # --- faults of ours -----------------------------------------------------------------------

    def note_fault(self, connection: Connection, error: BaseException) -> None:
        address = connection.session.address
        _log.error("the connection of %s is closed: a fault of the server", address, exc_info=error)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note what came out of a callback; the loop itself closes a connection whose data caused it."""
        connection, error = context.get("protocol"), context.get("exception")
        if isinstance(connection, Connection) and error is not None:
            self.note_fault(connection, error)
        else:
            loop.default_exception_handler(context)

    # --- one sync for all clients of a tick ---------------------------------------------------

    def hold(self, connection: Connection, out: bytes) -> None:
        """Keep a reply until this tick's writes, which it may speak of, are on the disk."""
        if not self._unsynced:
            self.loop.call_soon(self._end_tick)
        self._unsynced.append((connection, out))

    def _end_tick(self) -> None:
        replies, self._unsynced = self._unsynced, []
        if self._failure is not None:
            self._cut_off(replies)
            return
        is_busy = self.server.busy.is_on
        has_writes = self._has_writes(is_busy=is_busy)
        if has_writes and self._is_commit and (is_busy or self._pending_ticks is None):
            try:
                self.server.store.sync()
            except EphemeraError as error:
                self._fail(error, [replies])
                return
        if self._pending_ticks is not None:
            self._pending_ticks.end(replies, has_writes=has_writes and not is_busy)
        else:
            _release(replies)

    def _has_writes(self, *, is_busy: bool) -> bool:
        """Whether replies of this tick may speak of what is not yet safe.

        What a script writes is counted as it is called, and is there once it is over: for as long as it is
        under way it is nobody's, and what came before it is made safe once.
        """
        scripts = self.server.busy.begun
        if is_busy and self._synced_scripts == scripts:
            return False
        self._synced_scripts = scripts
        has_writes = self.server.changes != self._synced_changes
        if not is_busy:
            self._synced_changes = self.server.changes
        return has_writes

    def _fail(self, error: EphemeraError, ticks: list[TickReplies]) -> None:
        """Stop: what was written is lost, so nothing that speaks of it may go out."""
        _log.critical("nothing more is acknowledged: %s", error)
        self._failure = error
        for replies in ticks:
            self._cut_off(replies)
        self.stop()

    def _cut_off(self, replies: TickReplies) -> None:
        for connection, _ in replies:
            connection.abort()


def _release(replies: TickReplies) -> None:
    for connection, out in replies:
        with connection._guarded():
            connection.let_go(out)


def run(main: Coroutine[Any, Any, None]) -> None:  # Any: as asyncio has it
    """Run on uvloop. Raises UnsupportedOperation when that is not installed."""
    try:
        import uvloop
    except ImportError:
        main.close()
        raise UnsupportedOperation(f"serving needs uvloop: {INSTALL}") from None
    former = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    finally:
        sys.setswitchinterval(former)


def _allow_clients(wanted: int) -> int:
    """Raise the limit of open files for so many clients; as many as it then allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + FILES_BESIDE_CLIENTS
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    clients = max(1, min(wanted, soft - FILES_BESIDE_CLIENTS))
    if clients < wanted:
        _log.warning("maxclients is %d: the system allows %d open files", clients, soft)
    return clients


def _unix_socket(path: str) -> socket.socket:
    """Bound, and closed to other users before anybody can connect."""
    _remove_socket(path)
    place = socket.socket(socket.AF_UNIX)
    try:
        place.bind(path)
        os.chmod(path, UNIX_SOCKET_MODE)
    except OSError:
        place.close()
        raise
    return place


def _remove_socket(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)


def _address(name: object) -> str:
    """As CLIENT LIST shows it: host:port, or the path of a Unix socket with port 0."""
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"{name or '(unix)'}:0"


def _is_local(peer: object) -> bool:
    """Whether somebody on this machine connected, also through an IPv6 socket that takes IPv4."""
    if not isinstance(peer, tuple):
        return True
    address = ipaddress.ip_address(peer[0].split("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
