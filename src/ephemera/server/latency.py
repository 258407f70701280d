"""Latency spikes over time: commands that took `latency-monitor-threshold` milliseconds or more (0: none).

There are two series, of slow commands and of those that are declared fast. The histogram that
`latency-tracking` keeps of each command is its own (`_latency.pyx`).
"""

from __future__ import annotations

from collections import deque
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


class Latency:
    """What was measured since the start, or since the last reset."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.series: dict[bytes, Series] = {}

    def note(self, command: Command, micros: int, *, at_ms: int) -> None:
        threshold_ms = self._settings.latency_monitor_threshold
        if threshold_ms and micros >= threshold_ms * 1000:
            name = FAST if "fast" in command.flags else SLOW
            self.series.setdefault(name, Series()).note(Spike(at_ms // 1000, micros // 1000))
