"""Append-only files: the log of commands from which Redis restores its keys, read and written.

A log is one file, or since Redis 7 a directory with a manifest that names a base and what was
appended since. A file may begin with an RDB. What it leaves behind is known only when all of it was
replayed, which `replay` does.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from ephemera.core.errors import InvalidArgument
from ephemera.core.row import NEVER_MS
from ephemera.formats import rdb_file
from ephemera.formats._codec import Malformed, Truncated, Window
from ephemera.formats.databases import numbers_of
from ephemera.formats.files import DamagedFile, FileSource, naming_full
from ephemera.formats.replay import Replay
from ephemera.formats.transfer import TICK_RECORDS, Contents, Record

CHUNK_BYTES = 1 << 18
DIRECTORY = "appendonlydir"
"""What Redis calls the directory of a log, unless told otherwise."""
MANIFEST = ".manifest"

BRACKETS = {b"MULTI", b"EXEC", b"DISCARD"}
SELECT = b"*2\r\n$6\r\nSELECT\r\n$%d\r\n%b\r\n"
SET = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
SET_UNTIL = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n"
SET_FOR = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nEX\r\n$%d\r\n%b\r\n"


# --- reading --------------------------------------------------------------------------------------


class AofLog(FileSource):
    """A log as a source: a file, a manifest, a directory that has one, or one of Redis's data.

    A last file that ends within a command is read up to there, and within a transaction up to its
    beginning: `damage` tells where. Any other damage is raised, unless it is told to keep going.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, now_ms: int, keep_going: bool = False
    ) -> None:
        super().__init__(path, keep_going=keep_going)
        self._parts = parts_of(self.path)
        self._replay: Replay | None = None
        self._now_ms = now_ms
        self._total_bytes = 2 * sum(part.stat().st_size for part in self._parts)

    def prepare(self, tick: Callable[[], None]) -> None:
        self._replay = self._replayed(tick)

    def __iter__(self) -> Iterator[Record]:
        replay = self._replay or self._replayed(lambda: None)
        with closing(replay.scratch):
            before, count = self._done_bytes, replay.scratch.count
            for number, record in enumerate(replay.records(), 1):
                yield record
                if number % TICK_RECORDS == 0:
                    self._done_bytes = before + (self._total_bytes - before) * number // count
        self._done_bytes = self._total_bytes

    def _replayed(self, tick: Callable[[], None]) -> Replay:
        replay = Replay(self._now_ms, self.skipped, self.failed)
        try:
            with naming_full(tempfile.gettempdir()):
                for number, part in enumerate(self._parts):
                    self._replay_part(replay, part, tick)
                    if self.damage is not None:
                        left = sum(each.stat().st_size for each in self._parts[number:])
                        self.unread_bytes = left - (self.damage.offset or 0)
                        break
        except BaseException:
            replay.scratch.close()
            raise
        return replay

    def _replay_part(self, replay: Replay, part: Path, tick: Callable[[], None]) -> None:
        before = self._done_bytes
        with open(part, "rb") as file:
            window = Window(file)
            for number, _ in enumerate(self._steps(replay, window, part)):
                if number % TICK_RECORDS == 0:
                    self._done_bytes = before + window.offset
                    tick()
        self._done_bytes = before + window.offset

    def _steps(self, replay: Replay, window: Window, part: Path) -> Iterator[None]:
        """Replay one file, command by command."""
        block = Block(replay)
        try:
            if window.peek(len(rdb_file.MAGIC)) == rdb_file.MAGIC:
                for record in rdb_file.records(window, self._now_ms, self.skipped):
                    replay.add(record)
                    yield
            while block.step(window):
                yield
        except Truncated:
            if part != self._parts[-1] or block.offset is None:
                self._damaged(DamagedFile(part, window.offset, "the file ends too early"))
            else:
                self.damage = DamagedFile(part, block.offset, "the last command is not whole")
        except Malformed as error:
            self._damaged(DamagedFile(part, window.offset, str(error)))


class Block:
    """Hands commands to a replay; those of a transaction together, at its end."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._waiting: list[list[bytes]] | None = None
        self.offset: int | None = None
        """Where what was not yet handed over begins; None before the first command."""

    def step(self, window: Window) -> bool:
        """Take one command; whether there was one. Raises Truncated for a block that is not ended."""
        if self._waiting is None:
            self.offset = window.offset
        words = window.command()
        if words is None:
            if self._waiting is not None:
                raise Truncated("a transaction without its end")
            return False
        if len(words) == 1 and words[0].upper() in BRACKETS:
            self._bracket(words[0].upper())
        elif self._waiting is None:
            self._replay.run(words)
        else:
            self._waiting.append(words)
        return True

    def _bracket(self, name: bytes) -> None:
        waiting, self._waiting = self._waiting or [], [] if name == b"MULTI" else None
        if name == b"EXEC":
            for words in waiting:
                self._replay.run(words)


def parts_of(path: Path) -> list[Path]:
    """The files of a log, in the order in which they are replayed."""
    if path.is_dir():
        path = _manifest_in(path)
    return _listed(path) if path.name.endswith(MANIFEST) else [path]


def is_log_directory(path: Path) -> bool:
    return any(path.glob(f"*{MANIFEST}")) or any(path.glob(f"{DIRECTORY}/*{MANIFEST}"))


def _manifest_in(directory: Path) -> Path:
    found = sorted(directory.glob(f"*{MANIFEST}")) or sorted(
        directory.glob(f"{DIRECTORY}/*{MANIFEST}")
    )
    if len(found) != 1:
        raise InvalidArgument(
            f"{directory} has {len(found)} manifests of an append-only log; one is needed"
        )
    return found[0]


def _listed(manifest: Path) -> list[Path]:
    """The base, then what was appended; files of type h are history that Redis is to remove."""
    files: dict[str, list[Path]] = {"b": [], "i": [], "h": []}
    offset = 0
    for line in manifest.read_bytes().splitlines(keepends=True):
        text = line.decode("utf-8", "surrogateescape").strip()
        if text and not text.startswith("#"):
            try:
                words = shlex.split(text)
                told = dict(zip(words[::2], words[1::2], strict=True))
                name, kind = told["file"], told["type"]
                files[kind].append(_beside(manifest, name))
            except (KeyError, ValueError) as error:
                raise DamagedFile(manifest, offset, f"no line of a manifest: {error}") from None
        offset += len(line)
    return files["b"] + files["i"]


def _beside(manifest: Path, name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"{name!r} lies elsewhere")
    part = manifest.with_name(name)
    if not part.is_file():
        raise ValueError(f"{name!r} is not there")
    return part


# --- writing --------------------------------------------------------------------------------------


def encode_aof(
    contents: Contents, *, relative: bool = False, numbers: Mapping[str, int] | None = None
) -> Iterator[bytes]:
    """A log of one SET for each key, with its deadline as an instant.

    `relative` writes the seconds left instead, rounded up, as servers before 6.2 need them.
    `numbers` are the databases that the families become; else see `numbers_of`.
    """
    numbers = numbers or numbers_of(contents.families)
    out: list[bytes] = []
    size = 0
    current = None
    for family, key, row in contents.records:
        if family != current:
            current = family
            number = b"%d" % numbers[family]
            out.append(SELECT % (len(number), number))
        value, deadline_ms = row.value, row.deadline_ms
        if deadline_ms == NEVER_MS:
            command = SET % (len(key), key, len(value), value)
        else:
            shape = SET_FOR if relative else SET_UNTIL
            told = _seconds_left(deadline_ms, contents.now_ms) if relative else deadline_ms
            life = b"%d" % told
            command = shape % (len(key), key, len(value), value, len(life), life)
        out.append(command)
        size += len(command)
        if size >= CHUNK_BYTES:
            yield b"".join(out)
            out, size = [], 0
    yield b"".join(out)


def _seconds_left(deadline_ms: int, now_ms: int) -> int:
    return -((now_ms - deadline_ms) // 1000)
