"""Keyspace notifications: what happens to keys, published to who subscribed to it.

`notify-keyspace-events` says what is published, and where: K on the channel of the key, E on the channel of
the event. The other letters are the classes of `events`; A stands for all of them but n and m.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ephemera.server.events import DEL, EXPIRED, KEYMISS, NEW, SET, Event
from ephemera.server.settings import EVENT_CLASSES

if TYPE_CHECKING:
    from ephemera.server.server import Server

TOLD_BY_COMMANDS = {event.kind for event in (SET, DEL, NEW, KEYMISS)}
"""The classes of all that is told to `server.listeners`; the others are of expired keys, or of what never happens here."""


class Notifications:
    """Publishes what the setting chooses. It listens to writes and expired keys only if they are wanted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._setting = ""
        self._classes: frozenset[str] = frozenset()
        self._names_key = self._names_event = False
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
        # A listener of writes slows them down: where expired keys alone are wanted, there is none.
        self._listen_to_writes(bool(self._classes & TOLD_BY_COMMANDS))
        if EXPIRED.kind in self._classes:
            self._server.expirations.add(self._on_change)
        else:
            self._server.expirations.remove(self._on_change)
        self._server.tells_misses = KEYMISS.kind in self._classes
        self._server.tell_new_keys(NEW.kind in self._classes)

    def _listen_to_writes(self, is_wanted: bool) -> None:
        listeners = self._server.listeners
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
