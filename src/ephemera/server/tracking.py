"""Client-side caching: the tracking table, and the invalidation messages that keep clients' caches fresh.

    remember(session, keys)   a tracking client has read these keys
    invalidate(key)           the key was written, or has expired
    flush()                   every key may have changed

In the default mode the table remembers which client has read which key. The first change of a key sends one
message to each of its readers and forgets them: the next read remembers them again. In broadcasting mode
(BCAST) nothing is remembered: a client hears of every change of a key with one of its prefixes, one message
for all requests of a client that are answered together, before their replies go out (`ServerCounters.broadcast`). Key
names count in all databases alike, as in Redis.

The table holds client ids, not sessions: the id of a disconnected client stays until its key changes, so
that disconnecting costs nothing. It hears of writes through `server.listeners` and of expired keys
through `server.expirations`, both only while a client tracks: without one, writes are answered in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ephemera.resp.encoder import encode
from ephemera.resp.replies import Push
from ephemera.server.events import KEYMISS, Event

if TYPE_CHECKING:
    from ephemera.server.server import Server
    from ephemera.server.session import Session

CHANNEL = b"__redis__:invalidate"
"""Where a RESP2 connection gets the messages that are redirected to it."""
NOT_TRACKING = -1
EVICTED_AT_ONCE_MAX = 100
EVICTED_SHARE = 10_000
"""One of so many keys is evicted at once: to find the oldest key of a dict is not free."""
STALE_READERS_MIN = 16


@dataclass(slots=True)
class Mode:
    """What a client has asked CLIENT TRACKING for. `redirect` is the id of the receiving client, or 0."""

    redirect: int = 0
    is_broadcast: bool = False
    is_optin: bool = False
    is_optout: bool = False
    is_noloop: bool = False
    prefixes: set[bytes] = field(default_factory=set)
    is_caching: bool = False
    """Whether CLIENT CACHING was given for the next command or transaction."""
    is_redirect_broken: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the keys that the client reads now are to be remembered."""
        if self.is_broadcast:
            return False
        return self.is_caching if self.is_optin else not (self.is_optout and self.is_caching)


class Invalidation:
    """Keys that clients must drop (None: all of them), encoded once for each protocol."""

    def __init__(self, keys: list[bytes] | None) -> None:
        self._keys = keys
        self._encoded: dict[int, bytes] = {}

    def encoded(self, protocol: int) -> bytes:
        data = self._encoded.get(protocol)
        if data is None:
            head = (b"invalidate",) if protocol == 3 else (b"message", CHANNEL)
            data = self._encoded[protocol] = encode(Push((*head, self._keys)), protocol)
        return data


class Tracking:
    """The tracking clients of a server, the tracking table, and the prefixes of broadcasting clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.modes: dict[Session, Mode] = {}
        self.readers: dict[bytes, set[int]] = {}
        """The tracking table: the ids of the clients that have read a key."""
        self.items = 0
        """How many ids the table holds."""
        self.prefixes: dict[bytes, dict[Session, None]] = {}
        self._changed: set[bytes] = set()
        """Keys to broadcast. All of them were changed by the client that is answered now, or have expired."""

    # --- clients ------------------------------------------------------------------------------

    def enable(self, session: Session, mode: Mode) -> None:
        """Track for this client from now on; prefixes are added to those that it has."""
        if not self.modes:
            # First of all listeners: a client hears of an invalidation before it does of the event.
            self._server.listeners.insert(0, self._on_change)
            self._server.expirations.add(self._on_change)
        former = self.modes.get(session)
        if former is not None:
            mode.is_caching = former.is_caching and (mode.is_optin or mode.is_optout)
            mode.prefixes |= former.prefixes
        self.modes[session] = mode
        for prefix in mode.prefixes:
            self.prefixes.setdefault(prefix, {})[session] = None
        session.review()

    def disable(self, session: Session) -> None:
        """Track no more for this client; what it has read stays in the table until it changes."""
        mode = self.modes.pop(session, None)
        if mode is None:
            return
        for prefix in mode.prefixes:
            del self.prefixes[prefix][session]
            if not self.prefixes[prefix]:
                del self.prefixes[prefix]
        if not self.modes:
            self._server.listeners.remove(self._on_change)
            self._server.expirations.remove(self._on_change)
            self._forget_all()
            self._changed.clear()
        session.review()

    def redirect(self, session: Session) -> int:
        """The id of the client that gets this one's messages: 0 for itself, NOT_TRACKING without tracking."""
        mode = self.modes.get(session)
        return NOT_TRACKING if mode is None else mode.redirect

    def letters(self, session: Session) -> set[str]:
        """What CLIENT LIST says of it: t tracks, R redirects to a client that is gone, B broadcasts."""
        mode = self.modes.get(session)
        if mode is None:
            return set()
        return {"t", *("R" * mode.is_redirect_broken), *("B" * mode.is_broadcast)}

    # --- reads --------------------------------------------------------------------------------

    def follows_reads(self, session: Session) -> bool:
        """Whether reads of this client are to be remembered: none is answered in place then."""
        mode = self.modes.get(session)
        return mode is not None and not mode.is_broadcast

    def may_choose(self, session: Session) -> bool:
        """Whether CLIENT CACHING may decide about this client's next command."""
        mode = self.modes.get(session)
        return mode is not None and (mode.is_optin or mode.is_optout)

    def end_caching(self, session: Session, name: bytes) -> None:
        """After a command or a transaction: CLIENT CACHING was about this one, unless it is CLIENT itself."""
        mode = self.modes.get(session)
        if mode is not None and mode.is_caching:
            command = self._server.commands.named(name)
            mode.is_caching = command is not None and command.name == "client"

    def remember(self, session: Session, keys: Sequence[bytes]) -> None:
        """Note that the client has read these keys, after the commit if it did inside a transaction.

        There the order counts: a key that the transaction writes and then reads stays tracked.
        """
        mode = self.modes.get(session)
        if keys and mode is not None and mode.remembers:
            self._server.after_commit(partial(self._remember, session.id, keys))

    def _remember(self, client_id: int, keys: Sequence[bytes]) -> None:
        if not self.modes:
            return  # the transaction itself ended the last client's tracking
        stale_max = max(STALE_READERS_MIN, 2 * len(self._server.clients))
        for key in keys:
            readers = self.readers.setdefault(key, set())
            before = len(readers)
            readers.add(client_id)
            if len(readers) > stale_max:
                readers.intersection_update(self._server.clients)
            self.items += len(readers) - before
        self._evict()

    def _evict(self) -> None:
        """Invalidate the keys that were remembered first while there are more than the setting allows."""
        keys_max = self._server.settings.tracking_table_max_keys
        excess = len(self.readers) - keys_max
        if keys_max and excess > 0:
            count = min(max(excess, keys_max // EVICTED_SHARE), EVICTED_AT_ONCE_MAX)
            for key in tuple(islice(self.readers, count)):
                self._invalidate_readers(key, spares_writer=False)

    # --- writes -------------------------------------------------------------------------------

    def _on_change(self, _: int, key: bytes | None, event: Event) -> None:
        if key is not None and event is not KEYMISS:
            self.invalidate(key)

    def invalidate(self, key: bytes) -> None:
        """Tell the clients that may have cached the key to drop it."""
        if self.prefixes:
            self._broadcast_later(key)
        self._invalidate_readers(key, spares_writer=True)

    def _invalidate_readers(self, key: bytes, *, spares_writer: bool) -> None:
        """Send to the readers of a key, but for NOLOOP clients that wrote it themselves, and forget them."""
        readers = self.readers.pop(key, None)
        if readers is None:
            return
        self.items -= len(readers)
        invalidation = Invalidation([key])
        for client_id in readers:
            session = self._server.clients.get(client_id)
            mode = None if session is None else self.modes.get(session)
            if session is None or mode is None or mode.is_broadcast:
                continue
            if not (spares_writer and mode.is_noloop and session.is_processing):
                self._send(session, mode, invalidation)

    def flush(self) -> None:
        """Tell every tracking client to drop all that it has cached, and empty the table."""
        everything = Invalidation(None)
        for session, mode in tuple(self.modes.items()):
            self._send(session, mode, everything)
        self._forget_all()

    def flush_client(self, session: Session) -> None:
        """The same for one client, if it tracks: keys may have expired between its read and `remember`."""
        mode = self.modes.get(session)
        if mode is not None:
            self._send(session, mode, Invalidation(None))

    def _forget_all(self) -> None:
        self.readers.clear()
        self.items = 0

    # --- broadcasts ---------------------------------------------------------------------------

    def _broadcast_later(self, key: bytes) -> None:
        if any(map(key.startswith, self.prefixes)):
            self._changed.add(key)
            self._server.broadcast = self._broadcast

    def _broadcast(self) -> None:
        """Send the keys that have changed, one message for each prefix of a client, but for a NOLOOP client that
        changed them itself."""
        changed, self._changed = self._changed, set()
        for prefix in sorted(self.prefixes):
            keys = sorted(key for key in changed if key.startswith(prefix))
            if not keys:
                continue
            invalidation = Invalidation(keys)
            for session in self.prefixes[prefix]:
                mode = self.modes[session]
                if not (mode.is_noloop and session.is_processing):
                    self._send(session, mode, invalidation)

    # --- messages -----------------------------------------------------------------------------

    def _send(self, session: Session, mode: Mode, invalidation: Invalidation) -> None:
        """Send to the client, or to the one it redirects to; RESP2 has a place for it in pub/sub alone."""
        receiver = session
        if mode.redirect:
            target = self._server.clients.get(mode.redirect)
            if target is None:
                self._note_broken_redirect(session, mode)
                return
            receiver = target
        if receiver.protocol == 3 or (mode.redirect and receiver.subscriptions):
            receiver.deliver(invalidation.encoded(receiver.protocol))

    def _note_broken_redirect(self, session: Session, mode: Mode) -> None:
        mode.is_redirect_broken = True
        if session.protocol == 3:
            session.deliver(encode(Push((b"tracking-redir-broken", mode.redirect)), 3))
