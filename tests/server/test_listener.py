"""Real sockets: endpoints, limits, slow readers, durable replies, and the graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import ephemera
from ephemera.server import listener as listener_module
from ephemera.server.gathering import Gathered, PendingTicks
from ephemera.server.listener import Endpoint, Listener, run
from ephemera.server.server import Server, open_store
from ephemera.server.session import OUTPUT_BYTES_PAUSE
from ephemera.server.settings import OutputLimit, OutputLimits, Settings
from tests.engines.slatedb.buckets import file_url
from tests.server.clients import wire
from tests.waiting import until

ANY = Endpoint(port=0)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Dialer:
    """Connects to an endpoint, and hangs up in the end."""

    def __init__(self, place: Endpoint) -> None:
        self.place = place
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, **options: Any) -> Streams:  # Any: as asyncio has it
        if self.place.unix_path is not None:
            streams = await asyncio.open_unix_connection(self.place.unix_path)
        else:
            streams = await asyncio.open_connection(self.place.host, self.place.port, **options)
        self._writers.append(streams[1])
        return streams

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


Scenario = Callable[[Listener, Dialer], Awaitable[None]]


def serve(
    scenario: Scenario,
    *,
    settings: Settings | None = None,
    store: ephemera.Store | None = None,
    endpoint: Endpoint = ANY,
) -> None:
    """Serve on a free port of this machine while the scenario runs; then stop gracefully."""

    async def main() -> None:
        listener = Listener(Server(store or ephemera.open("memory://"), settings))
        connect = Dialer(await listener.listen(endpoint))
        serving = asyncio.create_task(listener.serve())
        try:
            await asyncio.wait_for(scenario(listener, connect), 30)
        finally:
            listener.stop()
            await connect.hang_up()
            await serving

    run(main())


async def ask(streams: Streams, data: bytes, reply: bytes) -> None:
    reader, writer = streams
    writer.write(data)
    assert await reader.readexactly(len(reply)) == reply


def test_clients_share_a_store() -> None:
    async def scenario(_: Listener, connect: Dialer) -> None:
        await ask(await connect(), wire("SET", "a", "1"), b"+OK\r\n")
        await ask(await connect(), wire("GET", "a"), b"$1\r\n1\r\n")

    serve(scenario)


def test_a_unix_socket_is_for_its_owner_and_goes_with_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def scenario(_: Listener, connect: Dialer) -> None:
        assert os.stat(path).st_mode & 0o777 == 0o700
        await ask(await connect(), wire("PING"), b"+PONG\r\n")

    serve(scenario, endpoint=Endpoint(unix_path=path))
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "redis://127.0.0.1:6379"),
        ("::", "redis://[::1]:6379"),
        ("", "redis://127.0.0.1:6379"),
        ("cache.internal", "redis://cache.internal:6379"),
    ],
)
def test_a_server_on_every_address_is_reached_by_that_of_this_machine(host: str, url: str) -> None:
    assert Endpoint(host=host).local_url == url


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Endpoint, ssl.SSLContext]:
    """Where to listen with TLS, and what a client must trust."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-days", "1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return Endpoint(port=0, tls=context), ssl.create_default_context(cafile=str(certificate))


def test_tls(tls: tuple[Endpoint, ssl.SSLContext]) -> None:
    async def scenario(_: Listener, connect: Dialer) -> None:
        streams = await connect(ssl=tls[1], server_hostname="localhost")
        await ask(streams, wire("PING"), b"+PONG\r\n")

    serve(scenario, endpoint=tls[0])


def test_with_tls_all_that_was_sent_before_the_end_is_done(
    tls: tuple[Endpoint, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "PROCESSING_NS_MAX", 0)  # all but one request wait

    async def scenario(listener: Listener, connect: Dialer) -> None:
        _reader, writer = await connect(ssl=tls[1], server_hostname="localhost")
        await until(lambda: listener.connections)
        writer.write(wire("CLIENT", "REPLY", "OFF") + wire("INCR", "count") * 500)
        writer.close()
        await until(lambda: listener.server.store.get("count") == b"500")
        await until(lambda: not listener.server.clients)

    serve(scenario, endpoint=tls[0])


def test_with_tls_a_killed_client_that_does_not_read_is_not_waited_for(
    tls: tuple[Endpoint, ssl.SSLContext],
) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        options = {"ssl": tls[1], "server_hostname": "localhost"}
        listener.server.store.put("large", b"x" * 1_000_000)
        asking, unread = await connect(**options), await connect(**options)
        unread[1].write(wire("GET", "large"))
        await unread[0].readexactly(1)  # and nothing more
        await ask(asking, wire("CLIENT", "KILL", "TYPE", "normal"), b":1\r\n")
        await until(lambda: len(listener.connections) == 1)

    serve(scenario, endpoint=tls[0])


@pytest.mark.parametrize("has_tls", [False, True])
def test_what_was_read_of_a_client_that_is_lost_is_done_and_in_turn(
    tls: tuple[Endpoint, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(listener_module, "PROCESSING_NS_MAX", 0)

    async def scenario(listener: Listener, connect: Dialer) -> None:
        options = {"ssl": tls[1], "server_hostname": "localhost"} if has_tls else {}
        _reader, writer = await connect(**options)
        await until(lambda: listener.connections)
        (connection,) = listener.connections
        writer.write(wire("INCR", "count") * 500)
        await until(lambda: connection.session.has_waiting)
        connection.ended()
        assert connection.session.has_waiting  # others come first
        writer.transport.abort()
        await until(lambda: listener.server.store.get("count") == b"500")
        await until(lambda: not listener.server.clients)

    serve(scenario, endpoint=tls[0] if has_tls else ANY)


def test_too_many_clients_are_told_so() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        first = await connect()
        await ask(first, wire("PING"), b"+PONG\r\n")
        reader, _ = await connect()
        assert await reader.read() == b"-ERR max number of clients reached\r\n"
        await ask(first, wire("PING"), b"+PONG\r\n")
        assert listener.server.refused_connections == 1

    serve(scenario, settings=Settings(maxclients=1))


def test_strangers_are_refused_unless_there_is_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_is_local", lambda peer: False)

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, _ = await connect()
        assert (await reader.read()).startswith(b"-DENIED ")
        listener.server.settings.requirepass = b"secret"
        await ask(await connect(), wire("AUTH", "secret"), b"+OK\r\n")

    serve(scenario)


def test_a_broken_client_is_closed_and_others_go_on() -> None:
    async def scenario(_: Listener, connect: Dialer) -> None:
        good = await connect()
        reader, writer = await connect()
        writer.write(b"*1\r\n$x\r\n")
        assert await reader.read() == b"-ERR Protocol error: invalid bulk length\r\n"
        half = await connect()
        half[1].write(b"*2\r\n$3\r\nGE")
        half[1].transport.abort()
        await ask(good, wire("PING"), b"+PONG\r\n")

    serve(scenario)


def broken(*_: Any) -> Any:  # Any: it stands in for any method
    raise RuntimeError("a fault of ours")


def test_a_fault_outside_a_handler_closes_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        good, bad = await connect(), await connect()
        await ask(good, wire("PING"), b"+PONG\r\n")
        listener.server.settings.slowlog_log_slower_than = 0
        listener.server.review()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listener.server, "note_slow", broken)
            bad[1].write(wire("PING"))
            assert await bad[0].read() == b""
        await ask(good, wire("PING"), b"+PONG\r\n")
        assert len(listener.server.clients) == 1

    serve(scenario)
    (record,) = caplog.records
    assert record.name == "ephemera.server"
    assert "127.0.0.1:" in record.message
    assert "a fault of ours" in caplog.text


def test_a_fault_in_answering_what_waited_closes_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        good, bad = await connect(), await connect()
        await ask(good, wire("CLIENT", "PAUSE", 60_000, "WRITE"), b"+OK\r\n")
        await ask(bad, wire("PING") + wire("SET", "a", 1), b"+PONG\r\n")
        session = next(each for each in listener.server.clients.values() if each.is_postponed)
        session.go_on = broken  # type: ignore[method-assign]  # a fault in its bookkeeping
        await ask(good, wire("CLIENT", "UNPAUSE"), b"+OK\r\n")
        assert await bad[0].read() == b""
        await ask(good, wire("PING"), b"+PONG\r\n")

    serve(scenario)
    assert "a fault of ours" in caplog.text
    assert {record.name for record in caplog.records} == {"ephemera.server"}


def test_a_fault_in_looking_after_a_connection_closes_it_and_the_looking_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "CRON_SECONDS", 0.01)
    clock = ephemera.ManualClock()

    async def scenario(listener: Listener, connect: Dialer) -> None:
        bad, idle = await connect(), await connect()
        await ask(bad, wire("PING"), b"+PONG\r\n")
        await ask(idle, wire("PING"), b"+PONG\r\n")
        first = min(listener.connections, key=lambda each: each.session.id)
        first._limit = broken  # type: ignore[method-assign]  # a fault of ours
        assert await bad[0].read() == b""
        clock.advance(61)
        assert await idle[0].read() == b""

    store = ephemera.open("memory://", clock=clock, maintenance="manual")
    serve(scenario, settings=Settings(timeout=60), store=store)
    assert "a fault of ours" in caplog.text


def test_quit_sends_its_reply_and_closes() -> None:
    async def scenario(_: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("QUIT") + wire("PING"))
        assert await reader.read() == b"+OK\r\n"

    serve(scenario)


def test_a_client_that_does_not_read_holds_a_bounded_amount() -> None:
    count, size = 200, 1_000_000

    async def scenario(listener: Listener, connect: Dialer) -> None:
        good = await connect()
        await ask(good, wire("SET", "large", b"x" * size), b"+OK\r\n")
        reader, writer = await connect()
        writer.write(wire("GET", "large") * count)
        await ask(good, wire("PING"), b"+PONG\r\n")
        held = [c.session.count_unsent() for c in listener.connections]
        assert 0 < max(held) < 5 * size
        assert all(os.fstat(c.session.fd) for c in listener.connections)
        one = b"$%d\r\n" % size + b"x" * size + b"\r\n"
        for _ in range(count):
            assert await reader.readexactly(len(one)) == one

    serve(scenario)


def test_requests_that_wait_are_no_more_than_one_read_brings() -> None:
    size, key, count = 16_384, "k" * 200, 4_000
    request = wire("GET", key)

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("SET", key, b"x" * size), b"+OK\r\n")
        (session,) = (connection.session for connection in listener.connections)
        waiting = [0]
        go_on = session.go_on

        def look() -> bytes:
            waiting.append(session.unread)
            return go_on()

        session.go_on = look  # type: ignore[method-assign]  # to see what waits each time
        writer.write(request * count)
        one = b"$%d\r\n" % size + b"x" * size + b"\r\n"
        for _ in range(count):
            assert await reader.readexactly(len(one)) == one
        assert 0 < max(waiting) <= 256 * 1024

    serve(scenario)


def test_a_client_over_its_output_limit_is_cut_off() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("SET", "large", b"x" * 1_000_000), b"+OK\r\n")
        writer.write(wire("GET", "large") * 50)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(50_000_000)

    limits = OutputLimits(normal=OutputLimit(hard=500_000))
    serve(scenario, settings=Settings(client_output_buffer_limit=limits))


def test_a_monitor_that_never_reads_is_cut_off() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        await ask(await connect(), wire("MONITOR"), b"+OK\r\n")
        (monitor,) = listener.connections
        busy = await connect()
        for _ in range(100):
            await ask(busy, wire("SET", "large", b"x" * 500_000), b"+OK\r\n")
            if monitor not in listener.connections:
                break
        assert monitor not in listener.connections

    limits = OutputLimits(pubsub=OutputLimit(hard=500_000))
    serve(scenario, settings=Settings(client_output_buffer_limit=limits))


def test_an_idle_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "CRON_SECONDS", 0.01)
    clock = ephemera.ManualClock()

    async def scenario(_: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("PING"), b"+PONG\r\n")
        clock.advance(61)
        assert await reader.read() == b""

    store = ephemera.open("memory://", clock=clock, maintenance="manual")
    serve(scenario, settings=Settings(timeout=60), store=store)


@pytest.fixture
def ticks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is looked after but by `look_after_all`, however long a test takes."""
    monkeypatch.setattr(listener_module, "CRON_SECONDS", 3_600)


def look_after_all(listener: Listener) -> None:
    for connection in tuple(listener.connections):
        connection.run_cron(listener.server.now_ms())


@pytest.mark.usefixtures("ticks_by_hand")
def test_who_waits_for_us_is_not_idle() -> None:
    clock = ephemera.ManualClock()

    async def scenario(listener: Listener, connect: Dialer) -> None:
        waiting, other = await connect(), await connect()
        await ask(other, wire("CLIENT", "PAUSE", 600_000, "WRITE"), b"+OK\r\n")
        await ask(waiting, wire("PING") + wire("SET", "key", "1"), b"+PONG\r\n")
        clock.advance(61)
        look_after_all(listener)
        assert await other[0].read() == b""
        await ask(await connect(), wire("CLIENT", "UNPAUSE"), b"+OK\r\n")
        await ask(waiting, b"", b"+OK\r\n")
        look_after_all(listener)
        await ask(waiting, wire("GET", "key"), b"$1\r\n1\r\n")
        clock.advance(61)
        look_after_all(listener)
        assert await waiting[0].read() == b""

    store = ephemera.open("memory://", clock=clock, maintenance="manual")
    serve(scenario, settings=Settings(timeout=60), store=store)


@pytest.mark.usefixtures("ticks_by_hand")
def test_who_still_reads_is_not_idle() -> None:
    clock, size = ephemera.ManualClock(), 30_000_000

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("SET", "large", b"x" * size), b"+OK\r\n")
        await ask((reader, writer), wire("GET", "large"), b"$30000000\r\n")
        (connection,) = listener.connections
        unsent = connection.transport.get_write_buffer_size
        for _ in range(3):
            look_after_all(listener)
            clock.advance(61)
            before = unsent()
            while unsent() == before:
                await reader.readexactly(1_000)
            look_after_all(listener)
            assert not connection.transport.is_closing()
        clock.advance(61)
        look_after_all(listener)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(size)

    store = ephemera.open("memory://", clock=clock, maintenance="manual")
    serve(scenario, settings=Settings(timeout=60), store=store)


@pytest.mark.parametrize("command", ["MONITOR", "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
def test_who_only_listens_is_not_idle(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(listener_module, "CRON_SECONDS", 0.01)
    clock = ephemera.ManualClock()

    async def scenario(listener: Listener, connect: Dialer) -> None:
        (listening, _), (idle, _) = streams = [await connect(), await connect()]
        streams[0][1].write(wire(command) if command == "MONITOR" else wire(command, "a"))
        await listening.readexactly(1)
        await ask(streams[1], wire("PING"), b"+PONG\r\n")
        clock.advance(61)
        assert await idle.read() == b"", "it was looked at"
        assert len(listener.connections) == 1

    store = ephemera.open("memory://", clock=clock, maintenance="manual")
    serve(scenario, settings=Settings(timeout=60), store=store)


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        (("127.0.0.1", 5), True),
        (("127.8.0.1", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("::ffff:10.0.0.1", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 2), False),
        (("10.0.0.1", 5), False),
        ("", True),
    ],
)
def test_which_peers_are_of_this_machine(peer: object, is_local: bool) -> None:
    assert listener_module._is_local(peer) is is_local


def test_with_commit_one_sync_serves_all_clients_of_a_tick(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.eph"), durability="commit")

    async def scenario(_: Listener, connect: Dialer) -> None:
        clients = [await connect() for _ in range(20)]
        for number, (_reader, writer) in enumerate(clients):
            writer.write(wire("SET", number, "x") * 10 + wire("GET", number))
        for reader, _writer in clients:
            assert await reader.readexactly(57) == b"+OK\r\n" * 10 + b"$1\r\nx\r\n"
        assert 0 < store.stats()["syncs"] <= 20
        reader, writer = clients[0]
        writer.write(wire("SET", "last", "x") + wire("QUIT"))
        assert await reader.read() == b"+OK\r\n+OK\r\n"

    serve(scenario, settings=Settings(durability="commit"), store=store)


@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_a_client_that_sends_no_more_still_gets_its_reply(
    tmp_path: Path, durability: Literal["commit", "interval"]
) -> None:
    store = open_store(str(tmp_path / "s.eph"), durability=durability)

    async def scenario(_: Listener, connect: Dialer) -> None:
        for number in range(20):
            reader, writer = await connect()
            writer.write(wire("PING"))
            assert await reader.readexactly(7) == b"+PONG\r\n"
            writer.write(wire("SET", number, "x"))
            writer.write_eof()
            assert await reader.read() == b"+OK\r\n"

    serve(scenario, settings=Settings(durability=durability), store=store)


def test_with_commit_a_client_that_is_gone_takes_no_reply_from_others(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.eph"), durability="commit")

    async def scenario(listener: Listener, connect: Dialer) -> None:
        await connect()
        (gone,) = listener.connections
        reader, _writer = await connect()
        (other,) = listener.connections - {gone}
        gone.abort()
        while gone in listener.connections:
            await asyncio.sleep(0)
        gone.send(b"+OK\r\n")
        other.send(b"+OK\r\n")
        assert await reader.readexactly(5) == b"+OK\r\n"

    serve(scenario, settings=Settings(durability="commit"), store=store)


def test_with_commit_nothing_is_acknowledged_when_the_sync_fails(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.eph"), durability="commit")

    class Lost:
        """The store with a disk that loses a write."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def __init__(self, listener: Listener) -> None:
            self._listener = listener

        def sync(self) -> None:
            # Meanwhile somebody has read what is lost.
            for connection in self._listener.connections:
                self._listener.hold(connection, b"$1\r\n1\r\n")
            raise ephemera.StoreFailed("the disk is gone")

    async def scenario(listener: Listener, connect: Dialer) -> None:
        listener.server.store = Lost(listener)  # type: ignore[assignment]  # stands in for the store
        (reader, writer), (other, _) = await connect(), await connect()
        await until(lambda: len(listener.connections) == 2)
        writer.write(wire("SET", "a", "1"))
        for each in (reader, other):
            with contextlib.suppress(ConnectionError):
                told.append(await each.read())

    told: list[bytes] = []
    with pytest.raises(ephemera.StoreFailed, match="the disk is gone"):
        serve(scenario, settings=Settings(durability="commit"), store=store)
    assert b"".join(told) == b""


def test_stopping_sends_what_was_answered_and_closes_the_store() -> None:
    store = ephemera.open("memory://")

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("SET", "large", b"x" * 3_000_000), b"+OK\r\n")
        writer.write(wire("GET", "large"))
        assert await reader.readexactly(1) == b"$"
        listener.stop()
        assert await reader.read() == b"3000000\r\n" + b"x" * 3_000_000 + b"\r\n"

    serve(scenario, store=store)
    with pytest.raises(ephemera.StoreClosed):
        store.get("large")


def test_without_uvloop_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def nothing() -> None: ...

    with pytest.raises(ephemera.UnsupportedOperation, match=r"pip install 'ephemera-kv\[server\]'"):
        run(nothing())


# --- open files -----------------------------------------------------------------------------------


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit of open files that the server may raise; what it may raise it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_open_files_is_raised_for_all_clients(few_files: int) -> None:
    async def scenario(listener: Listener, _: Dialer) -> None:
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 500
        assert listener.server.settings.maxclients == 500

    serve(scenario, settings=Settings(maxclients=500))


def test_fewer_clients_are_allowed_where_files_are_few(
    few_files: int, caplog: pytest.LogCaptureFixture
) -> None:
    if few_files == resource.RLIM_INFINITY:
        pytest.skip("this system sets no limit")

    async def scenario(listener: Listener, _: Dialer) -> None:
        assert 0 < listener.server.settings.maxclients < few_files
        assert "maxclients" in caplog.text

    serve(scenario, settings=Settings(maxclients=few_files))


# --- sockets that are read here, beside their transports ------------------------------------------


def test_messages_and_replies_keep_their_order_on_one_socket() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("HELLO", 3) + wire("SUBSCRIBE", "news") + wire("ECHO", "ready"))
        await reader.readuntil(b"ready\r\n")
        _, other = await connect()
        for n in range(300):
            other.write(wire("PUBLISH", "news", n))
            writer.write(wire("ECHO", f"e{n}"))
        seen = [line async for line in _lines(reader, 300 * 2 + 300 * 7)]
        echoed = [line for line in seen if line.startswith(b"e")]
        told = [line for line in seen if line.isdigit()]
        assert echoed == [b"e%d" % n for n in range(300)]
        assert told == [b"%d" % n for n in range(300)]

    serve(scenario)


async def _lines(reader: asyncio.StreamReader, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield (await reader.readuntil(b"\r\n"))[:-2]


def test_what_a_socket_does_not_take_at_once_comes_in_order() -> None:
    """Far more than a socket's buffer holds, then small replies that must not overtake it."""

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        value = os.urandom(300_000)
        await ask((reader, writer), wire("SET", "large", value), b"+OK\r\n")
        reply = b"$300000\r\n" + value + b"\r\n"
        for turn in range(20):
            writer.write(wire("GET", "large") + wire("ECHO", f"{turn:02}"))
        for turn in range(20):
            assert await reader.readexactly(len(reply)) == reply
            echo = b"$2\r\n%02d\r\n" % turn
            assert await reader.readexactly(len(echo)) == echo

    serve(scenario)


def test_a_client_that_another_kills_in_the_same_tick_is_not_read() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        victims = [await connect() for _ in range(20)]
        for victim in victims:
            await ask(victim, wire("PING"), b"+PONG\r\n")
        killer = await connect()
        await ask(killer, wire("PING"), b"+PONG\r\n")
        # All in one event-loop tick: whoever is served first, nobody is served after the killing.
        killer[1].write(wire("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        for _, writer in victims:
            writer.write(wire("INCR", "n"))
        assert await killer[0].readline() == b":20\r\n"
        fresh = await connect()
        for reader, _ in victims:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        await ask(fresh, wire("PING"), b"+PONG\r\n")
        assert len(listener.connections) == 2

    serve(scenario)


def test_a_client_that_stops_sending_still_gets_its_replies() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("SET", "a", b"x" * 100_000) + wire("GET", "a") * 8)
        writer.write_eof()
        expected = b"+OK\r\n" + (b"$100000\r\n" + b"x" * 100_000 + b"\r\n") * 8
        assert await reader.readexactly(len(expected)) == expected
        assert await reader.read() == b""

    serve(scenario)


# --- replies that wait, and clients that take their time ------------------------------------------

LONG_READING = """
local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local began = now()
while now() - began < 150000 do end
return 'done'
"""
LONG_SCRIPT = "redis.call('SET', 'scripted', '1')" + LONG_READING


@pytest.mark.parametrize("engine", ["local", "slatedb"])
def test_with_commit_a_long_script_is_acknowledged_after_its_own_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    url = str(tmp_path / "s.eph") if engine == "local" else file_url(tmp_path)
    store = open_store(url, durability="commit")
    synced: list[bool] = []
    sync, end_tick = ephemera.Store.sync, Gathered.end_tick

    def note_sync(self: ephemera.Store) -> None:
        synced.append(store.get("scripted") is not None)
        sync(self)

    def note_tick(self: Gathered, *, durable: bool) -> Any:  # Any: as it is
        synced.append(durable and store.get("scripted") is not None)
        return end_tick(self, durable=durable)

    monkeypatch.setattr(ephemera.Store, "sync", note_sync)
    monkeypatch.setattr(Gathered, "end_tick", note_tick)

    async def scenario(_: Listener, connect: Dialer) -> None:
        first, other = await connect(), await connect()
        # The write before it must be safe before its reply goes out, though the script goes on.
        first[1].write(wire("SET", "before", "1") + wire("EVAL", LONG_SCRIPT, 0))
        assert await first[0].readexactly(5) == b"+OK\r\n"
        assert synced
        assert not any(synced)
        other[1].write(wire("PING"))
        assert (await other[0].readline()).startswith(b"-BUSY")
        assert await first[0].readexactly(10) == b"$4\r\ndone\r\n"
        assert synced[-1]
        await ask(other, wire("GET", "before"), b"$1\r\n1\r\n")

    settings = Settings(durability="commit", busy_reply_threshold=20)
    serve(scenario, settings=settings, store=store)


def test_a_script_ends_though_its_client_does_not_read() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("EVAL", LONG_SCRIPT, 0))
        await until(lambda: listener.server.busy.is_on)
        (connection,) = listener.connections
        connection.pause_writing()
        await until(lambda: not listener.server.busy.is_on)
        await ask(await connect(), wire("GET", "scripted"), b"$1\r\n1\r\n")
        connection.resume_writing()
        await ask((reader, writer), wire("PING"), b"$4\r\ndone\r\n+PONG\r\n")

    serve(scenario, settings=Settings(busy_reply_threshold=20))


def test_a_script_and_what_comes_after_it_are_done_though_their_client_is_lost() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        _, writer = await connect()
        writer.write(wire("EVAL", LONG_SCRIPT, 0) + wire("INCR", "after"))
        await until(lambda: listener.server.busy.is_on)
        (connection,) = listener.connections
        connection.transport.abort()
        await until(lambda: not listener.server.clients)
        await ask(
            await connect(), wire("MGET", "scripted", "after"), b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n"
        )

    serve(scenario, settings=Settings(busy_reply_threshold=20))


def test_with_commit_writes_without_replies_are_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "s.eph"), durability="commit")
    monkeypatch.setattr(listener_module, "CRON_SECONDS", 0.01)
    synced = asyncio.Event()
    sync = ephemera.Store.sync

    def note_sync(self: ephemera.Store) -> None:
        sync(self)
        if store.get("a") == b"1":
            synced.set()

    monkeypatch.setattr(ephemera.Store, "sync", note_sync)

    async def scenario(_: Listener, connect: Dialer) -> None:
        _reader, writer = await connect()
        writer.write(wire("CLIENT", "REPLY", "OFF") + wire("SET", "a", "1"))
        await synced.wait()

    serve(scenario, settings=Settings(durability="commit"), store=store)


@pytest.fixture
def turns_that_wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[Listener], None]:
    """Let no tick's writes arrive until this is called."""
    look = PendingTicks._look
    monkeypatch.setattr(PendingTicks, "_look", lambda _: None)

    def arrive(listener: Listener) -> None:
        monkeypatch.setattr(PendingTicks, "_look", look)
        assert listener._pending_ticks is not None
        listener._pending_ticks._look()

    return arrive


@pytest.mark.parametrize("last", ["half-close", "QUIT", "protocol error"])
def test_who_ends_gets_all_replies_that_are_still_held(
    tmp_path: Path, turns_that_wait: Callable[[Listener], None], last: str
) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        for number in range(2):
            writer.write(wire("SET", number, "x"))
            await until(partial(_has_ticks, listener, number + 1))
        writer.write({"half-close": b"", "QUIT": wire("QUIT"), "protocol error": b"*x\r\n"}[last])
        if last == "half-close":
            writer.write_eof()
        (connection,) = listener.connections
        await until(lambda: connection.session.is_closing)
        turns_that_wait(listener)
        replies = await reader.read()
        assert replies.startswith(b"+OK\r\n+OK\r\n")
        assert replies[10:15] == {"half-close": b"", "QUIT": b"+OK\r\n"}.get(last, b"-ERR ")

    serve(scenario, store=open_store(file_url(tmp_path)))


@pytest.mark.usefixtures("ticks_by_hand")
def test_who_waits_for_replies_that_are_held_is_not_idle(
    tmp_path: Path, turns_that_wait: Callable[[Listener], None]
) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        streams = await connect()
        streams[1].write(wire("SET", "a", "1"))
        await until(partial(_has_ticks, listener, 1))
        (connection,) = listener.connections
        for _ in range(2):
            connection.session.active_ms -= 61_000
            look_after_all(listener)
        turns_that_wait(listener)
        await ask(streams, wire("GET", "a"), b"+OK\r\n$1\r\n1\r\n")
        connection.session.active_ms -= 61_000
        look_after_all(listener)
        assert await streams[0].read() == b""

    serve(scenario, settings=Settings(timeout=60), store=open_store(file_url(tmp_path)))


def test_replies_that_are_held_are_no_more_than_a_client_may_leave_unread(
    tmp_path: Path, turns_that_wait: Callable[[Listener], None]
) -> None:
    value = b"x" * 100_000

    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        await ask((reader, writer), wire("PING"), b"+PONG\r\n")
        writer.write(wire("SET", "a", value) + wire("GET", "a") * 100)
        (connection,) = listener.connections
        await until(lambda: connection._held_bytes > OUTPUT_BYTES_PAUSE)
        for _ in range(20):
            await asyncio.sleep(0)
        assert connection._held_bytes < 3 * OUTPUT_BYTES_PAUSE
        turns_that_wait(listener)
        expected = b"+OK\r\n" + (b"$100000\r\n" + value + b"\r\n") * 100
        assert await reader.readexactly(len(expected)) == expected
        await ask((reader, writer), wire("PING"), b"+PONG\r\n")

    serve(scenario, store=open_store(file_url(tmp_path)))


def test_the_rest_of_a_long_pipeline_waits_for_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "PROCESSING_NS_MAX", 0)
    order: list[str] = []

    async def scenario(listener: Listener, connect: Dialer) -> None:
        slow, other = await connect(), await connect()
        slow[1].write(wire("ECHO", "slow") * 50)
        other[1].write(wire("ECHO", "other"))

        async def read(streams: Streams, name: str, count: int) -> None:
            for _ in range(count):
                assert await streams[0].readuntil(name.encode() + b"\r\n")
                order.append(name)

        await asyncio.gather(read(slow, "slow", 50), read(other, "other", 1))
        assert order.index("other") < 40
        await ask(slow, wire("PING"), b"+PONG\r\n")

    serve(scenario)


def _has_ticks(listener: Listener, count: int) -> bool:
    return listener._pending_ticks is not None and len(listener._pending_ticks) == count
