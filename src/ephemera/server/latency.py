"""How long commands take: spikes over time, and the spread of each command.

Spikes are kept from `latency-monitor-threshold` milliseconds on (0: not at all), in two series, of slow
commands and of those that are declared fast. The spread is kept while `latency-tracking` is on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from ephemera.server.settings import Settings
from ephemera.server.table import Command

SPIKES_MAX = 160
FAST = b"fast-command"
SLOW = b"command"


class Spike(NamedTuple):
    """The longest that was measured within one second."""

    at_seconds: int
    millis: int


class Series:
    """The spikes of one kind of event."""

    def __init__(self) -> None:
        self.spikes: deque[Spike] = deque(maxlen=SPIKES_MAX)
        self.highest_ms = 0

    def note(self, spike: Spike) -> None:
        self.highest_ms = max(self.highest_ms, spike.millis)
        if self.spikes and self.spikes[-1].at_seconds == spike.at_seconds:
            spike = max(spike, self.spikes.pop())
        self.spikes.append(spike)


class Spread:
    """How often a command took how long, in steps that double: up to 1, 2, 4, 8, … microseconds."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, int] = defaultdict(int)

    def note(self, micros: int) -> None:
        self._counts[max(micros - 1, 0).bit_length()] += 1

    @property
    def calls(self) -> int:
        return sum(self._counts.values())

    def cumulative(self) -> dict[int, int]:
        """How many took at most so many microseconds, for each step at which there are more.

        >>> spread = Spread()
        >>> for micros in (1, 3, 4, 100):
        ...     spread.note(micros)
        >>> spread.cumulative(), spread.percentile(50)
        ({1: 1, 4: 3, 128: 4}, 4)
        """
        total = 0
        steps = {}
        for step in sorted(self._counts):
            total += self._counts[step]
            steps[2**step] = total
        return steps

    def percentile(self, percent: float) -> int:
        """The microseconds that so many percent of the calls did not exceed, up to the next step."""
        wanted = self.calls * percent / 100
        return next(micros for micros, total in self.cumulative().items() if total >= wanted)


class Latency:
    """What was measured since the start, or since the last reset."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.series: dict[bytes, Series] = {}
        self.spreads: dict[str, Spread] = {}

    def note(self, command: Command, micros: int, *, at_ms: int) -> None:
        if self._settings.latency_tracking:
            self.spreads.setdefault(command.name, Spread()).note(micros)
        threshold_ms = self._settings.latency_monitor_threshold
        if threshold_ms and micros >= threshold_ms * 1000:
            name = FAST if "fast" in command.flags else SLOW
            self.series.setdefault(name, Series()).note(Spike(at_ms // 1000, micros // 1000))
