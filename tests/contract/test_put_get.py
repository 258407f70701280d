"""Writing a value and reading it back."""

from __future__ import annotations

import pytest

from ephemera import ManualClock, Store
from tests.contract.times import after

MIB = 1024 * 1024


def test_what_was_put_is_got(store: Store) -> None:
    store.put(b"key", b"value")
    assert store.get(b"key") == b"value"


def test_an_absent_key_gives_none_or_the_default(store: Store) -> None:
    assert store.get(b"absent") is None
    assert store.get(b"absent", b"default") == b"default"
    assert store.get(b"absent", default=b"default") == b"default"


def test_a_present_key_gives_its_value_rather_than_the_default(store: Store) -> None:
    store.put(b"key", b"")
    assert store.get(b"key", b"default") == b""


def test_the_last_put_wins(store: Store) -> None:
    for number in range(10):
        store.put(b"key", b"%d" % number)
    assert store.get(b"key") == b"9"
    assert store.count() == 1


def test_str_is_encoded_as_utf_8_on_the_way_in(store: Store) -> None:
    store.put("schlüssel", "wört")
    assert store.get("schlüssel".encode()) == "wört".encode()
    assert store.get("schlüssel") == "wört".encode()


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_bytes_like_key_and_value_is_taken(
    store: Store, kind: type[bytearray] | type[memoryview]
) -> None:
    store.put(kind(b"key"), kind(b"value"))
    assert store.get(kind(b"key")) == b"value"
    assert type(store.get(b"key")) is bytes


def test_a_value_is_copied_when_it_is_put(store: Store) -> None:
    buffer = bytearray(b"before")
    store.put(b"key", buffer)
    buffer[:] = b"after!"
    assert store.get(b"key") == b"before"


@pytest.mark.parametrize(
    "key",
    [b"\x00", b"\x00\x00", b"\xff", b"\xff" * 8, b"a\x00b", bytes(range(256)), b" ", b"k" * 1_900],
    ids=["nul", "two-nuls", "ff", "many-ff", "inner-nul", "every-byte", "space", "longest"],
)
def test_any_bytes_may_be_a_key(store: Store, key: bytes) -> None:
    store.put(key, b"value", ttl=60)
    assert store.get(key) == b"value"
    assert list(store.scan()) == [(key, b"value")]
    assert store.delete(key)
    assert store.get(key) is None


def test_keys_that_differ_in_their_last_byte_alone_are_different(store: Store) -> None:
    stem = b"k" * 1_899
    store.put(stem + b"a", b"1")
    store.put(stem + b"b", b"2")
    store.put(stem, b"3")
    assert [store.get(stem + tail) for tail in (b"a", b"b", b"")] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 4_095, 4_096, 65_535, 65_536, MIB, 5 * MIB])
def test_a_value_of_any_size_comes_back_whole(store: Store, size: int) -> None:
    value = (bytes(range(251)) * (size // 251 + 1))[:size]
    store.put(b"before", b"1")
    store.put(b"big", value, ttl=60)
    store.put(b"after", b"2")
    assert store.get(b"big") == value
    assert store.get(b"before") == b"1"
    assert store.get(b"after") == b"2"
    assert dict(store.scan()) == {b"before": b"1", b"big": value, b"after": b"2"}


def test_a_big_value_may_replace_a_small_one_and_the_other_way_round(store: Store) -> None:
    store.put(b"key", b"small")
    store.put(b"key", b"b" * MIB)
    assert store.get(b"key") == b"b" * MIB
    store.put(b"key", b"small again")
    assert store.get(b"key") == b"small again"


def test_many_keys_written_one_by_one_are_all_there(store: Store) -> None:
    pairs = {b"key:%04d" % number: b"value %d" % number for number in range(300)}
    with store.transaction() as transaction:
        for key, value in pairs.items():
            transaction.put(key, value)
    assert all(store.get(key) == value for key, value in pairs.items())
    assert dict(store.scan()) == pairs


def test_more_than_several_tiny_segments_hold_is_all_there(store: Store) -> None:
    for number in range(40):
        store.put(b"key:%02d" % number, bytes([number]) * 8_000)
    for number in range(40):
        assert store.get(b"key:%02d" % number) == bytes([number]) * 8_000


def test_an_entry_tells_value_times_and_ttl_in_one_read(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=60)
    clock.advance(15)
    entry = store.entry(b"key")
    assert entry is not None
    assert entry.value == b"value"
    assert entry.written_at == after(0)
    assert entry.deadline == after(60)
    assert entry.ttl == 45.0


def test_an_entry_without_a_deadline_says_none(store: Store) -> None:
    store.put(b"key", b"value")
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.deadline, entry.ttl) == (b"value", None, None)


def test_an_absent_key_has_no_entry(store: Store) -> None:
    assert store.entry(b"absent") is None


def test_a_put_renews_the_write_time(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1")
    clock.advance(5)
    store.put(b"key", b"2")
    entry = store.entry(b"key")
    assert entry is not None
    assert entry.written_at == after(5)


def test_a_read_by_age_refuses_what_was_written_longer_ago(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"value")
    clock.advance(10)
    assert store.get(b"key", max_age=11) == b"value"
    assert store.get(b"key", max_age=10) == b"value"
    assert store.get(b"key", max_age=9.999) is None
    assert store.get(b"key", b"default", max_age=5) == b"default"
    assert store.get(b"key") == b"value"


def test_a_read_by_age_counts_from_the_last_write(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old")
    clock.advance(10)
    store.put(b"key", b"new")
    clock.advance(1)
    assert store.get(b"key", max_age=2) == b"new"


def test_a_read_by_age_of_a_dead_key_gives_the_default(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    assert store.get(b"key", max_age=1_000) is None


@pytest.mark.parametrize("durable", [True, False, None])
def test_a_put_may_say_how_durable_it_is(store: Store, durable: bool | None) -> None:
    store.put(b"key", b"value", durable=durable)
    assert store.get(b"key") == b"value"
