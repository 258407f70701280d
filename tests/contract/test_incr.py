"""Counters."""

from __future__ import annotations

import threading

import pytest

from ephemera import InvalidArgument, ManualClock, Store
from tests.contract.times import after

LARGEST = 2**63 - 1
SMALLEST = -(2**63)


def test_a_counter_starts_at_zero(store: Store) -> None:
    assert store.incr(b"hits") == 1
    assert store.incr(b"hits") == 2
    assert store.incr(b"hits", 40) == 42
    assert store.incr(b"hits", by=-50) == -8
    assert store.incr(b"hits", 0) == -8


def test_a_value_that_is_no_number_is_named_with_its_key(store: Store) -> None:
    store.put(b"name", b"ada")
    with pytest.raises(InvalidArgument, match=r"b'name' holds b'ada'"):
        store.incr(b"name")
    store.put(b"hits", b"%d" % LARGEST)
    with pytest.raises(InvalidArgument, match=rf"b'hits' holds b'{LARGEST}'.* 2 "):
        store.incr(b"hits", 2)


def test_a_counter_is_kept_as_decimal_digits(store: Store) -> None:
    store.incr(b"hits", 41)
    assert store.get(b"hits") == b"41"
    store.incr(b"hits", -83)
    assert store.get(b"hits") == b"-42"


def test_digits_that_were_put_can_be_counted_on(store: Store) -> None:
    store.put(b"hits", b"41")
    assert store.incr(b"hits") == 42
    store.put(b"hits", "-1")
    assert store.incr(b"hits") == 0


def test_incr_by_nothing_creates_the_counter(store: Store) -> None:
    assert store.incr(b"hits", 0) == 0
    assert store.get(b"hits") == b"0"


def test_the_ttl_applies_when_the_counter_is_created(store: Store, clock: ManualClock) -> None:
    assert store.incr(b"hits", ttl=60) == 1
    clock.advance(30)
    assert store.incr(b"hits", ttl=60) == 2
    assert store.ttl(b"hits") == 30.0
    clock.advance(30)
    assert store.get(b"hits") is None
    assert store.incr(b"hits", ttl=60) == 1
    assert store.ttl(b"hits") == 60.0


def test_incr_without_ttl_keeps_the_deadline(store: Store, clock: ManualClock) -> None:
    store.incr(b"hits", ttl=60)
    clock.advance(10)
    store.incr(b"hits")
    entry = store.entry(b"hits")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"2", after(10), after(60))


def test_a_ttl_is_not_given_to_a_permanent_counter(store: Store) -> None:
    store.incr(b"hits")
    store.incr(b"hits", ttl=60)
    assert store.ttl(b"hits") is None


def test_a_new_counter_gets_the_familys_default(store: Store, clock: ManualClock) -> None:
    limits = store.family("limits", default_ttl=60)
    limits.incr(b"hits")
    clock.advance(20)
    limits.incr(b"hits")
    assert limits.ttl(b"hits") == 40.0


def test_a_counter_reaches_the_bounds_of_64_bits(store: Store) -> None:
    assert store.incr(b"up", LARGEST) == LARGEST
    assert store.incr(b"down", SMALLEST) == SMALLEST
    assert store.incr(b"up", -LARGEST) == 0


@pytest.mark.parametrize(
    ("at", "by"), [(LARGEST, 1), (SMALLEST, -1), (LARGEST, LARGEST), (-2, SMALLEST)]
)
def test_a_counter_never_leaves_64_bits(store: Store, at: int, by: int) -> None:
    store.put(b"hits", b"%d" % at, ttl=60)
    with pytest.raises(InvalidArgument, match="64"):
        store.incr(b"hits", by)
    assert store.get(b"hits") == b"%d" % at
    assert store.ttl(b"hits") == 60.0


@pytest.mark.parametrize(
    "value",
    [b"", b"one", b"1.5", b"0x10", b" 1", b"1 ", b"1_000", b"\xff", b"1\n", b"--1", b"9" * 30,
     b"9223372036854775808", "١".encode()],
)  # fmt: skip
def test_what_is_no_64_bit_number_is_not_counted_on(store: Store, value: bytes) -> None:
    store.put(b"hits", value, ttl=60)
    with pytest.raises(InvalidArgument):
        store.incr(b"hits")
    assert store.get(b"hits") == value
    assert store.ttl(b"hits") == 60.0


def test_threads_lose_no_count(store: Store) -> None:
    def count() -> None:
        for _ in range(50):
            store.incr(b"hits")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(b"hits") == b"200"
