"""Stores to await, on asyncio's loop and on uvloop's, each with a check that no thread is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.waiting import wait_until

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on a new loop of each kind, to its end."""

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param], debug=False) as runner:
            return runner.run(asyncio.wait_for(coroutine, 60))

    yield run
    wait_until(lambda: not own_threads(), what="no thread of a closed store is left")


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else str(tmp_path / "s.eph")


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("ephemera-aio")]
