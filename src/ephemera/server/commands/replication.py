"""Commands about other servers, of which there are none: this one is alone, and nobody's replica."""

from __future__ import annotations

from ephemera.resp.replies import OK, Refused, Reply
from ephemera.server.arguments import NOT_AN_INTEGER, integer
from ephemera.server.session import Call
from ephemera.server.table import Group

command = Group("server")
generic_command = Group("generic")
cluster_command = Group("cluster")

NO_CLUSTER = "ERR This instance has cluster support disabled"


@command("ROLE", arity=1, flags="noscript loading stale fast", since="2.8.12",
         summary="That this is a master without replicas.")  # fmt: skip
def role(call: Call) -> Reply:
    return [b"master", 0, []]


@command("REPLICAOF", arity=3, flags="admin noscript stale no_async_loading", since="5.0.0",
         summary="Takes NO ONE alone: there is no replication.")  # fmt: skip
def replicaof(call: Call) -> Reply:
    if [word.lower() for word in call.args[1:]] != [b"no", b"one"]:
        raise Refused("ERR this server cannot be a replica: only REPLICAOF NO ONE")
    return OK


command("SLAVEOF", arity=3, flags="admin noscript stale no_async_loading", since="1.0.0",
        summary="As REPLICAOF.")(replicaof)  # fmt: skip


@command("FAILOVER", arity=-1, flags="admin noscript stale", since="6.2.0",
         summary="Refused: there are no replicas.")  # fmt: skip
def failover(call: Call) -> Reply:
    if [word.lower() for word in call.args[1:]] == [b"abort"]:
        raise Refused("ERR No failover in progress.")
    raise Refused("ERR FAILOVER requires connected replicas.")


@generic_command("WAIT", arity=3, flags="noscript", since="3.0.0",
                 tips="request_policy:all_shards response_policy:agg_min",
                 summary="Answers 0 at once: no replica will ever have the writes.")  # fmt: skip
def wait(call: Call) -> Reply:
    integer(call.args[1])
    _check_timeout(call.args[2])
    return 0


@generic_command("WAITAOF", arity=4, flags="noscript", since="7.2.0",
                 summary="Answers when all writes so far would survive a power loss.")  # fmt: skip
def waitaof(call: Call) -> Reply:
    if integer(call.args[1]) not in (0, 1):
        raise Refused("ERR value is out of range, value must between 0 and 1")
    if integer(call.args[2]) < 0:
        raise Refused("ERR value is out of range, must be positive")
    _check_timeout(call.args[3])
    call.server.store.sync()
    return [1, 0]


def _check_timeout(argument: bytes) -> None:
    if integer(argument, NOT_AN_INTEGER.replace("value", "timeout")) < 0:
        raise Refused("ERR timeout is negative")


# --- clusters -------------------------------------------------------------------------------------


def _no_cluster(call: Call) -> Reply:
    raise Refused(NO_CLUSTER)


for _name, _arity, _flags in (
    ("CLUSTER", -2, ""),
    ("READONLY", 1, "loading stale fast"),
    ("READWRITE", 1, "loading stale fast"),
    ("ASKING", 1, "fast"),
):
    cluster_command(_name, arity=_arity, flags=_flags, since="3.0.0",
                    summary="Refused: there is no cluster.")(_no_cluster)  # fmt: skip
