"""Many clients of one event-loop tick: each gets its own replies, and what others cause comes after those."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ephemera.server._sockets import IS_AVAILABLE, Receiving, Sockets
from ephemera.server.server import Server
from ephemera.server.session import Session
from tests.server.clients import wire

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="no epoll here")


class Connection(Receiving):
    """A session on one end of a pair of sockets; the test has the other."""

    def __init__(self, server: Server, ours: socket.socket, theirs: socket.socket) -> None:
        self.session = Session(server)
        self.session.transmit = self.send
        self.write = ours.sendall
        self.client = theirs
        self.fault: Exception | None = None

    def send(self, out: bytes) -> None:
        self.flush_reply()
        self.write(out)

    def finish(self, out: bytes) -> None:
        self.write(out)

    def has_caught_up(self) -> bool:
        return True

    def failed(self, error: Exception) -> None:
        self.fault = error

    def read(self) -> bytes:
        """All that has arrived."""
        try:
            return self.client.recv(1024 * 1024, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""


@pytest.fixture
def sockets(server: Server) -> Iterator[Sockets]:
    sockets = Sockets(server)
    sockets.tick_ns_max = 60 * 10**9  # a slow machine must not end a tick
    yield sockets
    sockets.close()


@pytest.fixture
def connect(server: Server, sockets: Sockets) -> Iterator[Callable[[], Connection]]:
    with ExitStack() as ended:

        def connect() -> Connection:
            ours, theirs = (ended.enter_context(end) for end in socket.socketpair())
            connection = Connection(server, ours, theirs)
            sockets.watch(connection, ours.fileno())
            return connection

        yield connect


@pytest.fixture
def listener(connect: Callable[[], Connection], sockets: Sockets) -> Connection:
    """One that has subscribed to the news."""
    listener = connect()
    listener.client.send(wire("SUBSCRIBE", "news"))
    sockets.serve()
    return listener


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_every_client_of_a_tick_gets_its_replies(
    connect: Callable[[], Connection], sockets: Sockets, count: int
) -> None:
    connections = [connect() for _ in range(count)]
    for number, connection in enumerate(connections):
        connection.client.send(wire("SET", f"key {number}", number) + wire("GET", f"key {number}"))
    sockets.serve()
    for number, connection in enumerate(connections):
        assert connection.read() == b"+OK\r\n$%d\r\n%d\r\n" % (len(str(number)), number)
        assert not connection.session.is_processing


def test_a_message_comes_after_the_reply_of_the_same_tick(
    connect: Callable[[], Connection], sockets: Sockets
) -> None:
    listener, publisher = connect(), connect()
    listener.client.send(wire("SUBSCRIBE", "news"))
    publisher.client.send(wire("PUBLISH", "news", "one") + wire("PUBLISH", "news", "two"))
    sockets.serve()
    subscribed = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    message = b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\n%s\r\n"
    assert listener.read() == subscribed + message % b"one" + message % b"two"
    assert publisher.read() == b":1\r\n:1\r\n"
    publisher.client.send(wire("PUBLISH", "news", "three"))
    sockets.serve()
    assert listener.read() == message.replace(b"$3", b"$5") % b"three"


def test_who_is_killed_in_the_turn_of_its_request_still_gets_the_reply(
    connect: Callable[[], Connection], sockets: Sockets
) -> None:
    victim, other = connect(), connect()
    victim.client.send(wire("PING"))
    other.client.send(wire("CLIENT", "KILL", "ID", victim.session.id))
    sockets.serve()
    assert (victim.read(), victim.session.is_closing) == (b"+PONG\r\n", True)
    assert (other.read(), other.session.is_closing) == (b":1\r\n", False)


def test_messages_do_not_gather_behind_a_reply(
    connect: Callable[[], Connection], sockets: Sockets, listener: Connection
) -> None:
    publisher = connect()
    sent: list[bytes] = []
    listener.write = sent.append
    listener.client.send(wire("PING"))
    publisher.client.send(wire("PUBLISH", "news", "x" * 1_000) * 200)
    sockets.serve()
    assert len(sent) == 200
    assert listener.read().endswith(b"pong\r\n$0\r\n\r\n")


def test_no_reply_waits_for_a_command_that_may_take_long(
    connect: Callable[[], Connection], sockets: Sockets, server: Server
) -> None:
    quick, slow = connect(), connect()
    seen: list[bytes] = []
    keys = server.commands.by_name[b"KEYS"]
    handler = keys.handler

    def look(call: Any) -> Any:  # Any: what handlers get and give
        seen.append(quick.read())
        return handler(call)

    keys.handler = look
    try:
        quick.client.send(wire("PING"))
        slow.client.send(wire("KEYS", "*"))
        sockets.serve()
    finally:
        keys.handler = handler
    assert seen == [b"+PONG\r\n"]
    assert slow.read() == b"*0\r\n"


def test_a_fault_of_one_client_costs_the_others_nothing(
    connect: Callable[[], Connection], sockets: Sockets
) -> None:
    first, faulty, last = connect(), connect(), connect()
    fault = RuntimeError("no socket")

    def refuse(_out: bytes) -> None:
        raise fault

    faulty.is_behind = True
    faulty.has_caught_up = lambda: False  # type: ignore[method-assign]  # replies go through `write` now
    faulty.write = refuse
    for connection in (first, faulty, last):
        connection.client.send(wire("PING"))
    sockets.serve()
    assert [first.read(), faulty.read(), last.read()] == [b"+PONG\r\n", b"", b"+PONG\r\n"]
    assert [first.fault, faulty.fault, last.fault] == [None, fault, None]


def test_who_sends_something_meanwhile_is_served_in_the_same_tick(
    connect: Callable[[], Connection], sockets: Sockets, listener: Connection
) -> None:
    publisher, late = connect(), connect()
    listener.session.transmit = lambda _: late.client.send(wire("PING"))
    publisher.client.send(wire("PUBLISH", "news", "one"))
    sockets.serve()
    assert (publisher.read(), late.read()) == (b":1\r\n", b"+PONG\r\n")


def test_a_turn_ends_however_much_clients_send(
    connect: Callable[[], Connection], sockets: Sockets, listener: Connection
) -> None:
    publisher = connect()
    request = wire("PUBLISH", "news", "x" * 4_000)
    listener.session.transmit = lambda _: publisher.client.send(request)
    publisher.client.send(request)
    sockets.serve()
    assert publisher.read() == b":1\r\n" * math.ceil(64 * 1024 / len(request))


def test_a_turn_ends_after_a_client_that_sends_much(
    connect: Callable[[], Connection], sockets: Sockets, listener: Connection
) -> None:
    publisher = connect()
    listener.session.transmit = lambda _: publisher.client.send(wire("PING"))
    publisher.client.send(wire("PUBLISH", "news", "x" * 64 * 1024))
    sockets.serve()
    assert publisher.read() == b":1\r\n"
    sockets.serve()
    assert publisher.read() == b"+PONG\r\n"


def test_a_turn_ends_after_a_command_that_took_long(
    connect: Callable[[], Connection], sockets: Sockets, listener: Connection
) -> None:
    publisher, late = connect(), connect()
    listener.session.transmit = lambda _: late.client.send(wire("PING"))
    publisher.client.send(wire("PUBLISH", "news", "one"))
    sockets.tick_ns_max = 0
    sockets.serve()
    assert (publisher.read(), late.read()) == (b":1\r\n", b"")
    sockets.serve()
    assert late.read() == b"+PONG\r\n"


@pytest.mark.parametrize("count", [1, 3, 31, 32, 100])
def test_it_is_known_how_many_clients_are_about(
    connect: Callable[[], Connection], sockets: Sockets, count: int
) -> None:
    keep_company(sockets, [connect() for _ in range(count)])
    assert sockets.company == count


@pytest.mark.parametrize(
    ("about", "late", "waits"), [(31, 1, False), (32, 1, True), (32, 8, False)]
)
def test_few_of_many_clients_let_the_others_gather(
    connect: Callable[[], Connection], sockets: Sockets, about: int, late: int, waits: bool
) -> None:
    connections = [connect() for _ in range(about)]
    keep_company(sockets, connections)
    listener, publisher, *others = connections
    listener.client.send(wire("SUBSCRIBE", "news"))
    sockets.serve()

    def send_late(_message: bytes) -> None:
        for other in others[:late]:
            other.client.send(wire("PING"))

    listener.session.transmit = send_late
    publisher.client.send(wire("PUBLISH", "news", "one"))
    sockets.serve()
    assert sockets.pauses == waits
    assert [other.read() for other in others[:late]] == [b"+PONG\r\n"] * late


def keep_company(sockets: Sockets, connections: list[Connection]) -> None:
    """Have each of them ask, by turns, until it was counted twice how many they are."""
    for number in range(2 * 128):
        connection = connections[number % len(connections)]
        connection.client.send(wire("PING"))
        sockets.serve()
        assert connection.read() == b"+PONG\r\n"
