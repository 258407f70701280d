"""The engine on one Redis, beyond the contract: what is written, what others do meanwhile, what goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socketserver
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import redis

import ephemera
from ephemera import (
    Capability,
    CorruptStore,
    EngineUnavailable,
    InvalidArgument,
    ManualClock,
    StoreClosed,
    StoreFull,
    TransactionConflict,
    UnsupportedOperation,
)
from ephemera.core.clock import elapsed_ns, wall_ms
from ephemera.core.row import decode_row
from ephemera.engines.redis.families import FRESH_NS
from tests.engines.redis import servers
from tests.engines.redis.conftest import Opener
from tests.waiting import PATIENCE_S, wait_until
from tests.wire.servers import Process, free_port, running, start_redis

# In the year 2100: alive for as long as a test takes, whatever the time of day.
LATER = datetime(2100, 1, 1, tzinfo=UTC)
LATER_MS = round(LATER.timestamp() * 1000)


def seen_by_now(seen: Callable[[], object]) -> None:
    """Wait until another store has looked at the table of families again."""
    wait_until(seen, what="the table of families is read again")


# --- what is written ------------------------------------------------------------------------------


def test_redis_is_told_the_deadline_of_a_row_and_removes_it_by_itself(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    store.put("key", "value", at=LATER)
    assert client.execute_command("PEXPIRETIME", "ephemera:1:key") == LATER_MS
    store.put("brief", "value", ttl=0.001)
    wait_until(lambda: not client.exists("ephemera:1:brief"), what="Redis removes the dead")
    store.put("key", "permanent")
    assert client.pttl("ephemera:1:key") == -1


def test_a_touch_moves_the_deadline_that_redis_knows(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    store.put("key", "value", ttl=60)
    assert store.touch("key", at=LATER)
    assert client.execute_command("PEXPIRETIME", "ephemera:1:key") == LATER_MS
    assert store.persist("key")
    assert client.pttl("ephemera:1:key") == -1


@pytest.mark.parametrize("start_ms", [0, 1_000, LATER_MS], ids=["1970", "a second", "2100"])
def test_a_clock_of_its_own_is_not_redis_clock(
    open_single: Opener, client: redis.Redis, start_ms: int
) -> None:
    clock = ManualClock(start_ms)
    store = open_single(clock=clock)
    store.put("key", "value", ttl=60)
    assert client.pttl("ephemera:1:key") == -1
    assert store.get("key") == b"value"
    clock.advance(60)
    assert store.get("key") is None
    assert client.exists("ephemera:1:key")
    assert store.purge_expired() == 1
    assert not client.exists("ephemera:1:key")


def test_a_key_holds_the_row_as_every_engine_keeps_it(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single("prefix=shop", clock=ManualClock(1_000))
    store.put("key", "value", idle=5, ttl=60)
    assert client.keys() == [b"shop:1:key"]
    held = client.get("shop:1:key")
    assert isinstance(held, bytes)
    assert decode_row(held) == (b"value", 1_000, 6_000, 5_000, 61_000)


def test_the_time_of_day_is_never_before_the_servers(open_single: Opener) -> None:
    before_ms = wall_ms()
    assert open_single().clock.now_ms() >= before_ms


@pytest.mark.parametrize("length", [1_800, 1_801, 1_900])
def test_long_keys_are_kept_by_their_digest_and_found_again(
    open_single: Opener, client: redis.Redis, length: int
) -> None:
    store = open_single(clock=ManualClock())
    key, other = b"k" * length, b"k" * (length - 1) + b"#"
    store.put(key, b"", ttl=60)
    assert store.put_if_absent(other, b"#:#")
    assert store.incr(b"#1:2", 3) == 3
    assert dict(store.scan()) == {key: b"", other: b"#:#", b"#1:2": b"3"}
    assert store.count() == 3
    assert store.get_many([key, other]) == {key: b"", other: b"#:#"}
    names = client.keys()
    assert max(map(len, names)) <= 1_811
    assert store.delete_many([key, other]) == 2
    assert store.count() == 1


def test_stores_with_prefixes_of_their_own_do_not_meet(open_single: Opener) -> None:
    one, two = open_single("prefix=a"), open_single("prefix=a.1")
    one.put("1:key", "one")
    one.family("families").put("key", "three")
    two.put("key", "two")
    assert dict(one.scan()) == {b"1:key": b"one"}
    assert dict(two.scan()) == {b"key": b"two"}
    two.clear()
    two.purge_expired()
    assert (one.count(), two.count()) == (1, 0)


def test_keys_of_others_are_left_alone(open_single: Opener, client: redis.Redis) -> None:
    client.set("theirs", "1")
    client.rpush("ephemera", "a list")
    client.hset("ephemera:list", mapping={"a": "hash"})
    store = open_single()
    store.put("key", "value")
    assert store.count() == 1
    store.clear()
    store.purge_expired()
    assert store.repair() == 0
    assert sorted(client.keys()) == [b"ephemera", b"ephemera:families", b"ephemera:list", b"theirs"]


def test_opening_writes_nothing(open_single: Opener, client: redis.Redis) -> None:
    store = open_single(read_only=True)
    assert store.families() == ["default"]
    assert (store.count(), store.get("key")) == (0, None)
    open_single().close()
    assert client.keys() == []


def test_a_value_that_redis_cannot_hold_with_its_row_is_refused(
    open_single: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ephemera.engines.redis.layout.ROW_VALUE_BYTES_MAX", 10)
    store = open_single()
    store.put("key", b"v" * 10)
    for write in (store.put, store.put_if_absent):
        with pytest.raises(InvalidArgument, match="at most 10 bytes, this one has 11"):
            write("other", b"v" * 11)
    with pytest.raises(InvalidArgument, match="at most 10 bytes"):
        store.put_many({"a": b"", "b": b"v" * 11})
    assert dict(store.scan()) == {b"key": b"v" * 10}


# --- what others do meanwhile ---------------------------------------------------------------------


def test_two_stores_share_everything(open_single: Opener) -> None:
    clock = ManualClock()
    one, two = open_single(clock=clock), open_single(clock=clock)
    one.put("key", "1", ttl=60)
    assert two.incr("key") == 2
    assert one.ttl("key") == 60.0
    one.family("codes", default_ttl=30).put("a", "1")
    codes = two.family("codes")
    assert codes.ttl("a") == 30.0
    codes.put("b", "2")
    assert one.family("codes").ttl("b") == 30.0
    assert two.families() == ["codes", "default"]


def test_counts_of_many_stores_and_threads_are_not_lost(open_single: Opener) -> None:
    stores = [open_single() for _ in range(4)]

    def count(store: ephemera.Store) -> None:
        for _ in range(50):
            store.incr("hits")

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("hits") == b"200"


def test_a_clear_by_another_store_is_noticed_within_a_second(open_single: Opener) -> None:
    one, two = open_single(), open_single()
    one.put("key", "1")
    assert two.get("key") == b"1"
    one.clear()
    began_ns = elapsed_ns()
    seen_by_now(lambda: two.get("key") is None)
    assert elapsed_ns() - began_ns < 3 * FRESH_NS
    two.put("key", "2")
    assert one.get("key") == b"2"


def test_a_handle_of_a_family_that_another_store_dropped_refuses(open_single: Opener) -> None:
    one, two = open_single(), open_single()
    family = two.family("codes")
    family.put("key", "1")
    assert one.drop_family("codes")
    one.family("codes").put("other", "2")

    def refuses() -> bool:
        try:
            family.put("late", "3")
        except InvalidArgument as error:
            return "family 'codes' was dropped" in str(error)
        return False

    seen_by_now(refuses)
    assert dict(two.family("codes").scan()) == {b"other": b"2"}


def test_a_default_ttl_that_another_store_set_is_followed(open_single: Opener) -> None:
    clock = ManualClock()
    one, two = open_single(clock=clock), open_single(clock=clock)
    family = two.family("codes")
    one.family("codes", default_ttl=60)
    seen_by_now(lambda: (family.count(), family.default_ttl)[1] == 60.0)
    family.put("key", "1")
    assert family.ttl("key") == 60.0


def test_two_stores_that_make_a_family_at_once_make_one(open_single: Opener) -> None:
    stores = [open_single() for _ in range(6)]
    barrier = threading.Barrier(len(stores))

    def make(store: ephemera.Store, number: int) -> None:
        barrier.wait()
        store.family("codes").put(b"%d" % number, b"")
        store.family(f"own{number}").put(b"key", b"")

    threads = [
        threading.Thread(target=make, args=(store, number)) for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].family("codes").count() == len(stores)
    assert all(stores[0].family(f"own{number}").count() == 1 for number in range(len(stores)))


def test_a_server_that_was_emptied_behind_our_back_is_used_on(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    store.clear()
    store.put("key", "1")
    family = store.family("codes")
    client.flushall()
    seen_by_now(lambda: store.families() == ["default"])
    store.put("key", "2")
    assert dict(store.scan()) == {b"key": b"2"}
    with pytest.raises(InvalidArgument, match="was dropped"):
        family.get("key")
    assert store.check().is_clean


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_fails_whole_when_another_store_changed_what_it_read(
    open_single: Opener,
) -> None:
    one, two = open_single(), open_single()
    one.put_many({"read": "1", "written": "1"})

    def transact() -> None:
        with one.transaction() as transaction:
            assert transaction.get("read") == b"1"
            two.put("read", "2")
            assert transaction.get("read") == b"1"
            transaction.put("written", "2")
            transaction.put("new", "2")

    with pytest.raises(TransactionConflict, match="try the block again"):
        transact()
    assert dict(one.scan()) == {b"read": b"2", b"written": b"1"}
    one.put("written", "the writer lock is free")


@pytest.mark.parametrize("what", ["put", "delete", "touch", "appear", "same value"])
def test_whatever_changes_a_key_that_was_read_is_noticed(open_single: Opener, what: str) -> None:
    clock = ManualClock()
    one, two = open_single(clock=clock), open_single(clock=clock)
    one.put("key", "1", ttl=60)
    changes: dict[str, Callable[[], object]] = {
        "put": lambda: two.put("key", "2", ttl=60),
        "delete": lambda: two.delete("key"),
        "touch": lambda: two.touch("key", ttl=90),
        "appear": lambda: two.put("absent", "1"),
        "same value": lambda: (clock.advance(1), two.put("key", "1", ttl=59)),
    }

    def transact() -> None:
        with one.transaction() as transaction:
            assert transaction.get("key") == b"1"
            assert transaction.get("absent") is None
            changes[what]()
            transaction.put("other", "2")

    with pytest.raises(TransactionConflict):
        transact()
    assert one.get("other") is None


def test_what_was_not_read_may_change(open_single: Opener) -> None:
    one, two = open_single(), open_single()
    with one.transaction() as transaction:
        transaction.put("written", "1")
        two.put("written", "2")
        two.put("other", "2")
    assert dict(one.scan()) == {b"written": b"1", b"other": b"2"}


def test_there_is_no_write_skew_between_stores(open_single: Opener) -> None:
    """Two rows, of which one must stay: each store takes one away if it sees both."""
    stores = [open_single(), open_single()]
    for _ in range(20):
        stores[0].put_many({"a": "on", "b": "on"})
        barrier = threading.Barrier(2)

        def leave(store: ephemera.Store, own: str, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                with store.transaction() as transaction:
                    if len(transaction.get_many(["a", "b"])) == 2:
                        transaction.delete(own)
            except TransactionConflict:
                pass

        threads = [
            threading.Thread(target=leave, args=pair)
            for pair in zip(stores, ("a", "b"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stores[0].count() >= 1


@pytest.mark.parametrize("what", ["scan", "count", "clear"])
def test_a_transaction_refuses_what_it_could_not_vouch_for(open_single: Opener, what: str) -> None:
    store = open_single()
    calls: dict[str, Callable[[ephemera.Transaction], object]] = {
        "scan": lambda transaction: list(transaction.scan()),
        "count": lambda transaction: transaction.count(),
        "clear": lambda transaction: transaction.clear(),
    }
    with store.transaction() as transaction, pytest.raises(UnsupportedOperation, match="redis"):
        calls[what](transaction)


# --- upkeep ---------------------------------------------------------------------------------------


def test_rows_of_a_cleared_family_go_with_the_next_purge(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    store.put_many({b"%d" % number: b"" for number in range(2_500)})
    store.clear()
    assert len(client.keys("ephemera:1:*")) == 2_500
    assert store.stats()["families_to_sweep"] == 1
    assert store.purge_expired() == 0
    assert client.keys("ephemera:1:*") == []
    assert store.purge_expired() == 0
    assert store.stats()["families_to_sweep"] == 0


def test_rows_of_a_dropped_family_go_in_the_background(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single(maintenance="background")
    store.family("codes").put_many({b"%d" % number: b"" for number in range(100)})
    assert store.drop_family("codes")
    wait_until(lambda: client.keys("ephemera:2:*") == [], what="the sweep")


def test_a_store_sweeps_what_one_before_it_left(open_single: Opener, client: redis.Redis) -> None:
    with open_single() as store:
        store.put("key", "1")
        store.clear()
    assert client.keys("ephemera:1:*")
    open_single(maintenance="background")
    wait_until(lambda: client.keys("ephemera:1:*") == [], what="the sweep")


def test_a_late_write_to_a_cleared_family_is_swept_too(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    store.put("key", "1")
    held = client.get("ephemera:1:key")
    assert isinstance(held, bytes)
    store.clear()
    store.purge_expired()
    client.set("ephemera:1:late", held)
    store.purge_expired()
    assert client.keys("ephemera:1:*") == []


def test_rows_of_nobody_are_reported_and_repaired(open_single: Opener, client: redis.Redis) -> None:
    store = open_single()
    store.put("key", "1")
    held = client.get("ephemera:1:key")
    assert isinstance(held, bytes)
    client.set("ephemera:77:stray", held)
    report = store.check()
    assert report.problems == ("1 rows of the family id 77, which is nobody's",)
    assert store.repair() == 1
    assert store.check().is_clean
    assert dict(store.scan()) == {b"key": b"1"}


def test_a_purge_does_not_take_what_was_written_again_meanwhile(open_single: Opener) -> None:
    clock = ManualClock()
    store = open_single(clock=clock)
    store.put("key", "dead", ttl=1)
    clock.advance(1)
    upkeep = store.engine._upkeep  # type: ignore[attr-defined]  # between its two steps
    dead = upkeep.dead([b"ephemera:1:key"], clock.now_ms())
    store.put("key", "new")
    assert upkeep.remove(dead, 10) == 0
    assert store.get("key") == b"new"


# --- what goes wrong ------------------------------------------------------------------------------


def test_more_keys_than_a_command_can_name_are_refused_before_anything_happens(
    open_single: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ephemera.engines.redis.routing.SWAP_KEYS_MAX", 3)
    store = open_single()
    store.put_many({b"%d" % number: b"" for number in range(4)})
    with pytest.raises(InvalidArgument, match="at most 3 keys in one step, not 4"):
        store.delete_many([b"%d" % number for number in range(4)])
    assert store.count() == 4
    assert store.delete_many([b"0", b"1", b"2"]) == 3


@pytest.mark.parametrize("where", [servers.single, servers.own_server], ids=["redis", "own"])
def test_thousands_of_keys_go_in_one_step(where: Callable[[], Process], opener: Opener) -> None:
    servers.flush(where())
    store = opener(servers.url_of(where()))
    pairs = {b"%d" % number: b"v" * 10 for number in range(5_000)}
    store.put_many(pairs, ttl=3_600)
    assert store.get_many(pairs) == pairs
    assert store.delete_many(pairs) == 5_000
    assert store.count() == 0


def test_a_child_after_fork_uses_connections_of_its_own(open_single: Opener) -> None:
    store = open_single()
    store.put("key", "1")
    child = os.fork()
    if child == 0:
        try:
            is_well = store.get("key") == b"1" and store.incr("hits", 5) == 5
            os._exit(0 if is_well else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("hits") == b"5"


def test_a_replica_that_becomes_the_master_is_waited_for(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single("retry_for=30")
    store.put("key", "1")
    client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    thread = threading.Thread(target=store.put, args=("key", "2"))
    try:
        thread.start()
        retries = store.engine.router  # type: ignore[attr-defined]  # it counts them
        wait_until(lambda: retries.retries > 3, what="the write is refused, and tried again")
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    thread.join(PATIENCE_S)
    assert store.get("key") == b"2"


def test_what_is_no_row_is_named_and_never_served(open_single: Opener, client: redis.Redis) -> None:
    store = open_single()
    client.set("ephemera:1:short", b"no row")
    client.set("ephemera:1:flags", b"\xff" * 40)
    for key in ("short", "flags"):
        for use in (store.get, store.entry, store.incr, store.delete):
            with pytest.raises(CorruptStore, match=f"ephemera:1:{key}"):
                use(key)
    assert len(store.check().problems) == 2
    store.put("short", "mended")
    assert store.get("short") == b"mended"


def test_another_type_under_a_key_of_ours_is_named(
    open_single: Opener, client: redis.Redis
) -> None:
    store = open_single()
    client.rpush("ephemera:1:key", "a list")
    with pytest.raises(CorruptStore, match="ephemera:1:key"):
        store.get("key")
    with pytest.raises(CorruptStore, match="ephemera:1:key"):
        store.incr("key")


@pytest.mark.parametrize("table", [b"", b"[]", b"{}", b'{"format":2}', b'{"format":1}', b"\xff"])
def test_a_table_of_families_that_is_none_is_named(
    open_single: Opener, client: redis.Redis, table: bytes
) -> None:
    client.set("ephemera:families", table)
    with pytest.raises(CorruptStore, match="ephemera:families"):
        open_single()


def test_a_server_without_room_says_so_and_reads_go_on(tmp_path: Path, opener: Opener) -> None:
    with running(start_redis(tmp_path)) as process, servers.client(process.port) as client:
        store = opener(servers.url_of(process))
        store.put("key", "1")
        client.config_set("maxmemory", 1)
        writes: list[Callable[[], object]] = [
            lambda: store.put("other", "1"),
            lambda: store.incr("other"),
            lambda: store.put_many({"a": "1", "b": "2"}),
        ]
        for write in writes:
            with pytest.raises(StoreFull, match="maxmemory"):
                write()
        assert store.get("key") == b"1"
        assert store.delete("key")
        client.config_set("maxmemory", 0)
        assert store.count() == 0


def test_a_password_is_needed_and_never_shown(tmp_path: Path, opener: Opener) -> None:
    with running(start_redis(tmp_path, "--requirepass", "secret")) as process:
        for url in (servers.url_of(process), f"redis://:wrong@127.0.0.1:{process.port}"):
            with pytest.raises(InvalidArgument, match=str(process.port)) as raised:
                opener(url)
            assert "wrong" not in str(raised.value)
            assert "?password_file=PATH or ?password_env=NAME" in str(raised.value)
        store = opener(f"redis://:secret@127.0.0.1:{process.port}")
        store.put("key", "1")
        assert store.get("key") == b"1"


def test_a_database_that_the_server_does_not_have_is_refused_at_once(
    server: Process, opener: Opener
) -> None:
    with pytest.raises(InvalidArgument, match="DB index is out of range"):
        opener(f"{servers.url_of(server)}/999")


def test_hundreds_of_threads_each_get_an_answer(open_single: Opener) -> None:
    store = open_single()
    store.put("key", "1")
    barrier = threading.Barrier(200)
    found: list[bytes | None] = []

    def use() -> None:
        barrier.wait()
        found.append(store.get("key"))

    threads = [threading.Thread(target=use) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [b"1"] * 200
    assert store.stats()["retries"] == 0


def test_what_a_user_may_not_do_is_named(tmp_path: Path, opener: Opener) -> None:
    rule = "ada on nopass ~* +@all -eval -evalsha"
    with running(start_redis(tmp_path, "--user", *rule.split())) as process:
        store = opener(f"redis://ada:x@127.0.0.1:{process.port}")
        store.put("key", "1")
        with pytest.raises(UnsupportedOperation, match="EVALSHA"):
            store.incr("key")


def test_a_socket_and_a_database_are_chosen_by_the_url(tmp_path: Path, opener: Opener) -> None:
    place = tmp_path / "redis.sock"
    with running(start_redis(tmp_path, "--unixsocket", str(place))) as process:
        store = opener(f"unix://{place}?db=3")
        store.put("key", "1")
        assert opener(f"{servers.url_of(process)}/3").get("key") == b"1"
        assert opener(servers.url_of(process)).get("key") is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_over_tls_the_server_is_known_by_its_certificate(tmp_path: Path, opener: Opener) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500"]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    port = free_port()
    options = {
        "--tls-port": str(port),
        "--tls-cert-file": str(certificate),
        "--tls-key-file": str(key),
        "--tls-ca-cert-file": str(certificate),
        "--tls-auth-clients": "no",
    }
    with running(start_redis(tmp_path, *chain(*options.items()))):
        store = opener(f"rediss://127.0.0.1:{port}?ca_file={certificate}")
        store.put("key", "1")
        assert store.get("key") == b"1"
        with pytest.raises(EngineUnavailable, match="certificate verify failed"):
            opener(f"rediss://127.0.0.1:{port}?retry_for=0.2")


def test_nobody_there_is_told_within_the_time_given(opener: Opener) -> None:
    began_ns = elapsed_ns()
    for scheme in ("redis", "redis+cluster"):
        with pytest.raises(EngineUnavailable, match=r"within 0\.2 s"):
            opener(f"{scheme}://127.0.0.1:{free_port()}?retry_for=0.2")
    assert elapsed_ns() - began_ns < 20e9


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_closed_port_is_told_in_about_a_second(opener: Opener, scheme: str) -> None:
    began_ns = elapsed_ns()
    port = free_port()
    with pytest.raises(EngineUnavailable) as raised:
        opener(f"{scheme}://127.0.0.1:{port}")
    assert str(raised.value) == (
        f"127.0.0.1:{port} did not answer within 1 s (Connection refused)."
        " Is a server running there?"
    )
    assert elapsed_ns() - began_ns < 5e9  # retry_for is 15 s


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"], ids=str)
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_port_of_another_protocol_is_told_in_about_a_second(
    opener: Opener, scheme: str, answer: bytes
) -> None:
    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        began_ns = elapsed_ns()
        try:
            with pytest.raises(EngineUnavailable, match="does not answer as a Redis server does"):
                opener(f"{scheme}://127.0.0.1:{web.server_address[1]}")
        finally:
            web.shutdown()
            thread.join()
    assert elapsed_ns() - began_ns < 5e9  # retry_for is 15 s


def test_a_server_that_hangs_is_given_up_in_time_and_used_again(
    tmp_path: Path, opener: Opener
) -> None:
    with running(start_redis(tmp_path)) as process:
        store = opener(f"{servers.url_of(process)}?timeout=0.2&retry_for=0.3")
        store.put("key", "1")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            began_ns = elapsed_ns()
            with pytest.raises(EngineUnavailable, match=r"within 0\.3 s"):
                store.get("key")
            with pytest.raises(EngineUnavailable, match=r"within 0\.3 s|may have happened"):
                store.incr("key")
            assert elapsed_ns() - began_ns < 20e9
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: store.get("key") == b"1", what="the server goes on")


def test_a_server_that_hangs_is_not_tried_for_every_part_of_a_large_request(
    tmp_path: Path, opener: Opener
) -> None:
    with running(start_redis(tmp_path)) as process:
        store = opener(f"{servers.url_of(process)}?timeout=1&retry_for=0.1")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            began_ns = elapsed_ns()
            with pytest.raises(EngineUnavailable):
                store.get_many([b"%0100d" % number for number in range(20_000)])
            # Thirty parts, of a second each.
            assert elapsed_ns() - began_ns < 15e9
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_closing_ends_what_other_threads_do(open_single: Opener) -> None:
    store = open_single()
    store.put("key", "1")
    ends: list[type[BaseException]] = []
    started = threading.Barrier(4)

    def use() -> None:
        started.wait()
        try:
            while True:
                store.put("key", store.get("key") or b"")
        except BaseException as error:
            ends.append(type(error))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    store.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ends == [StoreClosed] * 3


def test_a_server_that_comes_back_is_used_on(tmp_path: Path, opener: Opener) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    process = start_redis(tmp_path, *options)
    port = process.port
    try:
        store = opener(f"{servers.url_of(process)}?retry_for=30")
        store.put("key", "1")
        process.kill()
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(store.incr("key")))
        thread.start()
        process = _start_again(tmp_path, port, *options)
        thread.join(PATIENCE_S)
        assert results == [2]
        assert store.get("key") == b"2"
    finally:
        process.kill()


def _start_again(directory: Path, port: int, *options: str) -> Process:
    command = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    return Process([*command, *options, "--port", str(port)], "Ready to accept connections")


def test_a_cluster_and_a_single_server_are_told_apart(
    server: Process, cluster: servers.RunningCluster, opener: Opener
) -> None:
    with pytest.raises(UnsupportedOperation, match="redis://127"):
        opener(f"redis+cluster://127.0.0.1:{server.port}")
    one = f"redis://127.0.0.1:{cluster.nodes[0].port}"

    def use() -> None:
        store = opener(one)
        for number in range(20):
            store.put(b"%d" % number, b"")

    with pytest.raises(UnsupportedOperation, match=r"redis\+cluster"):
        use()


# --- what a store on Redis is not -----------------------------------------------------------------


def test_an_option_that_promises_too_much_is_refused(open_single: Opener) -> None:
    with pytest.raises(UnsupportedOperation, match="exclusive"):
        open_single(exclusive=True)


REFUSALS: dict[str, Callable[[ephemera.Store], Any]] = {
    "ordered scans": lambda store: store.scan("prefix"),
    "snapshots": lambda store: store.snapshot(),
    "expiry events": lambda store: store.on_expire(print),
    "backup to a directory": lambda store: store.backup("place"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_names_the_engine_and_what_to_do_instead(open_single: Opener, what: str) -> None:
    with pytest.raises(UnsupportedOperation, match=f"the redis engine has no {what}: .*(;|,|or)"):
        REFUSALS[what](open_single())


def test_the_capabilities_are_those_of_the_servers(
    open_single: Opener, cluster: servers.RunningCluster, opener: Opener
) -> None:
    assert open_single().capabilities == {Capability.TRANSACTIONS}
    assert open_single("values=plain").capabilities == frozenset()
    assert opener(cluster.url).capabilities == frozenset()
