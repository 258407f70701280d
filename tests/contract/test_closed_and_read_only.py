"""A closed store does nothing, a read-only one only reads, and both say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ephemera import Capability, ManualClock, ReadOnly, Store, StoreClosed
from ephemera.keyspace import Keyspace

CLOSED = "^the store was closed$"

KEY_READS: dict[str, Callable[[Keyspace], object]] = {
    "get": lambda store: store.get(b"a"),
    "entry": lambda store: store.entry(b"a"),
    "ttl": lambda store: store.ttl(b"a"),
    "get_many": lambda store: store.get_many([b"a"]),
    "scan": lambda store: list(store.scan()),
    "entries": lambda store: list(store.entries()),
    "count": lambda store: store.count(),
    "next_deadlines": lambda store: store.next_deadlines(1),
    "contains": lambda store: b"a" in store,
    "getitem": lambda store: store[b"a"],
    "iteration": lambda store: list(store),
    "len": lambda store: len(store),
}

READS: dict[str, Callable[[Store], object]] = {
    **KEY_READS,
    "families": lambda store: store.families(),
    "family": lambda store: store.family("one"),
    "check": lambda store: store.check(),
    "stats": lambda store: store.stats(),
}

KEY_WRITES: dict[str, Callable[[Keyspace], object]] = {
    "put": lambda store: store.put(b"a", b"2"),
    "put ttl": lambda store: store.put(b"a", b"2", ttl=60),
    "setitem": lambda store: store.__setitem__(b"a", b"2"),
    "delitem": lambda store: store.__delitem__(b"a"),
    "touch": lambda store: store.touch(b"a", ttl=60),
    "persist": lambda store: store.persist(b"a"),
    "delete": lambda store: store.delete(b"a"),
    "pop": lambda store: store.pop(b"a"),
    "put_if_absent": lambda store: store.put_if_absent(b"b", b"2"),
    "compare_and_set": lambda store: store.compare_and_set(b"a", b"1", b"2"),
    "incr": lambda store: store.incr(b"b"),
    "put_many": lambda store: store.put_many({b"a": b"2"}),
    "delete_many": lambda store: store.delete_many([b"a"]),
    "clear": lambda store: store.clear(),
}

WRITES: dict[str, Callable[[Store], object]] = {
    **KEY_WRITES,
    "new family": lambda store: store.family("new"),
    "new default": lambda store: store.family("one", default_ttl=60),
    "drop_family": lambda store: store.drop_family("one"),
    "purge_expired": lambda store: store.purge_expired(),
    "repair": lambda store: store.repair(),
    "transaction": lambda store: _write_in_transaction(store),
    "family put": lambda store: store.family("one").put(b"a", b"2"),
}


def _write_in_transaction(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put(b"a", b"2")


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_closed_store_refuses_everything(store: Store, name: str) -> None:
    store.put(b"a", b"1")
    store.close()
    with pytest.raises(StoreClosed, match=CLOSED):
        {**READS, **WRITES}[name](store)


@pytest.mark.parametrize("name", ["on_expire", "snapshot", "checkpoint", "sync", "compact"])
def test_a_closed_store_refuses_administration(store: Store, name: str) -> None:
    store.close()
    calls: dict[str, Callable[[], object]] = {
        "on_expire": lambda: store.on_expire(print),
        "snapshot": lambda: store.snapshot().__enter__(),
        "checkpoint": lambda: store.checkpoint(),
        "sync": lambda: store.sync(),
        "compact": lambda: store.compact(),
    }
    with pytest.raises(StoreClosed, match=CLOSED):
        calls[name]()


def test_a_family_of_a_closed_store_refuses_everything(store: Store) -> None:
    family = store.family("one")
    store.close()
    for use in (*KEY_READS.values(), *KEY_WRITES.values()):
        with pytest.raises(StoreClosed, match=CLOSED):
            use(family)


def test_closing_twice_is_fine(store: Store) -> None:
    store.close()
    store.close()


def test_a_store_closes_itself_at_the_end_of_a_with_block(
    open_store: Callable[..., Store],
) -> None:
    with open_store() as store:
        store.put(b"a", b"1")
    with pytest.raises(StoreClosed):
        store.get(b"a")


def test_a_with_block_that_raises_closes_the_store_and_lets_the_error_out(
    open_store: Callable[..., Store],
) -> None:
    with pytest.raises(LookupError), open_store() as store:
        raise LookupError
    with pytest.raises(StoreClosed):
        store.get(b"a")


@pytest.mark.needs(Capability.SNAPSHOTS)
def test_closing_ends_an_open_snapshot(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    with store.snapshot() as snapshot:
        store.close()
        for read in KEY_READS.values():
            with pytest.raises(StoreClosed, match=CLOSED):
                read(snapshot)


WALKS: dict[str, Callable[[Store], Iterator[object]]] = {
    "scan": lambda store: store.scan(),
    "reverse": lambda store: store.scan(reverse=True),
    "keys": lambda store: store.keys(),
    "family": lambda store: store.family("default").items(),
}


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["unbegun", "half way", "at its end"])
@pytest.mark.parametrize("name", WALKS)
def test_closing_ends_a_scan_that_is_under_way(store: Store, name: str, steps: int) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    walk = WALKS[name](store)
    for _ in range(steps):
        next(walk)
    store.close()
    with pytest.raises(StoreClosed, match=CLOSED):
        next(walk)


@pytest.mark.needs(Capability.SNAPSHOTS)
@pytest.mark.parametrize("steps", [0, 1, 2], ids=["unbegun", "half way", "at its end"])
def test_closing_ends_a_scan_of_a_snapshot(store: Store, steps: int) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    with store.snapshot() as snapshot:
        walk = snapshot.scan()
        for _ in range(steps):
            next(walk)
        store.close()
        with pytest.raises(StoreClosed, match=CLOSED):
            next(walk)


@pytest.fixture
def read_only(store: Store, reopen: Callable[..., Store]) -> Store:
    store.put(b"a", b"1", ttl=600)
    store.put(b"dead", b"0", ttl=1)
    store.family("one").put(b"b", b"2")
    return reopen(store, read_only=True)


def test_a_read_only_store_reads(read_only: Store, clock: ManualClock) -> None:
    clock.advance(1)
    assert read_only.get(b"a") == b"1"
    assert read_only.get(b"dead") is None
    assert read_only.ttl(b"a") == 599.0
    assert list(read_only.scan()) == [(b"a", b"1")]
    assert read_only.count() == 1
    assert sorted(read_only.families()) == ["default", "one"]
    assert read_only.family("one").get(b"b") == b"2"
    assert read_only.check().is_clean
    with read_only.snapshot() as snapshot:
        assert snapshot.get(b"a") == b"1"


@pytest.mark.parametrize("name", WRITES)
def test_a_read_only_store_refuses_every_write(read_only: Store, name: str) -> None:
    with pytest.raises(ReadOnly):
        WRITES[name](read_only)
    assert dict(read_only.scan()) == {b"a": b"1", b"dead": b"0"}
    assert sorted(read_only.families()) == ["default", "one"]


def test_a_write_that_a_read_only_store_refused_was_not_done(
    read_only: Store, reopen: Callable[..., Store]
) -> None:
    for write in WRITES.values():
        with pytest.raises(ReadOnly):
            write(read_only)
    store = reopen(read_only)
    assert dict(store.scan()) == {b"a": b"1", b"dead": b"0"}
    assert dict(store.family("one").scan()) == {b"b": b"2"}


def test_closing_inside_a_transaction_of_this_thread_is_fine(store: Store) -> None:
    store.put(b"a", b"1")

    def close_inside() -> None:
        with store.transaction() as transaction:
            transaction.put(b"a", b"2")
            store.close()

    with pytest.raises(StoreClosed, match=CLOSED):
        close_inside()
