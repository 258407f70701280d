"""A store in memory with a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ephemera
from ephemera import ManualClock, Store

NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as opened:
        yield opened
