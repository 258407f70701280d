"""A store that is behind its writers: they wait, each in its session, and nobody else does.

Whoever holds the maintenance lock is the only one to checkpoint in the background. A test holds it, so that a
checkpoint comes when the test makes one, or lets go of the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

import ephemera
from ephemera import StoreBusy, StoreFull
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import FileLock
from ephemera.engines.local.layout import Layout
from ephemera.server.listener import Listener
from ephemera.server.server import Server
from tests.engines.local.stores import THOUSAND, engine_of, in_a_thread, open_local
from tests.server.clients import Client, wire
from tests.server.test_listener import Dialer, ask, serve
from tests.waiting import wait_until

WRITES = [
    ("SET key 2", b"OK"),
    ("SET key 2 EX 100", b"OK"),
    ("SET key 2 XX GET", b"1"),
    ("SETEX key 100 2", b"OK"),
    ("MSET key 2 other 3", b"OK"),
    ("INCR key", 2),
    ("DECRBY key 3", -2),
    ("INCRBYFLOAT key 1", b"2"),
    ("APPEND key 2", 2),
    ("DEL key", 1),
    ("UNLINK key other", 1),
    ("EXPIRE key 100", 1),
    ("PERSIST key", 0),
    ("GETDEL key", b"1"),
    ("RENAME key other", b"OK"),
    ("FLUSHALL", b"OK"),
    ("EVAL redis.call('SET',KEYS[1],'2')return'done' 1 key", b"done"),
]
READS = [
    ("GET key", b"1"),
    ("MGET key other", [b"1", None]),
    ("TTL key", -1),
    ("STRLEN key", 1),
    ("DBSIZE", None),
    ("PING", b"PONG"),
    ("PUBLISH channel message", 0),
    ("EVAL_RO return(redis.call('GET',KEYS[1])) 1 key", b"1"),
]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[ExitStack]:
    """The maintenance lock of a store that is there, until it is closed."""
    open_local(tmp_path / "s").close()
    with ExitStack() as stack:
        stack.enter_context(FileLock(Layout(str(tmp_path / "s")).locks / "maintenance").held())
        yield stack


@pytest.fixture
def open_store(tmp_path: Path, held: ExitStack) -> Iterator[Callable[..., ephemera.Store]]:
    with ExitStack() as stack:

        def open_it(lock_timeout: float = 30) -> ephemera.Store:
            store = open_local(
                tmp_path / "s", maintenance="background", exclusive=True, lock_timeout=lock_timeout
            )
            stack.callback(store.close)
            return store

        yield open_it


def fall_behind(store: ephemera.Store) -> None:
    """Write until the next write has to wait."""
    store.put("key", "1")
    n = 0
    while not store.stats()["writers_wait"]:
        store.put(f"filler:{n}", THOUSAND)
        n += 1


class Timer:
    """In place of a loop: what it was to call later, when a test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def __call__(self, seconds: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        self.due.append(act)
        return cast(asyncio.TimerHandle, self)

    def cancel(self) -> None:
        self.due.clear()

    def ring(self) -> None:
        due, self.due = self.due, []
        for act in due:
            act()


def paced(store: ephemera.Store) -> tuple[Server, Timer]:
    server, timer = Server(store), Timer()
    server.pacing.begin(timer)
    fall_behind(store)
    return server, timer


# --- on sockets -----------------------------------------------------------------------------------


def test_a_write_that_has_to_wait_stops_no_read(
    open_store: Callable[..., ephemera.Store], held: ExitStack
) -> None:
    store = open_store()

    async def scenario(listener: Listener, connect: Dialer) -> None:
        fall_behind(store)
        writer, other = await connect(), await connect()
        await ask(writer, wire("PING") + wire("SET", "key", "2") + wire("GET", "key"), b"+PONG\r\n")
        await ask(other, wire("GET", "key") + wire("PING"), b"$1\r\n1\r\n+PONG\r\n")
        await ask(await connect(), wire("GET", "key"), b"$1\r\n1\r\n")
        held.close()
        await ask(writer, wire("GET", "key"), b"+OK\r\n" + 2 * b"$1\r\n2\r\n")
        await ask(other, wire("GET", "key"), b"$1\r\n2\r\n")

    serve(scenario, store=store)


def test_many_clients_write_more_than_may_wait(
    open_store: Callable[..., ephemera.Store], held: ExitStack
) -> None:
    store = open_store()

    async def write(connect: Dialer, name: str) -> None:
        requests = b"".join(wire("SET", f"{name}:{n}", THOUSAND) for n in range(100))
        await ask(await connect(), requests + wire("GET", f"{name}:99"), 100 * b"+OK\r\n")

    async def scenario(listener: Listener, connect: Dialer) -> None:
        fall_behind(store)
        writes = asyncio.gather(*(write(connect, f"client{n}") for n in range(20)))
        await ask(await connect(), wire("GET", "key"), b"$1\r\n1\r\n")
        held.close()
        await writes
        assert sum(1 for _ in store.scan("client")) == 2_000

    serve(scenario, store=store)


def test_a_stop_waits_for_no_write(open_store: Callable[..., ephemera.Store]) -> None:
    store = open_store()

    async def scenario(listener: Listener, connect: Dialer) -> None:
        fall_behind(store)
        reader, writer = await connect()
        await ask((reader, writer), wire("PING") + wire("SET", "key", "2"), b"+PONG\r\n")
        listener.stop()
        assert await reader.read() == b""

    serve(scenario, store=store)


# --- in sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "reply"), WRITES)
def test_every_write_waits_for_a_checkpoint(
    line: str, reply: object, open_store: Callable[..., ephemera.Store]
) -> None:
    server, timer = paced(open_store())
    client, woken = Client(server), []
    client.session.wake = lambda: woken.append(True)
    assert client(*line.split()) is False
    timer.ring()
    assert client.go_on() is False
    assert Client(server)("GET", "key") == b"1"
    assert not woken
    server.store.checkpoint()
    timer.ring()
    assert woken
    assert client.go_on() == reply
    timer.ring()
    assert not timer.due


@pytest.mark.parametrize(("line", "reply"), READS)
def test_no_read_waits(line: str, reply: object, open_store: Callable[..., ephemera.Store]) -> None:
    server, timer = paced(open_store())
    found = Client(server)(*line.split())
    assert found is not False
    assert reply is None or found == reply
    assert not timer.due


def test_no_script_waits_that_says_it_only_reads(
    open_store: Callable[..., ephemera.Store],
) -> None:
    server, timer = paced(open_store())
    script = "#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])"
    client = Client(server)
    assert client("EVAL", script, 1, "key") == b"1"
    assert client("EVALSHA", client("SCRIPT", "LOAD", script), 1, "key") == b"1"
    assert [client("MULTI"), client("EVAL", script, 1, "key")] == [b"OK", b"QUEUED"]
    assert client("EXEC") == [b"1"]
    assert not timer.due


def test_a_transaction_waits_when_it_is_to_write(open_store: Callable[..., ephemera.Store]) -> None:
    server, _ = paced(open_store())
    reader, writer = Client(server), Client(server)
    assert [reader("MULTI"), reader("GET", "key")] == [b"OK", b"QUEUED"]
    assert [writer("MULTI"), writer("SET", "key", "2")] == [b"OK", b"QUEUED"]
    assert reader("EXEC") == [b"1"]
    assert writer("EXEC") is False
    server.store.checkpoint()
    assert writer.go_on() == [b"OK"]


def test_requests_of_a_client_stay_in_their_order(
    open_store: Callable[..., ephemera.Store],
) -> None:
    server, _ = paced(open_store())
    session = Client(server).session
    assert session.feed(wire("GET", "key") + wire("INCR", "key") + wire("GET", "key")) == (
        b"$1\r\n1\r\n"
    )
    assert session.feed(wire("INCR", "key")) == b""
    server.store.checkpoint()
    assert session.go_on() == b":2\r\n$1\r\n2\r\n:3\r\n"


def test_a_command_that_has_begun_goes_on(open_store: Callable[..., ephemera.Store]) -> None:
    store = open_store(lock_timeout=0.001)
    paced(store)
    store.put("key", "2")
    (refused,) = in_a_thread(lambda: store.put("key", "3"))
    assert isinstance(refused, StoreBusy)
    assert store.get("key") == b"2"


def test_without_a_listener_a_write_waits_where_it_is_made(
    open_store: Callable[..., ephemera.Store],
) -> None:
    store = open_store(lock_timeout=0.001)
    fall_behind(store)
    assert "checkpoint" in Client(Server(store)).error("SET", "key", "2")


@pytest.mark.parametrize("line", ["SET key 2", "INCR key", "APPEND key 2", "EVAL return(1) 0"])
def test_a_write_that_has_waited_for_too_long_is_refused(
    line: str, open_store: Callable[..., ephemera.Store]
) -> None:
    server, _ = paced(open_store(lock_timeout=0.001))
    client = Client(server)
    assert client(*line.split()) is False
    wait_until(lambda: server.pacing.has_lost_patience(client.session))
    assert str(client.go_on()) == (
        "ERR 5 segments wait for a checkpoint, and none came within 0.001 s (lock_timeout)"
    )
    assert client("GET", "key") == b"1"
    server.store.checkpoint()
    assert client("SET", "key", "2") == b"OK"


def test_each_write_waits_for_as_long(open_store: Callable[..., ephemera.Store]) -> None:
    server, _ = paced(open_store(lock_timeout=0.001))
    session = Client(server).session
    assert session.feed(2 * (wire("INCR", "key") + wire("GET", "key"))) == b""
    for _ in range(2):
        wait_until(lambda: server.pacing.has_lost_patience(session))
        first, _, rest = session.go_on().partition(b"\r\n")
        assert first.startswith(b"-ERR 5 segments wait")
        assert rest == b"$1\r\n1\r\n"
    assert not session.is_postponed


def test_a_transaction_that_is_refused_is_over(open_store: Callable[..., ephemera.Store]) -> None:
    server, _ = paced(open_store(lock_timeout=0.001))
    client = Client(server)
    client("MULTI")
    client("SET", "key", "2")
    assert client("EXEC") is False
    wait_until(lambda: server.pacing.has_lost_patience(client.session))
    assert str(client.go_on()).startswith("ERR 5 segments wait")
    assert client.error("EXEC") == "ERR EXEC without MULTI"
    assert client("GET", "key") == b"1"


def test_writes_are_refused_where_there_is_no_room_to_catch_up(
    open_store: Callable[..., ephemera.Store], held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_room(_: LocalEngine) -> None:
        raise StoreFull("no room")

    store = open_store()
    server, timer = paced(store)
    client, woken = Client(server), []
    client.session.wake = lambda: woken.append(True)
    assert client("SET", "key", "2") is False
    with monkeypatch.context() as patched:
        patched.setattr(LocalEngine, "_apply_waiting", find_no_room)
        held.close()
        wait_until(lambda: not engine_of(store).hasten())
        timer.ring()
        assert woken
        assert str(client.go_on()) == "OOM no room"
        assert client("GET", "key") == b"1"
    wait_until(lambda: engine_of(store).hasten() and not engine_of(store).is_behind)
    assert client("SET", "key", "2") == b"OK"


def test_who_leaves_waits_no_longer(open_store: Callable[..., ephemera.Store]) -> None:
    server, timer = paced(open_store())
    client = Client(server)
    assert client("SET", "key", "2") is False
    client.session.close()
    assert not server.pacing.has(client.session)
    timer.ring()
    assert not timer.due


def test_a_pause_comes_before_a_checkpoint(open_store: Callable[..., ephemera.Store]) -> None:
    server, _ = paced(open_store())
    client, other = Client(server), Client(server)
    assert client("SET", "key", "2") is False
    assert other("CLIENT", "PAUSE", 600_000, "WRITE") == b"OK"
    assert client.go_on() is False
    assert not server.pacing.has(client.session)
    server.store.checkpoint()
    assert client.go_on() is False
    assert other("CLIENT", "UNPAUSE") == b"OK"
    assert client.go_on() == b"OK"


def test_nothing_waits_once_the_server_ends(open_store: Callable[..., ephemera.Store]) -> None:
    server, timer = paced(open_store())
    assert Client(server)("SET", "key", "2") is False
    server.pacing.end()
    assert not timer.due
    assert Client(server)("SET", "key", "2") == b"OK"
