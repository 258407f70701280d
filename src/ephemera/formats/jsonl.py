"""JSON Lines: a record in each line, for people and programs that know neither Redis nor Ephemera.

    {"family": "default", "key": "code", "value": "492817", "written_at": "2026-01-31T09:00:00.000Z",
     "deadline": "2026-01-31T09:05:00.000Z", "idle": 60.0, "hard_deadline": "2026-01-31T10:00:00.000Z"}

Keys and values are text where they are UTF-8; otherwise `key_base64` and `value_base64` stand in their
place. Instants are UTC to the millisecond; a key without a `deadline` has none. `idle` is the seconds that
a key may lie untouched, `hard_deadline` what no touch moves it past. Only key and value are required.

A line takes longer to read than a record to write: the file is read once, into a spool.
"""

from __future__ import annotations

import io
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
from ephemera.formats.files import DamagedFile, FileSource, naming_full
from ephemera.formats.transfer import Contents, Record, make_record, make_row

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 30
PLAIN_LINES = re.compile(
    rb'^\{"family": "([^"\\\x00-\x1f]*)", "key": "([^"\\\x00-\x1f]*)", "value": "([^"\\\x00-\x1f]*)", '
    rb'"written_at": "([0-9T:.-]+Z)"(?:, "deadline": "([0-9T:.-]+Z)")?\}\n',
    re.MULTILINE,
)
"""Lines as `encode_jsonl` writes them, without an escape: most are, and are read much faster by this."""
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

Flat = tuple[str, bytes, bytes, int, int, int, int]
"""A record without its names: family and key, then what a row has."""


# --- reading --------------------------------------------------------------------------------------


class JsonLines(FileSource):
    """JSON Lines as a source. Told to keep going, it passes over lines that are no records."""

    def __init__(
        self, path: str | os.PathLike[str], *, now_ms: int, keep_going: bool = False
    ) -> None:
        super().__init__(path, keep_going=keep_going)
        self._now_ms = now_ms
        self._families: dict[object, str] = {}
        self._spool: Spool | None = None

    def prepare(self, tick: Callable[[], None]) -> None:
        if self.keep_going:
            return
        spool = Spool()
        try:
            with naming_full(tempfile.gettempdir()):
                for piece in self._pieces():
                    spool.add(piece)
                    tick()
        except BaseException:
            spool.close()
            raise
        self._spool = spool

    def __iter__(self) -> Iterator[Record]:
        for piece in self._pieces() if self._spool is None else self._spooled(self._spool):
            for family, key, value, written_ms, deadline_ms, idle_ms, hard_ms in piece:
                row = make_row((value, written_ms, deadline_ms, idle_ms, hard_ms))
                yield make_record((family, key, row))

    def _spooled(self, spool: Spool) -> Iterator[list[Flat]]:
        half = self._done_bytes
        for part, piece in spool:
            self._done_bytes = half + int(half * part)
            yield piece
        self._done_bytes = self._total_bytes

    def _pieces(self) -> Iterator[list[Flat]]:
        """The records, as many at a time as a piece of the file has."""
        offset = 0
        with open(self.path, "rb") as file:
            while lines := file.read(CHUNK_BYTES) + file.readline(LINE_BYTES_MAX):
                yield self._plain(lines) or list(self._any(lines, offset))
                offset += len(lines)
                self._done_bytes += len(lines)

    def _plain(self, lines: bytes) -> list[Flat] | None:
        """The records, or None where not all lines are plain, or something is wrong with them."""
        found = PLAIN_LINES.findall(lines)
        if len(found) < lines.count(b"\n") or not lines.endswith(b"\n"):
            return None
        try:
            lines.decode()
            return [
                (self._family(family), key, value, _parsed_ms(written),
                 _parsed_ms(deadline) if deadline else NEVER_MS, 0, NEVER_MS)
                for family, key, value, written, deadline in found
            ]  # fmt: skip
        except ValueError:
            return None

    def _any(self, lines: bytes, offset: int) -> Iterator[Flat]:
        for line in io.BytesIO(lines):
            record = None if line.isspace() else self._record(line, offset)
            if record is not None:
                yield record
            offset += len(line)

    def _record(self, line: bytes, offset: int) -> Flat | None:
        """The record, or None where the line is none and it is to keep going."""
        try:
            return self._parse(line)
        except ValueError as error:
            reason = str(error)
        except RecursionError:
            reason = "it is nested too deep"
        self.failed.add("lines that are no records")
        damage = DamagedFile(self.path, offset, f"no record: {reason}")
        if not self.keep_going:
            raise damage
        self.damage = self.damage or damage
        return None

    def _parse(self, line: bytes) -> Flat:
        text = line.decode().strip()
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
        family = self._family(told.get("family", DEFAULT_FAMILY))
        key, value = _bytes(told, "key"), _bytes(told, "value")
        return family, key, value, written_ms, deadline_ms, idle_ms, hard_ms

    def _family(self, told: object) -> str:
        """The name, as text or in UTF-8."""
        if not isinstance(told, str | bytes):
            return check_family_name(told)
        if told not in self._families:
            name = told.decode() if isinstance(told, bytes) else told
            self._families[told] = check_family_name(name)
        return self._families[told]


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
def _parsed_ms(text: str | bytes) -> int:
    instant = datetime.fromisoformat(text if isinstance(text, str) else text.decode())
    if instant.tzinfo is None:
        raise ValueError(f"an instant must carry a time zone: {show(text)} has none")
    return (instant - EPOCH) // MILLISECOND


class Spool:
    """Records that were read and found good, on the disk until all of them were."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._sizes: list[int] = []

    def add(self, piece: list[Flat]) -> None:
        # Marshalled: nothing but texts, bytes and numbers, and nothing of it is ever run.
        self._sizes.append(self._file.write(marshal.dumps(piece)))

    def __iter__(self) -> Iterator[tuple[float, list[Flat]]]:
        """The pieces, each with the part of all that was handed out."""
        with closing(self):
            self._file.seek(0)
            for number, size in enumerate(self._sizes):
                yield number / len(self._sizes), marshal.loads(self._file.read(size))

    def close(self) -> None:
        self._file.close()


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
