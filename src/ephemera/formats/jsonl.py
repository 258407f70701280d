"""JSON Lines: a record in each line, for people and programs that know neither Redis nor Ephemera.

    {"family": "default", "key": "code", "value": "492817", "written_at": "2026-01-31T09:00:00.000Z",
     "deadline": "2026-01-31T09:05:00.000Z", "idle": 60.0, "hard_deadline": "2026-01-31T10:00:00.000Z"}

Keys and values are text where they are UTF-8; otherwise `key_base64` and `value_base64` stand in their
place. Instants are UTC to the millisecond; a key without a `deadline` has none. `idle` is the seconds that
a key may lie untouched, `hard_deadline` what no touch moves it past. Only key and value are required.

A line takes longer to read than a record to write: the file is read once, into a spool.
"""

from __future__ import annotations

import json
import marshal
import os
import re
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

from ephemera.core.arguments import DEFAULT_FAMILY, check_family_name
from ephemera.core.expiry import duration_ms, show
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats.files import DamagedFile, FileSource
from ephemera.formats.transfer import BATCH_BYTES, BATCH_RECORDS, Contents, Record

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 30
PLAIN_LINE = re.compile(
    rb'\{"family": "([^"\\\x00-\x1f]*)", "key": "([^"\\\x00-\x1f]*)", "value": "([^"\\\x00-\x1f]*)", '
    rb'"written_at": "([0-9T:.-]+Z)"(?:, "deadline": "([0-9T:.-]+Z)")?\}\n'
)
"""A line as `encode_jsonl` writes it, without an escape: most are, and are read twice as fast by this."""
DECODER = json.JSONDecoder()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
ISO_MINUTES = [f"{minute // 60:02}:{minute % 60:02}" for minute in range(1440)]
FIELDS = {
    "family",
    "key",
    "key_base64",
    "value",
    "value_base64",
    "written_at",
    "deadline",
    "idle",
    "hard_deadline",
}


# --- reading --------------------------------------------------------------------------------------


class JsonLines(FileSource):
    """JSON Lines as a source. Told to keep going, it passes over lines that are no records."""

    def __init__(
        self, path: str | os.PathLike[str], *, now_ms: int, keep_going: bool = False
    ) -> None:
        super().__init__(path, keep_going=keep_going)
        self._now_ms = now_ms
        self._families: set[str] = set()
        self._spool: Spool | None = None

    def prepare(self, tick: Callable[[], None]) -> None:
        if self.keep_going:
            return
        spool = Spool()
        try:
            for record in self._parsed():
                if spool.add(record):
                    tick()
        except BaseException:
            spool.close()
            raise
        self._spool = spool

    def __iter__(self) -> Iterator[Record]:
        if self._spool is None:
            yield from self._parsed()
            return
        half = self._done_bytes
        for part, record in self._spool:
            self._done_bytes = half + int(half * part)
            yield record
        self._done_bytes = self._total_bytes

    def _parsed(self) -> Iterator[Record]:
        offset = 0
        with open(self.path, "rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                record = None if line.isspace() else self._record(line, offset)
                if record is not None:
                    yield record
                offset += len(line)
                self._done_bytes += len(line)

    def _record(self, line: bytes, offset: int) -> Record | None:
        """The record, or None where the line is none and it is to keep going."""
        try:
            return self._parse(line)
        except ValueError as error:
            reason = str(error)
        except RecursionError:
            reason = "it is nested too deep"
        self.failed["lines that are no records"] += 1
        damage = DamagedFile(self.path, offset, f"no record: {reason}")
        if not self.keep_going:
            raise damage
        self.damage = self.damage or damage
        return None

    def _parse(self, line: bytes) -> Record:
        text = line.decode()
        if plain := PLAIN_LINE.fullmatch(line):
            family, key, value, written_at, deadline = plain.groups()
            deadline_ms = NEVER_MS if deadline is None else _parsed_ms(deadline.decode())
            row = Row(value, _parsed_ms(written_at.decode()), deadline_ms)
            return Record(self._family(family.decode()), key, row)
        text = text.strip()
        told, end = DECODER.raw_decode(text)
        if end != len(text):
            raise ValueError("more than one object in a line")
        if not isinstance(told, dict):
            raise ValueError("a record is an object")
        if not told.keys() <= FIELDS:
            raise ValueError(f"unknown fields {show(sorted(told.keys() - FIELDS))}")
        deadline_ms = _instant_ms(told, "deadline", NEVER_MS)
        written_ms = _instant_ms(told, "written_at", self._now_ms)
        idle_ms, hard_ms = _idleness(told, deadline_ms) if "idle" in told else (0, NEVER_MS)
        row = Row(_bytes(told, "value"), written_ms, deadline_ms, idle_ms, hard_ms)
        return Record(self._family(told.get("family", DEFAULT_FAMILY)), _bytes(told, "key"), row)

    def _family(self, name: object) -> str:
        if not isinstance(name, str) or name not in self._families:
            self._families.add(check_family_name(name))
        return str(name)


def _idleness(told: dict[str, Any], deadline_ms: int) -> tuple[int, int]:  # Any: what JSON can say
    if deadline_ms == NEVER_MS:
        raise ValueError("a key that may lie idle has a deadline")
    return duration_ms(told["idle"], name="idle"), _instant_ms(told, "hard_deadline", NEVER_MS)


def _bytes(told: dict[str, Any], name: str) -> bytes:  # Any: as above
    text = told.get(name)
    if isinstance(text, str):
        return text.encode()
    packed = told.get(f"{name}_base64")
    if text is not None or not isinstance(packed, str):
        raise ValueError(f"{name} is a text, or {name}_base64 is one")
    return b64decode(packed, validate=True)


def _instant_ms(told: dict[str, Any], name: str, otherwise_ms: int) -> int:  # Any: as above
    text = told.get(name)
    if text is None:
        return otherwise_ms
    if not isinstance(text, str):
        raise ValueError(f"{name} is a text, not {show(text)}")
    return _parsed_ms(text)


@lru_cache(maxsize=4096)
def _parsed_ms(text: str) -> int:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"an instant must carry a time zone: {show(text)} has none")
    return (instant - EPOCH) // MILLISECOND


class Spool:
    """Records that were read and found good, on the disk until all of them were."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._sizes: list[int] = []
        self._batch: list[tuple[Any, ...]] = []  # Any: texts, bytes and numbers
        self._batch_bytes = 0

    def add(self, record: Record) -> bool:
        """Whether a batch of them went to the disk with it."""
        family, key, row = record
        self._batch.append((family, key, tuple(row)))
        self._batch_bytes += len(row.value)
        is_full = len(self._batch) >= BATCH_RECORDS or self._batch_bytes >= BATCH_BYTES
        if is_full:
            self._flush()
        return is_full

    def __iter__(self) -> Iterator[tuple[float, Record]]:
        """The records, each with the part of all that was handed out."""
        self._flush()
        with closing(self):
            self._file.seek(0)
            for number, size in enumerate(self._sizes):
                part = number / len(self._sizes)
                for family, key, row in marshal.loads(self._file.read(size)):
                    yield part, Record(family, key, Row._make(row))

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        # Marshalled: nothing but texts, bytes and numbers, and nothing of it is ever run.
        self._sizes.append(self._file.write(marshal.dumps(self._batch)))
        self._batch = []
        self._batch_bytes = 0


# --- writing --------------------------------------------------------------------------------------


def encode_jsonl(contents: Contents) -> Iterator[bytes]:
    """A line for each record."""
    lines: list[str] = []
    size = 0
    for family, key, row in contents.records:
        line = (
            f'{{"family": {encode_basestring(family)}, {_shown("key", key)}, '
            f'{_shown("value", row.value)}, "written_at": "{_iso(row.written_ms)}"'
        )
        if row.deadline_ms != NEVER_MS:
            line += f', "deadline": "{_iso(row.deadline_ms)}"'
        if row.idle_ms:
            line += _shown_idleness(row)
        lines.append(line + "}\n")
        size += len(line)
        if size >= CHUNK_BYTES:
            yield "".join(lines).encode()
            lines, size = [], 0
    yield "".join(lines).encode()


def _shown_idleness(row: Row) -> str:
    hard = "" if row.hard_ms == NEVER_MS else f', "hard_deadline": "{_iso(row.hard_ms)}"'
    return f', "idle": {row.idle_ms / 1000}{hard}'


def _shown(name: str, data: bytes) -> str:
    """As text if it is any, and if escapes do not make that longer than Base64."""
    try:
        text = encode_basestring(data.decode())
    except UnicodeDecodeError:
        text = None
    if text is None or len(text) > 2 + len(data) * 4 // 3 + 4:
        return f'"{name}_base64": "{b64encode(data).decode()}"'
    return f'"{name}": {text}'


def _iso(instant_ms: int) -> str:
    minute, milliseconds = divmod(instant_ms, 60_000)
    day, minute = divmod(minute, 1440)
    return (
        f"{_iso_day(day)}T{ISO_MINUTES[minute]}:{milliseconds // 1000:02}.{milliseconds % 1000:03}Z"
    )


@lru_cache(maxsize=4096)
def _iso_day(day: int) -> str:
    return (EPOCH + timedelta(days=day)).date().isoformat()
