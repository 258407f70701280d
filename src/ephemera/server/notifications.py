"""Keyspace notifications: what happens to keys, published to who subscribed to it.

`notify-keyspace-events` says what is published, and where: K on the channel of the key, E on the channel of
the event. The other letters are the classes of `events`; A stands for all of them but n and m.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ephemera import Capability, Expired
from ephemera.server.events import DEL, EXPIRED, KEYMISS, NEW, SET, Event
from ephemera.server.settings import EVENT_CLASSES

if TYPE_CHECKING:
    from ephemera.server.server import OnChange, Server

_log = logging.getLogger("ephemera.server")

TOLD_BY_COMMANDS = {event.kind for event in (SET, DEL, NEW, KEYMISS)}
"""The classes of all that is told to `server.listeners`; the others are of deaths, or of what never happens here."""


class Notifications:
    """Publishes what the setting chooses. It listens to changes and deaths only if they are wanted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._setting = ""
        self._classes: frozenset[str] = frozenset()
        self._names_key = self._names_event = False
        self._end_of_deaths: Callable[[], None] | None = None
        self._dead: deque[Expired] = deque()
        self._is_handed_over = False
        self.review()

    def review(self) -> None:
        """Follow the setting, if it changed."""
        setting = self._server.settings.notify_keyspace_events
        if setting == self._setting:
            return
        self._setting = setting
        letters = frozenset(setting.replace("A", EVENT_CLASSES))
        self._names_key, self._names_event = "K" in letters, "E" in letters
        self._classes = letters - {"K", "E"} if letters & {"K", "E"} else frozenset()
        # Who listens to commands slows them down: where deaths alone are wanted, nobody does.
        self._listen(self._server.listeners, bool(self._classes & TOLD_BY_COMMANDS))
        self._listen(self._server.death_listeners, EXPIRED.kind in self._classes)
        self._server.tells_misses = KEYMISS.kind in self._classes
        self._server.tell_new_keys(NEW.kind in self._classes)
        self._follow_deaths(EXPIRED.kind in self._classes)

    def _listen(self, listeners: list[OnChange], is_wanted: bool) -> None:
        if is_wanted and self._on_change not in listeners:
            listeners.append(self._on_change)
        elif not is_wanted and self._on_change in listeners:
            listeners.remove(self._on_change)

    def _on_change(self, number: int, key: bytes | None, event: Event) -> None:
        if event.kind not in self._classes or key is None:
            return
        if self._names_key:
            self._server.pubsub.publish(b"__keyspace@%d__:%b" % (number, key), event.name)
        if self._names_event:
            self._server.pubsub.publish(b"__keyevent@%d__:%b" % (number, event.name), key)

    # --- deaths, which a thread of the store tells ------------------------------------------------

    def _follow_deaths(self, is_wanted: bool) -> None:
        if is_wanted and Capability.EXPIRY_EVENTS not in self._server.store.capabilities:
            _log.warning("the engine behind this server tells of no deaths: no expired event comes")
        elif is_wanted and self._end_of_deaths is None:
            self._end_of_deaths = self._server.store.on_expire(self._on_expire)
        elif not is_wanted and self._end_of_deaths is not None:
            self._end_of_deaths()
            self._end_of_deaths = None

    def _on_expire(self, dead: Expired) -> None:
        """Keep a death for the server's thread, which is woken once for all that come until it looks."""
        self._dead.append(dead)
        if not self._is_handed_over:
            self._is_handed_over = True
            self._server.hand_over(self._tell_deaths)

    def _tell_deaths(self) -> None:
        self._is_handed_over = False  # before looking: a death that comes now wakes again
        while self._dead:
            dead = self._dead.popleft()
            number = self._server.numbers.get(dead.family)
            if number is not None:
                self._server.tell(number, dead.key, EXPIRED)
