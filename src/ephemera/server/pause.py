"""CLIENT PAUSE: commands that wait until it is over."""

from __future__ import annotations

from collections.abc import Iterable

from ephemera.core.expiry import is_dead
from ephemera.server.table import Command


class Pause:
    """Until when which commands wait: all, or those that change something."""

    def __init__(self) -> None:
        self.until_ms = 0
        self._holds_all = False

    def begin(self, until_ms: int, *, holds_all: bool) -> None:
        """A second pause may only prolong the first, or let more wait."""
        self.until_ms = max(self.until_ms, until_ms)
        self._holds_all = self._holds_all or holds_all

    def end(self) -> None:
        self.until_ms = 0
        self._holds_all = False

    def is_over(self, now_ms: int) -> bool:
        return is_dead(self.until_ms, now_ms)

    def holds(self, about_to_run: Iterable[Command]) -> bool:
        """Whether the commands that a request would run must wait."""
        return self._holds_all or any(each.counts_as_write for each in about_to_run)
