"""Where things lie in a store's directory.

app.eph/
  format               one line that says what this directory is
  control              the control page (_control.pyx), made anew by the first process to open
  locks/               open, attach, maintenance, writer, syncer, base
  segments/NNNNNNNN.seg
  base/NNNNNNNN.mdb    the base tier; a compaction makes the next generation
"""

from __future__ import annotations

from pathlib import Path

from ephemera.core.errors import CorruptStore, InvalidArgument
from ephemera.engines.local.files import TEMPORARY_SUFFIX, Files, system_errors

FORMAT_LINE = b"ephemera store, format 1\n"
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

    def prepare(self, files: Files, *, create: bool) -> None:
        """See that this is a store, or make it an empty one.

        Raises InvalidArgument when something else lies at the path.
        """
        if self.root.exists() and not self.root.is_dir():
            raise InvalidArgument(f"{self.root} is a file; a store is a directory")
        if not self.format.exists():
            if not create:
                raise InvalidArgument(f"there is no store at {self.root}")
            self._create(files)
        line = self.format.read_bytes()
        if line != FORMAT_LINE:
            raise CorruptStore(self.format, 0, f"holds {line[:40]!r}, not {FORMAT_LINE!r}")
        missing = [path for path in (self.locks, self.segments, self.base) if not path.exists()]
        for directory in missing:
            with system_errors(directory):
                directory.mkdir(exist_ok=True)
        if missing:
            files.sync_directory(self.root)

    def remove_temporaries(self) -> None:
        """Clear away what a death in the middle of a creation left."""
        for directory in (self.root, self.segments, self.base):
            for path in directory.glob(f"*{TEMPORARY_SUFFIX}*"):
                path.unlink(missing_ok=True)

    def _create(self, files: Files) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"no store can be made at {self.root}: {error}") from error
        # Another process may be creating the same store; its lock directory and temporaries are ours too.
        ours = {"format", "control", "locks", "segments", "base"}
        names = {path.name for path in self.root.iterdir()}
        foreign = sorted(n for n in names - ours if not n.endswith(TEMPORARY_SUFFIX))
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


def _numbers(directory: Path, suffix: str) -> list[int]:
    stems = (path.name[: -len(suffix)] for path in directory.glob(f"*{suffix}"))
    return sorted(int(stem) for stem in stems if stem.isdigit())
