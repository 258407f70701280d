"""Files that come from elsewhere and files that others will read: errors with a place, whole files only."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ephemera.core.errors import AccessDenied, InvalidArgument
from ephemera.formats.omissions import Omissions

TEMPORARY_SUFFIX = ".tmp"
FULL = (errno.ENOSPC, errno.EDQUOT)


class DamagedFile(InvalidArgument):
    """A file is not what its format says; `path` and `offset` tell where."""

    def __init__(self, path: object, offset: int | None, reason: str) -> None:
        self.path = str(path)
        self.offset = offset
        self.reason = reason
        where = self.path if offset is None else f"{self.path} at offset {offset}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, int | None, str]]:
        return type(self), (self.path, self.offset, self.reason)


class FileSource:
    """What the sources that are files share: counts, and how far they were read.

    A file is read once to find what is wrong with it and once for its records; one that is to be
    read whatever is wrong with it, once.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_going: bool) -> None:
        self.path = Path(path)
        self.keep_going = keep_going
        self.skipped = Omissions()
        self.failed = Omissions()
        self.damage: DamagedFile | None = None
        self.unread_bytes = 0
        self._done_bytes = 0
        self._total_bytes = self.path.stat().st_size * (1 if keep_going else 2)

    def progress(self) -> tuple[int, int]:
        return self._done_bytes, self._total_bytes

    def landed(self) -> None:
        """Where a file was read to is not kept."""

    def _damaged(self, error: DamagedFile) -> None:
        if not self.keep_going:
            raise error
        self.damage = error

    def _forget_counts(self) -> None:
        self.skipped.clear()
        self.failed.clear()


@contextmanager
def naming_full(place: object) -> Iterator[None]:
    """Let the error of a full disk say which one, which the system does not."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(place)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file for its owner alone that takes the place of `path` when the block ends well, on the disk
    and as a whole.

    Raises InvalidArgument where no file can be: devices, pipes and directories are not replaced.
    """
    if path.exists() and not path.is_file():
        raise InvalidArgument(f"{path} is there already and is no file")
    if not path.parent.is_dir():
        raise InvalidArgument(f"there is no directory {path.parent}")
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    try:
        with naming_full(path), _create(temporary, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _create(temporary: Path, path: Path) -> BinaryIO:
    try:
        return open(temporary, "xb", opener=_open_private)
    except PermissionError as error:
        raise AccessDenied(
            f"{path} cannot be written: {error.strerror}. Give this user the right to write in"
            f" {path.absolute().parent}, or choose another place"
        ) from None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def remove_leftovers(path: Path) -> None:
    """Clear away what `replacing` left of this file when its process was killed; nobody may be at it."""
    ours = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}")
    for leftover in path.parent.iterdir():
        if ours.fullmatch(leftover.name):
            leftover.unlink(missing_ok=True)
