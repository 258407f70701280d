"""What dies next."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ephemera import InvalidArgument, ManualClock, Store


def seconds(store: Store, limit: int) -> list[tuple[bytes, float]]:
    """The keys that die next, with the seconds that they have left."""
    now_ms = store.clock.now_ms()
    return [
        (key, round(deadline.timestamp() * 1000 - now_ms) / 1000)
        for key, deadline in store.next_deadlines(limit)
    ]


def test_the_earliest_comes_first_wherever_it_lies(store: Store) -> None:
    store.put(b"c", b"3", ttl=30)
    store.put(b"moved", b"4", ttl=5)
    store.put(b"never", b"5")
    store.checkpoint()
    store.put(b"a", b"1", ttl=10)
    store.put(b"b", b"2", ttl=20)
    store.put(b"moved", b"4", ttl=40)
    assert seconds(store, 9) == [(b"a", 10), (b"b", 20), (b"c", 30), (b"moved", 40)]
    assert seconds(store, 2) == [(b"a", 10), (b"b", 20)]
    assert seconds(store, 0) == []


def test_the_dead_and_the_deleted_are_not_among_them(store: Store, clock: ManualClock) -> None:
    for key, ttl in ((b"a", 10), (b"b", 20), (b"c", 30)):
        store.put(key, b"1", ttl=ttl)
    store.delete(b"b")
    clock.advance(timedelta(seconds=10))
    assert seconds(store, 9) == [(b"c", 20)]


@pytest.mark.parametrize("limit", [-1, 1.5, True, None])
def test_a_limit_is_a_whole_number_from_0_up(store: Store, limit: int) -> None:
    with pytest.raises(InvalidArgument):
        store.next_deadlines(limit)
