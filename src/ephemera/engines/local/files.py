"""Everything the engine asks of the file system: the seam at which tests make it fail.

A `Mapped` file is shared memory with a name. All creation follows one protocol: allocate and fill
under a temporary name, sync, rename, sync the directory; so a file that has its name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path

from ephemera.core._block import block
from ephemera.core.errors import (
    AccessDenied,
    CorruptStore,
    EphemeraError,
    InvalidArgument,
    ResourcesExhausted,
    StoreBusy,
    StoreFailed,
    StoreFull,
)
from ephemera.core.nonblocking import is_nonblocking
from ephemera.core.options import MODE_DEFAULT
from ephemera.engines.local._lock_file import LockFile
from ephemera.engines.local._mapping import Mapping

TEMPORARY_SUFFIX = ".new"
_IS_DARWIN = sys.platform == "darwin"
_F_FULLFSYNC = 51
"""macOS's fcntl command that reaches the disk and not just its cache."""
_O_TMPFILE = getattr(os, "O_TMPFILE", os.O_DIRECTORY)
"""Elsewhere than on Linux a directory cannot be opened so, which is what the caller gets."""
_TEMPORARY = re.compile(r"\.\d+-[0-9a-f]{16}\.new(-lock)?$")
_PAUSE_SECONDS = 0.01
"""How often a waiting process looks whether a file lock is free."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Mapped:
    """A file in memory, shared with every process that maps it."""

    def __init__(
        self,
        path: Path,
        fd: int,
        size: int,
        reserve: Callable[[int, int], object] = lambda fd, size: None,
    ) -> None:
        self.path = path
        self.fd = fd
        reserve(fd, size)
        self.mapping = Mapping(fd, size)
        self.memory = memoryview(self.mapping)

    def __del__(self) -> None:
        # The mapping itself goes when nobody uses the memory any more.
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Files:
    """The operating system as it is. Tests substitute one that fails, tears and forgets."""

    mode = MODE_DEFAULT
    """The permissions of every file that is made here, whatever the umask; `Layout.prepare` sets it."""

    @property
    def syncs_directly(self) -> bool:
        """Whether `sync` is the mapping's own and nothing else, so that nobody need ask here."""
        return type(self).sync is _SYSTEM_SYNC and not _IS_DARWIN

    def create_mapped(self, path: Path, size: int, fill: Callable[[memoryview], object]) -> Mapped:
        """A new file of `size` bytes, really allocated, that `fill` has written the beginning of.

        Raises StoreFull when there is no room. If it has its name afterwards, only that is not sure
        to be on the disk; else nothing is left behind.
        """
        return self.name_mapped(self.allocate_mapped(path, size), path, fill)

    def allocate_mapped(self, path: Path, size: int) -> Mapped:
        """A file of zeros that has no name yet but a temporary one."""
        temporary = temporary_name(path)
        with system_errors(path):
            fd = create_file(temporary, os.O_RDWR | os.O_EXCL, self.mode)
            try:
                return Mapped(temporary, fd, size, allocate)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def allocate_unnamed(self, directory: Path, size: int) -> Mapped:
        """A file of zeros that is gone with this process, unless `name_temporarily` comes before.

        Raises OSError where the system has no such files.
        """
        fd = os.open(directory, os.O_RDWR | _O_TMPFILE | os.O_CLOEXEC, self.mode)
        set_mode(fd, self.mode)
        return Mapped(directory, fd, size, allocate)

    def name_temporarily(self, mapped: Mapped, path: Path) -> None:
        """Let an unnamed file be as if `allocate_mapped` had made it. Raises OSError."""
        temporary = temporary_name(path)
        # Any directory descriptor makes Python follow the link.
        os.link(f"/proc/self/fd/{mapped.fd}", temporary, src_dir_fd=mapped.fd)
        mapped.path = temporary

    def name_mapped(
        self, mapped: Mapped, path: Path, fill: Callable[[memoryview], object]
    ) -> Mapped:
        """Fill the beginning of an allocated file and give it its name."""
        temporary = mapped.path
        with system_errors(path):
            try:
                fill(mapped.memory)
                self.sync(mapped)
                os.rename(temporary, path)
                mapped.path = path
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self.sync_directory(path.parent)
        return mapped

    def map_existing(self, path: Path) -> Mapped:
        """Map a file as it is. Raises FileNotFoundError when there is none."""
        with system_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(fd).st_size
            if size == 0:
                os.close(fd)
                raise CorruptStore(path, 0, "the file is empty")
            return Mapped(path, fd, size)

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        """Return once what was written to these bytes of the memory is on the disk.

        Raises OSError when that failed: what it means for the store, the caller knows.
        """
        mapped.mapping.sync(start, len(mapped.memory) if end is None else end)
        if _IS_DARWIN:
            fcntl.fcntl(mapped.fd, _F_FULLFSYNC)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.sync_path(path)

    def sync_path(self, path: Path) -> None:
        """Make a file or directory that is not mapped durable."""
        with system_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Create a file, durable when this returns."""
        with self.made_whole(path) as temporary, system_errors(path):
            fd = create_file(temporary, os.O_WRONLY | os.O_TRUNC, self.mode)
            try:
                _write_all(fd, data, 0)
            finally:
                os.close(fd)

    @block
    def made_whole(self, path: Path) -> Iterator[Path]:
        """Where to make a file that has its name, durable, at the end of the block; half of one is removed."""
        temporary = temporary_name(path)
        try:
            yield temporary
            with system_errors(path):
                self.sync_path(temporary)
                os.rename(temporary, path)
                self.sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def remove(self, path: Path) -> None:
        with system_errors(path):
            path.unlink(missing_ok=True)


_SYSTEM_SYNC = Files.sync
"""As it is here, whatever a test puts in its place later."""


OWNER_BYTES_MAX = 300


class FileLock:
    """A lock on a file, shared or exclusive, that the system frees when its holder dies.

    Every wait is bounded, since a holder may be stopped instead.
    """

    def __init__(self, path: Path, mode: int = MODE_DEFAULT) -> None:
        self.path = path
        with system_errors(path):
            try:
                self.file = LockFile(partial(os.open, path, os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError:
                self.file = LockFile(partial(create_file, path, os.O_RDWR, mode))

    def try_take(self, *, is_shared: bool = False) -> bool:
        """Acquire the lock if it is free. Raises StoreClosed when another thread has closed the store."""
        return self.file.try_lock(is_shared=is_shared)

    def take(self, timeout: float = inf, *, is_shared: bool = False) -> None:
        """Acquire the lock. Raises StoreBusy, with the holder's pid, after `timeout` seconds."""
        if not self.wait(timeout, is_shared=is_shared):
            pid, _ = self.read_owner()
            raise StoreBusy(
                f"{self.path} is held by process {pid or 'unknown'}, and was not released"
                f" within {timeout:g} s (lock_timeout)"
            )

    def wait(self, timeout: float, *, is_shared: bool = False) -> bool:
        """Acquire the lock within `timeout` seconds, and return whether that succeeded."""
        # The system's own wait has no bound, and another thread could not end it.
        waited = 0.0
        pause = threading.Event()
        while not self.try_take(is_shared=is_shared):
            if is_nonblocking() or waited >= timeout:
                return False
            pause.wait(_PAUSE_SECONDS)
            waited += _PAUSE_SECONDS
        if not is_shared:
            with contextlib.suppress(EphemeraError, OSError):  # only messages need it
                self.write_owner(os.getpid())
        return True

    @block
    def held(self, timeout: float = inf) -> Iterator[None]:
        """HeldLock the lock for the length of a block."""
        with self.returned():
            self.take(timeout)
            yield

    @block
    def returned(self) -> Iterator[None]:
        """Give the lock back at the end of a block, if it was taken there."""
        try:
            yield
        finally:
            # Not by closing it: a child of a fork may have the same descriptor. Compiled: as a function of
            # Python begins, an interrupt may keep it from doing anything.
            self.file.unlock()

    def close(self) -> None:
        self.file.close()

    def write_owner(self, pid: int | None, served_at: str = "") -> None:
        """Leave the holder's pid, and where it serves, for those who are refused."""
        with system_errors(self.path):
            self.file.use(os.ftruncate, 0)
            if pid is not None:
                self.file.use(os.pwrite, f"{pid} {served_at}".rstrip().encode(), 0)

    def read_owner(self) -> tuple[str, str]:
        """Return the holder's pid, and the URL where it serves; empty strings where that is not known."""
        delivered = self.file.use(os.pread, OWNER_BYTES_MAX, 0).decode(errors="replace")
        pid, _, served_at = delivered.partition(" ")
        return pid, served_at


def create_file(path: Path, flags: int, mode: int) -> int:
    """Open a file that is made if it is not there, with exactly these permissions."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        set_mode(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def set_mode(place: int | Path, mode: int) -> None:
    """Give a file or directory these permissions, which the umask may have kept from it."""
    now = stat.S_IMODE(os.stat(place).st_mode)
    wanted = mode | now & stat.S_ISGID  # a directory's group, which its files inherit
    if now != wanted:
        os.chmod(place, wanted)


def directory_mode(mode: int) -> int:
    """The permissions of a directory whose files have these: who may read them may look them up."""
    return mode | (mode & 0o444) >> 2


def temporary_name(path: Path) -> Path:
    """What a file is called until it is whole: others may be making the same one."""
    return path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Whether `temporary_name` gave a file this name, or LMDB that of its lock beside one."""
    return _TEMPORARY.search(name) is not None


@block
def system_errors(path: object) -> Iterator[None]:
    """The system's errors in our words: see `explain`.

    Those that mean what they say to the caller (no such file, it exists, …) pass.
    """
    try:
        yield
    except OSError as error:
        # In no variable: an error that its own frame refers to keeps what is open until a collection.
        if explain(error.errno, path) is not None:
            raise explain(error.errno, path) from error  # type: ignore[misc]  # it is not None
        if type(error) is not OSError:
            raise
        raise StoreFailed(f"{path}: {error}") from error


def explain(number: int | None, path: object) -> EphemeraError | None:
    """Return what an error number of the system means to a store, and what to do; None if it may
    mean a write that was lost."""
    words = os.strerror(number) if number else ""
    if number in _NO_ROOM:
        return StoreFull(f"no room for {path}: {words}. Free some space; then writes go on")
    if number == errno.EACCES and _is_absent(path):
        return AccessDenied(
            f"{path}: {words}. Nothing can be made there: give this user the right to write in"
            f" {os.path.dirname(os.path.abspath(str(path)))}, or choose another path"
        )
    if number == errno.EPERM:
        return AccessDenied(
            f"{path}: {words}. Only the owner of a store may change the permissions of its files: open"
            " it without mode=, or as its owner"
        )
    if number == errno.EACCES:
        return AccessDenied(
            f"{path}: {words}. A store needs the right to read and write for every process, readers"
            " too: run as its owner, or let the owner open it with mode=0o660 and share its group"
        )
    if number == errno.EROFS:
        return AccessDenied(
            f"{path}: {words}. Readers share locks with writers, so a store needs a file system that"
            " is mounted for writing: copy it to one, or mount it so"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return ResourcesExhausted(
            f"{path}: {words}. Close files or stores, or raise the limit (ulimit -n)"
        )
    if number == errno.ENOMEM:
        return ResourcesExhausted(
            f"{path}: {words}. Open the store with a smaller size_limit, which is the size of its"
            " mapping, or raise the limit of memory (ulimit -v)"
        )
    if number in (errno.ENAMETOOLONG, errno.ELOOP):
        return InvalidArgument(f"{path}: {words}")
    return None


def _is_absent(path: object) -> bool:
    """Whether nothing is there for certain: behind a directory that may not be searched, it is unknown."""
    try:
        os.lstat(str(path))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def allocate(fd: int, size: int) -> None:
    """Give a file at least this size, with room on the disk for all of it."""
    # A sparse file would fault in the middle of a write once the disk is full.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1024 * 1024)
    for offset in range(os.fstat(fd).st_size, size, len(zeros)):
        _write_all(fd, zeros[: size - offset], offset)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
