"""The directories of diskcache, read only: `Cache`, and `FanoutCache` with its numbered parts.

Keys and values that are bytes, text or numbers are taken; what was pickled is counted and never
unpickled, since that would run whatever the directory says. Numbers become their decimal digits.
A `JSONDisk` leaves no mark of its own: its keys and values are taken as the compressed bytes they are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from ephemera.core.arguments import DEFAULT_FAMILY, VALUE_BYTES_MAX, check_family_name
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats.files import DamagedFile
from ephemera.formats.omissions import Omissions
from ephemera.formats.transfer import Record

DATABASE = "cache.db"
PARTS = "[0-9][0-9][0-9]"
MODE_PICKLE = 4
"""How diskcache marks a value that was pickled; the other modes are bytes, texts and numbers."""
QUERY = "SELECT key, raw, store_time, expire_time, mode, filename, value FROM Cache ORDER BY rowid"
Stored = tuple[object, int, float | None, float | None, int, str | None, object]


class DiskCache:
    """A directory of diskcache as a source; all of it goes to one family."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        family: str = DEFAULT_FAMILY,
        keep_going: bool = False,
    ) -> None:
        self.path = Path(path)
        self.skipped = Omissions()
        self.failed = Omissions()
        self.damage: DamagedFile | None = None
        self.unread_bytes = 0
        self._family = check_family_name(family)
        self._keep_going = keep_going
        self._parts = parts_of(self.path)
        self._done = 0
        self._total: int | None = None

    def progress(self) -> tuple[int, int | None]:
        return self._done, self._total

    def landed(self) -> None:
        """Where a directory was read to is not kept."""

    def prepare(self, tick: Callable[[], None]) -> None:
        total = 0
        for part in self._parts:
            try:
                with closing(_open(part)) as database:
                    total += _count_checked(database, is_checked=not self._keep_going)
            except sqlite3.Error as error:
                self._damaged(part, error)
            tick()
        self._total = total

    def __iter__(self) -> Iterator[Record]:
        for part in self._parts:
            try:
                with closing(_open(part)) as database:
                    for stored in database.execute(QUERY):
                        record = self._record(part, stored)
                        self._done += 1
                        if record is not None:
                            yield record
            except sqlite3.Error as error:
                self._damaged(part, error)

    def _damaged(self, part: Path, error: sqlite3.Error) -> None:
        damage = DamagedFile(part / DATABASE, None, str(error))
        if not self._keep_going:
            raise damage from None
        self.damage = self.damage or damage

    def _record(self, part: Path, stored: Stored) -> Record | None:
        key, is_raw, stored_at, expires_at, mode, filename, value = stored
        if not is_raw or mode == MODE_PICKLE:
            self.skipped.add(*(("pickled values", _key(key)) if is_raw else ("pickled keys",)))
            return None
        try:
            data = _bytes(value) if filename is None else _file_bytes(part, _bytes(filename))
            written_ms = _instant_ms(stored_at or 0)
            deadline_ms = NEVER_MS if expires_at is None else _instant_ms(expires_at)
            return Record(self._family, _bytes(key), Row(data, written_ms, deadline_ms))
        except FileNotFoundError:
            self.failed.add("values whose file is missing", _key(key))
        except (OSError, TypeError, ValueError):
            self.failed.add("rows that cannot be read", _key(key))
        return None


def parts_of(path: Path) -> list[Path]:
    """The directories that have a database: this one, or those of a fanout."""
    if (path / DATABASE).is_file():
        return [path]
    parts = sorted(found.parent for found in path.glob(f"{PARTS}/{DATABASE}"))
    if not parts:
        raise InvalidArgument(f"{path} is no directory of diskcache: it has no {DATABASE}")
    return parts


def _open(part: Path) -> sqlite3.Connection:
    address = f"{(part / DATABASE).absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(address, uri=True)
    database.text_factory = bytes  # text is UTF-8 there as it is here
    return database


def _count_checked(database: sqlite3.Connection, *, is_checked: bool) -> int:
    """How many rows there are. Raises sqlite3.Error where they cannot be read."""
    if is_checked:
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != b"ok":
            raise sqlite3.DatabaseError(verdict.decode("utf-8", "replace"))
    database.execute(QUERY).fetchone()
    return int(database.execute("SELECT count(*) FROM Cache").fetchone()[0])


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, int):
        return b"%d" % data
    if isinstance(data, float):
        return repr(data).encode()
    raise TypeError(type(data))


def _key(data: object) -> bytes | None:
    """The key to name, if it can be read."""
    try:
        return _bytes(data)
    except TypeError:
        return None


def _file_bytes(part: Path, name: bytes) -> bytes:
    """The value in a file of the directory, which must not lie elsewhere."""
    root = part.resolve()
    path = (root / os.fsdecode(name)).resolve()
    if not path.is_relative_to(root):
        raise ValueError(name)
    if path.stat().st_size > VALUE_BYTES_MAX:
        raise ValueError(path.stat().st_size)
    return path.read_bytes()


def _instant_ms(seconds: float) -> int:
    """Beyond all deadlines stays beyond, within what a row can say. Raises ValueError for no number."""
    return round(min(max(seconds, 0.0) * 1000, DEADLINE_MS_MAX + 1))
