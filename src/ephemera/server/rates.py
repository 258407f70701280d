"""How much is done in a second: what INFO calls instantaneous."""

from __future__ import annotations

from typing import NamedTuple


class Done(NamedTuple):
    """What was done so far."""

    commands: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


class Rates:
    """The difference between the last two looks, for each second between them."""

    def __init__(self, now_ms: int) -> None:
        self._looked_ms = now_ms
        self._before = Done()
        self.commands = 0.0
        self.input_bytes = 0.0
        self.output_bytes = 0.0

    def look(self, now_ms: int, done: Done) -> None:
        seconds = (now_ms - self._looked_ms) / 1000
        if seconds <= 0:
            return
        # Counters may have been set back to zero in between.
        self.commands, self.input_bytes, self.output_bytes = (
            max(0, now - before) / seconds for now, before in zip(done, self._before, strict=True)
        )
        self._looked_ms, self._before = now_ms, done
