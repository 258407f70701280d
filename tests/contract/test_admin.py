"""Administration: what a store tells about itself, and how it is looked after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ephemera
from ephemera import Capability, InvalidArgument, ManualClock, Store

STATS_OF_EVERY_ENGINE = {"engine", "families"}


def test_stats_name_the_engine(store: Store) -> None:
    stats = store.stats()
    assert stats.keys() >= STATS_OF_EVERY_ENGINE
    assert isinstance(stats["engine"], str)


def test_stats_do_not_change_the_store(store: Store) -> None:
    store.put(b"a", b"1", ttl=60)
    assert store.stats().keys() == store.stats().keys()
    assert dict(store.scan()) == {b"a": b"1"}


def test_an_empty_store_is_clean(store: Store) -> None:
    report = store.check()
    assert report.is_clean
    assert report.problems == ()
    assert report.rows == 0


def test_a_check_after_all_kinds_of_work_is_clean(store: Store, clock: ManualClock) -> None:
    store.put_many({b"%02d" % number: b"x" * 500 for number in range(50)}, ttl=10)
    store.put_many({b"p%02d" % number: b"" for number in range(50)})
    store.checkpoint()
    store.delete_many([b"%02d" % number for number in range(0, 50, 3)])
    for number in range(1, 50, 3):
        store.persist(b"%02d" % number)
    store.family("one", default_ttl=5).put_many({b"a": b"", b"b": b""})
    store.family("two").put(b"a", b"", ttl=5)
    assert store.check().is_clean
    store.drop_family("two")
    store.checkpoint()
    assert store.check().is_clean
    clock.advance(10)
    assert store.check().is_clean
    store.purge_expired(limit=5)
    assert store.check().is_clean
    store.purge_expired()
    store.compact()
    report = store.check()
    assert report.is_clean
    assert report.rows >= store.count()


@pytest.mark.parametrize("name", ["checkpoint", "sync", "compact"])
def test_upkeep_changes_nothing_that_can_be_read(
    store: Store, clock: ManualClock, name: str
) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    store.put(b"brief", b"3", ttl=60)
    store.put(b"idle", b"4", idle=60, ttl=100)
    store.put(b"dead", b"5", ttl=1)
    store.family("one", default_ttl=30).put(b"a", b"6")
    clock.advance(1)
    store.delete(b"b")
    for _ in range(2):
        getattr(store, name)()
        assert dict(store.scan()) == {b"a": b"1", b"brief": b"3", b"idle": b"4"}
        assert store.ttl(b"brief") == store.ttl(b"idle") == 59.0
        assert store.family("one").ttl(b"a") == 29.0
        assert store.count() == 3
    assert store.touch(b"idle")
    assert store.ttl(b"idle") == 60.0
    assert store.purge_expired() == 1


def test_upkeep_of_an_empty_store_is_fine(store: Store) -> None:
    store.checkpoint()
    store.sync()
    store.compact()
    assert store.count() == 0


def test_capabilities_are_known(store: Store) -> None:
    assert all(isinstance(capability, Capability) for capability in store.capabilities)


@pytest.mark.needs(Capability.BACKUP)
def test_a_backup_opens_as_a_store(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    store.checkpoint()
    store.put(b"brief", b"3", ttl=60)
    store.put(b"idle", b"4", idle=30)
    store.delete(b"b")
    store.family("one", default_ttl=90).put(b"a", b"5")
    store.backup(str(tmp_path / "backup.eph"))
    store.put(b"later", b"6")
    store.delete(b"a")
    with ephemera.open(tmp_path / "backup.eph", clock=clock, maintenance="manual") as copy:
        assert dict(copy.scan()) == {b"a": b"1", b"brief": b"3", b"idle": b"4"}
        assert copy.ttl(b"brief") == 60.0
        assert sorted(copy.families()) == ["default", "one"]
        copy.family("one").put(b"b", b"")
        assert copy.family("one").ttl(b"a") == copy.family("one").ttl(b"b") == 90.0
        assert copy.check().is_clean
        clock.advance(60)
        assert dict(copy.scan()) == {b"a": b"1"}
        assert copy.purge_expired() == 2
    assert dict(store.scan()) == {b"later": b"6"}


@pytest.mark.needs(Capability.BACKUP)
def test_a_backup_does_not_overwrite_a_store(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "backup.eph"
    store.put(b"a", b"1")
    store.backup(target)
    with pytest.raises((InvalidArgument, FileExistsError), match=r"backup\.eph"):
        store.backup(target)


def test_an_engine_without_backup_says_so(store: Store, tmp_path: Path) -> None:
    if Capability.BACKUP in store.capabilities:
        pytest.skip("this engine has BACKUP")
    with pytest.raises(ephemera.UnsupportedOperation, match="backup"):
        store.backup(tmp_path / "backup.eph")


def test_a_durability_of_each_kind_can_be_opened(open_store: Callable[..., Store]) -> None:
    for durability in ("commit", "interval", "none"):
        with open_store(durability=durability) as store:
            store.put(b"a", durability)
            store.sync()
            assert store.get(b"a") == durability.encode()
