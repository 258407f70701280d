"""Who subscribed to what, and the way of a message to all of them.

Channels, patterns and shard channels are three `Topics` of the same making. A message is encoded once for
each version of the protocol, however many clients get it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ephemera.resp.encoder import encode
from ephemera.resp.replies import Push
from ephemera.server.glob import glob

if TYPE_CHECKING:
    import re

    from ephemera.server.session import Session


Outer = TypeVar("Outer")
Inner = TypeVar("Inner")


class Topics:
    """The subscriptions of one kind, by name and by client, each in the order in which they began."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, dict[Session, None]] = {}
        self._by_session: dict[Session, dict[bytes, None]] = {}

    def add(self, session: Session, name: bytes) -> None:
        self.by_name.setdefault(name, {})[session] = None
        self._by_session.setdefault(session, {})[name] = None

    def remove(self, session: Session, name: bytes) -> None:
        if name in self._by_session.get(session, ()):
            _drop(self._by_session, session, name)
            _drop(self.by_name, name, session)

    def of(self, session: Session) -> list[bytes]:
        """What this client subscribed to."""
        return list(self._by_session.get(session, ()))

    def count(self, session: Session) -> int:
        """To how much this client subscribed."""
        return len(self._by_session.get(session, ()))


class Delivery(NamedTuple):
    """A message and the clients that get it."""

    receivers: tuple[Session, ...]
    message: Push

    def send(self) -> None:
        encoded: dict[int, bytes] = {}
        for session in self.receivers:
            data = encoded.get(session.protocol)
            if data is None:
                data = encoded[session.protocol] = encode(self.message, session.protocol)
            session.deliver(data)


class Hub:
    """All subscriptions of a server."""

    def __init__(self) -> None:
        self.channels = Topics()
        self.patterns = Topics()
        self.shards = Topics()
        self._globs: dict[bytes, re.Pattern[bytes]] = {}

    def subscribe(self, session: Session, topics: Topics, name: bytes) -> None:
        topics.add(session, name)
        if topics is self.patterns:
            self._globs[name] = glob(name)
        self._review(session)

    def unsubscribe(self, session: Session, topics: Topics, name: bytes) -> None:
        topics.remove(session, name)
        if topics is self.patterns and name not in topics.by_name:
            self._globs.pop(name, None)
        self._review(session)

    def leave(self, session: Session) -> None:
        """End all that this client subscribed to."""
        for topics in (self.channels, self.patterns, self.shards):
            for name in topics.of(session):
                self.unsubscribe(session, topics, name)

    def address(self, channel: bytes, message: bytes) -> list[Delivery]:
        """To whom a message goes: who subscribed to its channel first, then who did by patterns."""
        found = []
        receivers = self.channels.by_name.get(channel)
        if receivers is not None:
            found.append(Delivery(tuple(receivers), Push((b"message", channel, message))))
        for pattern, matcher in self._globs.items():
            if matcher.fullmatch(channel):
                by_pattern = Push((b"pmessage", pattern, channel, message))
                found.append(Delivery(tuple(self.patterns.by_name[pattern]), by_pattern))
        return found

    def address_shard(self, channel: bytes, message: bytes) -> list[Delivery]:
        """The same for a shard channel, which patterns do not match."""
        receivers = tuple(self.shards.by_name.get(channel, ()))
        return [Delivery(receivers, Push((b"smessage", channel, message)))]

    def publish(self, channel: bytes, message: bytes) -> None:
        for delivery in self.address(channel, message):
            delivery.send()

    def _review(self, session: Session) -> None:
        session.subscriptions = sum(
            topics.count(session) for topics in (self.channels, self.patterns, self.shards)
        )
        session.review()


def _drop(topics: dict[Outer, dict[Inner, None]], outer: Outer, inner: Inner) -> None:
    """Remove one entry, and with the last one its place."""
    del topics[outer][inner]
    if not topics[outer]:
        del topics[outer]
