"""A store at its `size_limit` still reads, deletes, purges, clears and compacts, and takes puts again after that."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import ephemera
from ephemera import ManualClock, Store, StoreFull
from tests.engines.local.stores import (
    THOUSAND,
    base_file,
    contents,
    engine_of,
    open_local,
    start_python,
    write_until,
)

LIMIT = 1024 * 1024
RESERVE = 7 * LIMIT

Empty = Callable[[Store, int], object]


def delete_each(store: Store, written: int) -> None:
    assert all(store.delete(b"%d" % number) for number in range(written))


def delete_together(store: Store, written: int) -> None:
    assert store.delete_many(b"%d" % number for number in range(written)) == written


def delete_in_a_transaction(store: Store, written: int) -> None:
    with store.transaction() as txn:
        assert all(txn.delete(b"%d" % number) for number in range(written))


def pop_each(store: Store, written: int) -> None:
    assert all(store.pop(b"%d" % number) == THOUSAND for number in range(written))


def clear(store: Store, written: int) -> None:
    store.clear()


WAYS_TO_EMPTY = [delete_each, delete_together, delete_in_a_transaction, pop_each, clear]


@pytest.mark.parametrize("maintenance", ["manual", "background"])
@pytest.mark.parametrize("empty", WAYS_TO_EMPTY, ids=lambda empty: empty.__name__)
def test_a_full_store_can_be_emptied_and_filled_again(
    open_store: Callable[..., Store], maintenance: str, empty: Empty
) -> None:
    store = open_store(size_limit=LIMIT, maintenance=maintenance, durability="none")
    for _ in range(3):
        words, written = write_until(StoreFull, store)
        assert "size_limit" in words
        assert store.count() == written > LIMIT // 2_000
        with pytest.raises(StoreFull):
            store.put("another", THOUSAND)
        empty(store, written)
        assert contents(store) == {}
        store.put("another", THOUSAND)
        assert store.delete("another")
    assert store.check().is_clean


def test_a_full_store_still_does_all_that_does_not_add(open_store: Callable[..., Store]) -> None:
    store = open_store(size_limit=LIMIT)
    _, written = write_until(StoreFull, store)
    expected = {b"%d" % number: THOUSAND for number in range(written)}
    with store.snapshot() as before:
        for refused in (
            lambda: store.put_many({"a": THOUSAND}),
            lambda: store.incr("counter"),
            lambda: store.put_if_absent("absent", "1"),
            lambda: store.touch(b"0", ttl=10),
            lambda: delete_and_put(store),
        ):
            with pytest.raises(StoreFull, match="size_limit"):
                refused()
        store.checkpoint()
        assert store.purge_expired() == 0
        store.compact()
        assert contents(store) == contents(before) == expected
    assert store.check().is_clean


def delete_and_put(store: Store) -> None:
    with store.transaction() as txn:
        txn.delete(b"0")
        txn.put("another", THOUSAND)


def test_purging_makes_room_in_a_full_store(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(size_limit=LIMIT)
    for _ in range(3):
        written = fill(store, ttl=10)
        clock.advance(10)
        assert store.purge_expired() == written
    assert store.check().is_clean


def test_purging_a_tenth_of_the_rows_makes_room_in_a_full_store(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(size_limit=LIMIT)
    for _ in range(3):
        written = fill(store, ttl=1_000, every_tenth_ttl=10)
        clock.advance(10)
        assert store.purge_expired() == (written + 9) // 10
        store.checkpoint()
        store.put("another", THOUSAND)
        store.clear()
    assert store.check().is_clean


def test_the_sweeper_makes_room_in_a_full_store(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(size_limit=LIMIT, maintenance="background", durability="none")
    engine_of(store)._sweeps_from_ns = 0
    for _ in range(3):
        fill(store, ttl=10)
        clock.advance(20)
        store.put("another", THOUSAND, ttl=1)


def fill(store: Store, ttl: float, every_tenth_ttl: float | None = None) -> int:
    """Put rows in the order of their keys until the store refuses; returns how many it has taken."""
    for number in range(10_000):
        own_ttl = ttl if number % 10 or every_tenth_ttl is None else every_tenth_ttl
        try:
            store.put(b"%05d" % number, THOUSAND, ttl=own_ttl)
        except StoreFull:
            return number
    raise AssertionError("it was never refused")


def put_at_random(store: Store, chance: random.Random, rows: dict[bytes, bytes]) -> None:
    for _ in range(100_000):
        key = chance.randbytes(8)
        store.put(key, b"x" * 50)
        rows[key] = b"x" * 50


def test_deletions_spread_over_all_pages_make_room_for_as_much_again(
    open_store: Callable[..., Store],
) -> None:
    chance = random.Random(7)
    store = open_store(size_limit=LIMIT)
    rows: dict[bytes, bytes] = {}
    for _ in range(6):
        with pytest.raises(StoreFull):
            put_at_random(store, chance, rows)
        for key in chance.sample(sorted(rows), len(rows) // 5):
            assert store.delete(key)
            del rows[key]
        assert contents(store) == rows
        store.put(key, b"again")
        rows[key] = b"again"
    store.checkpoint()
    assert base_file(engine_of(store)._layout.root).stat().st_size < LIMIT + RESERVE
    assert store.check().is_clean


def test_a_limit_below_what_is_there_lets_it_be_deleted(open_store: Callable[..., Store]) -> None:
    store = open_store()
    store.put_many({b"%d" % number: THOUSAND for number in range(5_000)})
    store.close()
    store = open_store(size_limit=LIMIT)
    store.checkpoint()
    with pytest.raises(StoreFull):
        store.put("another", "one")
    delete_each(store, 5_000)
    store.put("another", "one")
    assert contents(store) == {b"another": b"one"}


def test_one_write_that_is_larger_than_what_is_left_is_refused(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(size_limit=LIMIT)
    with pytest.raises(StoreFull, match="at once"):
        store.put("large", b"x" * (LIMIT + 1))
    with pytest.raises(StoreFull, match="at once"):
        store.put_many({b"%d" % number: THOUSAND for number in range(2_000)})
    assert store.count() == 0
    store.put("large", b"x" * (LIMIT // 2))
    assert store.delete("large")


def test_values_of_all_sizes_come_and_go_at_the_limit(open_store: Callable[..., Store]) -> None:
    chance = random.Random(11)
    store = open_store(size_limit=LIMIT)
    rows: dict[bytes, bytes] = {}
    refused = 0
    for _ in range(1_500):
        key = b"%d" % chance.randrange(200)
        value = bytes(chance.choice((10, 500, 3_000, 20_000, 60_000)))
        try:
            store.put(key, value)
            rows[key] = value
        except StoreFull:
            refused += 1
            for gone in chance.sample(sorted(rows), len(rows) // 2):
                assert store.delete(gone)
                del rows[gone]
        if chance.random() < 0.01:
            store.checkpoint()
    assert refused > 3
    assert contents(store) == rows
    assert store.check().is_clean


def test_compaction_works_where_a_checkpoint_finds_no_page(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put_many({b"%d" % number: THOUSAND for number in range(100)})
    former = engine_of(store)._base.file.generation

    checkpoint = type(engine_of(store)).checkpoint

    def checkpoint_if_compacted(self: object) -> None:
        if engine_of(store)._base.file.generation == former:
            raise StoreFull("no page")
        checkpoint(self)

    monkeypatch.setattr(type(engine_of(store)), "checkpoint", checkpoint_if_compacted)
    store.compact()
    assert (store.count(), store.stats()["segments"]) == (100, 0)


CHURN = """
    import itertools, random, sys
    import ephemera
    path, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    store = ephemera.open(path, size_limit=1024 * 1024, segment_bytes=65536, durability="none",
                          maintenance=chance.choice(("manual", "background")))
    live = set(store.keys())
    print("open", flush=True)
    for number in itertools.count():
        try:
            key = b"%d-%d" % (seed, number)
            store.put(key, b"x" * 1000)
            live.add(key)
        except ephemera.StoreFull:
            for key in chance.sample(sorted(live), len(live) // 2):
                assert store.delete(key), key
                live.discard(key)
                print("deleted", key.decode(), flush=True)
    """


def churn_and_kill(path: Path, seed: int, deletions: int) -> set[bytes]:
    """Let a process fill and empty the store, and kill it; what it said it has deleted."""
    with start_python(CHURN, path, seed) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        deleted = {process.stdout.readline().split()[1].encode() for _ in range(deletions)}
        process.send_signal(signal.SIGKILL)
        deleted.update(line.split()[1].encode() for line in process.stdout if line.endswith("\n"))
        assert process.wait(30) == -signal.SIGKILL
    return deleted


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.soak)])
def test_kills_at_the_limit_leave_a_store_that_can_be_emptied_and_filled(
    path: Path, seeds: range
) -> None:
    open_local(path, size_limit=LIMIT).close()
    for seed in seeds:
        deleted = churn_and_kill(path, seed, deletions=1 + 300 * (seed % 3))
        with open_local(path, size_limit=LIMIT) as store:
            keys = list(store.keys())
            assert not deleted.intersection(keys)
            assert store.check().is_clean
            if seed % 2:
                assert store.delete_many(keys) == len(keys)
                store.put("another", THOUSAND)
                assert store.delete("another")


PUT_TWICE = """
    import sys
    import ephemera
    with ephemera.open(sys.argv[1], maintenance="manual") as store:
        try:
            store.put("other", "1")
        except ephemera.StoreFull:
            print("full", flush=True)
        input()
        store.put("other", "1")
        print("put", flush=True)
    """


def test_another_process_sees_that_there_is_room_again(path: Path) -> None:
    with open_local(path, size_limit=LIMIT) as store:
        _, written = write_until(StoreFull, store)
        with start_python(PUT_TWICE, path) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == "full\n"
            store.delete_many(b"%d" % number for number in range(written))
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "put\n"
            assert other.wait(30) == 0
        assert store.get("other") == b"1"


@pytest.mark.parametrize("size_limit", [LIMIT, 64 * 1024**3])
def test_the_reserve_is_in_proportion_to_the_limit(path: Path, size_limit: int) -> None:
    with ephemera.open(path, size_limit=size_limit, maintenance="manual") as store:
        map_bytes = engine_of(store)._control.map_bytes
        assert 1.5 * size_limit < map_bytes <= 8 * size_limit
