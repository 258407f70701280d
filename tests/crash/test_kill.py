"""`kill -9` at any moment: what was acknowledged is there, nothing is half there, the others go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

import ephemera
from ephemera.engines.local import base_tier
from ephemera.engines.local._control import Control
from ephemera.engines.local._lock_file import write_locker
from tests.crash import writers
from tests.crash.processes import TINY_SEGMENT_BYTES, Peer, Seat, peers
from tests.crash.writers import FAMILY, Crew
from tests.engines.local.stores import THOUSAND, base_file, engine_of, open_local

WRITERS = 4
WORK_MAX = 60
SEGMENT_BYTES = 128 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kill.eph"


def attack(path: Path, place: Path, cycles: int, seed: int) -> str:
    """Kill a random writer at a random moment, so many times; what was seen to hold."""
    chance = random.Random(seed)
    facts = 0
    with ephemera.open(path, segment_bytes=SEGMENT_BYTES) as store:
        store.family(FAMILY, default_ttl=3600)
        crew = Crew(path, place, WRITERS, segment_bytes=SEGMENT_BYTES)
        for _ in range(cycles):
            crew.work(chance.randrange(1, WORK_MAX))
            victim = chance.choice(crew.writers)
            crew.kill(victim)
            crew.work_each(chance.randrange(1, WORK_MAX // 4))
            crew.pause()
            facts += crew.ledger.verify(store, crew.writers)
            crew.ledger.forget(store, victim)
            crew.remove(victim)
            crew.resume()
            crew.hire()
        crew.stop()
    with ephemera.open(path) as store:
        facts += crew.ledger.verify(store, [])
    return (
        f"{cycles} kills of one of {WRITERS} writers, {crew.ledger.operations:,} operations "
        f"acknowledged, {facts:,} facts verified, check() clean after each kill and after reopening"
    )


def test_killing_any_writer_loses_nothing_and_stops_nobody(path: Path, tmp_path: Path) -> None:
    attack(path, tmp_path, cycles=10, seed=random.randrange(2**32))


@pytest.mark.soak
def test_five_hundred_kills_lose_nothing_and_stop_nobody(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = attack(path, tmp_path, cycles=500, seed=random.randrange(2**32))
    with capsys.disabled():
        print(f"\n{seen}")  # noqa: T201


def test_what_a_writer_raises_is_raised_where_its_reports_are_awaited(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Then it reports no more: to wait for that would only say that nobody gets anything done.
    monkeypatch.setattr(writers, "PATIENCE_SECONDS", 5.0)
    with ephemera.open(path) as store:
        store.family(FAMILY, default_ttl=3600)
        crew = Crew(path, tmp_path, 2)
        crew.pause()
        engine_of(store)._control.fail()
        crew.resume()
        with pytest.raises(ephemera.StoreFailed):
            crew.work_each(1)
        crew.kill(*crew.writers)


def attack_all(path: Path, place: Path, cycles: int, seed: int) -> str:
    """Kill all writers at once, so many times; nobody else has the store open then."""
    chance = random.Random(seed)
    with ephemera.open(path, segment_bytes=SEGMENT_BYTES) as store:
        store.family(FAMILY, default_ttl=3600)
    crew = Crew(path, place, 0, segment_bytes=SEGMENT_BYTES)
    facts = 0
    for _ in range(cycles):
        for _ in range(3):
            crew.hire()
        crew.work(chance.randrange(1, WORK_MAX * 2))
        crew.kill(*crew.writers)
        with ephemera.open(path, segment_bytes=SEGMENT_BYTES) as store:
            facts += crew.ledger.verify(store, crew.writers)
            for writer in list(crew.writers):
                crew.ledger.forget(store, writer)
                crew.remove(writer)
    return f"{cycles} kills of all at once, {facts:,} facts verified"


def test_killing_all_at_once_loses_nothing(path: Path, tmp_path: Path) -> None:
    attack_all(path, tmp_path, cycles=5, seed=random.randrange(2**32))


@pytest.mark.soak
def test_two_hundred_kills_of_all_at_once_lose_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = attack_all(path, tmp_path, cycles=200, seed=random.randrange(2**32))
    with capsys.disabled():
        print(f"\n{seen}")  # noqa: T201


# --- the process that checkpoints and sweeps ---------------------------------------------------


def fill(seat: Seat, start: int, count: int) -> int:
    """Write enough for several segments; returns how many were acknowledged."""
    for number in range(start, start + count):
        seat.store.put(b"%08d" % number, b"x" * 1_000, ttl=3600 if number % 2 else 0.01)
    return count


def maintainer(seat: Seat) -> int:
    """The process that did background maintenance last."""
    pid: int = engine_of(seat.store)._control.maintained[0]
    return pid


def test_another_process_takes_over_the_maintenance_of_a_dead_one(path: Path) -> None:
    written = 0
    with peers(2, path, segment_bytes=TINY_SEGMENT_BYTES, maintenance="background") as crew:
        keeper, heir = crew
        for _ in range(4):
            # More than may wait: writing goes on only because somebody checkpoints.
            keeper.tell(fill, written, 600)
            heir.tell(fill, written + 600, 600)
            keeper.answer()
            keeper.kill()
            assert heir.answer() == 600
            assert heir.run(fill, written + 1_200, 600) == 600
            assert heir.run(maintainer) == heir.pid
            written += 1_800
            keeper, heir = heir, Peer(path, segment_bytes=TINY_SEGMENT_BYTES)
            crew.append(heir)
        assert heir.do("check").problems == ()
        kept = heir.run(list_keys)
    assert [key for key in kept if int(key) % 2] == [b"%08d" % n for n in range(1, written, 2)]


def list_keys(seat: Seat) -> list[bytes]:
    return list(seat.store.keys())


def test_killing_the_keeper_in_the_middle_of_its_checkpoints_loses_nothing(path: Path) -> None:
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES, maintenance="manual") as store:
        written = 0
        for _ in range(6):
            with peers(2, path, segment_bytes=TINY_SEGMENT_BYTES) as (keeper, writer):
                writer.tell(fill_aloud, written, 500)
                for _ in range(random.randrange(1, 10)):
                    writer.answer()
                keeper.kill()
                while writer.answer() != "done":
                    pass
                written += 500
            missing = [n for n in range(1, written, 2) if store.get(b"%08d" % n) is None]
            assert missing == []
            assert store.check().problems == ()


def fill_aloud(seat: Seat, start: int, count: int) -> str:
    for number in range(start, start + count, 50):
        fill(seat, number, 50)
        seat.say(number)
    return "done"


# --- death inside a transaction ----------------------------------------------------------------


def die_inside(seat: Seat) -> None:
    txn = seat.store.transaction()
    txn.put(b"a", b"half")
    txn.put(b"b", b"half")
    seat.say("inside")
    seat.hear()


@pytest.fixture
def pair(path: Path) -> Iterator[tuple[Peer, Peer]]:
    with peers(2, path) as (one, other):
        yield one, other


def test_a_transaction_of_a_dead_process_lets_the_next_one_in(
    path: Path, pair: tuple[Peer, Peer]
) -> None:
    holder, waiter = pair
    holder.tell(die_inside)
    assert holder.answer() == "inside"
    waiter.tell(put_both, b"whole")
    assert not waiter.has_answered()
    holder.kill()
    waiter.answer()
    assert waiter.do("get_many", [b"a", b"b"]) == {b"a": b"whole", b"b": b"whole"}
    assert waiter.do("check").problems == ()


def put_both(seat: Seat, value: bytes) -> None:
    with seat.store.transaction() as txn:
        txn.put(b"a", value)
        txn.put(b"b", value)


# --- death between a commit of the base tier and the word in the control page that tells of it --


class DyingControl:
    """A control page whose user is killed when it sets one of its words."""

    def __init__(self, control: object, word: str) -> None:
        object.__setattr__(self, "_control", control)
        object.__setattr__(self, "_word", word)

    def __getattr__(self, name: str) -> object:
        return getattr(self._control, name)

    def supersede_base(self, former: int, generation: int) -> None:
        self.base = generation

    def publish_families(self) -> None:
        control = cast(Control, self._control)
        self.families = control.families + 1
        control.publish()

    def __setattr__(self, name: str, value: object) -> None:
        if name == self._word:
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(self._control, name, value)


def die_setting(seat: Seat, word: str, method: str, *args: object) -> None:
    engine = cast(Any, seat.store)._engine  # Any: what is private is nobody's type
    engine._control = engine._base._control = DyingControl(engine._control, word)
    getattr(seat.store, method)(*args)


@pytest.mark.parametrize("method", ["clear", "drop_family"])
def test_a_death_while_a_family_is_emptied_loses_no_later_write(path: Path, method: str) -> None:
    with ephemera.open(path, maintenance="manual") as store, Peer(path) as victim:
        family = store if method == "clear" else store.family("doomed")
        family.put(b"old", b"1")
        victim.tell(die_setting, "families", method, *(["doomed"] if method != "clear" else []))
        victim.join(-signal.SIGKILL)
        store.incr(b"turns")  # whoever takes the turn next finds out
        family = store if method == "clear" else store.family("doomed")
        family.put(b"new", b"2")
        assert family.get(b"new") == b"2"
        store.checkpoint()
        assert family.get(b"new") == b"2"


def fill_and_die_clearing(store: ephemera.Store, victim: Peer) -> dict[bytes, bytes]:
    """Rows in the base tier and in a segment; then the victim clears them, and dies before it can say so."""
    store.put_many({b"below:%d" % number: b"1" for number in range(5)})
    store.checkpoint()
    store.put_many({b"above:%d" % number: b"2" for number in range(5)})
    victim.tell(die_setting, "families", "clear")
    victim.join(-signal.SIGKILL)
    return {b"%s:%d" % (p, n): v for p, v in ((b"below", b"1"), (b"above", b"2")) for n in range(5)}


def remove_given_up(seat: Seat) -> None:
    """What the background maintenance does, sooner or later."""
    cast(Any, seat.store)._engine._clear_given_up()  # Any: what is private is nobody's type


def contents(seat: Seat) -> dict[bytes, bytes]:
    return dict(seat.store.scan())


def test_a_clear_that_died_halfway_never_leaves_half_of_the_family(path: Path) -> None:
    with (
        ephemera.open(path, maintenance="manual") as store,
        Peer(path) as victim,
        Peer(path, maintenance="manual") as keeper,
    ):
        full = fill_and_die_clearing(store, victim)
        assert dict(store.scan()) in ({}, full)
        keeper.run(remove_given_up)
        assert dict(store.scan()) == store.get_many(full) == keeper.run(contents) == {}
        assert store.check().problems == ()


def test_what_one_process_sees_of_a_clear_that_died_halfway_all_see(path: Path) -> None:
    with ephemera.open(path, maintenance="manual") as store, Peer(path) as victim:
        full = fill_and_die_clearing(store, victim)
        with Peer(path, maintenance="manual", read_only=True) as late:
            assert dict(store.scan()) == store.get_many(full) == late.run(contents)


def test_a_death_inside_a_compaction_loses_no_later_write(path: Path) -> None:
    with ephemera.open(path, maintenance="manual") as store, Peer(path) as victim:
        store.put(b"old", b"1")
        victim.tell(die_setting, "base", "compact")
        victim.join(-signal.SIGKILL)
        store.put(b"new", b"2")
        store.checkpoint()
        assert store.get(b"new") == b"2"
    with ephemera.open(path) as store:
        assert store.get(b"old") == b"1"
        assert store.get(b"new") == b"2"


def test_all_who_wait_behind_a_dead_transaction_get_their_turn(path: Path) -> None:
    with peers(4, path) as (holder, *waiters):
        for _ in range(3):
            holder.tell(die_inside)
            assert holder.answer() == "inside"
            for waiter in waiters:
                waiter.tell(count_up, 20)
            holder.kill()
            for waiter in waiters:
                waiter.answer()
            holder = waiters.pop()
            waiters.append(Peer(path))
        totals = [waiter.do("get", b"total") for waiter in waiters]
        for waiter in waiters:
            waiter.close()
    assert totals == [b"180"] * 3


def count_up(seat: Seat, times: int) -> None:
    for _ in range(times):
        seat.store.incr(b"total")


def test_readers_that_were_killed_leave_no_trace(path: Path) -> None:
    """Each dead reader holds slots of the base tier's table of readers until somebody frees them."""
    with ephemera.open(path, maintenance="background") as store:
        store.put(b"a", b"1")
        store.checkpoint()
        for _ in range(5):
            with Peer(path) as reader:
                assert reader.run(hold_snapshots, 250) == 250
                reader.kill()
        # More than the table holds, if nobody frees them.
        assert store.get(b"a") == b"1"
        with store.snapshot() as snap:
            assert snap.get(b"a") == b"1"
        assert store.check().problems == ()


_held: list[ephemera.Snapshot] = []


def hold_snapshots(seat: Seat, count: int) -> int:
    _held.extend(seat.store.snapshot() for _ in range(count))
    return len(_held)


# --- death inside LMDB's setup of its lock file ---------------------------------------------------

SET_UP = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 1)
start, end = int(sys.argv[2]), int(sys.argv[3])
os.pwrite(fd, bytes(end - start), start)
print("inside", flush=True)
sys.stdin.read()
"""
"""What LMDB does when it opens a file that no process has open, up to where it dies."""
MAGIC, TRANSACTION = range(8), range(8, 16)
"""What LMDB sets up in its lock file, in this order: a magic number, and after a while the last transaction."""


@pytest.mark.parametrize("unset", [MAGIC, TRANSACTION], ids=["magic", "transaction"])
def test_a_death_inside_the_setup_of_lmdb_s_lock_file_costs_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, unset: range
) -> None:
    rows = {b"%02d" % number: THOUSAND for number in range(20)}
    with open_local(path) as store:
        for key, value in rows.items():
            store.put(key, value)
            store.checkpoint()
    lock_file = path / "base" / f"{base_file(path).name}-lock"
    with dying_in_setup(lock_file, unset, monkeypatch), open_local(path) as store:
        assert dict(store.scan()) == rows
        store.put(b"after", b"1")
        store.checkpoint()
    with open_local(path) as store:
        assert dict(store.scan()) == {**rows, b"after": b"1"}
        assert store.check().problems == ()


@contextmanager
def dying_in_setup(
    lock_file: Path, unset: range, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A process that is killed inside the setup, and is gone after an opener has first looked for it."""
    given = [str(lock_file), str(unset.start), str(unset.stop)]
    command = [sys.executable, "-c", SET_UP, *given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"inside\n"

        def look(fd: int) -> int:
            found = write_locker(fd)
            dying.kill()
            dying.wait()
            return found

        # Any: as `lmdb.open` takes them
        def open_when_it_is_gone(*given: Any, **named: Any) -> lmdb.Environment:
            assert dying.poll() is not None, "LMDB would take the file for set up"
            return lmdb_open(*given, **named)

        lmdb_open = lmdb.open
        monkeypatch.setattr(base_tier, "write_locker", look)
        monkeypatch.setattr(lmdb, "open", open_when_it_is_gone)
        try:
            yield
        finally:
            dying.kill()
