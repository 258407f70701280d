"""A running Redis as a source: exact, and going on where it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import EngineUnavailable, InvalidArgument, ManualClock, Store
from ephemera.cli.redis_source import live_redis
from ephemera.core.clock import wall_ms
from ephemera.formats import live_redis as live_redis_module
from ephemera.formats import transfer
from ephemera.formats.files import DamagedFile
from ephemera.formats.transfer import load
from tests.formats.samples import client_of, fill, held_by_store, sample
from tests.wire.servers import Process, free_port, running, start_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(start_redis(tmp_path_factory.mktemp("live"))) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(server: Process) -> None:
    with client_of(server) as client:
        client.flushall()


@pytest.fixture
def now_ms() -> int:
    return wall_ms()


@pytest.fixture
def store(now_ms: int) -> Iterator[Store]:
    with ephemera.open("memory://", clock=ManualClock(now_ms), maintenance="manual") as opened:
        yield opened


def url(server: Process, path: str = "") -> str:
    return f"redis://{server.host}:{server.port}{path}"


def test_the_password_may_come_from_the_environment(
    server: Process, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_PASSWORD", "open sesame")
    with client_of(server) as client:
        client.set("a", "1")
        client.config_set("requirepass", "open sesame")
        try:
            found = live_redis(url(server, "?password_env=CACHE_PASSWORD"), clock=store.clock)
            assert load(store.engine, found).imported == 1
        finally:
            client.config_set("requirepass", "")


def test_every_key_comes_with_its_deadline(server: Process, store: Store, now_ms: int) -> None:
    keys = sample(2_000, now_ms)
    fill(server, keys)
    with client_of(server) as client:
        client.rpush("list", 1)
        client.hset("hash", "f", "v")
        client.hset("other hash", "f", "v")
    source = live_redis(url(server), clock=store.clock)
    loaded = load(store.engine, source)
    assert held_by_store(store) == keys
    assert (loaded.imported, loaded.skipped) == (len(keys), {"list": 1, "hash": 2})
    done, total = source.progress()
    assert (done >= total if total is not None else False, total) == (True, len(keys) + 3)


def test_an_older_server_tells_the_time_left(
    server: Process, store: Store, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_redis_module, "VERSION_OF_INSTANTS", 99)
    with client_of(server) as client:
        client.set("a", "1", ex=1000)
        client.set("b", "2")
    load(store.engine, live_redis(url(server), clock=store.clock))
    left = store.ttl("a")
    assert left is not None
    assert 0 < left <= 1000
    assert store.ttl("b") is None


def test_a_database_may_be_named(server: Process, store: Store, now_ms: int) -> None:
    fill(server, sample(100, now_ms))
    load(store.engine, live_redis(url(server, "/3"), clock=store.clock))
    assert store.count() == 0
    assert store.family("db3").count() == 50


@pytest.mark.parametrize("interrupted_after", [1, 2_000, 4_000])
def test_it_goes_on_where_it_was_interrupted(
    server: Process,
    store: Store,
    now_ms: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted_after: int,
) -> None:
    keys = sample(5_000, now_ms)
    fill(server, keys)
    monkeypatch.setattr(transfer, "BATCH_RECORDS", 100)
    monkeypatch.setattr(transfer, "SYNC_RECORDS", 100)
    note = tmp_path / "cursor"
    given = live_redis(url(server), clock=store.clock, cursor_path=note)
    monkeypatch.setattr(given, "landed", interrupting(given.landed, interrupted_after // 100 + 1))
    with pytest.raises(KeyboardInterrupt):
        load(store.engine, given)
    assert note.exists()
    again = live_redis(url(server), clock=store.clock, cursor_path=note)
    loaded = load(store.engine, again)
    assert held_by_store(store) == keys
    assert not note.exists()
    assert loaded.imported <= len(keys)
    if interrupted_after > 1_000:
        assert loaded.imported < len(keys)


def interrupting(landed, times: int):
    """Let it land so often, and then no more."""
    left = times

    def land() -> None:
        nonlocal left
        landed()
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    return land


def test_a_cursor_of_another_server_is_refused(
    server: Process, store: Store, tmp_path: Path
) -> None:
    note = tmp_path / "cursor"
    note.write_text('{"server": "elsewhere:6379", "database": 0, "cursor": "5"}')
    with pytest.raises(InvalidArgument, match="remove it to begin anew"):
        load(store.engine, live_redis(url(server), clock=store.clock, cursor_path=note))
    note.write_text("nonsense")
    with pytest.raises(DamagedFile, match="cursor"):
        load(store.engine, live_redis(url(server), clock=store.clock, cursor_path=note))


def test_a_server_that_is_not_there_is_an_error(store: Store) -> None:
    address = f"redis://:secret@127.0.0.1:{free_port()}"
    with pytest.raises(EngineUnavailable, match="Is a server running there") as raised:
        live_redis(address, clock=store.clock)
    assert "secret" not in str(raised.value)


def test_a_server_that_goes_away_is_an_error(
    tmp_path: Path, store: Store, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_RECORDS", 10)
    with running(start_redis(tmp_path)) as server:
        fill(server, sample(3_000, now_ms))
        source = live_redis(url(server), clock=store.clock)
        with pytest.raises(InvalidArgument, match="was lost"):
            load(store.engine, source, lambda done, total: server.kill() if done else None)
