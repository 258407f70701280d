"""Every error that Ephemera raises, one class per thing the caller can do about it.

    EphemeraError
    ├── InvalidArgument       mend the call; also a ValueError
    ├── UnsupportedOperation  use another engine, or the alternative that the message names
    ├── StoreClosed           open the store again
    ├── ReadOnly              open the store without read_only=True
    ├── StoreLocked           another process or container keeps the store to itself; close it there
    ├── StoreBusy             another process or thread held a lock too long; try again
    ├── TransactionConflict   another writer was there first each time; try the block again
    ├── EngineUnavailable     the servers behind the store did not answer in time; try again later
    ├── StoreFenced           another writer took the store over; open it again to take it back
    ├── StoreFull             delete, purge, free disk space or raise size_limit, then try again
    ├── AccessDenied          the system refuses access; give this user the right, or open another place
    ├── ResourcesExhausted    too few descriptors or too little memory; raise the limit that is named
    ├── StoreFailed           the operating system lost a write; close, then open again to recover
    ├── NewerFormat           a newer version of ephemera wrote the store; upgrade
    └── CorruptStore          restore a backup; the message names file and offset

The message says what was given and what is allowed. An operation that raises has changed nothing,
except after `StoreFailed`, where reopening decides, and `EngineUnavailable`, where the answer was lost.
"""

from __future__ import annotations


class EphemeraError(Exception):
    """The root of all errors that Ephemera raises on purpose."""


class InvalidArgument(EphemeraError, ValueError):
    """An argument is outside what the operation takes."""


class UnsupportedOperation(EphemeraError):
    """The engine behind the store cannot do this."""


class StoreClosed(EphemeraError):
    """The store, transaction or snapshot was used after it ended."""


class ReadOnly(EphemeraError):
    """A write was asked of something that only reads."""


class StoreLocked(EphemeraError):
    """Another process, or the processes of another container, keep the store to themselves.

    `served_at` is the URL where that process serves it, empty if it does not. What to do about a
    served store is not part of `reason`: a program opens a URL, a command names other commands.
    """

    def __init__(self, reason: str, served_at: str = "") -> None:
        super().__init__(reason, served_at)
        self.reason, self.served_at = reason, served_at

    def __str__(self) -> str:
        if not self.served_at:
            return self.reason
        return (
            f"{self.reason}: stop the server, or open what it serves with"
            f' ephemera.open("{served_store_url(self.served_at)}")'
        )


def served_store_url(served_at: str) -> str:
    """Return the URL of a store that is database 0 of the server at a URL.

    >>> served_store_url("redis://127.0.0.1:6379")
    'redis://127.0.0.1:6379/0?values=plain'
    """
    return f"{served_at}/0?values=plain"


class StoreBusy(EphemeraError):
    """Another process or thread held a lock for longer than `lock_timeout`."""


class TransactionConflict(EphemeraError):
    """Other writers changed what the transaction had read, as often as it was tried again."""


class EngineUnavailable(EphemeraError):
    """What is behind the store did not answer in time. A write may or may not have happened."""


class StoreFenced(EphemeraError):
    """A newer writer has taken the store over; this one acknowledges nothing any more."""


class StoreFull(EphemeraError):
    """There is no room: the disk is full or `size_limit` is reached. Reads go on, and at `size_limit`
    deletions, purges, `clear` and `compact` too."""


class AccessDenied(EphemeraError):
    """The system does not let this process at the files: permissions, or a read-only file system."""


class ResourcesExhausted(EphemeraError):
    """The process or the system has no file descriptors, threads or memory left. Nothing was lost."""


class NewerFormat(EphemeraError):
    """The store was written by a newer version of ephemera, which this one cannot read."""


class StoreFailed(EphemeraError):
    """A sync failed, so nothing further is acknowledged until the store is reopened."""


class CorruptStore(EphemeraError):
    """Bytes on disk are not what was written."""

    def __init__(self, path: object, offset: int | None, reason: str) -> None:
        self.path = str(path)
        self.offset = offset
        self.reason = reason
        where = self.path if offset is None else f"{self.path} at offset {offset}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[type[CorruptStore], tuple[str, int | None, str]]:
        return type(self), (self.path, self.offset, self.reason)
