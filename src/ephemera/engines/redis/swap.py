"""The one script: change keys, all of them or none, if what they hold is what was read.

Change is decided in Python, so a read and a write are two steps; the script is what makes them one.
It compares and changes without anybody in between, on one server or within one slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import NamedTuple

from ephemera.engines.redis.nodes import Command

SCRIPT = b"""
local FIELDS = 5
for i, key in ipairs(KEYS) do
  local how, known = ARGV[(i - 1) * FIELDS + 1], ARGV[(i - 1) * FIELDS + 2]
  if how == 'none' and redis.call('EXISTS', key) == 1 then
    return 0
  elseif how == 'is' and redis.call('GET', key) ~= known then
    return 0
  elseif how == 'head' and redis.call('GETRANGE', key, 0, #known - 1) ~= known then
    return 0
  end
end
for i, key in ipairs(KEYS) do
  local at = (i - 1) * FIELDS
  local what, value, life = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  if what == 'del' then
    redis.call('UNLINK', key)
  elseif what == 'set' and life == '' then
    redis.call('SET', key, value)
  elseif what == 'set' and life == 'keep' then
    redis.call('SET', key, value, 'KEEPTTL')
  elseif what == 'set' then
    redis.call('SET', key, value, 'PXAT', life)
  end
end
return 1
"""
# The name that Redis gives a script: no secret, so SHA-1 does.
SCRIPT_NAME = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

KEEP_LIFE = b"keep"


class Known(NamedTuple):
    """What a key must hold for a swap to happen."""

    how: bytes
    data: bytes = b""


ANYTHING = Known(b"any")
NOTHING = Known(b"none")


def exactly(data: bytes) -> Known:
    return Known(b"is", data)


def beginning_with(head: bytes) -> Known:
    return Known(b"head", head)


class Act(NamedTuple):
    """What becomes of a key. `life` is empty, `KEEP_LIFE`, or the deadline in digits."""

    what: bytes
    data: bytes = b""
    life: bytes = b""


LEAVE = Act(b"leave")
DELETE = Act(b"del")


class Swap(NamedTuple):
    """One key's part: what it must hold, and what becomes of it."""

    key: bytes
    known: Known
    act: Act


def swap_command(swaps: Sequence[Swap]) -> Command:
    """The call of the script by its name; answers 1 when it happened, else 0."""
    keys = [swap.key for swap in swaps]
    fields = [field for swap in swaps for field in (*swap.known, *swap.act)]
    return (b"EVALSHA", SCRIPT_NAME, b"%d" % len(swaps), *keys, *fields)


def in_full(command: Command) -> Command:
    """The same call with the text of the script, for a server that does not know it yet."""
    return (b"EVAL", SCRIPT, *command[2:])
