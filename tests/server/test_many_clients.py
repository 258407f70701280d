"""A thousand clients at once, all of them served."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera

CLIENTS = 1_000
FILES = CLIENTS + 200


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    """Let this process, and the server it starts, have so many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"this machine allows {hard} open files, and {FILES} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def server(_many_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(start_ephemera(tmp_path_factory.mktemp("many") / "many.eph")) as process:
        yield process


@pytest.fixture
def wires(server: Process) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(server)) for _ in range(CLIENTS)]


def test_a_thousand_clients_are_answered_each_with_its_own(wires: list[Wire]) -> None:
    for number, wire in enumerate(wires):
        wire.send(b"SET key:%d %d EX 1000\r\nGET key:%d\r\nINCR all\r\n" % (number, number, number))
    totals = []
    for number, wire in enumerate(wires):
        assert wire.read().value == b"OK"
        assert wire.read().data == b"%d" % number
        totals.append(wire.read().number)
    assert sorted(totals) == list(range(1, CLIENTS + 1))
    assert wires[0]("DBSIZE").number == CLIENTS + 1


def test_a_thousand_subscribers_hear_every_message(wires: list[Wire]) -> None:
    speaker, *listeners = wires
    for wire in listeners:
        wire.send(b"SUBSCRIBE news\r\n")
    for wire in listeners:
        assert wire.read().members[0].data == b"subscribe"
    for word in ("one", "two"):
        assert speaker("PUBLISH", "news", word).number == len(listeners)
    for wire in listeners:
        heard = [wire.read().members[2].data for _ in range(2)]
        assert heard == [b"one", b"two"]


def test_a_thousand_clients_that_leave_at_once_leave_nothing_behind(server: Process) -> None:
    with ExitStack() as stack:
        for number in range(CLIENTS):
            wire = stack.enter_context(Wire(server))
            wire.send(b"SUBSCRIBE c%d\r\n" % number if number % 2 else b"MULTI\r\nSET k v\r\n")
            wire.read()
    with Wire(server) as wire:
        while wire("CLIENT", "LIST").data.count(b"\n") > 1:
            pass  # until the server has noticed that they are gone
        assert wire("PUBSUB", "CHANNELS").members == ()
        assert wire("EXISTS", "k").number == 0


def test_one_client_too_many_is_told_so() -> None:
    with running(start_ephemera("memory://", "--maxclients", "3")) as server, ExitStack() as stack:
        first, *_ = [stack.enter_context(Wire(server)) for _ in range(3)]
        assert first("PING").value == b"PONG"
        refused = stack.enter_context(Wire(server))
        assert refused.read().data == b"ERR max number of clients reached"
        assert refused.is_closed()
        assert first("PING").value == b"PONG"
