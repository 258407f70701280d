"""Clients that send garbage, stop halfway, do not read or are killed disturb nobody."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress

import pytest

from ephemera.core.clock import elapsed_ns
from tests.wire.resp import Closed, Wire, request
from tests.wire.servers import Process, running, start_ephemera

BAD_CLIENTS = 200
BAD_THREADS = 2
ROUNDS = 6
GOOD_CLIENTS = 10
PATIENCE_SECONDS = 60
LATENCY_SECONDS_MAX = 2.0
"""Of the slowest round of all good clients, on a machine that does much else beside."""

MIB = 1024 * 1024
SANITIZER_BYTES = 512 * MIB if "ASAN_OPTIONS" in os.environ else 0
"""What a sanitizer keeps of freed memory, and writes beside it."""
MEMORY_BYTES_MAX = 100 * MIB + SANITIZER_BYTES
"""How much a hostile client may cost; what it asks for is many times that."""
RESIDENT_BYTES_MAX = 500 * MIB + SANITIZER_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One for all: it outlives every attack, and then ends as if nothing had happened."""
    path = tmp_path_factory.mktemp("hostile") / "hostile.eph"
    with running(start_ephemera(path)) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in "".join(process.said)


# --- garbage, half requests, huge lengths ---------------------------------------------------------


def attacks(chance: random.Random) -> list[bytes]:
    """What a hostile client might send."""
    return [
        chance.randbytes(chance.randrange(1, 5_000)),
        b"\r\n".join(chance.randbytes(8) for _ in range(50)) + b"\r\n",
        request("SET", "bad", "x" * 1000)[: chance.randrange(1, 1000)],
        b"*3\r\n$3\r\nSET\r\n$3\r\nbad\r\n$536870912\r\n" + b"x" * 10_000,
        b"*2147483647\r\n$536870912\r\n",
        b"*1048576\r\n" + b"$1\r\nx\r\n" * 1_000,
        b"*99999999999999999999\r\n",
        b"*2\r\n$-7\r\n",
        b"x" * 70_000,
        b"*1\r\n$4\r\nPING" + b"\xff" * 100,
        request("GET", "x" * 100_000),
        request("MULTI") + request("SET", "bad", "x") * 500,
        request("SUBSCRIBE", *(f"c{number}" for number in range(500))),
        request("EVAL", "return " + "(" * 500, 0),
        request("SETRANGE", "bad", 2**32, "x"),
        request("SETBIT", "bad", 2**33, 1),
        b"GET " + b'"' * 1_000 + b"\r\n",
    ]


def misbehave(server: Process, seed: int, together: threading.Barrier) -> None:
    """Open many connections at once, attack through each of them, and end each in some bad way."""
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        weapons = attacks(chance)
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(server)) for _ in range(BAD_CLIENTS // BAD_THREADS)]
            together.wait(PATIENCE_SECONDS)
            for wire in wires:
                with suppress(ConnectionError):
                    wire.send(chance.choice(weapons))
                if chance.random() < 0.5:
                    reset(wire)


def reset(wire: Wire) -> None:
    """Make closing cut the connection at once, without a word."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def work(server: Process, stop: threading.Event) -> list[float]:
    """Good clients, side by side: all they are told is right. How many seconds each round took."""
    took: list[float] = []
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(GOOD_CLIENTS)]
        while not stop.is_set():
            number = len(took) + 1
            began_ns = elapsed_ns()
            for name, wire in enumerate(wires):
                wire.send(
                    request("SET", f"good{name}", number, "EX", 1000)
                    + request("GET", f"good{name}")
                    + request("INCR", f"good{name}:count")
                    + request("STRLEN", f"good{name}:never")
                )
            for wire in wires:
                answers = [wire.read().value for _ in range(4)]
                assert answers == [b"OK", b"%d" % number, number, 0]
            took.append((elapsed_ns() - began_ns) / 1e9)
    return took


def test_good_clients_work_on_undisturbed_beside_two_hundred_bad_ones(server: Process) -> None:
    stop = threading.Event()
    together = threading.Barrier(BAD_THREADS)
    with ThreadPoolExecutor() as pool:
        good = pool.submit(work, server, stop)
        bad = [pool.submit(misbehave, server, seed, together) for seed in range(BAD_THREADS)]
        wait(bad, PATIENCE_SECONDS)
        stop.set()
        for done in bad:
            done.result()
        took = good.result(PATIENCE_SECONDS)
    assert len(took) > 1
    assert max(took) < LATENCY_SECONDS_MAX
    with Wire(server) as wire:
        assert wire("PING").value == b"PONG"
    assert server.resident_bytes() < RESIDENT_BYTES_MAX


# --- memory ---------------------------------------------------------------------------------------


STUCK_SECONDS = 1.0
"""Of a server that takes nothing for so long nothing more is expected."""


def send_until_stuck(wire: Wire, data: bytes, times: int) -> None:
    """Send this so often, or until the server takes no more."""
    wire.socket.settimeout(STUCK_SECONDS)
    with suppress(TimeoutError):
        for _ in range(times):
            wire.send(data)


def test_a_slow_reader_with_a_huge_pipeline_costs_little(server: Process) -> None:
    """It asks for 40 GB and reads none of it."""
    with Wire(server) as good, Wire(server) as slow:
        good("SET", "big", "x" * 100_000)
        before = server.resident_bytes()
        send_until_stuck(slow, request("GET", "big") * 1000, 400)
        assert good("GET", "big").data == b"x" * 100_000
        assert server.resident_bytes() - before < MEMORY_BYTES_MAX


@pytest.mark.parametrize("size", [1, 100, 4_000])
def test_millions_of_small_replies_that_nobody_reads_cost_little(
    server: Process, size: int
) -> None:
    with Wire(server) as good, Wire(server) as slow:
        good("SET", "small", "x" * size)
        before = server.resident_bytes()
        send_until_stuck(slow, request("GET", "small") * 100_000, 50)
        assert good("PING").value == b"PONG"
        assert server.resident_bytes() - before < MEMORY_BYTES_MAX


def test_a_reader_that_was_slow_gets_all_of_it_in_order(server: Process) -> None:
    count = 3_000
    with Wire(server) as wire:
        wire("SET", "big", "x" * 10_000)
        asking = threading.Thread(
            target=wire.send,
            args=(b"".join(request("GET", "big") + request("INCR", "n") for _ in range(count)),),
        )
        asking.start()
        for number in range(1, count + 1):
            assert len(wire.read().data) == 10_000
            assert wire.read().number == number
        asking.join(PATIENCE_SECONDS)


def test_a_subscriber_that_does_not_read_is_cut_off(server: Process) -> None:
    """64 MB of messages: twice what a subscriber may leave unread."""
    with Wire(server) as good, Wire(server) as lazy:
        lazy("SUBSCRIBE", "ch")
        before = server.resident_bytes()
        heard = [good("PUBLISH", "ch", "x" * MIB).number for _ in range(64)]
        assert heard[0] == 1
        assert heard[-1] == 0
        assert server.resident_bytes() - before < MEMORY_BYTES_MAX


def test_huge_lengths_alone_cost_nothing(server: Process) -> None:
    with ExitStack() as stack:
        before = server.resident_bytes()
        wires = [stack.enter_context(Wire(server)) for _ in range(50)]
        for wire in wires:
            wire.send(b"*2147483647\r\n$536870912\r\nx")
        with Wire(server) as good:
            assert good("PING").value == b"PONG"
        assert server.resident_bytes() - before < MEMORY_BYTES_MAX


# --- killed in the middle of anything -------------------------------------------------------------

MIDDLES = {
    "a request": b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$100\r\nxxx",
    "a transaction": request("MULTI") + request("SET", "half", "v"),
    "a watch": request("WATCH", "shared") + request("MULTI"),
    "a subscription": request("SUBSCRIBE", "ch") + request("PSUBSCRIBE", "*"),
    "a large reply": request("GET", "big") * 200,
    "a pipeline": request("INCR", "shared") * 2_000,
    "a monitor": request("MONITOR"),
    "a script": request("EVAL", "for i = 1, 1000 do redis.call('INCR', 'scripted') end", 0),
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_a_client_killed_in_the_middle_disturbs_nobody(server: Process, middle: str) -> None:
    with Wire(server) as good:
        good("SET", "big", "x" * 100_000)
        for _ in range(20):
            bad = Wire(server)
            bad.send(MIDDLES[middle])
            reset(bad)
            bad.close()
            good("INCR", "shared")
            good("PUBLISH", "ch", "anyone?")
        while good("CLIENT", "LIST").data.count(b"\n") > 1:
            pass  # until the server has noticed that they are gone
        assert good("EXISTS", "half").number == 0
        assert good("PUBSUB", "NUMPAT").number == 0
        assert int(good("GET", "shared").data) >= 20
        if middle == "a script" and (done := good("GET", "scripted").value) is not None:
            assert isinstance(done, bytes)
            assert int(done) % 1000 == 0


def test_a_broken_connection_is_closed_with_the_reason_and_no_other_is(server: Process) -> None:
    with Wire(server) as good, Wire(server) as bad:
        bad.send(b"*x\r\n")
        assert bad.read().data == b"ERR Protocol error: invalid multibulk length"
        with suppress(Closed):
            assert bad.is_closed()
        assert good("PING").value == b"PONG"
