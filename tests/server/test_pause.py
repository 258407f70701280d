"""CLIENT PAUSE, CLIENT KILL and SHUTDOWN on real sockets, where waiting and closing is real."""

from __future__ import annotations

from ephemera.server.listener import Listener
from tests.server.clients import wire
from tests.server.test_listener import Dialer, serve


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


def test_a_client_may_leave_in_a_pause() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("CLIENT", "PAUSE", 600_000, "WRITE"))
        await reader.readexactly(5)
        _, others = await connect()
        others.write(wire("SET", "key", "1"))
        others.close()
        writer.write(wire("CLIENT", "UNPAUSE") + wire("PING"))
        assert await reader.readexactly(12) == b"+OK\r\n+PONG\r\n"

    serve(scenario)


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


def test_shutdown_hangs_up_and_stops() -> None:
    async def scenario(listener: Listener, connect: Dialer) -> None:
        reader, writer = await connect()
        writer.write(wire("SHUTDOWN", "NOSAVE"))
        assert await reader.read() == b""

    serve(scenario)
