"""Snapshots: the state of one instant, whatever happens afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ephemera import Capability, InvalidArgument, ManualClock, ReadOnly, Store, StoreClosed
from tests.contract.times import after

pytestmark = pytest.mark.needs(Capability.SNAPSHOTS)


def test_a_snapshot_reads_what_was_there(store: Store) -> None:
    store.put(b"a", b"1", ttl=60)
    store.put(b"b", b"2")
    with store.snapshot() as snapshot:
        assert snapshot.get(b"a") == b"1"
        assert snapshot.get(b"absent", b"default") == b"default"
        assert snapshot.ttl(b"a") == 60.0
        assert snapshot.ttl(b"b") is None
        assert b"a" in snapshot
        assert snapshot[b"b"] == b"2"
        assert snapshot.get_many([b"a", b"absent"]) == {b"a": b"1"}
        entry = snapshot.entry(b"a")
        assert entry is not None
        assert (entry.value, entry.written_at, entry.deadline) == (b"1", after(0), after(60))
        assert list(snapshot.scan()) == [(b"a", b"1"), (b"b", b"2")]
        assert list(snapshot) == [b"a", b"b"]
        assert snapshot.count() == len(snapshot) == 2
        with pytest.raises(KeyError):
            snapshot[b"absent"]
        with pytest.raises(KeyError):
            snapshot.ttl(b"absent")


LATER: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put(b"a", b"new", ttl=1),
    "another key": lambda store: store.put(b"aa", b"new"),
    "put_many": lambda store: store.put_many({b"a": b"new", b"x": b"new"}),
    "delete": lambda store: store.delete(b"a"),
    "delete_many": lambda store: store.delete_many([b"a", b"b", b"c"]),
    "pop": lambda store: store.pop(b"a"),
    "touch": lambda store: store.touch(b"c", ttl=9),
    "persist": lambda store: store.persist(b"c"),
    "clear": lambda store: store.clear(),
    "clear and write": lambda store: (store.clear(), store.put(b"a", b"new")),
    "checkpoint": lambda store: store.checkpoint(),
    "delete and checkpoint": lambda store: (store.delete(b"a"), store.checkpoint()),
    "put and checkpoint": lambda store: (store.put(b"a", b"new"), store.checkpoint()),
    "clear and checkpoint": lambda store: (store.clear(), store.checkpoint()),
    "compact": lambda store: store.compact(),
    "big writes": lambda store: [store.put(b"%d" % n, b"x" * 20_000) for n in range(20)],
}


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in-segments", "in-base-tier"])
@pytest.mark.parametrize("name", LATER)
def test_what_happens_later_is_not_seen(store: Store, name: str, is_checkpointed: bool) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    store.put(b"c", b"3", ttl=60)
    if is_checkpointed:
        store.checkpoint()
    with store.snapshot() as snapshot:
        LATER[name](store)
        assert snapshot.get(b"a") == b"1"
        assert snapshot.get(b"aa") is None
        assert snapshot.ttl(b"c") == 60.0
        assert list(snapshot.scan()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
        assert list(snapshot.scan(reverse=True, limit=2)) == [(b"c", b"3"), (b"b", b"2")]
        assert snapshot.count() == 3


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in-segments", "in-base-tier"])
def test_a_snapshot_has_one_now_and_outlives_a_purge(
    store: Store, clock: ManualClock, is_checkpointed: bool
) -> None:
    store.put(b"brief", b"1", ttl=10)
    store.put(b"dead", b"0", ttl=5)
    store.put(b"long", b"2")
    clock.advance(5)
    if is_checkpointed:
        store.checkpoint()
    with store.snapshot() as snapshot:
        clock.advance(10)
        assert store.get(b"brief") is None
        assert store.purge_expired() == 2
        store.checkpoint()
        assert snapshot.get(b"brief") == b"1"
        assert snapshot.ttl(b"brief") == 5.0
        assert snapshot.get(b"dead") is None
        assert list(snapshot.scan()) == [(b"brief", b"1"), (b"long", b"2")]
        assert snapshot.count() == 2
    assert list(store.scan()) == [(b"long", b"2")]


def test_a_snapshot_reads_every_family(store: Store) -> None:
    one = store.family("one")
    one.put(b"a", b"1")
    with store.snapshot() as snapshot:
        one.put(b"a", b"new")
        one.put(b"b", b"new")
        assert dict(snapshot.family("one").scan()) == {b"a": b"1"}
        one.clear()
        assert snapshot.family("one").get(b"a") == b"1"


@pytest.mark.parametrize("is_made_again", [False, True], ids=["gone", "made again"])
def test_a_snapshot_shows_a_family_that_was_dropped_since(
    store: Store, is_made_again: bool
) -> None:
    store.family("one").put(b"a", b"1")
    with store.snapshot() as snapshot:
        early = snapshot.family("one")
        store.drop_family("one")
        if is_made_again:
            store.family("one").put(b"b", b"2")
        for family in (early, snapshot.family("one")):
            assert family.get(b"a") == b"1"
            assert list(family.scan()) == [(b"a", b"1")]
            assert family.count() == 1


def test_a_snapshot_does_not_know_a_family_that_was_made_since(store: Store) -> None:
    with store.snapshot() as snapshot:
        store.family("young").put(b"a", b"1")
        with pytest.raises(InvalidArgument, match="young"):
            snapshot.family("young")


def test_snapshots_of_different_instants_live_side_by_side(store: Store) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as first:
        store.put(b"a", b"2")
        store.checkpoint()
        with store.snapshot() as second:
            store.put(b"a", b"3")
            assert first.get(b"a") == b"1"
            assert second.get(b"a") == b"2"
            assert store.get(b"a") == b"3"
        store.checkpoint()
        assert first.get(b"a") == b"1"


def test_a_snapshot_of_an_empty_store_stays_empty(store: Store) -> None:
    with store.snapshot() as snapshot:
        store.put(b"a", b"1")
        assert list(snapshot.scan()) == []
        assert snapshot.count() == 0
        assert b"a" not in snapshot


def test_a_snapshot_taken_while_a_transaction_runs_does_not_see_it(store: Store) -> None:
    store.put(b"a", b"1")
    with store.transaction() as transaction:
        transaction.put(b"a", b"2")
        with store.snapshot() as snapshot:
            assert snapshot.get(b"a") == b"1"
    assert store.get(b"a") == b"2"


def test_a_snapshot_is_of_no_use_after_its_end(store: Store) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as snapshot:
        pass
    calls: list[Callable[[], object]] = [
        lambda: snapshot.get(b"a"),
        lambda: snapshot.entry(b"a"),
        lambda: list(snapshot.scan()),
        lambda: snapshot.count(),
        lambda: b"a" in snapshot,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_a_snapshot_refuses_every_write(store: Store) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as snapshot:
        writes: list[Callable[[], object]] = [
            lambda: snapshot.put(b"a", b"2"),
            lambda: snapshot.put(b"a", b"2", ttl=60),
            lambda: snapshot.put_many({b"a": b"2"}),
            lambda: snapshot.put_if_absent(b"b", b"2"),
            lambda: snapshot.compare_and_set(b"a", b"1", b"2"),
            lambda: snapshot.delete(b"a"),
            lambda: snapshot.delete_many([b"a"]),
            lambda: snapshot.pop(b"a"),
            lambda: snapshot.incr(b"b"),
            lambda: snapshot.touch(b"a", ttl=60),
            lambda: snapshot.persist(b"a"),
            lambda: snapshot.clear(),
            lambda: snapshot.__setitem__(b"a", b"2"),
            lambda: snapshot.__delitem__(b"a"),
        ]
        for write in writes:
            with pytest.raises(ReadOnly, match="snapshot"):
                write()
    assert dict(store.scan()) == {b"a": b"1"}


def test_many_snapshots_do_not_stop_writes_and_purges(store: Store, clock: ManualClock) -> None:
    for number in range(10):
        with store.snapshot():
            store.put(b"%d" % number, b"", ttl=1)
            clock.advance(1)
            assert store.purge_expired() == 1
    assert store.count() == 0
