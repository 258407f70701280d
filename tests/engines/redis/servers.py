"""Servers for a whole session of tests: a Redis, a cluster of three masters and three replicas, and our own.

Each is started when it is first asked for, listens on loopback, and ends with the tests' process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import redis

from tests.waiting import PATIENCE_S, wait_until
from tests.wire.servers import PORTS_TRIED, Process, free_port, start_ephemera, start_redis

MASTERS = 3
REPLICAS = 3
SLOTS = 16_384
NODE_TIMEOUT_MS = 1_500


def client(port: int) -> redis.Redis:
    """A client of one server, for what tests do behind the engine's back."""
    return redis.Redis(host="127.0.0.1", port=port, socket_timeout=PATIENCE_S, protocol=2)


class ClusterNode:
    """One server of a cluster, which can be killed and started again."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self.port = port
        self.process = self._start()
        self._client = client(port)
        self._client.response_callbacks.clear()  # replies as they are
        self.id = self.ask("CLUSTER", "MYID").decode()

    def ask(self, *command: str | int | bytes) -> Any:  # Any: whatever the command answers
        return self._client.execute_command(*command)

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()

    def restart(self) -> None:
        """Start it again with what it knew of the cluster."""
        self.process = self._start()

    def stop(self) -> None:
        self._client.close()
        if self.process.is_alive:
            self.process.kill()

    def says(self, line: str) -> bool:
        """Whether this is a line of its view of the cluster or of replication."""
        text = self.ask("CLUSTER", "INFO").decode() + self.ask("INFO", "replication").decode()
        return line in text.splitlines()

    def _start(self) -> Process:
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is missing: .ci/system installs it"
        self._directory.mkdir(exist_ok=True)
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._directory,
            "save": "",
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return Process([program, *options], "Ready to accept connections")


class RunningCluster:
    """Three masters that share the slots, each with a replica."""

    def __init__(self, directory: Path) -> None:
        self.nodes = [
            _on_a_free_port(directory / f"node{number}") for number in range(MASTERS + REPLICAS)
        ]
        try:
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{places}"

    def masters(self) -> list[ClusterNode]:
        return [node for node in self.nodes if self.is_master(node)]

    def is_master(self, node: ClusterNode) -> bool:
        return node.process.is_alive and node.says("role:master")

    def owner_of(self, slot: int) -> ClusterNode:
        """The master that has a slot, by what a living server says."""
        asked = next(node for node in self.nodes if node.process.is_alive)
        for first, last, (_, _, owner, *_), *_ in asked.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.id == owner.decode())
        raise AssertionError(f"nobody has the slot {slot}")

    def is_whole(self) -> bool:
        """Every slot is served, and every master has its replica."""
        if not all(node.process.is_alive for node in self.nodes):
            return False
        try:
            return all(node.says("cluster_state:ok") for node in self.nodes) and all(
                node.says("connected_slaves:1")
                if node.says("role:master")
                else node.says("master_link_status:up")
                for node in self.nodes
            )
        except redis.RedisError:
            return False  # it is still loading, or between two roles

    def wait_whole(self) -> None:
        wait_until(self.is_whole, what="a whole cluster")

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Let a slot be on its way from its master to another one."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, count: int) -> int:
        """Take some keys of a slot to its new master; how many there were."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        """Let everybody know the new master, itself first."""
        for node in [target, *(node for node in self.masters() if node is not target)]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def flush(self) -> None:
        """Let the cluster hold nothing."""
        for node in self.nodes:
            with suppress(redis.ReadOnlyError):  # a replica
                node.ask("FLUSHALL")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def _join(self) -> None:
        share = -(-SLOTS // MASTERS)
        for number, master in enumerate(self.nodes[:MASTERS]):
            last = min((number + 1) * share, SLOTS) - 1
            master.ask("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        known = f"cluster_known_nodes:{len(self.nodes)}"
        wait_until(lambda: all(node.says(known) for node in self.nodes), what="all have met")
        for number, replica in enumerate(self.nodes[MASTERS:]):
            replica.ask("CLUSTER", "REPLICATE", self.nodes[number % MASTERS].id)
        self.wait_whole()


def _on_a_free_port(directory: Path) -> ClusterNode:
    for _ in range(PORTS_TRIED):
        port = free_port()
        if port > 55_535:
            continue  # the servers talk to each other 10,000 ports further on
        with suppress(AssertionError):  # somebody else took the port meanwhile
            return ClusterNode(directory, port)
    raise AssertionError("no free port for a server of a cluster")


def _scratch() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="ephemera-redis-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _until_exit(process: Process) -> Process:
    atexit.register(_kill, process)
    return process


def _kill(process: Process) -> None:
    if process.is_alive:
        process.kill()


@cache
def single() -> Process:
    """A Redis that keeps nothing."""
    return _until_exit(start_redis(_scratch()))


@cache
def cluster() -> RunningCluster:
    """A cluster that is whole; a test that breaks it makes it whole again."""
    running = RunningCluster(_scratch())
    atexit.register(running.stop)
    return running


@cache
def own_server() -> Process:
    """`ephemera serve` on a store in memory."""
    return _until_exit(start_ephemera("memory://"))


def url_of(process: Process) -> str:
    """The URL of a store on one server."""
    return f"redis://127.0.0.1:{process.port}"


def flush(process: Process) -> None:
    """Let a server hold nothing."""
    with client(process.port) as connection:
        connection.execute_command("FLUSHALL")
