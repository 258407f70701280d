"""Stores of the local engine on a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ephemera import Expired, ManualClock, Store
from tests.engines.local.stores import open_local


@pytest.fixture
def first_free() -> Iterator[int]:
    """The first number of a descriptor from which on all are free; those below it are all taken."""
    highest = max(map(int, os.listdir("/dev/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    yield taken[-1] + 1
    for fd in taken:
        os.close(fd)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.eph"


@pytest.fixture
def open_store(path: Path, clock: ManualClock) -> Iterator[Callable[..., Store]]:
    """Opens the store of this test, or one at `place`; closes whatever the test left open."""
    opened: list[Store] = []

    def open_store(place: Path = path, **options: Any) -> Store:
        store = open_local(place, **{"clock": clock, **options})
        opened.append(store)
        return store

    yield open_store
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def events(store: Store) -> list[Expired]:
    events: list[Expired] = []
    store.on_expire(events.append)
    return events
