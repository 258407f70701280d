"""A script that takes long on a real server: what others are told, how it is killed, and that it may end well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wire.pair import Pair
from tests.wire.resp import Closed, Reply, Wire, request
from tests.wire.servers import Process, running, start_ephemera

ENDLESS = "while true do end"
LOOKS_MAX = 10_000
MEMORY_BYTES_MAX = 50 * 1024 * 1024


@pytest.fixture
def hasty(connect: Callable[[], Pair]) -> Iterator[Pair]:
    """A pair of clients whose servers are busy after 50 milliseconds."""
    pair = connect()
    pair.clear(2)
    pair("CONFIG", "SET", "busy-reply-threshold", 50)
    yield pair
    pair("CONFIG", "SET", "busy-reply-threshold", 5000)


def until_busy(wire: Wire) -> Reply:
    """The first reply of a server that is busy; its commands are answered up to then."""
    for _ in range(LOOKS_MAX):
        reply = wire("PING")
        if reply.is_error:
            return reply
    raise AssertionError("it does not get busy")


def test_both_servers_say_the_same_while_a_script_runs(
    hasty: Pair, connect: Callable[[], Pair]
) -> None:
    other = connect()
    for wire in (hasty.ours, hasty.theirs):
        wire.send(request("EVAL", ENDLESS, 0))
    assert until_busy(other.ours) == until_busy(other.theirs)
    for command in (["GET", "a"], ["SET", "a", 1], ["INFO"], ["SCRIPT", "EXISTS", "a"], ["SHUTDOWN"],
                    ["EVAL", "return 1", 0], ["FUNCTION", "STATS"], ["MULTI"], ["GET", "a"], ["EXEC"],
                    ["WATCH", "a"], ["UNWATCH"], ["RESET"], ["SUBSCRIBE", "a"], ["SCRIPT", "KILL"]):  # fmt: skip
        ours, theirs = other(*command)
        assert ours == theirs, command
    ours, theirs = hasty.read()
    assert ours == theirs
    assert ours.data.startswith(b"ERR Script killed by user with SCRIPT KILL... script: ")
    ours, theirs = other("SCRIPT", "KILL")
    assert ours == theirs
    ours, theirs = other("PING")
    assert ours == theirs


def test_a_script_may_take_its_time(hasty: Pair, connect: Callable[[], Pair]) -> None:
    other = connect()
    script = """
        redis.call('set', 'n', 0)
        local count = 0
        while redis.call('incr', 'n') < 20000 do count = count + 1 end
        return count
    """
    for wire in (hasty.ours, hasty.theirs):
        wire.send(request("EVAL", script, 0) + request("GET", "n"))
    assert until_busy(other.ours).is_error
    for told in (Reply(":", 19_999), Reply("$", b"20000")):
        assert hasty.read() == (told, told)
    assert other("GET", "n")[0].data == b"20000"


def test_a_script_that_wrote_can_be_killed_and_is_undone(
    hasty: Pair, connect: Callable[[], Pair]
) -> None:
    """The difference "kill-undoes": Redis cannot."""
    other = connect()
    script = f"redis.call('set', 'a', 1) {ENDLESS}"
    hasty.ours.send(request("EVAL", script, 0))
    assert until_busy(other.ours).is_error
    assert other.ours("SCRIPT", "KILL").data == b"OK"
    assert hasty.ours.read().is_error
    assert other.ours("GET", "a").value is None


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_the_server_stops_in_the_middle_of_a_script(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "s.eph"
    options = ["--durability", durability, "--set", "busy-reply-threshold=50"]
    with running(start_ephemera(path, *options)) as server:
        with Wire(server) as client, Wire(server) as other:
            other("SET", "kept", 1)
            client.send(request("EVAL", f"redis.call('set', 'a', 1) {ENDLESS}", 0))
            until_busy(other)
            other.send(request("SHUTDOWN", "NOSAVE"))
            with pytest.raises((Closed, ConnectionError)):
                other.read()
        assert server.wait() == 0
        assert "Traceback" not in "".join(server.said)
    with running(start_ephemera(path, *options)) as server, Wire(server) as client:
        assert client("MGET", "kept", "a").members[0].data == b"1"
        assert client("GET", "a").value is None


def test_what_a_client_sends_behind_its_script_waits_outside(ephemera_server: Process) -> None:
    """It asks for much while its script runs, and costs no memory."""
    with Wire(ephemera_server) as client, Wire(ephemera_server) as other:
        other("CONFIG", "SET", "busy-reply-threshold", 50)
        before = ephemera_server.resident_bytes()
        client.send(request("EVAL", ENDLESS, 0))
        until_busy(other)
        client.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            client.send(request("PING") * 5_000_000)
        assert ephemera_server.resident_bytes() - before < MEMORY_BYTES_MAX
        other("SCRIPT", "KILL")
        other("CONFIG", "SET", "busy-reply-threshold", 5000)
