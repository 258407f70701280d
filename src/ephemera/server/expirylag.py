"""How late keys that die are noticed: the time between their deadlines and their events, measured."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from ephemera import Capability, Expired, Store

RECENT_MAX = 4096


class Lag(NamedTuple):
    """Milliseconds between deadline and event, of the last `keys` keys that died."""

    keys: int = 0
    last_ms: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class ExpiryLag:
    """Counts the dead and measures the delay of the last of them.

    The store tells of the dead in threads of its own, so this alone of a server is under a lock.
    """

    def __init__(self, store: Store) -> None:
        self.expired = 0
        self._now_ms = store.clock.now_ms
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._lock = threading.Lock()
        if Capability.EXPIRY_EVENTS in store.capabilities:
            store.on_expire(self._note)

    def _note(self, dead: Expired) -> None:
        lag_ms = self._now_ms() - dead.deadline_ms
        with self._lock:
            self.expired += 1
            self._recent.append(lag_ms)

    def reset(self) -> None:
        """Count from here on."""
        with self._lock:
            self.expired = 0
            self._recent.clear()

    def measured(self) -> Lag:
        with self._lock:
            recent = list(self._recent)
        if not recent:
            return Lag()
        ordered = sorted(recent)
        return Lag(
            keys=len(ordered),
            last_ms=recent[-1],
            p50_ms=ordered[(len(ordered) - 1) // 2],
            p99_ms=ordered[(len(ordered) - 1) * 99 // 100],
            max_ms=ordered[-1],
        )
