"""RDB files: what Redis and Valkey save, read and written.

    file      "REDIS" | version as four digits | parts | 255 | CRC-64 u64 LE, 0 for none (version 5 on)
    part      an opcode (SELECTDB, EXPIRETIME_MS, …) and what belongs to it
              type u8 | key | value

Opcodes about one key stand before its type. Only strings are records; values of other types are
passed over and counted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping

from ephemera.core.arguments import check_family_name
from ephemera.core.errors import InvalidArgument
from ephemera.core.row import NEVER_MS
from ephemera.formats._codec import (
    Malformed,
    Window,
    append_record,
    crc64,
    encode_length,
    encode_string,
)
from ephemera.formats.databases import family_of, numbers_of
from ephemera.formats.files import DamagedFile, FileSource
from ephemera.formats.omissions import Omissions
from ephemera.formats.rdb import STRING_TYPE, VERSION, VERSION_MAX
from ephemera.formats.rdb_types import skip_key_and_value, skip_module_parts
from ephemera.formats.transfer import TICK_RECORDS, Contents, Record, make_record, make_row

MAGIC = b"REDIS"
VERSION_MIN = 2
VERSION_SUMMED = 5
HEADER_BYTES = 9
CHUNK_BYTES = 1 << 18

SLOT_INFO = 244
FUNCTION = 245
MODULE_AUX = 247
IDLE = 248
FREQ = 249
AUX = 250
RESIZEDB = 251
EXPIRETIME_MS = 252
EXPIRETIME = 253
SELECTDB = 254
EOF = 255
NO_DEADLINE = -1

FAMILY_AUX = b"ephemera-family-"
"""With a number behind it, the name of an auxiliary field that holds a database's family."""


# --- reading --------------------------------------------------------------------------------------


class RdbFile(FileSource):
    """An RDB file as a source. Told to keep going, it yields what stands before the damage."""

    def __init__(
        self, path: str | os.PathLike[str], *, now_ms: int, keep_going: bool = False
    ) -> None:
        super().__init__(path, keep_going=keep_going)
        self._now_ms = now_ms

    def prepare(self, tick: Callable[[], None]) -> None:
        if self.keep_going:
            return
        for number, _ in enumerate(self):
            if number % TICK_RECORDS == 0:
                tick()
        self._forget_counts()

    def __iter__(self) -> Iterator[Record]:
        before = self._done_bytes
        with open(self.path, "rb") as file:
            window = Window(file)
            try:
                for number, record in enumerate(records(window, self._now_ms, self.skipped)):
                    if number % TICK_RECORDS == 0:
                        self._done_bytes = before + window.offset
                    yield record
                if not window.is_at_end():
                    raise Malformed("the file goes on after its end")
            except Malformed as error:
                self._damaged(DamagedFile(self.path, window.offset, str(error)))
                self.unread_bytes = self.path.stat().st_size - window.offset
            self._done_bytes = before + window.offset


def records(window: Window, now_ms: int, skipped: Omissions) -> Iterator[Record]:
    """The strings of an RDB, up to its end; whatever else it holds is counted. Raises Malformed."""
    version = read_header(window)
    byte, string = window.byte, window.string
    parts = Parts(window)
    family = parts.family
    deadline_ms = NEVER_MS
    while (kind := byte()) != EOF:
        if kind == STRING_TYPE:
            key = string()
            row = make_row((string(), now_ms, deadline_ms, 0, NEVER_MS))
            yield make_record((family, key, row))
            deadline_ms = NEVER_MS
        elif kind == EXPIRETIME_MS:
            deadline_ms = parts.deadline_ms()
        elif kind == EXPIRETIME:
            deadline_ms = parts.deadline_from_seconds()
        elif kind in parts.passed:
            parts.passed[kind]()
            family = parts.family
        else:
            reason, key = skip_key_and_value(window, kind)
            skipped.add(reason, key)
            deadline_ms = NEVER_MS
    check_sum(window, version)


def read_header(window: Window) -> int:
    """The version of the file."""
    header = window.take(HEADER_BYTES)
    digits = header[len(MAGIC) :]
    if not header.startswith(MAGIC) or not digits.isdigit():
        raise Malformed(f"an RDB begins with {MAGIC.decode()} and a version, not {header!r}")
    if not VERSION_MIN <= int(digits) <= VERSION_MAX:
        raise Malformed(
            f"version {int(digits)}: those from {VERSION_MIN} to {VERSION_MAX} are known here"
        )
    return int(digits)


def check_sum(window: Window, version: int) -> None:
    if version < VERSION_SUMMED:
        return
    summed = window.checksum
    told = int.from_bytes(window.take(8), "little")
    if told not in (0, summed):
        raise Malformed(f"the checksum is {summed:#018x}, and the file says {told:#018x}")


class Parts:
    """What stands between the keys: which family comes, and much that is of no use here."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._names: dict[int, str] = {}
        self.family = family_of(0)
        self.passed: dict[int, Callable[[], object]] = {
            SLOT_INFO: lambda: self._lengths(3),
            FUNCTION: window.skip_string,
            MODULE_AUX: self._module_aux,
            IDLE: window.length,
            FREQ: window.byte,
            AUX: self._aux,
            RESIZEDB: lambda: self._lengths(2),
            SELECTDB: self._select,
        }

    def deadline_ms(self) -> int:
        instant_ms = self._window.number(8)
        return NEVER_MS if instant_ms == NO_DEADLINE else instant_ms

    def deadline_from_seconds(self) -> int:
        seconds = self._window.number(4)
        return NEVER_MS if seconds == NO_DEADLINE else seconds * 1000

    def _select(self) -> None:
        number = self._window.length()
        self.family = self._names.get(number) or family_of(number)

    def _aux(self) -> None:
        name, value = self._window.string(), self._window.string()
        number = name.removeprefix(FAMILY_AUX)
        if number != name and number.isdigit():
            self._names[int(number)] = _family_name(value)

    def _module_aux(self) -> None:
        self._lengths(3)  # the module, and when it wants to read this
        skip_module_parts(self._window)

    def _lengths(self, count: int) -> None:
        for _ in range(count):
            self._window.length()


def _family_name(name: bytes) -> str:
    try:
        return check_family_name(name.decode())
    except (UnicodeDecodeError, InvalidArgument) as error:
        raise Malformed(f"no family can be called {name!r}: {error}") from None


# --- writing --------------------------------------------------------------------------------------


def encode_rdb(contents: Contents, *, numbers: Mapping[str, int] | None = None) -> Iterator[bytes]:
    """The bytes of an RDB file that Redis loads.

    `numbers` are the databases that the families become; else see `numbers_of`.
    """
    crc = 0
    for chunk in _body(contents, numbers or numbers_of(contents.families)):
        crc = crc64(chunk, crc)
        yield chunk
    yield struct.pack("<Q", crc)


def _body(contents: Contents, numbers: Mapping[str, int]) -> Iterator[bytes]:
    out = bytearray(MAGIC + b"%04d" % VERSION)
    out += _aux(b"ctime", b"%d" % (contents.now_ms // 1000))
    for family in contents.families:
        number = numbers[family]
        if family != family_of(number):
            out += _aux(FAMILY_AUX + b"%d" % number, family.encode())
    current = None
    for family, key, row in contents.records:
        if family != current:
            current = family
            out += bytes([SELECTDB]) + encode_length(numbers[family])
        append_record(out, key, row.value, row.deadline_ms)
        if len(out) >= CHUNK_BYTES:
            yield bytes(out)
            out.clear()
    out.append(EOF)
    yield bytes(out)


def _aux(name: bytes, value: bytes) -> bytes:
    return bytes([AUX]) + encode_string(name) + encode_string(value)
