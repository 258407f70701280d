"""Clocks that are set back, stand still, jump, or differ: the time of a store only goes on."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera.core.clock import SteadyClock, boot_ns, wall_ms, wall_ns
from tests.crash.processes import Peer, Seat, peers

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
NS_PER_MS = 1_000_000
WALL_MS = 1_700_000_000_000


class Hands:
    """A wall clock and a boot-time clock that a test sets as it likes."""

    def __init__(self, wall: int = WALL_MS, boot: int = 5_000_000) -> None:
        self.wall = wall
        self.boot = boot

    def pass_time(self, ms: int) -> None:
        self.wall += ms
        self.boot += ms

    def clock(self) -> SteadyClock:
        return SteadyClock(
            read_wall=lambda: self.wall * NS_PER_MS, read_boot=lambda: self.boot * NS_PER_MS
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clock.eph"


@pytest.fixture
def hands() -> Hands:
    return Hands()


def open_with(path: Path, hands: Hands, **options: Any) -> ephemera.Store:
    return ephemera.open(path, clock=hands.clock(), maintenance="manual", **options)


def test_a_wall_clock_that_is_set_back_changes_no_deadline(path: Path, hands: Hands) -> None:
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=60)
        hands.wall -= HOUR_MS
        assert store.ttl(b"a") == 60.0
        hands.pass_time(59_999)
        assert store.get(b"a") == b"1"
        store.put(b"b", b"2", ttl=1)
        hands.pass_time(1)
        assert store.get(b"a") is None
        assert store.get(b"b") == b"2"
        hands.pass_time(999)
        assert store.get(b"b") is None
        assert store.purge_expired() == 2


def test_a_wall_clock_that_stands_still_stops_no_deadline(path: Path, hands: Hands) -> None:
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=60)
        hands.boot += 59_999
        assert store.get(b"a") == b"1"
        hands.boot += 1
        assert store.get(b"a") is None


def test_a_step_of_an_hour_forward_is_followed(path: Path, hands: Hands) -> None:
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=60)
        store.put(b"b", b"2", ttl=2 * 3600)
        hands.wall += HOUR_MS
        assert store.get(b"a") is None
        assert store.ttl(b"b") == 3600.0
        hands.wall -= HOUR_MS
        assert store.get(b"a") is None
        assert store.ttl(b"b") == 3600.0


def test_a_step_of_a_year_forward_kills_nothing_and_is_reported(path: Path, hands: Hands) -> None:
    clock = hands.clock()
    with ephemera.open(path, clock=clock, maintenance="manual") as store:
        store.put(b"a", b"1", ttl=60)
        assert not store.stats()["clock_ignores_wall"]
        hands.wall += YEAR_MS
        assert store.get(b"a") == b"1"
        assert store.stats()["clock_ignores_wall"]
        hands.pass_time(30_000)
        assert store.ttl(b"a") == 30.0
        clock.resync()
        assert store.get(b"a") is None
        assert not store.stats()["clock_ignores_wall"]


def test_reopening_believes_a_year_forward(path: Path, hands: Hands) -> None:
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=60)
        store.put(b"b", b"2")
    hands.pass_time(YEAR_MS)
    with open_with(path, hands) as store:
        assert list(store.keys()) == [b"b"]
        assert store.purge_expired() == 1


@pytest.mark.parametrize("back_ms", [1_000, HOUR_MS, YEAR_MS])
def test_reopening_never_goes_back(path: Path, hands: Hands, back_ms: int) -> None:
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=60)
        store.put(b"b", b"2", ttl=120)
        hands.pass_time(60_000)
        assert store.get(b"a") is None
    # The machine was started anew, with a wrong clock.
    hands = Hands(wall=hands.wall - back_ms, boot=10_000)
    with open_with(path, hands) as store:
        assert store.get(b"a") is None
        assert store.ttl(b"b") == 60.0
        hands.pass_time(60_000)
        assert store.get(b"b") is None


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["segments", "base tier"])
def test_reopening_after_a_kill_never_goes_back_before_the_last_write(
    path: Path, is_checkpointed: bool
) -> None:
    with Peer(path) as victim:
        last_ms = victim.run(write_and_tell_time, is_checkpointed)
        victim.kill()
    with open_with(path, Hands(wall=last_ms - HOUR_MS)) as store:
        assert store.clock.now_ms() >= last_ms
        left = store.ttl(b"last")
        assert left is not None
        assert left <= 60


def write_and_tell_time(seat: Seat, is_checkpointed: bool) -> int:
    now_ms = seat.store.clock.now_ms()
    seat.store.put(b"last", b"1", ttl=60)
    if is_checkpointed:
        seat.store.checkpoint()
    return now_ms


def test_all_processes_of_a_store_have_one_time(path: Path) -> None:
    with peers(3, path) as crew:
        latest = 0
        for number in range(60):
            now_ms = crew[number % 3].run(read_store_clock)
            assert now_ms >= latest
            latest = now_ms


def read_store_clock(seat: Seat) -> int:
    return seat.store.clock.now_ms()


# --- one word, many processes, each with a wall clock of its own -------------------------------

_clocks: list[SteadyClock] = []


def share_clock(seat: Seat, target: str, error_ms: int, is_first: bool) -> None:
    """Tell the time by a wall clock that is wrong by so much, over a word that others share."""
    with Path(target).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    clock = SteadyClock(read_wall=lambda: wall_ns() + error_ms * NS_PER_MS, read_boot=boot_ns)
    clock.share(memory, 8, is_first=is_first)
    _clocks[:] = [clock]


def read_shared_clock(seat: Seat) -> tuple[int, bool]:
    return _clocks[0].now_ms(), _clocks[0].ignores_wall


@pytest.fixture
def word(tmp_path: Path) -> str:
    target = tmp_path / "word"
    target.write_bytes(bytes(4096))
    return str(target)


def test_processes_whose_wall_clocks_differ_agree(path: Path, word: str) -> None:
    with peers(3, path) as crew:
        for number, (peer, error_ms) in enumerate(zip(crew, [0, -HOUR_MS, 7_000], strict=True)):
            peer.run(share_clock, word, error_ms, number == 0)
        assert abs(crew[1].run(read_shared_clock)[0] - wall_ms()) < 5_000
        ahead_ms, _ = crew[2].run(read_shared_clock)
        latest = ahead_ms
        for number in range(30):
            now_ms, ignores = crew[number % 3].run(read_shared_clock)
            assert now_ms >= latest
            assert not ignores
            latest = now_ms
        # Not to the millisecond: each clock reading is rounded down on its own.
        assert latest - wall_ms() < 8_000


def test_a_process_whose_wall_clock_is_a_year_ahead_infects_nobody(path: Path, word: str) -> None:
    with peers(2, path) as (right, wrong):
        right.run(share_clock, word, 0, True)
        wrong.run(share_clock, word, YEAR_MS, False)
        now_ms, ignores = wrong.run(read_shared_clock)
        assert ignores
        assert abs(now_ms - wall_ms()) < 5_000
        now_ms, ignores = right.run(read_shared_clock)
        assert not ignores
        assert abs(now_ms - wall_ms()) < 5_000


def race_clock(seat: Seat, readings: int) -> bool:
    """Whether the readings of this process never went back while others moved the word."""
    latest = 0
    for _ in range(readings):
        now_ms = _clocks[0].now_ms()
        if now_ms < latest:
            return False
        latest = now_ms
    return True


def test_no_process_ever_sees_time_go_back(path: Path, word: str) -> None:
    with peers(3, path) as crew:
        for number, peer in enumerate(crew):
            peer.run(share_clock, word, number * 1_000, number == 0)
        for peer in crew:
            peer.tell(race_clock, 50_000)
        assert [peer.answer() for peer in crew] == [True] * 3


def test_different_clocks_at_successive_openings_never_revive_a_key(path: Path) -> None:
    """Whatever the clocks of the machines that open a store say, its time only goes on."""
    hands = Hands()
    with open_with(path, hands) as store:
        store.put(b"a", b"1", ttl=10)
        hands.pass_time(10_000)
        assert store.get(b"a") is None
    for wall in (WALL_MS, WALL_MS - YEAR_MS, WALL_MS + 5_000, 0):
        with open_with(path, Hands(wall=wall, boot=1_000)) as store:
            assert store.get(b"a") is None
            store.put(b"b", b"2", ttl=10)
            assert store.get(b"b") == b"2"
