"""Commands about other servers: there are none."""

from __future__ import annotations

import pytest

from tests.server.clients import Client


def test_the_server_is_a_master_without_replicas(client: Client) -> None:
    assert client("ROLE") == [b"master", 0, []]
    assert client("REPLICAOF", "NO", "ONE") == client("SLAVEOF", "no", "one") == b"OK"


def test_wait_answers_at_once(client: Client) -> None:
    client("SET", "key", "1")
    assert client("WAIT", 0, 0) == client("WAIT", 3, 60_000) == 0
    assert client("WAITAOF", 1, 0, 0) == client("WAITAOF", 0, 2, 100) == [1, 0]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("REPLICAOF 10.0.0.1 6379", "ERR this server cannot be a replica: only REPLICAOF NO ONE"),
        ("REPLICAOF", "ERR wrong number of arguments for 'replicaof' command"),
        ("FAILOVER", "ERR FAILOVER requires connected replicas."),
        ("FAILOVER ABORT", "ERR No failover in progress."),
        ("WAIT x 0", "ERR value is not an integer or out of range"),
        ("WAIT 0 x", "ERR timeout is not an integer or out of range"),
        ("WAIT 0 -1", "ERR timeout is negative"),
        ("WAITAOF 2 0 0", "ERR value is out of range, value must between 0 and 1"),
        ("WAITAOF 1 -1 0", "ERR value is out of range, must be positive"),
        ("WAITAOF 1 0 -1", "ERR timeout is negative"),
        ("CLUSTER INFO", "ERR This instance has cluster support disabled"),
        ("CLUSTER SLOTS", "ERR This instance has cluster support disabled"),
        ("CLUSTER", "ERR wrong number of arguments for 'cluster' command"),
        ("READONLY", "ERR This instance has cluster support disabled"),
        ("READWRITE", "ERR This instance has cluster support disabled"),
        ("ASKING", "ERR This instance has cluster support disabled"),
    ],
)
def test_refusals_are_those_of_redis(client: Client, command: str, error: str) -> None:
    assert client.error(*command.split()) == error
