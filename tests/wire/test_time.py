"""The server's time and the TTLs it shows, against the clock of a client on the same machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from ephemera.core.clock import wall_ns
from tests.wire.resp import Argument, Wire
from tests.wire.servers import Process

ROUNDS = 1_000
TTL_MS = 10_000


@pytest.fixture(params=["ephemera_server", "memory_server"])
def client(request: pytest.FixtureRequest) -> Iterator[Wire]:
    server: Process = request.getfixturevalue(request.param)
    with Wire(server) as wire:
        wire("FLUSHALL")
        yield wire


def micros_of(client: Wire) -> int:
    """What TIME says, in microseconds."""
    seconds, micros = (int(member.data) for member in client("TIME").members)
    return seconds * 1_000_000 + micros


def test_time_is_never_behind_the_clients_clock_nor_ahead_of_it(client: Wire) -> None:
    said = []
    for _ in range(ROUNDS):
        before_us = wall_ns() // 1000
        said.append(micros_of(client))
        assert before_us <= said[-1] <= wall_ns() // 1000
    assert said == sorted(said)
    assert len({time_us % 1000 for time_us in said}) > 100


def test_info_tells_microseconds(client: Wire) -> None:
    said = []
    for _ in range(10):
        before_us = wall_ns() // 1000
        found = re.search(rb"server_time_usec:(\d+)", client("INFO", "server").data)
        assert found is not None
        said.append(int(found[1]))
        assert before_us <= said[-1] <= wall_ns() // 1000
    assert any(time_us % 1000 for time_us in said)


def test_monitor_tells_microseconds(ephemera_server: Process) -> None:
    said = []
    with Wire(ephemera_server) as other, Wire(ephemera_server) as monitor:
        monitor("MONITOR")
        for _ in range(10):
            before_us = wall_ns() // 1000
            other("PING")
            seconds, micros = monitor.read().data.split()[0].split(b".")
            said.append(int(seconds) * 1_000_000 + int(micros))
            assert before_us <= said[-1] <= wall_ns() // 1000
    assert any(time_us % 1000 for time_us in said)


Give = Callable[[bytes, int], tuple[Argument, ...]]
"""A command that gives key `k` a TTL of TTL_MS, from a DUMP of its value and the client's time."""
COMMANDS: dict[str, Give] = {
    "SET PX": lambda _, now_ms: ("SET", "k", "v", "PX", TTL_MS),
    "SET EX": lambda _, now_ms: ("SET", "k", "v", "EX", TTL_MS // 1000),
    "SET PXAT": lambda _, now_ms: ("SET", "k", "v", "PXAT", now_ms + TTL_MS),
    "SET PX XX": lambda _, now_ms: ("SET", "k", "v", "PX", TTL_MS, "XX"),
    "PSETEX": lambda _, now_ms: ("PSETEX", "k", TTL_MS, "v"),
    "PEXPIRE": lambda _, now_ms: ("PEXPIRE", "k", TTL_MS),
    "EXPIRE": lambda _, now_ms: ("EXPIRE", "k", TTL_MS // 1000),
    "PEXPIREAT": lambda _, now_ms: ("PEXPIREAT", "k", now_ms + TTL_MS),
    "GETEX PX": lambda _, now_ms: ("GETEX", "k", "PX", TTL_MS),
    "GETEX PXAT": lambda _, now_ms: ("GETEX", "k", "PXAT", now_ms + TTL_MS),
    "RESTORE": lambda dump, now_ms: ("RESTORE", "k", TTL_MS, dump, "REPLACE"),
    "RESTORE ABSTTL": lambda dump, now_ms: (
        "RESTORE", "k", now_ms + TTL_MS, dump, "REPLACE", "ABSTTL"
    ),
}  # fmt: skip


@pytest.mark.parametrize("give", COMMANDS.values(), ids=COMMANDS)
def test_a_ttl_shown_is_never_larger_than_the_one_given(give: Give, client: Wire) -> None:
    client("SET", "k", "v")
    dump = client("DUMP", "k").data
    for _ in range(ROUNDS):
        now_ms = wall_ns() // 1_000_000
        assert not client(*give(dump, now_ms)).is_error
        left_ms = client("PTTL", "k").number
        elapsed_ms = wall_ns() // 1_000_000 - now_ms
        assert TTL_MS - elapsed_ms - 1 <= left_ms <= TTL_MS
