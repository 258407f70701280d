"""Stores on servers that hold nothing when a test begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

import ephemera
from tests.engines.redis import servers
from tests.wire.servers import Process

Opener = Callable[..., ephemera.Store]


@pytest.fixture
def server() -> Process:
    """A Redis that holds nothing."""
    servers.flush(servers.single())
    return servers.single()


@pytest.fixture
def client(server: Process) -> Iterator[redis.Redis]:
    """Another program's client of it."""
    with servers.client(server.port) as client:
        yield client


@pytest.fixture
def opener() -> Iterator[Opener]:
    """Opens stores, and closes whatever the test left open."""
    with ExitStack() as stack:

        def open_store(url: str, **options: Any) -> ephemera.Store:
            return stack.enter_context(ephemera.open(url, **{"maintenance": "manual", **options}))

        yield open_store


@pytest.fixture
def open_single(server: Process, opener: Opener) -> Opener:
    """Opens stores on the Redis that holds nothing; `query` goes into the URL."""

    def open_store(query: str = "", **options: Any) -> ephemera.Store:
        return opener(f"{servers.url_of(server)}?{query}", **options)

    return open_store


@pytest.fixture
def cluster() -> servers.RunningCluster:
    """A cluster that is whole and holds nothing."""
    cluster = servers.cluster()
    cluster.wait_whole()
    cluster.flush()
    return cluster
