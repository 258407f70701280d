"""How rows become keys and values of Redis.

    WholeRows  (the rule)          PREFIX:ID:KEY → the row as every engine keeps it, attributes and all
    Plain      (?values=plain)     KEY → VALUE, the deadline as Redis keeps it: shared with other programs

A store's own keys all begin with its prefix. A family's id stands in them, so that a family that gets a new
id is empty at once. A key too long to stand there in full stands as its digest, before the value.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple, Protocol

from ephemera.core.arguments import VALUE_BYTES_MAX
from ephemera.core.errors import CorruptStore, InvalidArgument, UnsupportedOperation
from ephemera.core.expiry import is_dead
from ephemera.core.row import NEVER_MS, Row, decode_row, encode_row
from ephemera.engines.redis.nodes import Command
from ephemera.engines.redis.swap import KEEP_LIFE, Act

HEAD_BYTES = 33
"""What a row needs at most before its value: flags, and four times of eight bytes."""
KEY_BYTES_INLINE = 1_800
"""Ephemera's own server takes keys of 1,900 bytes; this leaves room for what stands before."""
ROW_VALUE_BYTES_MAX = VALUE_BYTES_MAX - 4_096
"""Redis takes strings of 512 MiB; this leaves room for the row's head and a long key."""
WRITTEN_UNKNOWN_MS = 0

_NATIVE = re.compile(rb"([0-9]{1,19})([:#])(.*)", re.DOTALL)


class NativeKey(NamedTuple):
    """A key as Redis has it, taken apart."""

    family_id: int
    is_digest: bool
    key: bytes


class KeyLayout(Protocol):
    """What is written where, and what it means."""

    def native(self, family_id: int, key: bytes) -> bytes: ...
    def reads(self, native: bytes) -> tuple[Command, ...]:
        """The commands whose replies `row` takes."""
        ...

    def value(self, native: bytes, data: bytes | None, now_ms: int) -> bytes | None:
        """The live value in the reply to GET."""
        ...

    def row(self, native: bytes, replies: tuple[object, ...], now_ms: int) -> Row | None: ...
    def act(self, key: bytes, row: Row, old: Row | None) -> Act:
        """How a row is stored in the place of another."""
        ...

    def pattern(self, family_id: int | None) -> bytes:
        """What the keys of a family match, or those of the whole store."""
        ...


class WholeRows:
    """Every row whole. Redis is told the deadline where its clock can be meant by it."""

    def __init__(self, prefix: bytes, *, has_native_deadlines: bool) -> None:
        self._prefix = prefix + b":"
        self._has_native_deadlines = has_native_deadlines

    def own(self, name: bytes) -> bytes:
        """A key for what the store keeps about itself; no family's key is like it."""
        return self._prefix + name

    def native(self, family_id: int, key: bytes) -> bytes:
        if len(key) <= KEY_BYTES_INLINE:
            return b"%b%d:%b" % (self._prefix, family_id, key)
        return b"%b%d#%b" % (self._prefix, family_id, sha256(key).hexdigest().encode())

    def parse(self, native: bytes) -> NativeKey | None:
        """What a key of this store says, or None for one that holds no row."""
        found = _NATIVE.fullmatch(native, len(self._prefix))
        return None if found is None else NativeKey(int(found[1]), found[2] == b"#", found[3])

    def key_of(self, native: bytes, data: bytes) -> bytes:
        """The key of a row, which for a long one stands before its value."""
        parsed = self.parse(native)
        assert parsed is not None  # it was found by the pattern of a family
        return _split(decode_head(native, data).value)[0] if parsed.is_digest else parsed.key

    def pattern(self, family_id: int | None) -> bytes:
        if family_id is None:
            return self._prefix + b"[0-9]*"
        return b"%b%d[:#]*" % (self._prefix, family_id)

    def reads(self, native: bytes) -> tuple[Command, ...]:
        return ((b"GET", native),)

    def value(self, native: bytes, data: bytes | None, now_ms: int) -> bytes | None:
        row = self.row(native, (data,), now_ms)
        return None if row is None else row.value

    def row(self, native: bytes, replies: tuple[object, ...], now_ms: int) -> Row | None:
        data = replies[0]
        if not isinstance(data, bytes):
            return None
        row = decode_head(native, data)
        if is_dead(row.deadline_ms, now_ms):
            return None
        if b"#" in native:  # a quick look, for this is every read
            parsed = self.parse(native)
            if parsed is not None and parsed.is_digest:
                return row._replace(value=_split(row.value)[1])
        return row

    def act(self, key: bytes, row: Row, old: Row | None) -> Act:
        if len(row.value) > ROW_VALUE_BYTES_MAX:
            raise InvalidArgument(
                f"a value in Redis has at most {ROW_VALUE_BYTES_MAX} bytes, "
                f"this one has {len(row.value)}"
            )
        if len(key) > KEY_BYTES_INLINE:
            row = row._replace(value=b"%b%b%b" % (len(key).to_bytes(2, "little"), key, row.value))
        is_told = self._has_native_deadlines and row.deadline_ms != NEVER_MS
        return Act(b"set", encode_row(row), b"%d" % row.deadline_ms if is_told else b"")


class Plain:
    """Values as any client of Redis writes them. When one was written, nobody knows."""

    def native(self, family_id: int, key: bytes) -> bytes:
        return key

    def pattern(self, family_id: int | None) -> bytes:
        return b"*"

    def reads(self, native: bytes) -> tuple[Command, ...]:
        return ((b"GET", native), (b"PTTL", native))

    def value(self, native: bytes, data: bytes | None, now_ms: int) -> bytes | None:
        return data

    def row(self, native: bytes, replies: tuple[object, ...], now_ms: int) -> Row | None:
        data, left_ms = replies
        if not isinstance(data, bytes) or not isinstance(left_ms, int) or left_ms < -1:
            return None  # also when it died between the two commands
        deadline_ms = NEVER_MS if left_ms == -1 else now_ms + max(left_ms, 1)
        return Row(data, WRITTEN_UNKNOWN_MS, deadline_ms)

    def act(self, key: bytes, row: Row, old: Row | None) -> Act:
        if row.idle_ms:
            raise UnsupportedOperation(
                "redis with values=plain keeps no idle times: "
                "use ttl, or open the store without values=plain"
            )
        if old is not None and old.deadline_ms == row.deadline_ms:
            return Act(b"set", row.value, KEEP_LIFE)
        is_mortal = row.deadline_ms != NEVER_MS
        return Act(b"set", row.value, b"%d" % row.deadline_ms if is_mortal else b"")


def decode_head(native: bytes, data: bytes) -> Row:
    """The row of these bytes, or of their beginning: then of its value only that.

    Raises CorruptStore when they are none.
    """
    try:
        return decode_row(data)
    except ValueError:
        raise CorruptStore(repr(native), None, "another program wrote what is no row") from None


def head_of(row: Row) -> bytes:
    """What a stored row begins with."""
    return encode_row(row._replace(value=b""))


def set_command(native: bytes, act: Act) -> Command:
    """The command that stores, whatever is there."""
    life = (b"PXAT", act.life) if act.life else ()
    return (b"SET", native, act.data, *life)


def _split(data: bytes) -> tuple[bytes, bytes]:
    """A long key, and the value that stands behind it."""
    end = 2 + int.from_bytes(data[:2], "little")
    return data[2:end], data[end:]
