"""The dead: hidden at once, told to SlateDB, and gone from the object store once it was compacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import EngineUnavailable, InvalidArgument, ManualClock
from ephemera.core.keyvalue import Range
from ephemera.engines.slatedb import SlateEngine, upkeep
from ephemera.engines.slatedb._calls import plain_rows
from ephemera.engines.slatedb.families import ID_BYTES
from ephemera.engines.slatedb.library import load
from tests.engines.slatedb.buckets import file_url
from tests.waiting import wait_until

QUICK_GARBAGE = "flush_interval=0.005&poll_interval=0.02&garbage_age=0.3"
ROWS = 2_000


def stored(store: ephemera.Store) -> dict[bytes, int | None]:
    """What SlateDB itself returns: keys, and the deadline that it knows."""
    engine = store.engine
    assert isinstance(engine, SlateEngine)
    found = {}
    for answer in engine._state.walk(b"", Range()):
        for key, _, deadline_ms in plain_rows(answer):
            if int.from_bytes(key[:ID_BYTES], "big"):
                found[key[ID_BYTES:]] = deadline_ms
    return found


def object_bytes(directory: Path) -> int:
    """How much the sorted files of a store take."""
    files = [path for path in directory.rglob("*.sst") if path.parent.name == "compacted"]
    return sum(path.stat().st_size for path in files)


def test_slatedb_knows_the_deadline_of_every_row_that_has_one(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put("mortal", "", ttl=600)
        store.put("immortal", "")
        store.put_many({"many": ""}, ttl=600)
        with store.transaction() as transaction:
            transaction.put("inside", "", at=4_000_000_000)
        store.put("touched", "", ttl=5)
        store.touch("touched", at=4_000_000_000)
        store.put("persisted", "", ttl=5)
        store.persist("persisted")
        known = stored(store)
        for key in (b"mortal", b"many"):
            entry = store.entry(key)
            assert entry is not None
            assert entry.deadline is not None
            assert known[key] == round(entry.deadline.timestamp() * 1000)
        assert known[b"inside"] == known[b"touched"] == 4_000_000_000_000
        assert known[b"immortal"] is None
        assert known[b"persisted"] is None
        assert store.check().is_clean


def test_rows_that_live_by_another_clock_are_not_slatedbs_to_remove(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)  # long ago: by the system's clock, all of it is dead
    with ephemera.open(file_url(tmp_path, QUICK_GARBAGE), clock=clock) as store:
        store.put("mortal", "1", ttl=60)
        assert stored(store) == {b"mortal": None}
        store.compact()
        assert store.get("mortal") == b"1"
        clock.advance(60)
        assert store.get("mortal") is None


def test_slatedb_returns_dead_rows_and_the_store_never_does(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put_many({f"key:{number}": "value" for number in range(100)}, ttl=0.2)
        wait_until(lambda: store.get("key:0") is None, what="the keys die")
        assert len(stored(store)) == 100  # so that what follows means something
        assert list(store.scan()) == []
        assert list(store.scan(reverse=True)) == []
        assert store.count() == 0
        assert store.get_many(["key:1", "key:2"]) == {}
        assert store.entry("key:3") is None
        assert not store.touch("key:4", ttl=60)
        assert not store.delete("key:5")
        assert store.put_if_absent("key:6", "new")
        with store.snapshot() as snapshot:
            assert list(snapshot.scan()) == [(b"key:6", b"new")]
        with store.transaction() as transaction:
            assert transaction.get("key:7") is None
            assert transaction.count() == 1


def test_compaction_removes_the_dead_and_their_bytes(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path, QUICK_GARBAGE)) as store:
        store.put_many({f"dead:{number:05}": "x" * 500 for number in range(ROWS)}, ttl=2)
        store.put_many({f"live:{number:05}": "y" * 500 for number in range(100)})
        store.checkpoint()
        full = object_bytes(tmp_path)
        assert full > ROWS * 500
        wait_until(lambda: store.get("dead:00000") is None, what="the keys die")

        def is_small() -> bool:
            store.compact()
            return object_bytes(tmp_path) < full / 5

        wait_until(is_small, what="the bytes of the dead go")
        wait_until(lambda: len(stored(store)) == 100, what="the writer reads what replaced them")
        assert store.count() == 100


def refused_for_its_clock(times: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have SlateDB refuse so many compactions as it does when the clock is a moment behind the last writer's."""
    name, refusals = "admin_submit_compaction", ["clock"] * times
    submit = load().methods[name]

    def refuse(*given: Any) -> Any:  # Any: as `Method` says
        if refusals:
            refusals.pop()
            raise InvalidArgument(
                "SlateDB refuses: Invalid error: invalid clock tick, must be monotonic. last_tick=`2`, next_tick=`1`"
            )
        return submit(*given)

    monkeypatch.setitem(load().methods, name, refuse)
    monkeypatch.setattr(upkeep, "BEHIND_PAUSE_S", 0.001)
    return refusals


def test_a_clock_that_is_a_moment_behind_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put("key", "value")
        refusals = refused_for_its_clock(2, monkeypatch)
        store.compact()
        assert refusals == []
        assert store.get("key") == b"value"


def test_a_clock_that_stays_behind_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put("key", "value")
        refused_for_its_clock(10_000, monkeypatch)
        with pytest.raises(EngineUnavailable, match="clock of this machine"):
            store.compact()
        monkeypatch.undo()
        store.compact()
        assert store.get("key") == b"value"


def test_the_background_compacts_by_itself(tmp_path: Path) -> None:
    url = file_url(tmp_path, f"{QUICK_GARBAGE}&compaction_interval=0.1")
    with ephemera.open(url) as store:
        store.put_many({f"dead:{number:05}": "x" * 500 for number in range(ROWS)}, ttl=0.5)
        wait_until(lambda: not stored(store), what="the dead are compacted away")


def test_a_purge_removes_the_dead_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with ephemera.open(file_url(tmp_path), clock=clock, maintenance="manual") as store:
        store.put_many({"a": "", "b": "", "c": ""}, ttl=1)
        store.put("alive", "")
        clock.advance(1)
        assert store.purge_expired(limit=2) == 2
        assert store.purge_expired() == 1
        assert sorted(stored(store)) == [b"alive"]


def test_what_a_dropped_or_cleared_family_held_is_swept_in_the_background(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        pairs = {f"key:{number}": "value" for number in range(3_000)}
        store.family("dropped").put_many(pairs)
        store.put_many(pairs)
        assert store.drop_family("dropped")
        store.clear()
        assert store.count() == 0
        store.put("new", "")
        wait_until(lambda: list(stored(store)) == [b"new"], what="the rows are swept")
        wait_until(lambda: store.stats()["unswept_families"] == 0, what="the ids are forgotten")
        assert store.check().is_clean
