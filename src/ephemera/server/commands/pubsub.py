"""Messages: subscribing to channels, and publishing on them."""

from __future__ import annotations

from collections.abc import Callable

from ephemera.resp.replies import Push, Pushes, Refused, Reply
from ephemera.server.glob import glob
from ephemera.server.pubsub import Delivery, Topics
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("pubsub")


# --- subscribing ----------------------------------------------------------------------------------


@command("SUBSCRIBE", arity=-2, flags="pubsub noscript loading stale", since="2.0.0",
         summary="Listens to channels.")  # fmt: skip
def subscribe(call: Call) -> Reply:
    return _subscribe(call, b"subscribe", call.server.pubsub.channels)


@command("PSUBSCRIBE", arity=-2, flags="pubsub noscript loading stale", since="2.0.0",
         summary="Listens to all channels whose names match patterns.")  # fmt: skip
def psubscribe(call: Call) -> Reply:
    return _subscribe(call, b"psubscribe", call.server.pubsub.patterns)


@command("SSUBSCRIBE", arity=-2, flags="pubsub noscript loading stale",
         keys=KeyRange(1, -1, access="not_key"), since="7.0.0",
         summary="Listens to shard channels.")  # fmt: skip
def ssubscribe(call: Call) -> Reply:
    return _subscribe(call, b"ssubscribe", call.server.pubsub.shards)


@command("UNSUBSCRIBE", arity=-1, flags="pubsub noscript loading stale", since="2.0.0",
         summary="Listens to these channels no more, or to none.")  # fmt: skip
def unsubscribe(call: Call) -> Reply:
    return _unsubscribe(call, b"unsubscribe", call.server.pubsub.channels)


@command("PUNSUBSCRIBE", arity=-1, flags="pubsub noscript loading stale", since="2.0.0",
         summary="Listens by these patterns no more, or by none.")  # fmt: skip
def punsubscribe(call: Call) -> Reply:
    return _unsubscribe(call, b"punsubscribe", call.server.pubsub.patterns)


@command("SUNSUBSCRIBE", arity=-1, flags="pubsub noscript loading stale",
         keys=KeyRange(1, -1, access="not_key"), since="7.0.0",
         summary="Listens to these shard channels no more, or to none.")  # fmt: skip
def sunsubscribe(call: Call) -> Reply:
    return _unsubscribe(call, b"sunsubscribe", call.server.pubsub.shards)


def _subscribe(call: Call, verb: bytes, topics: Topics) -> Reply:
    replies = []
    for name in call.args[1:]:
        call.server.pubsub.subscribe(call.session, topics, name)
        replies.append(Push((verb, name, _count(call, topics))))
    return Pushes(replies)


def _unsubscribe(call: Call, verb: bytes, topics: Topics) -> Reply:
    replies = []
    for name in call.args[1:] or topics.of(call.session):
        call.server.pubsub.unsubscribe(call.session, topics, name)
        replies.append(Push((verb, name, _count(call, topics))))
    return Pushes(replies or [Push((verb, None, _count(call, topics)))])


def _count(call: Call, topics: Topics) -> int:
    """What a client is told that it listens to: channels and patterns count together."""
    hub = call.server.pubsub
    if topics is hub.shards:
        return topics.count(call.session)
    return hub.channels.count(call.session) + hub.patterns.count(call.session)


# --- publishing -----------------------------------------------------------------------------------


@command("PUBLISH", arity=3, flags="pubsub loading stale fast", since="2.0.0",
         summary="Sends a message on a channel; how many clients get it.")  # fmt: skip
def publish(call: Call) -> Reply:
    return _publish(call, call.server.pubsub.address)


@command("SPUBLISH", arity=3, flags="pubsub loading stale fast",
         keys=KeyRange(1, access="not_key"), since="7.0.0",
         summary="Sends a message on a shard channel; how many clients get it.")  # fmt: skip
def spublish(call: Call) -> Reply:
    return _publish(call, call.server.pubsub.address_shard)


def _publish(call: Call, address: Callable[[bytes, bytes], list[Delivery]]) -> int:
    deliveries = address(call.args[1], call.args[2])
    for delivery in deliveries:
        call.server.after_commit(delivery.send)
    return sum(len(delivery.receivers) for delivery in deliveries)


# --- PUBSUB ---------------------------------------------------------------------------------------

command.container("PUBSUB", since="2.8.0", summary="Tells who listens to what.")


@command("PUBSUB CHANNELS", arity=-2, flags="pubsub loading stale", since="2.8.0",
         summary="The channels that somebody listens to, all or those that match a pattern.")  # fmt: skip
def pubsub_channels(call: Call) -> Reply:
    return _names(call, call.server.pubsub.channels)


@command("PUBSUB NUMSUB", arity=-2, flags="pubsub loading stale", since="2.8.0",
         summary="How many clients listen to each of these channels, patterns aside.")  # fmt: skip
def pubsub_numsub(call: Call) -> Reply:
    return _counts(call, call.server.pubsub.channels)


@command("PUBSUB NUMPAT", arity=2, flags="pubsub loading stale", since="2.8.0",
         summary="How many patterns there are that somebody listens by.")  # fmt: skip
def pubsub_numpat(call: Call) -> Reply:
    return len(call.server.pubsub.patterns.by_name)


@command("PUBSUB SHARDCHANNELS", arity=-2, flags="pubsub loading stale", since="7.0.0",
         summary="The shard channels that somebody listens to, all or those that match a pattern.")  # fmt: skip
def pubsub_shardchannels(call: Call) -> Reply:
    return _names(call, call.server.pubsub.shards)


@command("PUBSUB SHARDNUMSUB", arity=-2, flags="pubsub loading stale", since="7.0.0",
         summary="How many clients listen to each of these shard channels.")  # fmt: skip
def pubsub_shardnumsub(call: Call) -> Reply:
    return _counts(call, call.server.pubsub.shards)


def _names(call: Call, topics: Topics) -> Reply:
    if len(call.args) > 3:
        raise Refused(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try PUBSUB HELP."
            % call.args[1]
        )
    pattern = glob(call.args[2] if len(call.args) == 3 else b"*")
    return [name for name in topics.by_name if pattern.fullmatch(name)]


def _counts(call: Call, topics: Topics) -> Reply:
    found: list[bytes | int] = []
    for name in call.args[2:]:
        found += [name, len(topics.by_name.get(name, ()))]
    return found
