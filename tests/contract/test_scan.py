"""Walking the keys in order."""

from __future__ import annotations

import pytest

from ephemera import Capability, ManualClock, Store

pytestmark = pytest.mark.needs(Capability.ORDERED_SCAN)

KEYS = [
    b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"aa", b"ab",
    b"b", b"\xfe", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff",
]  # fmt: skip


@pytest.fixture
def full(store: Store) -> Store:
    """KEYS, each its own value: written out of order, half of them moved to the base tier, half
    of those written again."""
    for key in KEYS[::2]:
        store.put(key, b"stale", ttl=3_600)
    store.checkpoint()
    for key in reversed(KEYS):
        store.put(key, key)
    return store


def keys(store: Store, **bounds: object) -> list[bytes]:
    return [key for key, _ in store.scan(**bounds)]  # type: ignore[arg-type]  # checked by tests


def test_a_scan_gives_every_key_with_its_newest_value_in_byte_order(full: Store) -> None:
    assert list(full.scan()) == [(key, key) for key in sorted(KEYS)]


def test_a_reverse_scan_gives_the_same_from_the_end(full: Store) -> None:
    assert list(full.scan(reverse=True)) == [(key, key) for key in sorted(KEYS, reverse=True)]


def test_iteration_gives_the_keys_in_order(full: Store) -> None:
    assert list(full) == sorted(KEYS)


@pytest.mark.parametrize(
    "prefix", [b"a", b"a\xff", b"\x00", b"\xff", b"\xff\xff", b"b", b"c", b"aaa", b""]
)
@pytest.mark.parametrize("is_reverse", [False, True], ids=["forward", "reverse"])
def test_a_prefix_gives_the_keys_that_start_with_it(
    full: Store, prefix: bytes, is_reverse: bool
) -> None:
    expected = sorted((key for key in KEYS if key.startswith(prefix)), reverse=is_reverse)
    assert keys(full, prefix=prefix, reverse=is_reverse) == expected


BOUNDS = [None, b"\x00", b"a", b"a\x00", b"ab", b"b", b"c", b"\xff", b"\xff\xff\xff\xff"]


@pytest.mark.parametrize("start", BOUNDS)
@pytest.mark.parametrize("end", BOUNDS)
def test_a_range_holds_its_start_and_not_its_end(
    full: Store, start: bytes | None, end: bytes | None
) -> None:
    expected = [
        key
        for key in sorted(KEYS)
        if (start is None or key >= start) and (end is None or key < end)
    ]
    assert keys(full, start=start, end=end) == expected
    assert keys(full, start=start, end=end, reverse=True) == expected[::-1]


def test_a_range_whose_end_is_not_after_its_start_is_empty(full: Store) -> None:
    for is_reverse in (False, True):
        assert keys(full, start=b"b", end=b"b", reverse=is_reverse) == []
        assert keys(full, start=b"b", end=b"a", reverse=is_reverse) == []


def test_prefix_and_range_hold_together(full: Store) -> None:
    assert keys(full, prefix=b"a", start=b"a\x00", end=b"aa") == [b"a\x00"]
    assert keys(full, prefix=b"a", start=b"aa") == [b"aa", b"ab", b"a\xff", b"a\xff\xff"]
    assert keys(full, prefix=b"a", end=b"aa", reverse=True) == [b"a\x00", b"a"]
    assert keys(full, prefix=b"a", start=b"b") == []
    assert keys(full, prefix=b"a", end=b"\x01") == []


def test_bounds_may_be_str(full: Store) -> None:
    assert keys(full, prefix="a") == [key for key in sorted(KEYS) if key.startswith(b"a")]
    assert keys(full, start="a", end="b") == [key for key in sorted(KEYS) if b"a" <= key < b"b"]


@pytest.mark.parametrize("limit", [1, 2, 5, len(KEYS), len(KEYS) + 1, None])
def test_a_limit_ends_the_scan(full: Store, limit: int | None) -> None:
    assert keys(full, limit=limit) == sorted(KEYS)[:limit]
    assert keys(full, limit=limit, reverse=True) == sorted(KEYS)[::-1][:limit]


def test_dead_keys_do_not_use_up_the_limit(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"", b"b": b""}, ttl=1)
    store.put_many({b"c": b"", b"d": b"", b"e": b""})
    clock.advance(1)
    assert keys(store, limit=2) == [b"c", b"d"]


def test_deleted_keys_do_not_use_up_the_limit(full: Store) -> None:
    full.delete_many(sorted(KEYS)[:3])
    assert keys(full, limit=2) == sorted(KEYS)[3:5]


def test_an_empty_store_scans_to_nothing(store: Store) -> None:
    assert list(store.scan()) == []
    assert list(store.scan(reverse=True)) == []
    assert list(store.scan(prefix=b"a", limit=3)) == []


def test_newer_values_are_given_over_older_ones(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"1", b"c": b"1"})
    store.checkpoint()
    store.put_many({b"b": b"2", b"d": b"2"})
    store.checkpoint()
    store.put(b"d", b"3")
    assert list(store.scan()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"1"), (b"d", b"3")]


def test_deletions_hide_older_rows(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"1", b"c": b"1"})
    store.checkpoint()
    store.delete(b"b")
    assert keys(store) == [b"a", b"c"]
    store.put(b"b", b"2")
    assert keys(store) == [b"a", b"b", b"c"]
    store.delete(b"a")
    store.delete(b"c")
    assert keys(store, reverse=True) == [b"b"]


def test_dead_rows_are_left_out_and_hide_older_ones(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"1", b"c": b"1"})
    store.checkpoint()
    store.put(b"b", b"2", ttl=1)
    clock.advance(0.999)
    assert keys(store) == [b"a", b"b", b"c"]
    clock.advance(0.001)
    assert keys(store) == [b"a", b"c"]
    assert keys(store, reverse=True) == [b"c", b"a"]


def test_a_slow_caller_is_never_handed_a_dead_key(store: Store, clock: ManualClock) -> None:
    for number in range(10):
        store.put(b"%d" % number, b"", ttl=10 - number)
    seen = []
    for key, _ in store.scan():
        seen.append(key)
        clock.advance(2)
    assert seen == [b"0", b"1", b"2", b"3"]


def test_iterating_the_keys_slowly_gives_no_dead_ones(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"")
    store.put(b"b", b"", ttl=5)
    store.put(b"c", b"", ttl=50)
    walk = iter(store)
    assert next(walk) == b"a"
    clock.advance(5)
    assert list(walk) == [b"c"]


def test_a_scan_is_one_consistent_state_whatever_is_written_meanwhile(store: Store) -> None:
    store.put_many({b"b": b"1", b"d": b"1", b"f": b"1"})
    walk = store.scan()
    assert next(walk) == (b"b", b"1")
    store.put(b"c", b"2")
    store.put(b"d", b"2")
    store.delete(b"f")
    assert list(walk) == [(b"d", b"1"), (b"f", b"1")]
    assert keys(store) == [b"b", b"c", b"d"]


def test_writing_to_the_keys_of_a_scan_while_scanning_works(store: Store) -> None:
    store.put_many({b"%02d" % number: b"old" for number in range(20)})
    for key, value in store.scan():
        store.put(key, value + b" new")
    assert {value for _, value in store.scan()} == {b"old new"}
    for key in store:
        store.delete(key)
    assert store.count() == 0


def test_a_scan_left_half_way_harms_nothing(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    walk = store.scan()
    next(walk)
    del walk
    store.put(b"c", b"3")
    store.checkpoint()
    assert keys(store) == [b"a", b"b", b"c"]


def test_two_scans_at_once_do_not_disturb_each_other(full: Store) -> None:
    forward, backward = full.scan(), full.scan(reverse=True)
    pairs = [(next(forward)[0], next(backward)[0]) for _ in KEYS]
    assert pairs == list(zip(sorted(KEYS), sorted(KEYS, reverse=True), strict=True))


def test_keys_of_a_thousand_bytes_with_common_beginnings_stay_in_order(store: Store) -> None:
    stem = b"x" * 1_000
    store.put_many({stem + b"%03d" % number: b"" for number in reversed(range(50))})
    store.put(stem, b"")
    assert keys(store) == [stem] + [stem + b"%03d" % number for number in range(50)]
    assert keys(store, prefix=stem + b"04") == [stem + b"%03d" % number for number in range(40, 50)]
