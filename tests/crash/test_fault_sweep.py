"""Every write and every sync of a workload is the last one, in turn, and every system call fails in turn.

What is found afterwards is opened from the files alone. It must hold the state after some step of the
workload: none before the last one that was acknowledged, none after the last one that was attempted, and
transactions whole, since a step is one of them. After a loss of power, "acknowledged" means what the
durability setting promises.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera.core.keyvalue import Range
from ephemera.core.row import NEVER_MS
from ephemera.engines.local import checkpoint as checkpoints
from ephemera.engines.local import engine as engines
from tests.crash.faults import (
    Disk,
    Failing,
    Image,
    Moment,
    Progress,
    death,
    deaths_between,
    met_calls,
    power_losses,
    write_image,
)
from tests.engines.local.stores import engine_of, open_local
from tests.model.model import Item, Model, to_ms

START_MS = 1_700_000_000_000
Rows = dict[str, tuple[int | None, dict[bytes, tuple[bytes, int]]]]
"""Of each family its default TTL, and value and deadline of its keys."""
State = dict[str, tuple[float | None, dict[bytes, Item]]]
"""The same as the model has it, with the dead."""


class HandWorker:
    """A background thread's work, done when the workload says so."""

    def __init__(self, engine: Any, _: str, step: Callable[[Any], float]) -> None:
        self._engine = engine
        self._step = step
        self.error = self.words = None

    def do(self) -> None:
        self._step(self._engine)

    def kick(self) -> None:
        """Nobody waits."""

    def stop(self, timeout: float) -> None:
        """Nothing runs."""


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "Worker", HandWorker)
    # A checkpoint of a few rows takes several commits.
    monkeypatch.setattr(checkpoints, "BATCH_ROWS", 3)


# --- the workload ---------------------------------------------------------------------------------


class Run:
    """A store that does the steps of a workload, and the model that says what each one leaves."""

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.durability = durability
        self.clock = ephemera.ManualClock(START_MS)
        self.model = Model(self.clock.now_ms)
        self.states = [self._state()]
        self.store: ephemera.Store | None = None

    def open(self) -> None:
        self.store = open_local(self.path, self.clock, durability=self.durability)

    def reopen(self) -> None:
        self.opened.close()
        self.open()

    @property
    def opened(self) -> ephemera.Store:
        assert self.store is not None
        return self.store

    def do(self, step: Step) -> None:
        """Let the model do a step, then the store."""
        if step.change is not None:
            step.change(self.model)
        self.states.append(self._state())
        step.act(self)

    def undo(self) -> None:
        """Let the model be as it was before the last step."""
        self.states[-1] = self.states[-2]
        self.model = Model(self.clock.now_ms)
        for name, (default_ttl, items) in self.states[-1].items():
            self.model.family(name, default_ttl).items = dict(items)

    def _state(self) -> State:
        families = self.model.families.items()
        return {name: (family.default_ttl, dict(family.items)) for name, family in families}

    def expected(self, step: int, now_ms: int) -> Rows:
        """What is alive, at an instant, of the state that a step left."""
        return {
            name: (
                None if default_ttl is None else to_ms(default_ttl),
                {
                    key: (item.value, item.life.deadline_ms or NEVER_MS)
                    for key, item in items.items()
                    if (item.life.deadline_ms or NEVER_MS) > now_ms
                },
            )
            for name, (default_ttl, items) in self.states[step].items()
        }


@dataclass(frozen=True)
class Step:
    """One thing that happens to a store; what it changes, it changes as a whole."""

    name: str
    act: Callable[[Run], object]
    change: Callable[[Any], object] | None = None
    is_promise: bool = False
    """Whether all up to here is to outlive a loss of power, whatever the durability."""


def write(name: str, change: Callable[[Any], object]) -> Step:
    # Any: a store, or the model that is named alike.
    return Step(name, lambda run: change(run.opened), change)


def transact(name: str, change: Callable[[Any], object]) -> Step:
    def act(run: Run) -> None:
        with run.opened.transaction() as txn:
            change(txn)

    return Step(name, act, change)


def plain(keyspace: Any) -> Any:
    return keyspace.family("default")


def _first_batch(s: Any) -> None:
    plain(s).put(b"a", b"2", ttl=20)
    s.family("other").put(b"x", b"x" * 5_000)
    s.family("other").put(b"y", b"y", ttl=300)
    plain(s).delete(b"b")


def _second_batch(s: Any) -> None:
    s.family("other").put(b"z", b"z" * 100)
    plain(s).put(b"a", b"3")
    plain(s).put(b"m1", b"m", ttl=50)


def _put_durable(run: Run) -> None:
    run.opened.put(b"d", b"d", durable=True)


def _pass_interval(run: Run) -> None:
    for worker in engine_of(run.opened)._workers:
        worker.do()


INTERVAL = Step("interval", _pass_interval, is_promise=True)

WORKLOAD = [
    write("create other", lambda s: s.family("other")),
    write("give other a default", lambda s: s.family("other", default_ttl=60)),
    write("put a", lambda s: plain(s).put(b"a", b"1", ttl=10)),
    write("put b", lambda s: plain(s).put(b"b", b"b" * 5_000)),
    transact("first batch", _first_batch),
    write("incr n", lambda s: plain(s).incr(b"n", ttl=30)),
    write("touch a", lambda s: plain(s).touch(b"a", ttl=100)),
    INTERVAL,
    write("put many", lambda s: plain(s).put_many([(b"m%d" % n, b"m") for n in range(4)], ttl=5)),
    write("put a again", lambda s: plain(s).put(b"a", b"4", ttl=100)),
    Step("checkpoint", lambda run: run.opened.checkpoint()),
    write("put b again", lambda s: plain(s).put(b"b", b"B")),
    Step("advance", lambda run: run.clock.advance(6)),
    Step("purge", lambda run: run.opened.purge_expired()),
    write("delete b", lambda s: plain(s).delete(b"b")),
    write("clear other", lambda s: s.family("other").clear()),
    transact("second batch", _second_batch),
    write("fill", lambda s: plain(s).put(b"filler", b"f" * 57_500)),
    Step("prepare", lambda run: engine_of(run.opened)._segments.prepare()),
    INTERVAL,
    # There is no room for this one before the next segment, and for the small ones after it there is.
    write("rotate", lambda s: plain(s).put(b"r", b"r" * 3_000)),
    write("incr n again", lambda s: plain(s).incr(b"n", 5)),
    write("put huge", lambda s: plain(s).put(b"filler", b"h" * 61_000, ttl=1_000)),
    write("delete huge", lambda s: plain(s).delete(b"filler")),
    Step("sync", lambda run: run.opened.sync(), is_promise=True),
    write("drop other", lambda s: s.drop_family("other")),
    write("put c", lambda s: plain(s).put(b"c", b"c")),
    Step("put d", _put_durable, lambda s: plain(s).put(b"d", b"d"), is_promise=True),
    Step("checkpoint again", lambda run: run.opened.checkpoint()),
    write("put e", lambda s: plain(s).put(b"e", b"e", ttl=100)),
    Step("reopen", Run.reopen, is_promise=True),
    write("put f", lambda s: plain(s).put(b"f", b"f")),
    Step("compact", lambda run: run.opened.compact()),
    write("put g", lambda s: plain(s).put(b"g", b"g")),
]
SHORT_WORKLOAD = [
    step
    for step in WORKLOAD
    if step.name
    in {
        "create other", "give other a default", "put a", "first batch", "checkpoint", "put b again",
        "clear other", "fill", "prepare", "interval", "rotate", "drop other", "put c", "reopen", "put f",
    }
]  # fmt: skip


def recorded(path: Path, durability: str, workload: list[Step]) -> tuple[Run, Disk, list[int]]:
    """Do the workload with the disk watched; the time at the end of each step goes with it."""
    path.mkdir()
    run, disk = Run(path, durability), Disk(path)
    with disk.watching():
        run.open()
        times = [run.clock.now_ms()]
        for number, step in enumerate(workload, 1):
            is_promise = step.is_promise or durability == "commit"
            disk.progress = Progress(number, number - 1, disk.progress.promised)
            run.do(step)
            promised = number if is_promise else disk.progress.promised
            disk.progress = Progress(number, number, promised)
            disk.look()
            disk.keep()
            times.append(run.clock.now_ms())
        run.opened.close()
    return run, disk, times


# --- what is found afterwards ---------------------------------------------------------------------


def rows_of(store: ephemera.Store, now_ms: int) -> Rows:
    engine = engine_of(store)
    families = [engine.family(name, create=False) for name in store.families()]
    return {
        family.name: (
            family.default_ttl_ms,
            {
                key: (row.value, row.deadline_ms)
                for key, row in engine.scan(family, Range(), now_ms)
            },
        )
        for family in families
    }


class Finder:
    """Opens what a crash left, each different directory once."""

    def __init__(self, path: Path, durability: str) -> None:
        self._path = path
        self._durability = durability
        self._found: dict[object, Rows] = {}
        self.tried = 0

    @property
    def opened(self) -> int:
        return len(self._found)

    def find(self, image: Image, now_ms: int, *, is_twice: bool) -> Rows:
        """What a directory holds; with `is_twice` also after a few writes, and opening it again."""
        self.tried += 1
        # Not the contents themselves: thousands of them would fill the memory.
        key = now_ms, is_twice, *sorted((name, hash(content)) for name, content in image.items())
        if key not in self._found:
            self._found[key] = self._open(image, now_ms, is_twice=is_twice)
        return self._found[key]

    def _open(self, image: Image, now_ms: int, *, is_twice: bool) -> Rows:
        path = self._path / f"{self.tried}"
        path.mkdir(parents=True)
        write_image(image, path)
        clock = ephemera.ManualClock(now_ms)
        after = {b"a": b"after", b"zzz": b"after"}
        with open_local(path, clock, durability=self._durability) as store:
            found = rows_of(store, now_ms)
            assert store.check().problems == ()
            store.put_many(after)
            default_ttl, rows = found["default"]
            rows = {**rows, **{key: (value, NEVER_MS) for key, value in after.items()}}
            expected = {**found, "default": (default_ttl, rows)}
            assert rows_of(store, now_ms) == expected
        if is_twice:
            with open_local(path, clock, durability=self._durability) as store:
                assert rows_of(store, now_ms) == expected
        shutil.rmtree(path)
        return found


# --- the sweep of crashes -------------------------------------------------------------------------


def crashes(before: Moment, moment: Moment, *, is_long: bool) -> Iterator[tuple[str, int, Image]]:
    """What may be found after a crash at a moment, and from which step on."""
    _, acknowledged, promised = moment.progress
    yield "death", acknowledged, death(moment)
    for image in deaths_between(before, moment, is_long=is_long):
        yield "death inside", min(acknowledged, before.progress.acknowledged), image
    for image in power_losses(moment, is_long=is_long):
        yield "power loss", promised, image


def sweep_crashes(path: Path, durability: str, *, is_long: bool) -> str:
    """Try every moment of the workload; returns what was tried."""
    workload = WORKLOAD if is_long else SHORT_WORKLOAD
    run, disk, times = recorded(path / "store", durability, workload)
    finder = Finder(path / "found", durability)
    covered: set[int] = set()
    wrong: list[str] = []
    for before, moment in pairwise(disk.moments):
        attempted = moment.progress.attempted
        now_ms = times[attempted]
        where = f"step {attempted}, {workload[attempted - 1].name if attempted else 'open'}"
        for kind, floor, image in crashes(before, moment, is_long=is_long):
            try:
                found = finder.find(image, now_ms, is_twice=is_long or kind == "death")
            except Exception as error:
                wrong.append(f"{kind} in {where}: {error!r}")
                continue
            if not any(found == run.expected(step, now_ms) for step in range(floor, attempted + 1)):
                wrong.append(f"{kind} in {where}: {found}")
        covered.add(moment.syncs)
    assert wrong == [], "\n".join(w[:400] for w in wrong)
    assert disk.syncs > len(workload) / 4
    assert covered == set(range(disk.syncs + 1))
    return (
        f"{durability}: {len(disk.moments)} moments of {len(workload)} steps, {disk.syncs} syncs,"
        f" {finder.tried} crashes, {finder.opened} of them different"
    )


@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_a_crash_at_any_write_or_sync_leaves_a_state_that_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durability: str
) -> None:
    tried = sweep_crashes(tmp_path, durability, is_long=False)
    with capsys.disabled():
        print(f"\n{tried}")  # noqa: T201  (how much this test is worth)


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_a_crash_anywhere_in_a_long_workload_leaves_a_state_that_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durability: str
) -> None:
    tried = sweep_crashes(tmp_path, durability, is_long=True)
    with capsys.disabled():
        print(f"\n{tried}")  # noqa: T201  (how much this test is worth)


def fill(number: int) -> Step:
    return write(f"fill {number}", lambda s: plain(s).put(b"%d" % number, b"f" * 40_000))


LOSING = [
    write("put a", lambda s: plain(s).put(b"a", b"1")),
    INTERVAL,
    *map(fill, range(4)),
]


def test_a_crash_in_the_middle_of_recovery_finds_what_the_first_one_left(tmp_path: Path) -> None:
    """The power fails with four segments of which only the first record was synced; and again while
    the three that cannot stand without it are removed."""
    _, disk, times = recorded(tmp_path / "store", "interval", LOSING)
    lost = next(m for m in disk.moments if m.progress.acknowledged == len(LOSING))
    first = min(name for name in lost.names if name.endswith(".seg"))
    image = {**death(lost), first: lost.contents[lost.names[first]].synced or b""}
    path = tmp_path / "lost"
    write_image(image, path)
    again = Disk(path)
    with again.watching():
        again.settle()
        store = open_local(path, ephemera.ManualClock(times[-1]), durability="interval")
    rows = rows_of(store, times[-1])
    store.close()
    assert rows == {"default": (None, {b"a": (b"1", NEVER_MS)})}
    finder = Finder(tmp_path / "found", "interval")
    for before, moment in pairwise(again.moments):
        for _, _, found in crashes(before, moment, is_long=False):
            assert finder.find(found, times[-1], is_twice=True) == rows
    assert any(len(m.names) < len(again.moments[0].names) for m in again.moments)


# --- the sweep of failures ------------------------------------------------------------------------


class Refusals:
    """What a store that met one failing call said and did."""

    def __init__(self, run: Run, failing: Failing) -> None:
        self.run = run
        self.failing = failing

    def open(self) -> None:
        """Open; a second time if that failed, which leaves nothing open."""
        with suppress(ephemera.StoreFailed, ephemera.StoreFull):
            self.run.open()
            return
        assert open_files(self.run.path) == []
        self.run.open()

    def do(self, step: Step) -> None:
        """Do a step, or find that it did not happen, or that it did and was not acknowledged."""
        try:
            self.run.do(step)
        except (ephemera.StoreFailed, ephemera.StoreFull):
            self._see_to_it()
        self.must_hold()

    def _see_to_it(self) -> None:
        run = self.run
        assert self.failing.failed
        if engine_of(run.opened)._is_closed:
            run.open()
        elif run.opened.stats()["has_failed"]:
            with pytest.raises(ephemera.StoreFailed):
                run.opened.put(b"refused", b"")
            run.reopen()
        if rows_of(run.opened, run.clock.now_ms()) != run.expected(-1, run.clock.now_ms()):
            run.undo()

    def must_hold(self) -> None:
        now_ms = self.run.clock.now_ms()
        assert rows_of(self.run.opened, now_ms) == self.run.expected(-1, now_ms)


def open_files(path: Path) -> list[str]:
    """The files of a store that this process has open."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        # The one that lists the directory is gone by now, and others may go.
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(name for name in names if name.startswith(f"{path}/"))


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """What would be closed only by a collection stays open, and is seen."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def play_failure(path: Path, durability: str, workload: list[Step], fatal: int) -> Failing:
    """The workload with one failing call; then its files must hold what the store said."""
    path.mkdir()
    failing = Failing(fatal)
    run = Run(path, durability)
    refusals = Refusals(run, failing)
    try:
        with met_calls(path, failing.before, failing.after):
            refusals.open()
            for step in workload:
                refusals.do(step)
            run.opened.close()
        run.open()
        refusals.must_hold()
        assert run.opened.check().problems == ()
    finally:
        if run.store is not None:
            run.store.close()
    assert open_files(path) == []
    shutil.rmtree(path)
    return failing


def sweep_failures(path: Path, durability: str, workload: list[Step]) -> str:
    """Let every system call of the workload fail; returns what was tried."""
    calls = play_failure(path / "counted", durability, workload, 0).count
    wrong: list[str] = []
    failed: Counter[str] = Counter()
    for fatal in range(1, calls + 1):
        try:
            failing = play_failure(path / f"{fatal}", durability, workload, fatal)
        except Exception as error:
            wrong.append(f"call {fatal}: {error!r}")
            continue
        failed[failing.failed or "none"] += 1
    assert wrong == [], "\n".join(wrong)
    assert failed["sync"] > 0
    assert failed["fsync"] > 0
    assert failed["none"] == 0
    return f"{durability}: {calls} failing calls: {dict(failed)}"


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_any_failing_call_is_one_of_our_errors_and_loses_nothing_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durability: str
) -> None:
    tried = sweep_failures(tmp_path, durability, SHORT_WORKLOAD)
    with capsys.disabled():
        print(f"\n{tried}")  # noqa: T201  (how much this test is worth)


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize(
    "last", ["_start_workers", "family"], ids=["its threads", "its first family"]
)
def test_a_store_that_fails_after_its_files_were_opened_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(engines.LocalEngine, last, fail)
        with pytest.raises(RuntimeError):
            ephemera.open(tmp_path / "s.eph")
    assert open_files(tmp_path) == []


@pytest.mark.soak
@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_any_failing_call_of_a_long_workload_loses_nothing_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durability: str
) -> None:
    tried = sweep_failures(tmp_path, durability, WORKLOAD)
    with capsys.disabled():
        print(f"\n{tried}")  # noqa: T201  (how much this test is worth)
