"""Copies between stores: whole rows, interruptions, sources that are written to meanwhile."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import Capability, InvalidArgument, ManualClock, Store, Ttl
from ephemera.core.keyvalue import Range, Write
from ephemera.core.row import Row
from ephemera.formats import copying, transfer
from ephemera.formats.copying import NOTE_FAMILY, Copied, Copy, Difference, differences
from tests.formats.conftest import NOW_MS

Opener = Callable[..., Store]


@pytest.fixture
def opener(tmp_path: Path, clock: ManualClock) -> Iterator[Opener]:
    """Opens stores by name, at a path or in memory, and closes them at the end."""
    opened: list[Store] = []

    def open_store(name: str, **options: Any) -> Store:
        url = "memory://" if name.startswith("memory") else tmp_path / name
        store = ephemera.open(url, **{"clock": clock, "maintenance": "manual", **options})
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture(params=["memory to local", "local to memory", "local to local"])
def pair(request: pytest.FixtureRequest, opener: Opener) -> tuple[Store, Store]:
    source, target = request.param.split(" to ")
    return opener(source), opener(f"{target} two")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes are taken, and progress is told, every hundred rows."""
    monkeypatch.setattr(transfer, "BATCH_RECORDS", 100)
    monkeypatch.setattr(transfer, "SYNC_RECORDS", 100)


def copy(source: Store, target: Store, *, removes: bool = False, progress: Any = None) -> Copied:
    copying = Copy(source.engine, target.engine, label="source", removes=removes)
    return copying.run(progress or (lambda done, total: None))


def fill(store: Store, keys: int = 300, seed: int = 7) -> None:
    """Rows of every kind, in several families."""
    rng = random.Random(seed)
    families = [
        store,
        store.family("codes", default_ttl=300),
        store.family("plain", default_ttl=Ttl.NEVER),
        store.family("empty", default_ttl=9),
    ]
    for number in range(keys):
        family = families[number % 3]
        key = b"%06d" % number + rng.randbytes(rng.randrange(4))
        life: dict[str, Any] = rng.choice(
            [{}, {"ttl": rng.randrange(1, 10_000)}, {"ttl": 50_000, "idle": 60}, {"ttl": Ttl.NEVER}]
        )
        family.put(key, rng.randbytes(rng.randrange(100)), **life)


def contents(store: Store) -> dict[str, tuple[int | None, dict[bytes, Row]]]:
    """Everything that is kept, by family: the default TTL and the whole rows."""
    engine = store.engine
    found: dict[str, tuple[int | None, dict[bytes, Row]]] = {}
    for name in engine.families():
        ref = engine.family(name, create=False)
        assert ref is not None
        found[name] = ref.default_ttl_ms, dict(engine.scan(ref, Range(), None))
    return found


def test_a_copy_is_the_same_in_everything(pair: tuple[Store, Store], clock: ManualClock) -> None:
    source, target = pair
    fill(source)
    clock.advance(30)
    source.touch(next(source.keys()), ttl=77)  # a write time that is older than the deadline's
    done = copy(source, target)
    assert contents(target) == contents(source)
    assert set(target.families()) == {"codes", "default", "empty", "plain"}
    assert (done.copied, done.dead, done.is_settled) == (300, 0, True)
    assert list(differences(source.engine, target.engine)) == []


def test_what_dies_on_the_way_is_counted_and_not_written(
    opener: Opener, clock: ManualClock, often: None
) -> None:
    source, target = opener("memory"), opener("two")
    source.put_many({b"%03d" % n: b"" for n in range(250)})
    source.put(b"900", b"", ttl=10)  # in the last batch

    def progress(done: int, total: int | None) -> None:
        if done == 100:
            clock.advance(10)

    done = copy(source, target, progress=progress)
    assert (done.copied, done.dead) == (250, 1)
    assert target.count() == 250


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 100, 200, 300, 800])
def test_an_interrupted_copy_goes_on_where_it_was(
    pair: tuple[Store, Store], often: None, after: int
) -> None:
    source, target = pair
    fill(source, 1_000)

    def interrupt(done: int, total: int | None) -> None:
        if done > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, progress=interrupt)
    there = sum(target.family(name).count() for name in ("default", "codes", "plain"))
    assert after <= there < 1_000
    done = copy(source, target)
    assert done.is_resumed == (after > 0)
    assert done.copied <= 1_000 - after + 100
    assert contents(target) == contents(source)


def test_a_copy_that_was_killed_goes_on_where_it_was(
    opener: Opener, tmp_path: Path, often: None
) -> None:
    source = opener("one")
    fill(source, 1_000)

    def kill(done: int, total: int | None) -> None:
        if done > 500:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            with ephemera.open(tmp_path / "two", clock=ManualClock(NOW_MS)) as there:
                copy(source, there, progress=kill)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    target = opener("two")
    done = copy(source, target)
    assert done.is_resumed
    assert 0 < done.copied <= 600
    assert contents(target) == contents(source)
    assert NOTE_FAMILY not in target.engine.families()


def test_an_unfinished_copy_of_another_source_is_refused(opener: Opener, often: None) -> None:
    source, target = opener("memory"), opener("memory two")
    fill(source, 300)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, progress=interrupt)
    before = contents(target)
    other = Copy(source.engine, target.engine, label="another", removes=False)
    with pytest.raises(InvalidArgument, match="unfinished copy of source, not of another"):
        other.run(lambda done, total: None)
    assert contents(target) == before
    other.restart()
    assert other.run(lambda done, total: None).copied == 300
    assert contents(target) == contents(source)


def test_what_the_source_lost_during_an_interruption_is_not_brought_back(
    opener: Opener, often: None
) -> None:
    source, target = opener("memory"), opener("two")
    fill(source, 600)

    def interrupt(done: int, total: int | None) -> None:
        if done > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, progress=interrupt)
    for key in list(source.family("codes").keys()):
        source.family("codes").delete(key)
    source.drop_family("plain")
    done = copy(source, target)
    assert contents(target) == contents(source)
    assert done.removed > 0


# --- a source in use ------------------------------------------------------------------------------


def test_changes_during_the_copy_are_carried(
    pair: tuple[Store, Store], clock: ManualClock, often: None
) -> None:
    source, target = pair
    fill(source, 500)
    default = list(source.keys())

    def meanwhile(done: int, total: int | None) -> None:
        if done == 400:  # when most of it was read, and is in the target
            source.put(default[0], b"changed")
            source.put(default[1], b"", ttl=5)
            source.touch(default[2], ttl=12_345)
            source.delete(default[3])
            source.put(b"new", b"")
            source.family("late", default_ttl=60).put(b"k", b"v")
            source.family("codes", default_ttl=301)

    done = copy(source, target, progress=meanwhile)
    assert contents(target) == contents(source)
    assert (done.caught_up, done.removed, done.is_settled) == (5, 1, True)


def test_a_source_that_never_stands_still_is_told(opener: Opener, often: None) -> None:
    source, target = opener("memory"), opener("memory two")
    source.put_many({b"%03d" % n: b"" for n in range(200)})

    def always(done: int, total: int | None) -> None:
        source.incr(b"counter")

    done = copy(source, target, progress=always)
    assert not done.is_settled
    assert NOTE_FAMILY in target.engine.families()
    again = copy(source, target)  # now it does
    assert again.is_settled
    assert again.copied == 0
    assert contents(target) == contents(source)


# --- a target that is filled ----------------------------------------------------------------------


def test_a_filled_target_gets_what_differs_and_loses_nothing(pair: tuple[Store, Store]) -> None:
    source, target = pair
    fill(source)
    copy(source, target)
    source.put(b"new", b"1", ttl=50)
    target.put(b"own", b"mine")
    target.family("own family").put(b"k", b"v")
    done = copy(source, target)
    assert (done.copied, done.caught_up, done.removed, done.left) == (0, 1, 0, 2)
    assert target.get(b"own") == b"mine"
    assert target.get(b"new") == b"1"
    assert done.is_settled


def test_a_filled_target_loses_the_rest_when_that_is_asked(pair: tuple[Store, Store]) -> None:
    source, target = pair
    fill(source)
    target.put(b"own", b"mine")
    target.family("own family").put(b"k", b"v")
    done = copy(source, target, removes=True)
    assert contents(target) == contents(source)
    assert (done.caught_up, done.removed) == (300, 2)


# --- differences ----------------------------------------------------------------------------------


def test_every_kind_of_difference_is_found(opener: Opener) -> None:
    source, target = opener("memory"), opener("two")
    for store in (source, target):
        store.put_many({b"same": b"1", b"value": b"1", b"only in source": b""})
        store.put_many({b"deadline": b"", b"idle": b""}, ttl=600)
    target.put(b"value", b"2")
    target.put(b"deadline", b"", ttl=601)
    target.put(b"idle", b"", ttl=600, idle=60)
    target.delete(b"only in source")
    target.put(b"only in target", b"")
    source.family("codes", default_ttl=5)
    target.family("codes", default_ttl=6)
    found = list(differences(source.engine, target.engine))
    assert {each.key for each in found} == {
        None, b"deadline", b"idle", b"only in source", b"only in target", b"value",
    }  # fmt: skip
    (default,) = (each for each in found if each.key is None)
    assert default == Difference("codes", None, 5_000, 6_000)


def test_a_key_that_dies_between_two_readings_is_no_difference(
    opener: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opener("memory")
    ahead = ManualClock(clock.now_ms() + 1)
    target = opener("memory two", clock=ahead)
    for store in (source, target):
        store.put(b"dies", b"", at=(clock.now_ms() + 1_000) / 1000)
    ahead.advance(0.999)
    clock.advance(0.999)  # dead there, and a millisecond left here
    assert (source.count(), target.count()) == (1, 0)
    assert list(differences(source.engine, target.engine)) == []


def test_a_note_that_is_none_is_refused(opener: Opener) -> None:
    source, target = opener("memory"), opener("memory two")
    ref = target.engine.family(NOTE_FAMILY, create=True)
    assert ref is not None
    target.engine.write([Write(ref, copying.NOTE_KEY, Row(b"{}", NOW_MS))], durable=None)
    with pytest.raises(ephemera.CorruptStore, match="no note of a copy"):
        copy(source, target)


def test_a_source_without_snapshots_and_order_is_copied(
    opener: Opener, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = opener("memory"), opener("two")
    fill(source, 600)
    engine = source.engine
    lacks = frozenset({Capability.TRANSACTIONS})
    monkeypatch.setattr(type(engine), "capabilities", lacks)

    def interrupt(done: int, total: int | None) -> None:
        if done > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, progress=interrupt)
    assert copy(source, target).is_resumed
    assert contents(target) == contents(source)
