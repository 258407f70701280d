"""The steady clock under every trick a wall clock can play, and the clock that tests move."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.core._clock import Now
from ephemera.core.clock import (
    STEP_MS_MAX,
    ManualClock,
    SteadyClock,
    boot_ns,
    elapsed_ns,
    wall_ms,
    wall_ns,
)
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import DEADLINE_MS_MAX

HOUR_MS = 60 * 60 * 1000
YEAR_MS = 365 * 24 * HOUR_MS


NS_PER_MS = 1_000_000


class Machine:
    """A wall clock that can be set and a boot-time clock that cannot, in milliseconds."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.boot = 5_000
        self.is_wall_frozen = False

    def steady_clock(self) -> SteadyClock:
        return SteadyClock(
            read_wall=lambda: self.wall * NS_PER_MS, read_boot=lambda: self.boot * NS_PER_MS
        )

    def stalling_clock(self, ms: int) -> SteadyClock:
        """A clock whose process is put aside for so long after each of its readings."""

        def stall(now: int) -> int:
            self.run(ms)
            return now * NS_PER_MS

        return SteadyClock(
            read_wall=lambda: stall(self.wall),
            read_boot=lambda: stall(self.boot),
        )

    def run(self, ms: int) -> None:
        self.boot += ms
        if not self.is_wall_frozen:
            self.wall += ms

    def set_wall(self, ms: int) -> None:
        self.wall += ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SteadyClock:
    return machine.steady_clock()


def test_a_pause_between_its_readings_never_puts_a_clock_ahead(machine: Machine) -> None:
    clock = machine.stalling_clock(3_000)
    for _ in range(10):
        assert clock.now_ms() <= machine.wall
    clock.resync()
    assert clock.now_ms() <= machine.wall


def test_a_pause_between_two_readings_is_made_good_by_the_next_ones() -> None:
    wall_readings = iter([1_000_000_000, 1_005_000_000, 1_005_000_000])
    # The process was put aside for 3 ms between the first reading of each clock.
    boot_readings = iter([8_000_000, 10_000_000, 10_000_000])
    clock = SteadyClock(
        read_wall=lambda: next(wall_readings), read_boot=lambda: next(boot_readings)
    )
    assert clock.now_us() == 1_005_000
    assert clock.now_ms() == 1_005


@pytest.mark.parametrize("boot_ns", range(0, 2_000, 125))
def test_rounding_puts_a_clock_at_most_a_microsecond_ahead_and_never_behind(boot_ns: int) -> None:
    wall_ns = 0
    clock = SteadyClock(read_wall=lambda: wall_ns, read_boot=lambda: boot_ns)
    for wall_ns in range(999_998_000, 1_000_001_000, 125):
        assert clock.now_us() in (wall_ns // 1_000, wall_ns // 1_000 + 1)
        assert clock.now_ms() == clock.now_us() // 1_000


def test_an_undisturbed_clock_tells_wall_time(machine: Machine, clock: SteadyClock) -> None:
    assert clock.now_ms() == machine.wall
    machine.run(1_234)
    assert clock.now_ms() == machine.wall
    assert not clock.ignores_wall


@pytest.mark.parametrize("back_ms", [1, HOUR_MS, 10 * YEAR_MS])
def test_a_wall_clock_set_back_changes_nothing_and_freezes_nothing(
    machine: Machine, clock: SteadyClock, back_ms: int
) -> None:
    start = clock.now_ms()
    machine.set_wall(-back_ms)
    assert clock.now_ms() == start
    machine.run(500)
    assert clock.now_ms() == start + 500
    assert not clock.ignores_wall


def test_a_wall_clock_set_back_and_right_again_leaves_no_trace(
    machine: Machine, clock: SteadyClock
) -> None:
    machine.set_wall(-HOUR_MS)
    clock.now_ms()
    machine.run(1_000)
    machine.set_wall(HOUR_MS)
    assert clock.now_ms() == machine.wall


def test_time_goes_on_while_the_wall_clock_is_frozen(machine: Machine, clock: SteadyClock) -> None:
    start = clock.now_ms()
    machine.is_wall_frozen = True
    machine.run(HOUR_MS)
    assert clock.now_ms() == start + HOUR_MS


@pytest.mark.parametrize("step_ms", [1, HOUR_MS, STEP_MS_MAX])
def test_a_step_forward_of_up_to_a_day_is_followed(
    machine: Machine, clock: SteadyClock, step_ms: int
) -> None:
    start = clock.now_ms()
    machine.set_wall(step_ms)
    assert clock.now_ms() == start + step_ms
    machine.run(10)
    assert clock.now_ms() == start + step_ms + 10
    assert not clock.ignores_wall


@pytest.mark.parametrize("step_ms", [STEP_MS_MAX + 1, YEAR_MS])
def test_a_larger_step_forward_is_ignored_and_reported(
    machine: Machine, clock: SteadyClock, step_ms: int
) -> None:
    start = clock.now_ms()
    machine.set_wall(step_ms)
    assert clock.now_ms() == start
    assert clock.ignores_wall
    machine.run(700)
    assert clock.now_ms() == start + 700
    assert clock.ignores_wall


def test_after_a_step_that_was_followed_the_old_time_never_comes_back(
    machine: Machine, clock: SteadyClock
) -> None:
    start = clock.now_ms()
    machine.set_wall(HOUR_MS)
    clock.now_ms()
    machine.set_wall(-HOUR_MS)
    assert clock.now_ms() == start + HOUR_MS


def test_resync_believes_the_wall_clock_however_far_ahead(
    machine: Machine, clock: SteadyClock
) -> None:
    machine.set_wall(YEAR_MS)
    clock.now_ms()
    assert clock.ignores_wall
    clock.resync()
    assert not clock.ignores_wall
    assert clock.now_ms() == machine.wall


def test_resync_never_steps_back(machine: Machine, clock: SteadyClock) -> None:
    start = clock.now_ms()
    machine.set_wall(-YEAR_MS)
    clock.resync()
    assert clock.now_ms() == start


def test_a_floor_ahead_of_the_clocks_is_where_time_goes_on(
    machine: Machine, clock: SteadyClock
) -> None:
    floor = clock.now_ms() + YEAR_MS
    clock.never_before(floor)
    assert clock.now_ms() == floor
    machine.run(5)
    assert clock.now_ms() == floor + 5


def test_a_floor_behind_the_clocks_changes_nothing(machine: Machine, clock: SteadyClock) -> None:
    clock.never_before(machine.wall - YEAR_MS)
    assert clock.now_ms() == machine.wall


def test_a_floor_beyond_all_deadlines_fits_the_clock(clock: SteadyClock) -> None:
    clock.never_before(DEADLINE_MS_MAX)
    assert clock.now_ms() == DEADLINE_MS_MAX
    clock.never_before(2**63 - 1)
    assert clock.now_ms() > DEADLINE_MS_MAX


def test_clocks_that_share_a_word_share_what_they_believe(machine: Machine) -> None:
    word = bytearray(16)
    first, second = machine.steady_clock(), machine.steady_clock()
    first.share(word, 8, is_first=True)
    second.share(word, 8, is_first=False)
    machine.set_wall(HOUR_MS)
    ahead = first.now_ms()
    machine.set_wall(-HOUR_MS)
    assert second.now_ms() == ahead
    second.unshare()
    first.never_before(ahead + YEAR_MS)
    assert second.now_ms() == ahead
    assert first.now_ms() == ahead + YEAR_MS


@pytest.mark.parametrize("at", [-8, 4, 16])
def test_a_word_must_lie_within_the_shared_memory(clock: SteadyClock, at: int) -> None:
    with pytest.raises(ValueError, match=str(at)):
        clock.share(bytearray(16), at, is_first=True)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["run", "set_wall"]),
            st.integers(-2 * YEAR_MS, 2 * YEAR_MS),
        )
    )
)
def test_time_never_runs_backwards_and_never_slower_than_the_machine(
    events: list[tuple[str, int]],
) -> None:
    machine = Machine()
    clock = machine.steady_clock()
    now, boot = clock.now_ms(), machine.boot
    for event, ms in events:
        if event == "run":
            machine.run(abs(ms))
        else:
            machine.set_wall(ms)
        then, then_boot, now, boot = now, boot, clock.now_ms(), machine.boot
        assert now - then >= boot - then_boot


def test_the_real_clocks_go_forward() -> None:
    clock = SteadyClock()
    readings = [clock.now_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert abs(clock.now_ms() - wall_ms()) < 1_000
    assert boot_ns() <= boot_ns()
    assert elapsed_ns() <= elapsed_ns()


def test_a_manual_clock_stands_still_until_it_is_told() -> None:
    clock = ManualClock(1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    clock.advance(1.5)
    clock.advance(timedelta(minutes=1))
    clock.advance(0)
    assert clock.now_ms() == 62_500
    assert repr(clock) == "ManualClock(62500)"


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), True, "1", None])
def test_a_manual_clock_refuses_what_is_no_step_forward(seconds: object) -> None:
    clock = ManualClock(1_000)
    with pytest.raises(InvalidArgument):
        clock.advance(seconds)  # type: ignore[arg-type]  # wrong on purpose
    assert clock.now_ms() == 1_000


@pytest.mark.parametrize("start", [-1, 1.5, True, "0", None])
def test_a_manual_clock_refuses_a_start_that_is_no_instant(start: object) -> None:
    with pytest.raises(InvalidArgument, match="start_ms"):
        ManualClock(start)  # type: ignore[arg-type]  # wrong on purpose


def test_the_systems_clock_is_never_behind_the_wall_clock_nor_runs_back() -> None:
    clock = SteadyClock()
    last_us = 0
    for _ in range(20_000):
        before_us = wall_ns() // 1_000
        now_us = clock.now_us()
        # One of rounding: the difference of the two clocks is rounded up.
        assert max(before_us, last_us) <= now_us <= wall_ns() // 1_000 + 1
        last_us = now_us


def test_the_systems_clock_in_milliseconds_is_never_behind_the_wall_clock() -> None:
    clock = SteadyClock()
    for _ in range(20_000):
        before_ms = wall_ms()
        assert before_ms <= clock.now_ms() <= (wall_ns() + 1_000) // NS_PER_MS


def test_a_clock_is_never_behind_the_wall_clock_whenever_it_was_started() -> None:
    for _ in range(100):
        clock = SteadyClock()
        # Long enough for either clock to reach its next millisecond, and no whole number of them:
        # the next clock starts elsewhere in a millisecond.
        until_ns = elapsed_ns() + 2_130_000
        while elapsed_ns() < until_ns:
            before_ms = wall_ms()
            assert before_ms <= clock.now_ms()


def test_microseconds_of_a_clock_that_is_handed_in_are_whole_milliseconds() -> None:
    assert Now(ManualClock(1_234)).us() == 1_234_000
    assert Now(SteadyClock(read_wall=lambda: 1_234_567, read_boot=lambda: 1_000)).us() == 1_235
