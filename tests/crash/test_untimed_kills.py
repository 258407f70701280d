"""`kill -9` at untimed moments, while other processes close, fork, stop, checkpoint and compact.

A writer that dies inside the writer lock leaves its repair to the next process that acquires the lock.
So here that process is as often as not one that closes the store, forks, checkpoints, compacts or
clears a family, instead of one that writes.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import ephemera
from tests.crash.processes import TINY_SEGMENT_BYTES, Peer, Seat, in_fork
from tests.crash.writers import FAMILY, Crew, Writer

WRITERS = 4
WORK_MAX = 20
OTHER_FAMILY = "other"
OTHER_ROWS = {b"%02d" % number: b"x" * 500 for number in range(20)}


@dataclass
class Tally:
    """What an attack did so far."""

    kills: int = 0
    acknowledged: int = 0
    facts: int = 0
    closes: int = 0
    stops: int = 0
    maintenance: int = 0
    forks: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kills:,} kills, {self.closes:,} closes, {self.forks:,} forks, "
            f"{self.stops:,} stops, {self.maintenance:,} checkpoints, compactions and clears; "
            f"{self.acknowledged:,} operations acknowledged, {self.facts:,} facts verified"
        )


# --- what a bystander does -----------------------------------------------------------------------


def checkpoint(seat: Seat) -> None:
    seat.store.checkpoint()


def compact(seat: Seat) -> None:
    seat.store.compact()


def clear_other_family(seat: Seat) -> None:
    other = seat.store.family(OTHER_FAMILY)
    other.put_many(OTHER_ROWS)
    other.clear()


def drop_family(seat: Seat) -> None:
    seat.store.family("brief").put(b"a", b"1")
    seat.store.drop_family("brief")


def fork(seat: Seat) -> None:
    in_fork(partial(write_in_child, seat.store)).result()


def write_in_child(store: ephemera.Store) -> None:
    store.put(b"forked", b"1")
    assert store.get(b"forked") == b"1"


ACTIONS: tuple[Callable[[Seat], None], ...] = (
    checkpoint,
    compact,
    clear_other_family,
    drop_family,
    fork,
)


class Bystander:
    """A process that has the store open, and at times does one of the actions above."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self._path = path
        self._tally = tally
        self._is_busy = False
        self._open()

    def begin(self, action: Callable[[Seat], None]) -> None:
        self.finish()
        self._peer.tell(action)
        self._is_busy = True
        if action is fork:
            self._tally.forks += 1
        else:
            self._tally.maintenance += 1

    def finish(self) -> None:
        if self._is_busy:
            self._peer.answer()
            self._is_busy = False

    def reopen(self) -> None:
        """Close the store, and open it in a new process."""
        self.finish()
        self._peer.close()
        self._tally.closes += 1
        self._open()

    def kill(self) -> None:
        self._peer.kill()
        self._is_busy = False
        self._tally.kills += 1
        self._open()

    def close(self) -> None:
        self._peer.close()

    def _open(self) -> None:
        self._peer = Peer(self._path, segment_bytes=TINY_SEGMENT_BYTES)


# --- the attack ----------------------------------------------------------------------------------


class Attack:
    """Writers and a bystander on one store, and a driver that kills them at untimed moments."""

    def __init__(self, path: Path, place: Path, seed: int) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self.tally = Tally()
        self._store = self._open()
        self._store.family(FAMILY, default_ttl=3600)
        self._crew = Crew(path, place, WRITERS, segment_bytes=TINY_SEGMENT_BYTES)
        self._bystander = Bystander(path, self.tally)

    def run(self, kills: int) -> Iterator[Tally]:
        """Kill until so many died; verify all that was acknowledged after each round."""
        while self.tally.kills < kills:
            self._crew.work(1)
            victims = self._chance.sample(self._crew.writers, self._chance.choice((1, 2, 3)))
            self._strike(victims)
            self._bystander.finish()
            self._crew.pause()
            self._verify(self._crew.writers)
            self._replace(victims)
            yield self.tally

    def close(self) -> None:
        """End all processes, and verify once more after reopening."""
        writers = list(self._crew.writers)
        self._crew.stop()
        self._bystander.close()
        self._store.close()
        self._store = self._open()
        self._verify(writers)
        self._store.close()

    def _strike(self, victims: list[Writer]) -> None:
        """Kill the victims, with the others stopped, paused, busy or at work."""
        others = [writer for writer in self._crew.writers if writer not in victims]
        if self._chance.random() < 0.3:
            # Then the first to acquire the writer lock after the death is no writer.
            self._crew.pause(but=victims)
        if self._chance.random() < 0.5:
            self._bystander.begin(self._chance.choice(ACTIONS))
        self._crew.work(self._chance.randrange(WORK_MAX))
        with ExitStack() as stopped:
            if self._chance.random() < 0.3:
                self._stop(self._chance.choice(others), stopped)
            self._crew.kill(*victims)
            self.tally.kills += len(victims)
        self._disturb()
        self._crew.resume()
        self._crew.work_each(self._chance.randrange(1, 4))

    def _stop(self, writer: Writer, stopped: ExitStack) -> None:
        os.kill(writer.peer.pid, signal.SIGSTOP)
        stopped.callback(os.kill, writer.peer.pid, signal.SIGCONT)
        self.tally.stops += 1

    def _disturb(self) -> None:
        """Let another process than the writers be the first to use the store."""
        match self._chance.randrange(5):
            case 0:
                self._store.close()
                self.tally.closes += 1
                self._store = self._open()
            case 1:
                self._bystander.reopen()
            case 2:
                self._bystander.kill()
            case 3:
                self._bystander.begin(self._chance.choice(ACTIONS))
            case _:
                pass

    def _verify(self, writers: list[Writer]) -> None:
        """Compare the store with all that was acknowledged, while nobody writes."""
        ledger = self._crew.ledger
        self.tally.facts += ledger.verify(self._store, writers)
        other = dict(self._store.family(OTHER_FAMILY).scan())
        assert other in ({}, OTHER_ROWS)
        self.tally.acknowledged = ledger.operations

    def _replace(self, victims: list[Writer]) -> None:
        for victim in victims:
            self._crew.ledger.forget(self._store, victim)
            self._crew.remove(victim)
            self._crew.hire()
        self._crew.resume()

    def _open(self) -> ephemera.Store:
        return ephemera.open(self._path, segment_bytes=TINY_SEGMENT_BYTES)


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(tmp_path / "kill.eph", tmp_path, seed=random.randrange(2**32))


def test_no_kill_loses_what_was_acknowledged_whatever_the_others_do(attack: Attack) -> None:
    for _ in attack.run(kills=20):
        pass
    attack.close()
    assert attack.tally.kills >= 20


@pytest.mark.soak
def test_three_thousand_kills_lose_nothing_whatever_the_others_do(
    attack: Attack, capsys: pytest.CaptureFixture[str]
) -> None:
    for tally in attack.run(kills=3_000):
        with capsys.disabled():
            print(f"\r{tally}", end="", flush=True)  # noqa: T201
    attack.close()
