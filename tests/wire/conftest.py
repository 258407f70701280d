"""Both servers, started once for all tests of a process, and pairs of clients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.wire.pair import Pair
from tests.wire.resp import Wire
from tests.wire.servers import Process, running, start_ephemera, start_redis


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wire")


@pytest.fixture(scope="session")
def redis_server(place: Path) -> Iterator[Process]:
    with running(start_redis(place, "--enable-debug-command", "yes")) as server:
        yield server


@pytest.fixture(scope="session")
def ephemera_server(place: Path) -> Iterator[Process]:
    with running(start_ephemera(place / "wire.eph")) as server:
        yield server


@pytest.fixture(scope="session")
def memory_server() -> Iterator[Process]:
    with running(start_ephemera("memory://")) as server:
        yield server


@pytest.fixture
def connect(ephemera_server: Process, redis_server: Process) -> Iterator[Callable[[], Pair]]:
    """Makes another pair of clients; all of them are gone after the test."""
    with ExitStack() as stack:
        yield lambda: Pair(
            stack.enter_context(Wire(ephemera_server)), stack.enter_context(Wire(redis_server))
        )


@pytest.fixture
def pair(connect: Callable[[], Pair]) -> Pair:
    """A pair of clients of empty servers: some tests ask only one of them."""
    made = connect()
    made.clear(2)
    return made
