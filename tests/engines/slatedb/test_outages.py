"""An object store that does not answer for a while: calls are bounded, and nothing acknowledged is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import ephemera
from ephemera import EngineUnavailable, Store
from ephemera.core.clock import elapsed_ns
from ephemera.engines.slatedb import library
from tests.engines.slatedb.buckets import wait_until
from tests.engines.slatedb.endpoints import Endpoint

BACK_S = 20.0
"""Within which the first durable write succeeds after the endpoint is back (docs/slatedb.md)."""
SHORT_S = 0.3


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    reachable = Endpoint()
    yield reachable
    reachable.close()


def interrupt(endpoint: Endpoint, how: str) -> None:
    if how == "refused":
        endpoint.refuse()
    else:
        endpoint.stall()


def restore(endpoint: Endpoint, how: str) -> None:
    if how == "refused":
        endpoint.start()
    else:
        endpoint.resume()


def is_durable(store: Store, key: str) -> bool:
    try:
        store.put(key, "", durable=True)
    except EngineUnavailable:
        return False
    return True


@pytest.mark.parametrize("how", ["refused", "stalled"])
def test_writes_before_during_and_after_an_outage_are_kept(
    endpoint: Endpoint, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = endpoint.url()
    with ephemera.open(url) as store:
        store.put("before", "", durable=True)
        snapshot = store.snapshot()
        monkeypatch.setattr(library, "ANSWER_S", SHORT_S)
        interrupt(endpoint, how)
        store.put("during", "")
        for _ in range(3):
            with pytest.raises(
                EngineUnavailable, match=r"did not answer within .* try again later"
            ):
                store.put("unsure", "", durable=True)
            with pytest.raises(EngineUnavailable):
                store.sync()
        assert store.get("during") == b""  # from memory
        restore(endpoint, how)
        wait_until(lambda: is_durable(store, "after"), what="a durable write succeeds again")
        assert snapshot.get("before") == b""
        assert store.stats()["reopened"] == 0
        monkeypatch.undo()
    with ephemera.open(url) as store:
        assert sorted(key for key, _ in store.scan()) == [b"after", b"before", b"during", b"unsure"]


def test_an_endpoint_that_refuses_is_named_when_the_store_is_opened(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = endpoint.url()
    endpoint.refuse()
    monkeypatch.setattr(library, "ANSWER_S", SHORT_S)
    for read_only in (False, True):
        with pytest.raises(EngineUnavailable, match="check its endpoint, credentials"):
            ephemera.open(url, read_only=read_only)
    endpoint.start()


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [6, 40])
@pytest.mark.parametrize("how", ["refused", "stalled"])
def test_a_store_outlives_an_outage_of(endpoint: Endpoint, how: str, seconds: int) -> None:
    url = endpoint.url("")  # with the default settings
    acknowledged: list[bytes] = []
    durable: list[bytes] = []
    with ephemera.open(url) as store:
        store.put("before", "", durable=True)
        interrupt(endpoint, how)
        until_ns = elapsed_ns() + seconds * 1_000_000_000
        while elapsed_ns() < until_ns:
            store.put(f"during:{len(acknowledged):04}", "")
            acknowledged.append(f"during:{len(acknowledged):04}".encode())
            threading.Event().wait(0.1)
        restore(endpoint, how)
        began_ns = elapsed_ns()
        wait_until(lambda: is_durable(store, "after"), what="a durable write succeeds again")
        assert elapsed_ns() - began_ns < BACK_S * 1e9
        for number in range(20):
            store.put(f"durable:{number:04}", "", durable=True)
            durable.append(f"durable:{number:04}".encode())
        assert store.stats()["reopened"] == 0
    with ephemera.open(url) as store:
        keys = [key for key, _ in store.scan()]
        assert keys == sorted([b"after", b"before", *acknowledged, *durable])
