"""Scans of the local engine: segments and base tier in one order, from pages or from LMDB."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from ephemera import CorruptStore, ManualClock, Store, StoreClosed
from ephemera.core.arguments import KEY_BYTES_MAX
from ephemera.engines.local import views
from ephemera.engines.local._pages import Tree
from ephemera.engines.local.base_tier import BaseFile
from tests.engines.local.stores import engine_of

KEYS = [b"%d" % number for number in range(1_500)] + [
    b"k" * size for size in (*range(1, 900, 9), KEY_BYTES_MAX)
]
SIZES = [0, 1, 20, 100, 5_000]
Rows = dict[bytes, bytes]


@pytest.fixture
def full(store: Store, clock: ManualClock) -> tuple[Store, Rows]:
    """A store with rows in several segments and below them, replaced, deleted and dead here and there."""
    chance = random.Random(7)
    rows: Rows = {}
    for step in range(6):
        for key in chance.sample(KEYS, 500):
            value = chance.randbytes(chance.choice(SIZES))
            kind = chance.choice(["permanent", "with a ttl", "dead", "deleted"])
            if kind == "deleted":
                store.delete(key)
            else:
                store.put(key, value, ttl={"dead": 1, "with a ttl": 10_000}.get(kind))
            rows.pop(key, None)
            if kind in ("permanent", "with a ttl"):
                rows[key] = value
        clock.advance(2)
        if step in (1, 3):
            store.checkpoint()
    store.family("other").put_many({b"0": b"not here", b"k" * 50: b"not here"})
    assert len(engine_of(store)._segments.segments) > 1
    assert store.stats()["base_rows"] > 500
    return store, rows


def scans(store: Store, rows: Rows) -> Iterator[tuple[Iterator[object], list[tuple[bytes, bytes]]]]:
    """Scans of all kinds of bounds, and what each should give."""
    chance = random.Random(11)
    bounds: list[tuple[bytes | None, bytes | None]] = [(None, None), (b"9", b"1"), (b"5", b"5")]
    for _ in range(12):
        low, high = sorted(chance.sample(KEYS, 2))
        bounds += [(low, high), (low + b"~", None), (None, high)]
    for start, end in bounds:
        expected = [
            (key, value)
            for key, value in sorted(rows.items())
            if (start is None or key >= start) and (end is None or key < end)
        ]
        yield store.scan(start=start, end=end), expected
        yield store.scan(start=start, end=end, reverse=True), expected[::-1]
        yield store.scan(start=start, end=end, limit=5), expected[:5]


def test_a_scan_gives_what_is_alive_in_order(full: tuple[Store, Rows]) -> None:
    for scan, expected in scans(*full):
        assert list(scan) == expected


def test_rows_of_entries_and_snapshots_are_those_of_a_scan(full: tuple[Store, Rows]) -> None:
    store, rows = full
    expected = sorted(rows.items())
    assert [(key, entry.value) for key, entry in store.entries()] == expected
    with store.snapshot() as snapshot:
        assert list(snapshot.scan()) == expected
        assert list(snapshot.scan(reverse=True)) == expected[::-1]
        assert [(key, entry.value) for key, entry in snapshot.entries()] == expected


def test_where_the_base_tier_is_not_mapped_lmdb_reads_it(
    full: tuple[Store, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseFile, "tree", lambda *_: None)
    for scan, expected in scans(*full):
        assert list(scan) == expected


@pytest.mark.parametrize("taken", [0, 1, 7, 300])
@pytest.mark.parametrize("is_reverse", [False, True], ids=["on", "back"])
def test_where_a_page_is_not_what_it_should_be_lmdb_goes_on(
    full: tuple[Store, Rows], monkeypatch: pytest.MonkeyPatch, taken: int, is_reverse: bool
) -> None:
    store, rows = full
    trees: list[Tree] = []
    make = BaseFile.tree

    def keep(file: BaseFile, txn: Any) -> Tree | None:  # Any: LMDB's
        tree = make(file, txn)
        assert tree is not None
        trees.append(tree)
        return tree

    monkeypatch.setattr(BaseFile, "tree", keep)
    scan = store.scan(reverse=is_reverse)
    found = list(islice(scan, taken))
    trees[0].abandon()  # as if a page ahead were damaged
    assert found + list(scan) == sorted(rows.items(), reverse=is_reverse)


def test_a_snapshot_that_commits_have_gone_over_reads_as_before(
    full: tuple[Store, Rows],
) -> None:
    store, rows = full
    expected = sorted(rows.items())
    with store.snapshot() as snapshot:
        for number in range(3):
            store.put(KEYS[number], b"new")
            store.checkpoint()
        assert list(snapshot.scan()) == expected


# --- its end --------------------------------------------------------------------------------------


def exhaust(scan: Iterator[object]) -> None:
    list(scan)


def leave(scan: Iterator[object]) -> None:
    next(scan)


def leave_unbegun(_scan: Iterator[object]) -> None:
    pass


def close(scan: Any) -> None:  # Any: an iterator that can be closed
    next(scan)
    scan.close()
    scan.close()
    assert list(scan) == []


@pytest.mark.parametrize("end", [exhaust, leave, leave_unbegun, close])
def test_the_end_of_a_scan_ends_its_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch, end: Callable[[Iterator[object]], None]
) -> None:
    store.put_many({b"%d" % number: b"v" for number in range(10)})
    store.checkpoint()
    closed: list[views.State] = []
    close_state = views.State.close

    def note(state: views.State) -> None:
        closed.append(state)
        close_state(state)

    monkeypatch.setattr(views.State, "close", note)
    end(store.scan())
    assert len(closed) == 1


def test_a_scan_that_met_damage_is_over(store: Store) -> None:
    store.put_many({"a": "1", "b": "precious", "c": "3"})
    segment = engine_of(store)._segments.segments[0]
    memory = memoryview(segment.memory)
    at = bytes(memory).index(b"precious")
    memory[at] ^= 1
    scan = store.scan()
    assert next(scan) == (b"a", b"1")
    with pytest.raises(CorruptStore):
        next(scan)
    assert list(scan) == []


class Meddler(ManualClock):
    """A clock that does something each time it is asked."""

    meddle: Callable[[], object] | None = None

    def now_ms(self) -> int:
        if self.meddle is not None:
            self.meddle()
        return super().now_ms()


def test_a_step_under_way_is_neither_repeated_nor_ended(open_store: Callable[..., Store]) -> None:
    clock = Meddler()
    store = open_store(clock=clock)
    store.put_many({"a": "1", "b": "2"}, ttl=10)
    scan: Any = store.scan()  # Any: an iterator that can be closed
    refused: list[str] = []

    def meddle() -> None:
        for use in (lambda: next(scan), scan.close):
            with pytest.raises(ValueError, match="under way") as refusal:
                use()
            refused.append(str(refusal.value))

    clock.meddle = meddle
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]
    clock.meddle = None
    assert len(refused) == 4


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_store_that_its_clock_closes_gives_the_row_that_was_found_and_no_more(
    open_store: Callable[..., Store], is_checkpointed: bool
) -> None:
    clock = Meddler()
    store = open_store(clock=clock)
    store.put_many({"a": "1", "b": "2"}, ttl=10)
    if is_checkpointed:
        store.checkpoint()
    scan = store.scan()

    def close_once() -> None:
        clock.meddle = None
        store.close()

    clock.meddle = close_once
    assert next(scan) == (b"a", b"1")
    with pytest.raises(StoreClosed):
        next(scan)


def test_rows_that_nobody_sees_are_passed_however_many(store: Store, clock: ManualClock) -> None:
    store.put_many({b"dead %05d" % number: b"" for number in range(2_500)}, ttl=1)
    store.checkpoint()
    store.put_many({b"dead too %05d" % number: b"" for number in range(2_500)}, ttl=1)
    store.put("z", "alive")
    clock.advance(1)
    assert list(store.scan()) == [(b"z", b"alive")]
    assert list(store.scan(reverse=True)) == [(b"z", b"alive")]
