"""Which clients watch which keys, and whose transaction is spoilt.

A key counts as Redis counts it: it has changed when somebody wrote, deleted or flushed it, or when it was
there at WATCH and has died since. One that was dead or absent then, and still is, has not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ephemera.server.events import KEYMISS, Event

if TYPE_CHECKING:
    from ephemera.server.server import Server
    from ephemera.server.session import Session

WatchedKey = tuple[int, bytes]
"""A key in the database of this number."""


class Watches:
    """The watched keys of all clients. It listens to changes only while there are any."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[WatchedKey, set[Session]] = {}
        self._watched: dict[Session, dict[WatchedKey, bool]] = {}  # and whether the key was there
        self._spoilt: set[Session] = set()

    def add(self, session: Session, key: bytes) -> None:
        """Watch a key of the session's database, from now on if not already."""
        watched_key = (session.db, key)
        watched = self._watched.setdefault(session, {})
        if watched_key in watched:
            return
        if not self._sessions:
            self._server.listeners.append(self._on_change)
        watched[watched_key] = self._is_there(watched_key)
        self._sessions.setdefault(watched_key, set()).add(session)

    def forget(self, session: Session) -> None:
        """Watch nothing for this client any more."""
        self._spoilt.discard(session)
        watched = self._watched.pop(session, {})
        for watched_key in watched:
            self._sessions[watched_key].discard(session)
            if not self._sessions[watched_key]:
                del self._sessions[watched_key]
        if watched and not self._sessions:
            self._server.listeners.remove(self._on_change)

    def is_spoilt(self, session: Session) -> bool:
        """Whether any key that the client watches has changed."""
        return session in self._spoilt or any(
            was_there and not self._is_there(watched_key)
            for watched_key, was_there in self._watched.get(session, {}).items()
        )

    def _on_change(self, number: int, key: bytes | None, event: Event) -> None:
        if event is KEYMISS:
            return
        if key is not None:
            self._spoilt |= self._sessions.get((number, key), set())
            return
        # A whole database was emptied or swapped: those keys changed that were there, or are now.
        for watched_key, sessions in self._sessions.items():
            if watched_key[0] == number:
                is_there = self._is_there(watched_key)
                self._spoilt |= {
                    session
                    for session in sessions
                    if is_there or self._watched[session][watched_key]
                }

    def _is_there(self, watched_key: WatchedKey) -> bool:
        number, key = watched_key
        return self._server.database(number).peek(key) is not None
