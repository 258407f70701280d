"""What can happen to a key, by the names that keyspace notifications give it."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """A name, and the class by which `notify-keyspace-events` chooses: g generic, $ string, x expired."""

    name: bytes
    kind: str


SET = Event(b"set", "$")
INCRBY = Event(b"incrby", "$")
INCRBYFLOAT = Event(b"incrbyfloat", "$")
APPEND = Event(b"append", "$")
SETRANGE = Event(b"setrange", "$")
SETBIT = Event(b"setbit", "$")
DEL = Event(b"del", "g")
EXPIRE = Event(b"expire", "g")
PERSIST = Event(b"persist", "g")
RENAME_FROM = Event(b"rename_from", "g")
RENAME_TO = Event(b"rename_to", "g")
COPY_TO = Event(b"copy_to", "g")
MOVE_FROM = Event(b"move_from", "g")
MOVE_TO = Event(b"move_to", "g")
RESTORE = Event(b"restore", "g")
EXPIRED = Event(b"expired", "x")
NEW = Event(b"new", "n")
KEYMISS = Event(b"keymiss", "m")
"""A command that only reads did not find the key."""
FLUSHED = Event(b"flushed", "")
"""Of a whole database, told with no key; nobody is notified of it, but what was watched has changed."""
