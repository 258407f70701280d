"""CLIENT PAUSE, CLIENT KILL and SHUTDOWN on real sockets, where waiting and closing is real."""

from __future__ import annotations

import pytest

from ephemera.server import listener as listener_module
from ephemera.server.listener import Listener
from ephemera.server.settings import Settings
from tests.server.clients import wire
from tests.server.test_listener import LONG_READING, Dialer, serve
from tests.waiting import until


def test_unpause_wakes_who_waits() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        other, others = await connect()
        writer.write(wire("CLIENT", "PAUSE", 600_000, "WRITE"))
        assert await reader.readexactly(5) == b"+OK\r\n"
        others.write(wire("GET", "key") + wire("SET", "key", "1") + wire("GET", "key"))
        assert await other.readexactly(5) == b"$-1\r\n"
        writer.write(wire("CLIENT", "UNPAUSE"))
        assert await reader.readexactly(5) == b"+OK\r\n"
        assert await other.readexactly(12) == b"+OK\r\n$1\r\n1\r\n"

    serve(scenario)


def test_a_pause_ends_by_itself() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("CLIENT", "PAUSE", 20) + wire("PING"))
        assert await reader.readexactly(12) == b"+OK\r\n+PONG\r\n"
        assert listener.server.pause.until_ms == 0

    serve(scenario)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_client_may_leave_in_a_pause(is_known: bool) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("CLIENT", "PAUSE", 600_000, "WRITE"))
        await reader.readexactly(5)
        other, others = await connect()
        if is_known:
            others.write(wire("PING"))
            await other.readexactly(7)
        others.write(wire("SET", "key", "1"))
        await until(lambda: any(one.session.is_postponed for one in listener.connections))
        others.close()
        await until(lambda: len(listener.connections) == 1)
        writer.write(wire("CLIENT", "UNPAUSE") + wire("GET", "key"))
        assert await reader.readexactly(10) == b"+OK\r\n$-1\r\n"  # as in Redis

    serve(scenario)


def test_a_long_script_that_a_pause_lets_run_goes_on_in_it() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("CLIENT", "PAUSE", 600_000, "WRITE") + wire("EVAL_RO", LONG_READING, 0))
        assert await reader.readexactly(15) == b"+OK\r\n$4\r\ndone\r\n"
        assert listener.server.busy.begun == 1

    serve(scenario, settings=Settings(busy_reply_threshold=20))


def test_a_pause_that_a_lost_client_asked_for_holds_back_the_rest_of_its_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "PROCESSING_NS_MAX", 0)

    async def scenario(listener: Listener, connect: Dialer) -> None:
        _, writer = await connect()
        await until(lambda: listener.connections)
        (connection,) = listener.connections
        pause = wire("CLIENT", "PAUSE", 600_000, "WRITE")
        writer.write(wire("INCR", "n") * 50 + pause + wire("INCR", "n"))
        await until(lambda: connection.session.has_waiting)
        writer.transport.abort()
        connection.transport.abort()  # it would be found out when it is written to
        await until(lambda: not listener.server.clients)
        assert listener.server.store.get("n") == b"50"

    serve(scenario)
    assert "fault" not in caplog.text


def test_a_killed_client_is_hung_up_on() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        other, others = await connect()
        others.write(wire("PING"))
        await other.readexactly(7)
        writer.write(wire("CLIENT", "KILL", "TYPE", "normal"))
        assert await reader.readexactly(4) == b":1\r\n"
        assert await other.read() == b""

    serve(scenario)


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_killed_client_that_does_not_read_is_not_waited_for(is_closing: bool) -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        _, others = await connect()
        writer.write(wire("SET", "large", "x" * 30_000_000))  # more than the system keeps for it
        await reader.readexactly(5)
        others.write(wire("GET", "large"))
        await until(lambda: any(one._is_choked for one in listener.connections))
        (unread,) = (one for one in listener.connections if one._is_choked)
        if is_closing:
            unread.close()
        writer.write(wire("CLIENT", "KILL", "TYPE", "normal"))
        assert await reader.readexactly(4) == b":1\r\n"
        await until(lambda: len(listener.connections) == 1)

    serve(scenario)


def test_shutdown_hangs_up_and_stops() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("SHUTDOWN", "NOSAVE"))
        assert await reader.read() == b""

    serve(scenario)
