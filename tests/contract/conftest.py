"""A store of each engine, on a clock that the test moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ephemera import Capability, ManualClock, Store, UnsupportedOperation
from tests.contract.engines import ENGINES, EngineUnderTest
from tests.contract.times import START_MS

CAPABILITIES = pytest.StashKey[frozenset[Capability]]()


QUICK_ON_S3 = {"test_admin.py", "test_reopen.py"}
SOAK_ENGINES = {"aio-redis", "aio-slatedb"}
"""What they are made of runs in any case: these engines plainly, and coroutines on others."""
"""What `make test` runs there: each request takes moto milliseconds, and each test many requests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        is_on_s3 = callspec is not None and callspec.params.get("engine") == "slatedb-s3"
        if is_on_s3 and item.path.name not in QUICK_ON_S3:
            item.add_marker(pytest.mark.soak)
        if callspec is not None and callspec.params.get("engine") in SOAK_ENGINES:
            item.add_marker(pytest.mark.soak)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(capability): skip on engines that do not have this ephemera.Capability"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """An engine that refuses what it said it cannot do passes by, with its own words as reason."""
    try:
        yield
    except UnsupportedOperation as refusal:
        capable = item.stash.get(CAPABILITIES, frozenset(Capability))
        missing = [capability.name for capability in Capability if capability not in capable]
        if not missing:
            raise
        pytest.skip(f"this engine has no {' and no '.join(missing)}: {refusal}")


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineUnderTest]:
    yield ENGINES[request.param](tmp_path)
    # A store preallocates its segments: what pytest would keep of a run fills a disk.
    shutil.rmtree(tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def open_store(
    request: pytest.FixtureRequest, engine: EngineUnderTest, clock: ManualClock
) -> Iterator[Callable[..., Store]]:
    """Opens the engine's store with options; closes whatever the test left open."""
    opened: list[Store] = []

    def open_store(**options: Any) -> Store:
        store = engine.open(**{"clock": clock, "maintenance": "manual", **options})
        opened.append(store)
        request.node.stash[CAPABILITIES] = store.capabilities
        _skip_unless_capable(request, store)
        return store

    yield open_store
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def reopen(engine: EngineUnderTest, clock: ManualClock) -> Iterator[Callable[..., Store]]:
    """Closes the store and opens it again; skips on engines where nothing survives that."""
    opened: list[Store] = []

    def reopen(store: Store, **options: Any) -> Store:
        if engine.reopen is None:
            pytest.skip(f"{engine.name}: nothing survives closing")
        store.close()
        again = engine.reopen(**{"clock": clock, "maintenance": "manual", **options})
        opened.append(again)
        return again

    yield reopen
    for store in reversed(opened):
        store.close()


def _skip_unless_capable(request: pytest.FixtureRequest, store: Store) -> None:
    for marker in request.node.iter_markers("needs"):
        capability: Capability = marker.args[0]
        if capability not in store.capabilities:
            pytest.skip(f"this engine has no {capability.name}: {capability.value}")
