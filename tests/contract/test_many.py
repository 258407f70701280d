"""Several keys in one call: all or nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ephemera import InvalidArgument, ManualClock, Store, Ttl


def test_put_many_writes_every_pair_of_a_mapping(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    store.put_many({"c": "3"})
    assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_put_many_takes_pairs_from_any_iterable(store: Store) -> None:
    def pairs() -> Iterator[tuple[bytes, bytes]]:
        for number in range(5):
            yield b"%d" % number, b"value %d" % number

    store.put_many(pairs())
    assert store.count() == 5
    assert store.get(b"4") == b"value 4"


def test_put_many_of_nothing_writes_nothing(store: Store) -> None:
    store.put_many({})
    assert store.count() == 0


def test_the_last_of_two_pairs_with_one_key_wins(store: Store) -> None:
    store.put_many([(b"key", b"first"), (b"key", b"last")])
    assert store.get(b"key") == b"last"
    assert store.count() == 1


def test_put_many_gives_every_key_the_same_deadline(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    assert store.ttl(b"a") == store.ttl(b"b") == 60.0
    clock.advance(60)
    assert store.count() == 0
    assert store.purge_expired() == 2


def test_put_many_without_ttl_makes_every_key_permanent(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"0", ttl=60)
    store.put_many({b"a": b"1", b"b": b"2"})
    clock.advance(61)
    assert dict(store.scan()) == {b"a": b"1", b"b": b"2"}
    assert store.purge_expired() == 0


def test_put_many_gives_the_familys_default(store: Store) -> None:
    family = store.family("codes", default_ttl=60)
    family.put_many({b"a": b"1"})
    family.put_many({b"b": b"2"}, ttl=Ttl.NEVER)
    assert family.ttl(b"a") == 60.0
    assert family.ttl(b"b") is None


@pytest.mark.parametrize(
    "bad",
    [(b"", b"1"), (b"k" * 1_901, b"1"), (None, b"1"), (b"key", None), (b"key", 1), (1, b"1")],
    ids=["empty-key", "long-key", "no-key", "no-value", "int-value", "int-key"],
)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
def test_one_bad_pair_writes_nothing(store: Store, bad: tuple[object, object], place: int) -> None:
    store.put(b"a", b"before", ttl=60)
    pairs: list[tuple[object, object]] = [(b"a", b"1"), (b"b", b"2")]
    pairs.insert(place, bad)
    with pytest.raises(InvalidArgument):
        store.put_many(pairs)  # type: ignore[arg-type]  # the bad pair is the point
    assert dict(store.scan()) == {b"a": b"before"}
    assert store.ttl(b"a") == 60.0


def test_pairs_that_raise_half_way_write_nothing(store: Store) -> None:
    def pairs() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise LookupError("no more")

    with pytest.raises(LookupError):
        store.put_many(pairs())
    assert store.count() == 0


def test_a_bad_ttl_writes_none_of_the_pairs(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        store.put_many({b"a": b"1", b"b": b"2"}, ttl=-1)
    assert store.count() == 0


def test_get_many_gives_what_is_there(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"2", b"empty": b""})
    store.put(b"dead", b"3", ttl=1)
    clock.advance(1)
    found = store.get_many([b"b", "a", b"absent", b"dead", b"empty"])
    assert found == {b"a": b"1", b"b": b"2", b"empty": b""}


def test_get_many_of_nothing_gives_nothing(store: Store) -> None:
    store.put(b"a", b"1")
    assert store.get_many([]) == {}


def test_get_many_takes_any_iterable(store: Store) -> None:
    store.put(b"a", b"1")
    assert store.get_many(key for key in (b"a", b"a", b"b")) == {b"a": b"1"}


def test_delete_many_says_how_many_were_there(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"2", b"c": b"3"})
    store.put(b"dead", b"4", ttl=1)
    clock.advance(1)
    assert store.delete_many([b"a", "b", b"absent", b"dead"]) == 2
    assert dict(store.scan()) == {b"c": b"3"}


def test_delete_many_counts_a_key_once(store: Store) -> None:
    store.put(b"a", b"1")
    assert store.delete_many([b"a", b"a"]) == 1


def test_delete_many_of_nothing_deletes_nothing(store: Store) -> None:
    store.put(b"a", b"1")
    assert store.delete_many([]) == 0
    assert store.count() == 1


def test_delete_many_leaves_nothing_to_purge(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    assert store.delete_many([b"a", b"b"]) == 2
    clock.advance(61)
    assert store.purge_expired() == 0


@pytest.mark.parametrize("bad", [b"", b"k" * 1_901, None, 7])
def test_one_bad_key_deletes_nothing(store: Store, bad: object) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    with pytest.raises(InvalidArgument):
        store.delete_many([b"a", bad, b"b"])  # type: ignore[list-item]  # the bad key is the point
    assert store.count() == 2


def test_a_batch_larger_than_a_tiny_segment_is_written_whole(store: Store) -> None:
    pairs = {b"key:%03d" % number: bytes([number]) * 2_000 for number in range(200)}
    store.put_many(pairs, ttl=60)
    assert dict(store.scan()) == pairs
    assert store.get_many(pairs) == pairs
    assert store.delete_many(list(pairs)) == 200
    assert store.count() == 0
