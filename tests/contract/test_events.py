"""Expiry events: one for each key that died, none for any other."""

from __future__ import annotations

import threading

import pytest

from ephemera import Capability, Expired, ManualClock, Store
from tests.contract.engines import EngineUnderTest
from tests.contract.times import START_MS

pytestmark = pytest.mark.needs(Capability.EXPIRY_EVENTS)

PATIENCE_S = 30


@pytest.fixture
def events(store: Store) -> list[Expired]:
    """What the store's own listener was told, in order."""
    told: list[Expired] = []
    store.on_expire(told.append)
    return told


def test_an_event_tells_family_key_value_and_deadline(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put(b"key", b"value", ttl=5)
    store.family("sessions").put(b"other", b"last value", ttl=6)
    clock.advance(60)
    assert store.purge_expired() == 2
    assert events == [
        Expired("default", b"key", b"value", START_MS + 5_000),
        Expired("sessions", b"other", b"last value", START_MS + 6_000),
    ]


def test_each_death_is_told_once(store: Store, clock: ManualClock, events: list[Expired]) -> None:
    store.put_many({b"%02d" % number: b"" for number in range(20)}, ttl=1)
    clock.advance(1)
    store.purge_expired(limit=7)
    store.checkpoint()
    store.purge_expired()
    store.purge_expired()
    assert sorted(event.key for event in events) == [b"%02d" % number for number in range(20)]


def test_nothing_is_told_before_the_deadline_or_without_a_purge(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put(b"key", b"value", ttl=5)
    clock.advance(4.999)
    store.purge_expired()
    assert events == []
    clock.advance(0.001)
    assert store.get(b"key") is None
    assert list(store.scan()) == []
    assert events == []
    store.purge_expired()
    assert [event.key for event in events] == [b"key"]


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in-segments", "in-base-tier"])
def test_what_did_not_die_of_its_deadline_is_not_told(
    store: Store, clock: ManualClock, events: list[Expired], is_checkpointed: bool
) -> None:
    keys = [b"deleted", b"popped", b"overwritten", b"persisted", b"touched"]
    store.put_many(dict.fromkeys(keys, b"old"), ttl=5)
    store.family("dropped").put(b"key", b"", ttl=5)
    store.family("cleared").put(b"key", b"", ttl=5)
    if is_checkpointed:
        store.checkpoint()
    store.delete(b"deleted")
    store.pop(b"popped")
    store.put(b"overwritten", b"new")
    store.persist(b"persisted")
    store.touch(b"touched", ttl=50)
    store.drop_family("dropped")
    store.family("cleared").clear()
    clock.advance(5)
    assert store.purge_expired() == 0
    assert events == []


def test_an_event_carries_the_last_value_and_the_last_deadline(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put(b"key", b"old", ttl=5)
    store.checkpoint()
    store.put(b"key", b"new", ttl=10)
    store.touch(b"key", ttl=20)
    clock.advance(20)
    store.purge_expired()
    assert events == [Expired("default", b"key", b"new", START_MS + 20_000)]


def test_a_key_that_lives_twice_dies_twice(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    for value in (b"first", b"second"):
        store.put(b"key", value, ttl=1)
        clock.advance(1)
        store.purge_expired()
    assert [event.value for event in events] == [b"first", b"second"]


def test_a_death_is_told_even_when_the_key_was_written_again_before_the_purge(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put(b"key", b"dead", ttl=1)
    clock.advance(1)
    store.put(b"key", b"new", ttl=10)
    assert store.purge_expired() == 0
    assert events == [Expired("default", b"key", b"dead", START_MS + 1_000)]
    clock.advance(10)
    assert store.purge_expired() == 1
    assert [event.value for event in events] == [b"dead", b"new"]


def test_a_rolled_back_write_is_not_told(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    with store.transaction() as transaction:
        transaction.put(b"key", b"", ttl=1)
        transaction.rollback()
    clock.advance(1)
    store.purge_expired()
    assert events == []


def test_every_listener_is_told(store: Store, clock: ManualClock) -> None:
    first: list[Expired] = []
    second: list[Expired] = []
    store.on_expire(first.append)
    store.on_expire(second.append)
    store.put(b"key", b"", ttl=1)
    clock.advance(1)
    store.purge_expired()
    assert first == second
    assert len(first) == 1


def test_a_listener_that_took_leave_is_told_nothing_more(store: Store, clock: ManualClock) -> None:
    leaving: list[Expired] = []
    staying: list[Expired] = []
    leave = store.on_expire(leaving.append)
    store.on_expire(staying.append)
    leave()
    leave()
    store.put(b"key", b"", ttl=1)
    clock.advance(1)
    store.purge_expired()
    assert leaving == []
    assert len(staying) == 1


def test_taking_leave_twice_ends_no_other_registration(store: Store, clock: ManualClock) -> None:
    told: list[Expired] = []
    hear = told.append
    leave = store.on_expire(hear)
    store.on_expire(hear)
    leave()
    leave()
    store.put(b"key", b"", ttl=1)
    clock.advance(1)
    store.purge_expired()
    assert len(told) == 1


def test_a_listener_may_use_the_store(store: Store, clock: ManualClock) -> None:
    def write_down(event: Expired) -> None:
        store.put(b"log:" + event.key, event.value)
        store.incr(b"deaths")
        with store.transaction() as transaction:
            transaction.put(b"last", event.key)

    store.on_expire(write_down)
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 2
    assert store.get_many([b"log:a", b"log:b", b"deaths"]) == {
        b"log:a": b"1",
        b"log:b": b"2",
        b"deaths": b"2",
    }


def test_a_listener_that_raises_stops_neither_the_purge_nor_the_others(
    store: Store, clock: ManualClock
) -> None:
    def fail(_event: Expired) -> None:
        raise LookupError("a listener's own trouble")

    told: list[Expired] = []
    store.on_expire(fail)
    store.on_expire(told.append)
    store.put_many({b"a": b"", b"b": b""}, ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 2
    assert len(told) == 2
    assert store.purge_expired() == 0


def test_the_background_sweeper_tells_of_deaths_by_itself(engine: EngineUnderTest) -> None:
    """On the real clock: the one place where waiting is the point, and it waits for the event."""
    dead = threading.Event()
    with engine.open(None, maintenance="background") as store:
        if Capability.EXPIRY_EVENTS not in store.capabilities:
            pytest.skip("this engine has no EXPIRY_EVENTS: expiry events")
        store.on_expire(lambda event: dead.set() if event.key == b"key" else None)
        store.put(b"key", b"value", ttl=0.05)
        assert dead.wait(PATIENCE_S)
        assert store.get(b"key") is None


def test_the_background_sweeper_wakes_for_a_nearer_deadline(engine: EngineUnderTest) -> None:
    dead = threading.Event()
    with engine.open(None, maintenance="background") as store:
        if Capability.EXPIRY_EVENTS not in store.capabilities:
            pytest.skip("this engine has no EXPIRY_EVENTS: expiry events")
        store.put(b"far", b"value", ttl=3_600)
        store.on_expire(lambda event: dead.set() if event.key == b"near" else None)
        store.put(b"near", b"value", ttl=0.05)
        assert dead.wait(PATIENCE_S)
        assert store.get(b"far") == b"value"
