"""An object store that does not answer for a while: calls are bounded, and nothing acknowledged is lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import ephemera
from ephemera import EngineUnavailable, EphemeraError, Store
from ephemera.core.clock import elapsed_ns
from ephemera.engines.slatedb import library
from tests.engines.slatedb.buckets import BUCKET, request
from tests.engines.slatedb.endpoints import Endpoint
from tests.waiting import wait_until

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


def last_manifest(url: str) -> tuple[str, int]:
    """Return the folder of a store's manifests, and the number of the last one."""
    folder = f"{urlsplit(url).path[1:]}/manifest"
    listing = request("GET", f"?list-type=2&prefix={folder}/").decode()
    return folder, max(map(int, re.findall(r"/(\d+)\.manifest</Key>", listing)))


def close_by_failure(store: Store, url: str) -> None:
    """Make a background task of the store fail, and return once calls do."""
    folder, last = last_manifest(url)
    garbage = f"/{folder}/{last + 1:020}.manifest"
    request("PUT", garbage, b"no manifest")
    wait_until(lambda: not is_there(store), what="SlateDB closes itself")
    request("DELETE", garbage)


def is_there(store: Store) -> bool:
    try:
        return store.get("before") is not None
    except EphemeraError:
        return False


def test_an_outage_in_the_middle_of_opening_again_fences_nobody(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch was taken and the reply to that was lost: the store is still this writer's own."""
    url = endpoint.url()
    with ephemera.open(url, maintenance="manual") as store:
        store.put("before", "", durable=True)
        close_by_failure(store, url)
        folder, last = last_manifest(url)
        monkeypatch.setattr(library, "LONG_ANSWER_S", SHORT_S)
        endpoint.stall_after(f"PUT /{BUCKET}/{folder}/".encode())
        with pytest.raises(EngineUnavailable, match="did not answer"):
            store.get("before")
        assert last_manifest(url)[1] > last
        monkeypatch.undo()
        endpoint.resume()
        assert store.get("before") == b""
        store.put("after", "", durable=True)
        assert store.stats()["reopened"] == 1


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
