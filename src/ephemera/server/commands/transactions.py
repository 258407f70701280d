"""Transactions: commands that are kept with MULTI and run as one with EXEC, if nothing watched changed."""

from __future__ import annotations

from ephemera.resp.replies import NO_ARRAY, OK, Refused, Reply
from ephemera.server.session import Call, Session
from ephemera.server.table import Group, KeyRange

command = Group("transactions")


@command("MULTI", arity=1, flags="noscript loading stale fast allow_busy", since="1.2.0",
         summary="Begins a transaction: commands are kept until EXEC.")  # fmt: skip
def multi(call: Call) -> Reply:
    if call.session.queue is not None:
        raise Refused("ERR MULTI calls can not be nested")
    call.session.queue = []
    call.session.is_queue_broken = False
    call.session.review()
    return OK


@command("EXEC", arity=1, flags="noscript loading stale skip_slowlog", since="1.2.0",
         summary="Runs the commands since MULTI as one: all of them are kept, or after a crash none.")  # fmt: skip
def exec_(call: Call) -> Reply:
    session = call.session
    queue = session.queue
    if queue is None:
        raise Refused("ERR EXEC without MULTI")
    is_broken, is_spoilt = session.is_queue_broken, call.server.watches.is_spoilt(session)
    _end(session)
    if is_broken:
        raise Refused("EXECABORT Transaction discarded because of previous errors.")
    if is_spoilt:
        return NO_ARRAY
    session.executing = len(queue)
    try:
        with call.server.transaction():
            session.select(session.db)
            return [session.run_inside(queued, args) for queued, args in queue]
    finally:
        session.executing = None
        session.select(session.db)


@command("DISCARD", arity=1, flags="noscript loading stale fast allow_busy", since="2.0.0",
         summary="Forgets the commands since MULTI, and what was watched.")  # fmt: skip
def discard(call: Call) -> Reply:
    if call.session.queue is None:
        raise Refused("ERR DISCARD without MULTI")
    _end(call.session)
    return OK


@command("WATCH", arity=-2, flags="noscript loading stale fast allow_busy",
         keys=KeyRange(1, -1, access="RO"), since="2.2.0",
         summary="Lets the next EXEC do nothing if one of these keys changes, or dies, before it.")  # fmt: skip
def watch(call: Call) -> Reply:
    if call.session.queue is not None:
        raise Refused("ERR WATCH inside MULTI is not allowed")
    for key in call.args[1:]:
        call.server.watches.add(call.session, key)
    return OK


@command("UNWATCH", arity=1, flags="noscript loading stale fast allow_busy", since="2.2.0",
         summary="Watches no key any more.")  # fmt: skip
def unwatch(call: Call) -> Reply:
    call.server.watches.forget(call.session)
    return OK


def _end(session: Session) -> None:
    session.queue = None
    session.server.watches.forget(session)
    session.review()
