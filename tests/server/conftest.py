"""A server in memory whose clock stands still, and clients of it without sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ephemera
from ephemera.server.server import Server
from tests.server.clients import Client


@pytest.fixture
def clock() -> ephemera.ManualClock:
    return ephemera.ManualClock()


@pytest.fixture
def server(clock: ephemera.ManualClock) -> Iterator[Server]:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        yield Server(store)


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)
