"""Files that a real Redis wrote are read, and files written here are loaded by a real Redis."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

import ephemera
from ephemera import ManualClock, Store
from ephemera.core.clock import wall_ms
from ephemera.core.row import NEVER_MS
from ephemera.formats.aof import AofLog, encode_aof, parts_of
from ephemera.formats.databases import family_of
from ephemera.formats.rdb_file import RdbFile, encode_rdb
from ephemera.formats.transfer import load, save
from tests.formats.samples import (
    HOUR_MS,
    Keys,
    alive_at,
    client_of,
    fill,
    held_by_redis,
    held_by_store,
    sample,
    yielded,
)
from tests.wire.servers import Process, running, start_redis

COUNTS = [2_000, pytest.param(50_000, marks=pytest.mark.soak)]
WITH_LOG = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")

MORE_COMMANDS = """
MSET gone 1 renamed 2 copied 3 appended a touched t
DEL gone
RENAME renamed new-name
COPY copied copy
APPEND appended bc
SETRANGE appended 5 f
SETBIT bits 9 1
INCRBY counter 41
INCR counter
INCRBYFLOAT float 1.5
EXPIRE touched 7200
SET kept 1 EX 7200
SET kept 2 KEEPTTL
SET persisted 1 PX 7200000
PERSIST persisted
SETEX set-for 7200 1
GETSET got 1
GETEX copied EX 7300
SET moved 1
MOVE moved 8
MULTI
SET in-a-transaction 1
EXPIRE in-a-transaction 7400
EXEC
SELECT 9
SET flushed 1
FLUSHDB
SWAPDB 8 9
SELECT 7
"""


@pytest.fixture
def now_ms() -> int:
    return wall_ms()


@pytest.fixture
def late_store(now_ms: int) -> Store:
    """A store for which an hour has passed."""
    return ephemera.open("memory://", clock=ManualClock(now_ms + HOUR_MS), maintenance="manual")


@pytest.mark.parametrize("count", COUNTS)
def test_an_rdb_of_redis_is_read_and_one_of_ours_is_loaded(
    count: int, tmp_path: Path, now_ms: int, late_store: Store
) -> None:
    keys = sample(count, now_ms)
    with running(start_redis(tmp_path)) as server:
        fill(server, keys)
        with client_of(server) as client:
            client.save()
    source = RdbFile(tmp_path / "dump.rdb", now_ms=now_ms)
    assert yielded(source) == keys

    loaded = load(late_store.engine, RdbFile(tmp_path / "dump.rdb", now_ms=now_ms))
    alive = alive_at(keys, now_ms + HOUR_MS)
    assert (loaded.imported, loaded.dead) == (len(alive), len(keys) - len(alive))
    assert held_by_store(late_store) == alive

    assert save(late_store.engine, tmp_path / "dump.rdb", encode_rdb) == len(alive)
    with running(start_redis(tmp_path)) as server:
        assert held_by_redis(server) == alive


@pytest.mark.parametrize("count", COUNTS)
def test_a_log_of_redis_is_read_and_one_of_ours_is_loaded(
    count: int, tmp_path: Path, now_ms: int, late_store: Store
) -> None:
    keys = sample(count, now_ms)
    with running(start_redis(tmp_path, *WITH_LOG)) as server:
        fill(server, keys)
        written = write_more(server)
        server.stop()
    expected = keys | written
    assert yielded(AofLog(tmp_path, now_ms=now_ms)) == expected

    loaded = load(late_store.engine, AofLog(tmp_path / "appendonlydir", now_ms=now_ms))
    alive = alive_at(expected, now_ms + HOUR_MS)
    assert (loaded.imported, loaded.dead) == (len(alive), len(expected) - len(alive))
    assert held_by_store(late_store) == alive

    shutil.rmtree(tmp_path / "appendonlydir")
    save(late_store.engine, tmp_path / "appendonly.aof", encode_aof)
    with running(start_redis(tmp_path, *WITH_LOG)) as server:
        assert held_by_redis(server) == alive


def test_a_log_that_was_rewritten_is_read(tmp_path: Path, now_ms: int) -> None:
    keys = sample(500, now_ms)
    with running(start_redis(tmp_path, *WITH_LOG)) as server:
        fill(server, keys)
        client = client_of(server)
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pass
        written = write_more(server)
        client.lpush("list", "not read")
        server.stop()
    source = AofLog(tmp_path, now_ms=now_ms)
    assert yielded(source) == keys | written
    assert source.skipped == {"LPUSH": 1}


@pytest.mark.parametrize("with_rdb", ["yes", "no"])
def test_a_log_of_one_file_is_read(tmp_path: Path, now_ms: int, with_rdb: str) -> None:
    """As Redis before 7 keeps it: an RDB or commands, and commands behind it."""
    keys = sample(500, now_ms)
    options = (*WITH_LOG, "--aof-use-rdb-preamble", with_rdb)
    with running(start_redis(tmp_path, *options)) as server:
        fill(server, keys)
        client = client_of(server)
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pass
        written = write_more(server)
        server.stop()
    parts = [part.read_bytes() for part in parts_of(tmp_path)]
    (tmp_path / "one.aof").write_bytes(b"".join(parts))
    assert yielded(AofLog(tmp_path / "one.aof", now_ms=now_ms)) == keys | written


def write_more(server: Process) -> Keys:
    """Commands of many kinds on keys of their own, in a database of their own; what they leave."""
    with client_of(server, 7) as client:
        for command in MORE_COMMANDS.strip().splitlines():
            client.execute_command(*command.split())
        client.eval("redis.call('SET', 'scripted', '1', 'EX', 7500)", 0)
    databases = {family_of(number): number for number in (7, 8, 9)}
    held = held_by_redis(server, databases)
    assert len(held) == 15
    assert held["db9", b"moved"] == (b"1", NEVER_MS)
    return held


def test_families_without_a_number_become_databases_and_families_again(
    tmp_path: Path, store: Store
) -> None:
    store.put("a", "1")
    store.family("sessions").put("b", "2")
    store.family("db1").put("c", "3")
    save(store.engine, tmp_path / "dump.rdb", encode_rdb)
    with running(start_redis(tmp_path)) as server:
        assert held_by_redis(server) == {
            ("default", b"a"): (b"1", NEVER_MS),
            ("db1", b"c"): (b"3", NEVER_MS),
            ("db2", b"b"): (b"2", NEVER_MS),
        }
    assert yielded(RdbFile(tmp_path / "dump.rdb", now_ms=0)) == held_by_store(store)


def test_the_caller_may_say_which_database_a_family_becomes(tmp_path: Path, store: Store) -> None:
    store.family("sessions").put("b", "2")
    for name, encode in (("dump.rdb", encode_rdb), ("one.aof", encode_aof)):
        save(
            store.engine,
            tmp_path / name,
            partial(encode, numbers={"sessions": 5}),
            families=["sessions"],
        )
    assert yielded(AofLog(tmp_path / "one.aof", now_ms=0)) == {("db5", b"b"): (b"2", NEVER_MS)}
    with running(start_redis(tmp_path)) as server:
        assert client_of(server, 5).get("b") == b"2"
