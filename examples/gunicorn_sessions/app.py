"""Sessions and a rate limit in a WSGI app whose workers share one store. README.md says how to run it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING

import ephemera

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SESSION_IDLE_SECONDS = 30 * 60
LIMIT = 100
LIMIT_SECONDS = 60

# With --preload this runs once, before the workers are forked; without it, once in each worker.
# The store does not mind.
store = ephemera.open(os.environ.get("SESSIONS_STORE", "sessions.eph"))
sessions = store.family("sessions")
limits = store.family("limits")

Page = Callable[["WSGIEnvironment"], tuple[str, str, list[tuple[str, str]]]]


def visit(environ: WSGIEnvironment) -> tuple[str, str, list[tuple[str, str]]]:
    """Count the visits of a session, which ends when it was idle for too long."""
    cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get("session")
    session = cookie.value if cookie is not None else ""
    with store.transaction() as txn:
        open_sessions = txn.family("sessions")
        is_known = bool(session) and open_sessions.touch(session)
        if not is_known:
            session = secrets.token_urlsafe(16)
            open_sessions.put(session, "0", idle=SESSION_IDLE_SECONDS)
        visits = open_sessions.incr(session)
    headers = [] if is_known else [("Set-Cookie", f"session={session}; HttpOnly; SameSite=Lax")]
    return "200 OK", f"visit {visits}", headers


def limited(environ: WSGIEnvironment) -> tuple[str, str, list[tuple[str, str]]]:
    """Serve each client so many times a minute: the counter dies a minute after its first request."""
    client = environ.get("HTTP_X_CLIENT") or environ.get("REMOTE_ADDR", "unknown")
    requests = limits.incr(client, ttl=LIMIT_SECONDS)
    if requests > LIMIT:
        left = limits.entry(client)
        wait = round(left.ttl or 0) + 1 if left is not None else 1
        return "429 Too Many Requests", "slow down", [("Retry-After", str(wait))]
    return "200 OK", f"request {requests} of {LIMIT}", []


def absent(_: WSGIEnvironment) -> tuple[str, str, list[tuple[str, str]]]:
    return "404 Not Found", "there are /visit and /limited", []


PAGES: dict[str, Page] = {"/visit": visit, "/limited": limited}


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    status, text, headers = PAGES.get(environ.get("PATH_INFO", ""), absent)(environ)
    body = f"{text}\n".encode()
    standard = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("X-Worker", str(os.getpid())),
    ]
    start_response(status, standard + headers)
    return [body]
