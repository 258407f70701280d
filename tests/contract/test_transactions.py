"""Transactions: all or nothing, alone, at one instant."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ephemera import (
    Capability,
    EphemeraError,
    InvalidArgument,
    ManualClock,
    Store,
    StoreBusy,
    StoreClosed,
    Ttl,
)
from tests.contract.times import after

pytestmark = pytest.mark.needs(Capability.TRANSACTIONS)

PATIENCE_S = 30


class Failure(Exception):
    """What a block raises to be rolled back."""


def test_what_a_block_wrote_is_there_when_it_ends(store: Store) -> None:
    store.put(b"gone", b"0")
    with store.transaction() as transaction:
        transaction.put(b"a", b"1")
        transaction.put(b"b", b"2", ttl=60)
        transaction.delete(b"gone")
    assert dict(store.scan()) == {b"a": b"1", b"b": b"2"}
    assert store.ttl(b"b") == 60.0


def test_a_block_that_raises_leaves_nothing_at_all(store: Store, clock: ManualClock) -> None:
    store.put_many({b"kept": b"0", b"counter": b"5"}, ttl=600)
    store.family("other")

    def write_and_fail() -> None:
        with store.transaction() as transaction:
            transaction.put(b"a", b"1", ttl=1)
            transaction.put(b"kept", b"other", ttl=1)
            transaction.incr(b"counter")
            transaction.delete(b"counter")
            transaction.family("other").put(b"b", b"2", ttl=1)
            raise Failure

    with pytest.raises(Failure):
        write_and_fail()
    assert dict(store.scan()) == {b"kept": b"0", b"counter": b"5"}
    assert store.ttl(b"kept") == 600.0
    assert store.family("other").count() == 0
    clock.advance(1)
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_an_empty_block_changes_nothing(store: Store) -> None:
    with store.transaction():
        pass
    assert store.count() == 0


def test_nothing_is_seen_outside_before_the_block_ends(store: Store) -> None:
    store.put(b"a", b"old")
    with store.transaction() as transaction:
        transaction.put(b"a", b"new")
        transaction.put(b"b", b"new")
        assert store.get(b"a") == b"old"
        assert store.get(b"b") is None
        assert dict(store.scan()) == {b"a": b"old"}
        assert store.count() == 1
    assert dict(store.scan()) == {b"a": b"new", b"b": b"new"}


def test_a_block_reads_its_own_writes(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    with store.transaction() as transaction:
        transaction.put(b"a", b"10", ttl=60)
        transaction.delete(b"b")
        transaction.put(b"c", b"3")
        assert transaction.get(b"a") == b"10"
        assert transaction.ttl(b"a") == 60.0
        assert transaction.get(b"b") is None
        assert b"b" not in transaction
        assert b"c" in transaction
        assert transaction.get_many([b"a", b"b", b"c"]) == {b"a": b"10", b"c": b"3"}
        entry = transaction.entry(b"a")
        assert entry is not None
        assert (entry.value, entry.deadline) == (b"10", after(60))
        with pytest.raises(KeyError):
            transaction.ttl(b"b")


@pytest.mark.needs(Capability.ORDERED_SCAN)
def test_a_scan_in_a_block_merges_its_own_writes(store: Store) -> None:
    store.put_many({b"a": b"1", b"c": b"1", b"e": b"1", b"g": b"1"})
    with store.transaction() as transaction:
        transaction.put(b"b", b"2")
        transaction.put(b"c", b"2")
        transaction.delete(b"e")
        transaction.put(b"h", b"2")
        transaction.put(b"i", b"2")
        transaction.delete(b"i")
        expected = [(b"a", b"1"), (b"b", b"2"), (b"c", b"2"), (b"g", b"1"), (b"h", b"2")]
        assert list(transaction.scan()) == expected
        assert list(transaction.scan(reverse=True)) == expected[::-1]
        assert list(transaction.scan(start=b"b", end=b"g")) == expected[1:3]
        assert list(transaction.scan(prefix=b"c")) == [(b"c", b"2")]
        assert list(transaction.scan(limit=2)) == expected[:2]
        assert transaction.count() == 5
    assert list(store.scan()) == expected


def test_a_block_sees_the_store_as_it_was_when_it_began(store: Store) -> None:
    store.put(b"a", b"1")
    with store.transaction() as transaction:
        transaction.put(b"b", transaction.get(b"a") or b"")
    assert store.get(b"b") == b"1"


def test_a_block_has_one_now_even_when_the_clock_goes_on(store: Store, clock: ManualClock) -> None:
    store.put(b"brief", b"1", ttl=5)
    with store.transaction() as transaction:
        transaction.put(b"first", b"", ttl=60)
        clock.advance(10)
        assert transaction.get(b"brief") == b"1"
        assert b"brief" in transaction
        assert transaction.ttl(b"brief") == 5.0
        assert [key for key, _ in transaction.scan()] == [b"brief", b"first"]
        assert transaction.count() == 2
        transaction.put(b"second", b"", ttl=60)
        assert transaction.ttl(b"first") == transaction.ttl(b"second") == 60.0
    assert store.get(b"brief") is None
    assert store.ttl(b"first") == store.ttl(b"second") == 50.0
    entry = store.entry(b"second")
    assert entry is not None
    assert entry.written_at == after(0)


def test_a_key_that_dies_before_its_block_ends_is_dead_when_it_ends(
    store: Store, clock: ManualClock
) -> None:
    with store.transaction() as transaction:
        transaction.put(b"brief", b"", ttl=1)
        clock.advance(1)
        assert transaction.get(b"brief") == b""
    assert store.get(b"brief") is None
    assert store.purge_expired() == 1


def test_every_write_works_inside_a_block(store: Store) -> None:
    store.put_many({b"pop": b"1", b"touch": b"2", b"persist": b"3", b"swap": b"4"}, ttl=60)
    with store.transaction() as transaction:
        assert transaction.pop(b"pop") == b"1"
        with pytest.raises(KeyError):
            transaction.pop(b"pop")
        assert transaction.touch(b"touch", ttl=90) is True
        assert transaction.touch(b"absent") is False
        assert transaction.persist(b"persist") is True
        assert transaction.compare_and_set(b"swap", b"4", b"5") is True
        assert transaction.compare_and_set(b"swap", b"4", b"6") is False
        assert transaction.put_if_absent(b"new", b"7", ttl=30) is True
        assert transaction.put_if_absent(b"new", b"8") is False
        assert transaction.incr(b"count", 3, ttl=10) == 3
        assert transaction.incr(b"count", 4, ttl=20) == 7
        transaction.put_many({b"m1": b"", b"m2": b""})
        assert transaction.delete_many([b"m1", b"absent"]) == 1
        assert transaction.delete(b"m1") is False
        assert transaction.delete(b"m2") is True
        transaction[b"item"] = b"9"
        assert transaction[b"item"] == b"9"
        transaction[b"item2"] = b"9"
        del transaction[b"item2"]
    assert dict(store.scan()) == {
        b"touch": b"2",
        b"persist": b"3",
        b"swap": b"5",
        b"new": b"7",
        b"count": b"7",
        b"item": b"9",
    }
    assert store.ttl(b"touch") == 90.0
    assert store.ttl(b"persist") is None
    assert store.ttl(b"swap") == 60.0
    assert store.ttl(b"new") == 30.0
    assert store.ttl(b"count") == 10.0


def test_a_block_is_atomic_across_families(store: Store) -> None:
    one, two = store.family("one", default_ttl=60), store.family("two")
    with store.transaction() as transaction:
        transaction.put(b"key", b"0")
        transaction.family("one").put(b"key", b"1")
        transaction.family("two").put(b"key", b"2")
        assert transaction.family("one").get(b"key") == b"1"
        assert transaction.get(b"key") == b"0"
        assert one.get(b"key") is None
    assert store.get(b"key") == b"0"
    assert one.get(b"key") == b"1"
    assert one.ttl(b"key") == 60.0
    assert two.get(b"key") == b"2"
    with store.transaction() as transaction:
        transaction.put(b"key", b"3")
        transaction.family("one").delete(b"key")
        transaction.rollback()
    assert store.get(b"key") == b"0"
    assert one.get(b"key") == b"1"


def test_a_block_makes_no_family(store: Store) -> None:
    with store.transaction() as transaction, pytest.raises(InvalidArgument, match="newcomer"):
        transaction.family("newcomer")
    assert list(store.families()) == ["default"]


def test_a_block_may_clear_a_family(store: Store) -> None:
    one = store.family("one")
    one.put_many({b"a": b"1", b"b": b"2"})
    store.put(b"a", b"0")
    with store.transaction() as transaction:
        transaction.family("one").put(b"c", b"3")
        transaction.family("one").clear()
        assert transaction.family("one").count() == 0
        transaction.family("one").put(b"b", b"4")
        assert one.count() == 2
    assert dict(one.scan()) == {b"b": b"4"}
    assert store.get(b"a") == b"0"


def test_a_block_may_end_itself_early(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put(b"a", b"1")
        transaction.commit()
        assert store.get(b"a") == b"1"
        store.put(b"b", b"2")
    with store.transaction() as transaction:
        transaction.put(b"a", b"3")
        transaction.rollback()
        store.put(b"c", b"4")
    assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"4"}


def test_the_last_write_to_a_key_in_a_block_decides(store: Store, clock: ManualClock) -> None:
    store.put(b"c", b"0")
    with store.transaction() as transaction:
        transaction.put(b"a", b"1", ttl=1)
        transaction.put(b"a", b"2")
        transaction.put(b"b", b"1")
        transaction.put(b"b", b"2", ttl=1)
        transaction.delete(b"c")
        transaction.put(b"c", b"1", ttl=Ttl.NEVER)
    clock.advance(1)
    assert dict(store.scan()) == {b"a": b"2", b"c": b"1"}
    assert store.purge_expired() == 1


def test_bad_input_inside_a_block_changes_nothing_and_the_block_may_go_on(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put(b"a", b"1")
        with pytest.raises(InvalidArgument):
            transaction.put(b"a", b"2", ttl=-1)
        with pytest.raises(InvalidArgument):
            transaction.put_many([(b"b", b"1"), (b"", b"2")])
        transaction.put(b"c", b"3")
    assert dict(store.scan()) == {b"a": b"1", b"c": b"3"}


@pytest.mark.parametrize("raises", [False, True], ids=["committed", "rolled-back"])
def test_a_transaction_is_of_no_use_after_its_end(store: Store, raises: bool) -> None:
    store.put(b"a", b"1")
    store.family("one")
    try:
        with store.transaction() as transaction:
            family = transaction.family("one")
            if raises:
                raise Failure
    except Failure:
        pass
    calls: list[Callable[[], object]] = [
        lambda: transaction.get(b"a"),
        lambda: transaction.put(b"a", b"2"),
        lambda: transaction.delete(b"a"),
        lambda: transaction.incr(b"a"),
        lambda: list(transaction.scan()),
        lambda: transaction.count(),
        lambda: family.get(b"a"),
        lambda: family.put(b"a", b"2"),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
    assert dict(store.scan()) == {b"a": b"1"}


def test_a_plain_write_by_the_same_thread_inside_the_block_is_refused_at_once(
    store: Store,
) -> None:
    writes: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(b"a", b"1"),
        "delete": lambda: store.delete(b"old"),
        "incr": lambda: store.incr(b"a"),
        "put_many": lambda: store.put_many({b"a": b"1"}),
        "touch": lambda: store.touch(b"old", ttl=60),
        "family": lambda: store.family("one").put(b"a", b"1"),
    }
    store.put(b"old", b"0")
    store.family("one")
    with store.transaction() as transaction:
        transaction.put(b"b", b"2")
        for name, write in writes.items():
            with pytest.raises(EphemeraError, match="transaction"):
                pytest.fail(f"{name} returned {write()!r}")
    assert dict(store.scan()) == {b"old": b"0", b"b": b"2"}
    store.put(b"a", b"1")
    assert store.get(b"a") == b"1"


def test_a_transaction_inside_a_transaction_of_the_same_thread_is_refused(store: Store) -> None:
    with store.transaction() as outer:
        outer.put(b"a", b"1")
        with pytest.raises(EphemeraError, match="transaction"), store.transaction():
            pytest.fail("the second block began")
    assert dict(store.scan()) == {b"a": b"1"}


def test_another_thread_waits_for_its_turn(store: Store) -> None:
    store.put(b"counter", b"0")
    started = threading.Event()
    results: list[int] = []

    def count() -> None:
        started.set()
        results.append(store.incr(b"counter"))

    thread = threading.Thread(target=count)
    with store.transaction() as transaction:
        thread.start()
        assert started.wait(PATIENCE_S)
        transaction.put(b"counter", b"41")
        assert results == []
    thread.join(PATIENCE_S)
    assert results == [42]
    assert store.get(b"counter") == b"42"


def test_another_thread_is_told_that_the_store_is_busy_when_its_turn_does_not_come(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(lock_timeout=0.05)
    raised: list[BaseException] = []

    def attempt(write: Callable[[], object]) -> None:
        try:
            write()
        except EphemeraError as error:
            raised.append(error)

    def begin() -> None:
        with store.transaction():
            pass

    writes: list[Callable[[], object]] = [
        lambda: store.put(b"a", b"1"),
        lambda: store.incr(b"a"),
        lambda: store.put_many({b"a": b"1"}),
        begin,
    ]
    with store.transaction():
        for write in writes:
            thread = threading.Thread(target=attempt, args=(write,))
            thread.start()
            thread.join(PATIENCE_S)
    assert [type(error) for error in raised] == [StoreBusy] * len(writes)
    assert store.count() == 0
    store.put(b"a", b"1")
    assert store.get(b"a") == b"1"


def test_other_threads_read_on_while_a_block_runs(store: Store) -> None:
    store.put(b"a", b"1")
    seen: list[bytes | None] = []
    with store.transaction() as transaction:
        transaction.put(b"a", b"2")
        thread = threading.Thread(target=lambda: seen.append(store.get(b"a")))
        thread.start()
        thread.join(PATIENCE_S)
        assert seen == [b"1"]


def test_blocks_of_many_threads_do_not_lose_each_others_writes(store: Store) -> None:
    store.put_many({b"left": b"100", b"right": b"0"})

    def move() -> None:
        for _ in range(10):
            with store.transaction() as transaction:
                left, right = int(transaction[b"left"]), int(transaction[b"right"])
                transaction.put(b"left", b"%d" % (left - 1))
                transaction.put(b"right", b"%d" % (right + 1))

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert store.get_many([b"left", b"right"]) == {b"left": b"60", b"right": b"40"}


def test_a_transaction_larger_than_several_tiny_segments_is_written_whole(store: Store) -> None:
    pairs = {b"key:%03d" % number: bytes([number]) * 3_000 for number in range(100)}
    with store.transaction() as transaction:
        for key, value in pairs.items():
            transaction.put(key, value, ttl=60)
    assert dict(store.scan()) == pairs


@pytest.mark.parametrize("durable", [True, False, None])
def test_a_transaction_may_say_how_durable_it_is(store: Store, durable: bool | None) -> None:
    with store.transaction(durable=durable) as transaction:
        transaction.put(b"a", b"1")
    assert store.get(b"a") == b"1"


def test_the_mapping_protocol_works_in_a_transaction(store: Store) -> None:
    store.put(b"a", b"1")
    with store.transaction() as transaction:
        transaction.put(b"b", b"2")
        assert list(transaction) == [b"a", b"b"]
        assert len(transaction) == 2
        with pytest.raises(KeyError):
            transaction[b"absent"]
