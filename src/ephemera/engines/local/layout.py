"""Where things lie in a store's directory.

app.eph/
  format               one line that says what this directory is
  control              the control page (_control.pyx), made anew by the first process to open
  locks/               open, attach, maintenance, and one for each lock of the control page
  segments/NNNNNNNN.seg
  base/NNNNNNNN.mdb    the base tier; a compaction makes the next generation
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from ephemera.core.errors import CorruptStore, InvalidArgument, NewerFormat
from ephemera.core.options import MODE_DEFAULT, MODE_MAX
from ephemera.engines.local.files import (
    Files,
    directory_mode,
    is_temporary,
    set_mode,
    system_errors,
)

FORMAT = 1
FORMAT_LINE = b"ephemera store, format %d\n" % FORMAT
SEGMENT_SUFFIX = ".seg"
BASE_SUFFIX = ".mdb"


class Layout:
    """The paths of one store."""

    def __init__(self, root: str | Path) -> None:
        if "\0" in str(root):
            raise InvalidArgument(f"a path has no zero bytes: {str(root)!r}")
        self.root = Path(root).absolute()
        self.format = self.root / "format"
        self.control = self.root / "control"
        self.locks = self.root / "locks"
        self.segments = self.root / "segments"
        self.base = self.root / "base"

    def segment(self, number: int) -> Path:
        return self.segments / f"{number:08d}{SEGMENT_SUFFIX}"

    def base_file(self, generation: int) -> Path:
        return self.base / f"{generation:08d}{BASE_SUFFIX}"

    def segment_numbers(self) -> list[int]:
        return _numbers(self.segments, SEGMENT_SUFFIX)

    def base_generations(self) -> list[int]:
        return _numbers(self.base, BASE_SUFFIX)

    def prepare(self, files: Files, *, create: bool, mode: int | None = None) -> None:
        """See that this is a store, or make it an empty one; `files` learns its permissions.

        Those of `format` hold for all files. Given another `mode`, all of them are changed. Raises InvalidArgument when something else lies at the path.
        """
        with system_errors(self.root):
            self._prepare(files, create=create, mode=mode)

    def _prepare(self, files: Files, *, create: bool, mode: int | None) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise InvalidArgument(f"{self.root} is a file; a store is a directory")
        if not self.format.exists():
            if not create:
                raise InvalidArgument(f"there is no store at {self.root}")
            files.mode = MODE_DEFAULT if mode is None else mode
            self._create(files)
        self._check_format()
        files.mode = self.format.stat().st_mode & MODE_MAX | MODE_DEFAULT
        if mode is not None and mode != files.mode:
            self._change_mode(mode)
            files.mode = mode
        missing = [path for path in (self.locks, self.segments, self.base) if not path.exists()]
        for directory in missing:
            _make_directory(directory, files.mode)
        if missing:
            files.sync_directory(self.root)

    def _check_format(self) -> None:
        line = self.format.read_bytes()
        if line == FORMAT_LINE:
            return
        found = re.fullmatch(rb"ephemera store, format ([0-9]{1,9})\n", line)
        if found and int(found[1]) > FORMAT:
            raise NewerFormat(
                f"{self.root} was written by a newer version of ephemera (format {int(found[1])};"
                f" this one reads {FORMAT}): upgrade"
            )
        raise CorruptStore(self.format, 0, f"holds {line[:40]!r}, not {FORMAT_LINE!r}")

    def _change_mode(self, mode: int) -> None:
        # `format` last: its permissions say that those of all others are set.
        files = [path for path in self.root.rglob("*") if path != self.format]
        for path in [self.root, *files, self.format]:
            with contextlib.suppress(FileNotFoundError):  # removed by another process
                set_mode(path, directory_mode(mode) if path.is_dir() else mode)

    def remove_temporaries(self) -> None:
        """Clear away what a death in the middle of a creation left."""
        for directory in (self.root, self.segments, self.base):
            for path in directory.iterdir():
                if is_temporary(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)

    def _create(self, files: Files) -> None:
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            if not self.root.exists():
                _make_directory(self.root, files.mode)
        except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
            raise InvalidArgument(f"no store can be made at {self.root}: {error}") from error
        # Another process may be creating the same store; its lock directory and temporaries are ours too.
        ours = {"format", "control", "locks", "segments", "base"}
        names = {path.name for path in self.root.iterdir()}
        foreign = sorted(n for n in names - ours if not is_temporary(n))
        if foreign:
            raise InvalidArgument(
                f"{self.root} is not empty and no store: it holds {', '.join(foreign[:3])}"
            )
        try:
            files.write_whole(self.format, FORMAT_LINE)
        except FileNotFoundError:
            # Another one was first, and cleared away what it took for a leftover.
            if not self.format.exists():
                raise
        files.sync_directory(self.root.parent)


def _make_directory(path: Path, mode: int) -> None:
    """Make a directory for files of this mode, unless another process was first."""
    with system_errors(path), contextlib.suppress(FileExistsError):
        path.mkdir(mode=directory_mode(MODE_DEFAULT))
        set_mode(path, directory_mode(mode))


def _numbers(directory: Path, suffix: str) -> list[int]:
    stems = (path.name[: -len(suffix)] for path in directory.glob(f"*{suffix}"))
    return sorted(int(stem) for stem in stems if stem.isdigit())
