"""Replaying the commands of an AOF: what they leave behind is known only at the end.

A key whose deadline has passed stays, as it does in Redis while it loads: a later command may take
the deadline away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from ephemera.core.arguments import VALUE_BYTES_MAX
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.core.row import NEVER_MS
from ephemera.formats import rdb
from ephemera.formats._scratch import Scratch
from ephemera.formats.databases import family_of
from ephemera.formats.omissions import Omissions
from ephemera.formats.transfer import Record, make_record, make_row

NUMBER = re.compile(rb"-?[0-9]{1,19}")
NUMBER_MIN = -(2**63)
NUMBER_MAX = 2**63 - 1
GAP_BYTES_MAX = 64 << 20
"""How far beyond its end a string may be written to: a short command must not fill the memory."""

Held = tuple[bytes, int]
"""A value and its deadline."""


class Replay:
    """Carries out commands, one after the other, on a scratch. Those that it does not know it counts.

    A command that is no part of strings may replace one: then the string goes, for an old value is
    worse than none.
    """

    def __init__(self, now_ms: int, skipped: Omissions, failed: Omissions) -> None:
        self.scratch = Scratch()
        self._now_ms = now_ms
        self._skipped = skipped
        self._failed = failed
        self._family = family_of(0)

    def add(self, record: Record) -> None:
        """A key of the RDB that the log begins with."""
        self.scratch.put(record.family, record.key, (record.row.value, record.row.deadline_ms))

    def records(self) -> Iterator[Record]:
        for family, key, value, deadline_ms in self.scratch:
            row = make_row((value, self._now_ms, deadline_ms, 0, NEVER_MS))
            yield make_record((family, key, row))

    def run(self, words: list[bytes]) -> None:
        name = words[0].upper()
        try:
            command = COMMANDS.get(name)
            if command is not None:
                command(self, words[1:])
            elif name not in NEUTRAL:
                self._skip(name, words[1:])
        except (IndexError, ValueError):
            self._failed.add(_shown(name), *words[1:2])

    def _skip(self, name: bytes, words: list[bytes]) -> None:
        at = REPLACES.get(name, 0)  # nearly every command has its key first
        self._skipped.add(_shown(name), *words[at : at + 1])
        if name in REPLACES:
            self._put(words[REPLACES[name]], None)

    def _get(self, key: bytes) -> Held | None:
        return self.scratch.get(self._family, key)

    def _put(self, key: bytes, held: Held | None) -> None:
        self.scratch.put(self._family, key, held)

    # --- values -------------------------------------------------------------------------------

    def set(self, words: list[bytes]) -> None:
        key, value = words[0], words[1]
        deadline_ms = NEVER_MS
        if len(words) == 4 and words[2] == b"PXAT":
            deadline_ms = _instant(_number(words[3]))
        elif len(words) > 2:
            options = [word.upper() for word in words[2:]]
            held = self._get(key) if KEEPING.intersection(options) else None
            if (b"NX" in options and held) or (b"XX" in options and not held):
                return
            deadline_ms = self._deadline_ms(options)
            if b"KEEPTTL" in options and held is not None:
                deadline_ms = held[1]
        self._put(key, (value, deadline_ms))

    def setex(self, words: list[bytes]) -> None:
        key, seconds, value = words
        self._put(key, (value, self._from_now(_number(seconds) * 1000)))

    def psetex(self, words: list[bytes]) -> None:
        key, milliseconds, value = words
        self._put(key, (value, self._from_now(_number(milliseconds))))

    def setnx(self, words: list[bytes]) -> None:
        key, value = words
        if self._get(key) is None:
            self._put(key, (value, NEVER_MS))

    def getset(self, words: list[bytes]) -> None:
        key, value = words
        self._put(key, (value, NEVER_MS))

    def mset(self, words: list[bytes]) -> None:
        for key, value in list(zip(words[::2], words[1::2], strict=True)):
            self._put(key, (value, NEVER_MS))

    def msetnx(self, words: list[bytes]) -> None:
        if all(self._get(key) is None for key in words[::2]):
            self.mset(words)

    def append(self, words: list[bytes]) -> None:
        key, more = words
        value, deadline_ms = self._get(key) or (b"", NEVER_MS)
        if len(value) + len(more) > VALUE_BYTES_MAX:
            raise ValueError(len(more))
        self._put(key, (value + more, deadline_ms))

    def setrange(self, words: list[bytes]) -> None:
        key, offset, part = words
        at = _number(offset)
        if part:
            self._overwrite(key, at, part)

    def setbit(self, words: list[bytes]) -> None:
        key, offset, bit = words
        at = _number(offset)
        if bit not in (b"0", b"1"):
            raise ValueError(bit)
        held = self._get(key)
        byte = held[0][at // 8] if held is not None and at // 8 < len(held[0]) else 0
        mask = 0x80 >> at % 8
        self._overwrite(key, at // 8, bytes([byte | mask if bit == b"1" else byte & ~mask]))

    def _overwrite(self, key: bytes, at: int, part: bytes) -> None:
        value, deadline_ms = self._get(key) or (b"", NEVER_MS)
        if not 0 <= at <= min(len(value) + GAP_BYTES_MAX, VALUE_BYTES_MAX - len(part)):
            raise ValueError(at)
        value = value[:at].ljust(at, b"\0") + part + value[at + len(part) :]
        self._put(key, (value, deadline_ms))

    def restore(self, words: list[bytes]) -> None:
        key, ttl, payload = words[:3]
        options = [word.upper() for word in words[3:]]
        ttl_ms = _number(ttl)
        if b"ABSTTL" in options:
            deadline_ms = _instant(ttl_ms)
        else:
            deadline_ms = self._from_now(ttl_ms)
        self._put(key, None)
        if payload[0] == rdb.STRING_TYPE:
            self._put(key, (rdb.load(payload), deadline_ms if ttl_ms else NEVER_MS))
        else:
            self._skipped.add("RESTORE", key)

    # --- counters -----------------------------------------------------------------------------

    def incr(self, words: list[bytes]) -> None:
        (key,) = words
        self._count(key, 1)

    def decr(self, words: list[bytes]) -> None:
        (key,) = words
        self._count(key, -1)

    def incrby(self, words: list[bytes]) -> None:
        key, by = words
        self._count(key, _number(by))

    def decrby(self, words: list[bytes]) -> None:
        key, by = words
        self._count(key, -_number(by))

    def _count(self, key: bytes, by: int) -> None:
        value, deadline_ms = self._get(key) or (b"0", NEVER_MS)
        total = _number(value) + by
        if not NUMBER_MIN <= total <= NUMBER_MAX:
            raise ValueError(total)
        self._put(key, (b"%d" % total, deadline_ms))

    # --- keys ---------------------------------------------------------------------------------

    def delete(self, words: list[bytes]) -> None:
        for key in words:
            self._put(key, None)

    def rename(self, words: list[bytes]) -> None:
        key, new = words
        held = self._get(key)  # nothing: then it was no string, and it replaces one all the same
        self._put(key, None)
        self._put(new, held)

    def renamenx(self, words: list[bytes]) -> None:
        if self._get(words[1]) is None:
            self.rename(words)

    def copy(self, words: list[bytes]) -> None:
        key, new = words[:2]
        options = [word.upper() for word in words[2:]]
        family = self._family
        if b"DB" in options:
            family = _database(options[options.index(b"DB") + 1])
        if b"REPLACE" in options or self.scratch.get(family, new) is None:
            self.scratch.put(family, new, self._get(key))

    def move(self, words: list[bytes]) -> None:
        key, number = words
        held = self._get(key)
        family = _database(number)
        if held is not None and self.scratch.get(family, key) is None:
            self._put(key, None)
            self.scratch.put(family, key, held)

    # --- deadlines ----------------------------------------------------------------------------

    def expire(self, words: list[bytes]) -> None:
        self._expire(words, self._from_now(_number(words[1]) * 1000))

    def pexpire(self, words: list[bytes]) -> None:
        self._expire(words, self._from_now(_number(words[1])))

    def expireat(self, words: list[bytes]) -> None:
        self._expire(words, _instant(_number(words[1]) * 1000))

    def pexpireat(self, words: list[bytes]) -> None:
        self._expire(words, _instant(_number(words[1])))

    def _expire(self, words: list[bytes], deadline_ms: int) -> None:
        held = self._get(words[0])
        conditions = [word.upper() for word in words[2:]]
        if held is not None and all(_holds(word, held[1], deadline_ms) for word in conditions):
            self._put(words[0], (held[0], deadline_ms))

    def persist(self, words: list[bytes]) -> None:
        (key,) = words
        held = self._get(key)
        if held is not None:
            self._put(key, (held[0], NEVER_MS))

    def getex(self, words: list[bytes]) -> None:
        held = self._get(words[0])
        if held is not None and len(words) > 1:
            options = [word.upper() for word in words[1:]]
            self._put(words[0], (held[0], self._deadline_ms(options)))

    def _deadline_ms(self, options: list[bytes]) -> int:
        """What EX, PX, EXAT or PXAT among the options says."""
        for name, number in pairwise(options):
            if name in LIFETIMES:
                unit_ms, is_absolute = LIFETIMES[name]
                milliseconds = _number(number) * unit_ms
                return _instant(milliseconds) if is_absolute else self._from_now(milliseconds)
        if LIFETIMES.keys() & options:
            raise ValueError(options)
        return NEVER_MS

    def _from_now(self, ttl_ms: int) -> int:
        return _instant(self._now_ms + ttl_ms)

    # --- databases ----------------------------------------------------------------------------

    def select(self, words: list[bytes]) -> None:
        (number,) = words
        self._family = _database(number)

    def swapdb(self, words: list[bytes]) -> None:
        one, other = words
        if one != other:
            self.scratch.swap(_database(one), _database(other))

    def flushdb(self, words: list[bytes]) -> None:
        self.scratch.clear(self._family)

    def flushall(self, words: list[bytes]) -> None:
        self.scratch.clear_all()


Command = Callable[[Replay, list[bytes]], None]

COMMANDS: dict[bytes, Command] = {
    b"APPEND": Replay.append,
    b"COPY": Replay.copy,
    b"DECR": Replay.decr,
    b"DECRBY": Replay.decrby,
    b"DEL": Replay.delete,
    b"EXPIRE": Replay.expire,
    b"EXPIREAT": Replay.expireat,
    b"FLUSHALL": Replay.flushall,
    b"FLUSHDB": Replay.flushdb,
    b"GETDEL": Replay.delete,
    b"GETEX": Replay.getex,
    b"GETSET": Replay.getset,
    b"INCR": Replay.incr,
    b"INCRBY": Replay.incrby,
    b"MOVE": Replay.move,
    b"MSET": Replay.mset,
    b"MSETNX": Replay.msetnx,
    b"PERSIST": Replay.persist,
    b"PEXPIRE": Replay.pexpire,
    b"PEXPIREAT": Replay.pexpireat,
    b"PSETEX": Replay.psetex,
    b"RENAME": Replay.rename,
    b"RENAMENX": Replay.renamenx,
    b"RESTORE": Replay.restore,
    b"SELECT": Replay.select,
    b"SET": Replay.set,
    b"SETBIT": Replay.setbit,
    b"SETEX": Replay.setex,
    b"SETNX": Replay.setnx,
    b"SETRANGE": Replay.setrange,
    b"SWAPDB": Replay.swapdb,
    b"UNLINK": Replay.delete,
}
NEUTRAL = {b"FUNCTION", b"PING", b"PUBLISH", b"REPLCONF", b"SCRIPT", b"SPUBLISH"}
"""Commands that change no key."""
REPLACES = {
    b"BITFIELD": 0,
    b"BITOP": 1,
    b"GEOSEARCHSTORE": 0,
    b"INCRBYFLOAT": 0,
    b"PFADD": 0,
    b"PFMERGE": 0,
    b"SDIFFSTORE": 0,
    b"SINTERSTORE": 0,
    b"SUNIONSTORE": 0,
    b"ZDIFFSTORE": 0,
    b"ZINTERSTORE": 0,
    b"ZRANGESTORE": 0,
    b"ZUNIONSTORE": 0,
}
"""Commands that change or replace a string and are not carried out, and which word is its key."""
KEEPING = {b"NX", b"XX", b"KEEPTTL"}
LIFETIMES = {
    b"EX": (1000, False),
    b"PX": (1, False),
    b"EXAT": (1000, True),
    b"PXAT": (1, True),
}


def _shown(name: bytes) -> str:
    return name[:32].decode("ascii", "backslashreplace")


def _number(word: bytes) -> int:
    if len(word) < 19 and word.isdigit():
        return int(word)
    number = int(word) if NUMBER.fullmatch(word) else None
    if number is None or not NUMBER_MIN <= number <= NUMBER_MAX:
        raise ValueError(word[:40])
    return number


def _database(word: bytes) -> str:
    number = _number(word)
    if number < 0:
        raise ValueError(number)
    return family_of(number)


def _instant(milliseconds: int) -> int:
    """A deadline: what lies beyond all deadlines stays beyond, within what a row can say."""
    if 0 <= milliseconds <= DEADLINE_MS_MAX:
        return milliseconds
    return 0 if milliseconds < 0 else DEADLINE_MS_MAX + 1


def _holds(condition: bytes, old_ms: int, new_ms: int) -> bool:
    """Whether EXPIRE may go on: a key without a deadline counts as one that dies last."""
    if condition == b"NX":
        return old_ms == NEVER_MS
    if condition == b"XX":
        return old_ms != NEVER_MS
    if condition == b"GT":
        return old_ms < new_ms
    if condition == b"LT":
        return old_ms > new_ms
    raise ValueError(condition)
