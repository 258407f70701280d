"""Plain values: what other programs store is read, and they read what we store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

import ephemera
from ephemera import EngineUnavailable, InvalidArgument, ManualClock, UnsupportedOperation
from tests.engines.redis import servers
from tests.engines.redis.conftest import Opener
from tests.engines.redis.proxy import Proxy
from tests.waiting import wait_until
from tests.wire.servers import Process, running, start_ephemera

LATER = datetime(2100, 1, 1, tzinfo=UTC)
LATER_MS = round(LATER.timestamp() * 1000)


@pytest.fixture(params=["redis", "ephemera serve"])
def process(request: pytest.FixtureRequest) -> Process:
    process = servers.single() if request.param == "redis" else servers.own_server()
    servers.flush(process)
    return process


@pytest.fixture
def client(process: Process) -> Iterator[redis.Redis]:
    with servers.client(process.port) as client:
        yield client


@pytest.fixture
def store(process: Process, opener: Opener) -> ephemera.Store:
    return opener(f"{servers.url_of(process)}?values=plain")


def test_what_we_put_others_get(store: ephemera.Store, client: redis.Redis) -> None:
    store.put("key", "value", at=LATER)
    store.put_many({"a": "1", "b": "2"})
    assert client.get("key") == b"value"
    assert client.execute_command("PEXPIRETIME", "key") == LATER_MS
    assert client.mget("a", "b") == [b"1", b"2"]
    assert client.pttl("a") == -1
    assert sorted(client.keys()) == [b"a", b"b", b"key"]


def test_what_others_set_we_get(store: ephemera.Store, client: redis.Redis) -> None:
    client.set("key", "value")
    client.set("brief", "1", pxat=LATER_MS)
    assert store.get("key") == b"value"
    assert store.ttl("key") is None
    entry = store.entry("brief")
    assert entry is not None
    assert entry.value == b"1"
    assert entry.deadline is not None
    assert abs((entry.deadline - LATER).total_seconds()) < 60
    assert store.get_many(["key", "brief", "absent"]) == {b"key": b"value", b"brief": b"1"}
    assert dict(store.scan()) == {b"key": b"value", b"brief": b"1"}
    assert store.count() == 2


def test_counters_are_shared(store: ephemera.Store, client: redis.Redis) -> None:
    client.set("hits", "1", pxat=LATER_MS)
    assert store.incr("hits") == 2
    assert client.incr("hits") == 3
    assert store.incr("hits") == 4
    assert client.execute_command("PEXPIRETIME", "hits") == LATER_MS


def test_every_kind_of_change_is_seen_on_the_other_side(
    store: ephemera.Store, client: redis.Redis
) -> None:
    client.set("key", "1", pxat=LATER_MS)
    assert not store.put_if_absent("key", "2")
    assert store.compare_and_set("key", "1", "2")
    assert client.execute_command("PEXPIRETIME", "key") == LATER_MS
    assert store.persist("key")
    assert client.pttl("key") == -1
    assert store.touch("key", at=LATER)
    assert client.execute_command("PEXPIRETIME", "key") == LATER_MS
    assert store.pop("key") == b"2"
    assert not client.exists("key")
    client.mset({"a": "1", "b": "2"})
    assert store.delete_many(["a", "b", "absent"]) == 2
    assert store.delete("a") is False
    assert store.count() == 0


def test_the_server_alone_says_what_is_dead(store: ephemera.Store, client: redis.Redis) -> None:
    store.put("key", "value", ttl=0.001)
    wait_until(lambda: store.get("key") is None, what="the key dies")
    assert client.get("key") is None
    assert store.entry("key") is None
    assert store.purge_expired() == 0


def test_when_a_value_was_written_nobody_knows(store: ephemera.Store) -> None:
    store.put("key", "value")
    entry = store.entry("key")
    assert entry is not None
    assert entry.written_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert store.get("key", max_age=3_600) is None


def test_clear_takes_away_what_a_store_shows_and_nothing_else(
    store: ephemera.Store, client: redis.Redis, process: Process
) -> None:
    store.put_many({b"%d" % number: b"" for number in range(1_500)})
    if process is servers.single():
        client.rpush("list", "theirs")
    store.clear()
    assert store.count() == 0
    assert client.keys() == ([b"list"] if process is servers.single() else [])


REFUSALS: dict[str, Callable[[ephemera.Store], Any]] = {
    "idle": lambda store: store.put("key", "2", idle=60),
    "idle touch": lambda store: store.touch("key", idle=60),
    "idle many": lambda store: store.put_many({"key": "2", "new": "2"}, idle=60),
    "family": lambda store: store.family("codes"),
    "default ttl": lambda store: store.family("default", default_ttl=60),
    "transaction": lambda store: store.transaction(),
    "snapshot": lambda store: store.snapshot(),
    "on_expire": lambda store: store.on_expire(print),
    "range": lambda store: store.scan(start="a"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_plain_values_cannot_carry_is_refused_and_changes_nothing(
    store: ephemera.Store, what: str
) -> None:
    store.put("key", "1")
    with pytest.raises(UnsupportedOperation, match="redis"):
        REFUSALS[what](store)
    assert dict(store.scan()) == {b"key": b"1"}
    assert store.families() == ["default"]


def test_a_clock_of_its_own_is_refused(process: Process, opener: Opener) -> None:
    with pytest.raises(InvalidArgument, match="clock"):
        opener(f"{servers.url_of(process)}?values=plain", clock=ManualClock())


def test_a_delete_whose_answer_got_lost_is_not_answered_wrongly(
    process: Process, opener: Opener
) -> None:
    with Proxy(process.port) as proxy:
        store = opener(f"redis://127.0.0.1:{proxy.port}?values=plain&retry_for=5")
        store.put("key", "1")
        proxy.lose_answers(1, to=b"UNLINK")
        with pytest.raises(EngineUnavailable, match="may have happened"):
            store.delete("key")
        wait_until(lambda: store.get("key") is None, what="the server has done it")


def test_a_read_only_store_and_upkeep(process: Process, opener: Opener) -> None:
    url = f"{servers.url_of(process)}?values=plain"
    opener(url).put("key", "1")
    store = opener(url, read_only=True)
    assert store.get("key") == b"1"
    assert store.check() == (1, 0, 0, ())
    assert store.stats()["families"] == 1
    for write in (lambda: store.put("key", "2"), store.clear, store.purge_expired, store.repair):
        with pytest.raises(ephemera.ReadOnly):
            write()
    assert store.get("key") == b"1"


def test_plain_values_on_a_cluster(cluster: servers.RunningCluster, opener: Opener) -> None:
    store = opener(f"{cluster.url}?values=plain")
    pairs = {b"%d" % number: b"%d" % number for number in range(300)}
    store.put_many(pairs)
    assert store.get_many(pairs) == pairs
    assert dict(store.scan()) == pairs
    assert store.count() == 300
    assert store.incr("7") == 8
    assert store.delete_many([*pairs]) == 300
    store.put("key", "1")
    store.clear()
    assert store.count() == 0


def test_a_program_leaves_embedded_mode_and_finds_its_keys(tmp_path: Path, opener: Opener) -> None:
    """The same program at the path, then at the server of that path, then at the path again."""
    place = tmp_path / "app.eph"
    with ephemera.open(place) as store:
        store.put("session", "{}", at=LATER)
        store.put("hits", "41")
    with running(start_ephemera(place)) as process:
        with ephemera.open(f"{servers.url_of(process)}?values=plain") as store:
            assert store.get("session") == b"{}"
            entry = store.entry("session")
            assert entry is not None
            assert entry.deadline is not None
            assert abs((entry.deadline - LATER).total_seconds()) < 60
            assert store.incr("hits") == 42
            store.put("new", "1", at=LATER)
        with servers.client(process.port) as client:
            assert client.get("hits") == b"42"
        assert process.stop() == 0
    with ephemera.open(place) as store:
        assert dict(store.scan()) == {b"hits": b"42", b"new": b"1", b"session": b"{}"}
        new = store.entry("new")
        assert new is not None
        assert new.deadline == LATER
