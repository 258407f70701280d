"""Expired keys, on their way from the store to the listeners of a server.

A thread of the store reports each expiry. The report is handed over to the thread that serves, which
delivers it to the listeners: a batch of reports costs one wake-up. The store is followed only while there
are listeners.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ephemera import Capability, Expired
from ephemera.server.events import EXPIRED

if TYPE_CHECKING:
    from ephemera.server.server import OnChange, Server

_log = logging.getLogger("ephemera.server")


class Expirations:
    """The listeners that hear of expired keys, and the reports that are not delivered yet."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.listeners: list[OnChange] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._reported: deque[Expired] = deque()
        self._is_handed_over = False

    def add(self, listener: OnChange) -> None:
        """Deliver expired keys to this listener, too, from now on."""
        if listener in self.listeners:
            return
        self.listeners.append(listener)
        if Capability.EXPIRY_EVENTS not in self._server.store.capabilities:
            _log.warning("the engine behind this server reports no expiry: no such event comes")
        elif self._unsubscribe is None:
            self._unsubscribe = self._server.store.on_expire(self._report)

    def remove(self, listener: OnChange) -> None:
        """Deliver nothing more to this listener."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _report(self, expired: Expired) -> None:
        """Keep a report for the server's thread; called in a thread of the store."""
        self._reported.append(expired)
        if not self._is_handed_over:
            self._is_handed_over = True
            self._server.hand_over(self._deliver)

    def _deliver(self) -> None:
        self._is_handed_over = (
            False  # before the loop: a report that comes now wakes the server again
        )
        while self._reported:
            expired = self._reported.popleft()
            number = self._server.numbers.get(expired.family)
            if number is not None:
                self._server.tell(number, expired.key, EXPIRED)
        self._server.send_broadcast()
