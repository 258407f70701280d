"""Who has the store open: a shared file lock for as long as each process uses it.

Whoever gets that lock exclusively is alone, and recovers. A second lock, held while a process
attaches or detaches, keeps two of them from doing so at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from ephemera.core._block import block
from ephemera.core.errors import StoreLocked
from ephemera.engines.local._control import LOCKS
from ephemera.engines.local._lock_file import LockFile
from ephemera.engines.local.files import FileLock
from ephemera.engines.local.layout import Layout


class Attachment:
    """This opener's place among the processes of a store.

    `lock_timeout` is how many seconds it waits for another process that opens or closes the store.
    """

    def __init__(
        self, layout: Layout, *, is_exclusive: bool, lock_timeout: float, mode: int
    ) -> None:
        self._layout = layout
        self._is_exclusive = is_exclusive
        self.lock_timeout = lock_timeout
        self._opening = FileLock(layout.locks / "open", mode)
        self._attached = FileLock(layout.locks / "attach", mode)
        self.maintenance = FileLock(layout.locks / "maintenance", mode)
        self._of_control = {name: FileLock(layout.locks / name, mode) for name, _ in LOCKS}

    @property
    def lock_fds(self) -> dict[str, int]:
        """A descriptor for each lock of the control page, for systems without robust mutexes."""
        return {name: lock.file.fd for name, lock in self._of_control.items()}

    def leave_open(self, names: list[str]) -> None:
        """Never close the files of these locks of the control page: a thread of this process is inside."""
        _in_use_for_ever.extend(self._of_control.pop(name) for name in names)

    @block
    def attaching(self, opened: ExitStack) -> Iterator[bool]:
        """Attach; the block is given whether no other process is, and must recover then.

        What fails is undone by `opened` while nobody else can attach: who waits for that finds no trace of it.
        Raises StoreLocked when an exclusive owner, or the wish to be one, stands in the way, and StoreBusy
        when another process does not finish opening or closing the store in time.
        """
        with self._opening.held(self.lock_timeout), opened:
            opened.callback(self._attached.close)
            is_first = self._attached.try_take()
            if not is_first and (self._is_exclusive or not self._attached.try_take(is_shared=True)):
                raise self._refusal()
            yield is_first
            if self._is_exclusive:
                self._attached.write_owner(os.getpid())
            else:
                self.stay_shared()
                self._attached.write_owner(None)
            opened.pop_all()

    @block
    def detaching(self) -> Iterator[bool]:
        """Detach after the block; yield whether this is the last process that has the store open.

        If another process does not finish opening or closing the store in time, this one is not the last.
        """
        try:
            with self._opening.returned():
                if not self._opening.wait(self.lock_timeout):
                    yield False
                    return
                try:
                    yield self._attached.try_take()
                finally:
                    # Not just by closing: a child of a fork may have the descriptors too, and lives on.
                    self.stay_shared()
        finally:
            self.close()

    @property
    def is_held(self) -> bool:
        return self._attached.file.is_open

    def stay_shared(self) -> None:
        """What parent and child of a fork hold together is a shared lock, whatever one did with it."""
        if not self._is_exclusive:
            self._attached.take(self.lock_timeout, is_shared=True)

    @property
    def inherited(self) -> list[LockFile]:
        """What the child of a fork keeps open, to stay attached until it attaches by itself.

        Nothing of an exclusive owner, who is the parent alone.
        """
        return [] if self._is_exclusive else [self._attached.file]

    def close(self) -> None:
        if self._is_exclusive:
            # A child of a fork has a copy until it comes to close that. Else it may be attached by it.
            self._attached.file.unlock()
        locks = self._attached, self._opening, self.maintenance, *self._of_control.values()
        for lock in locks:
            lock.close()

    def announce(self, url: str) -> None:
        """Leave the URL where this exclusive owner serves the store for those who are refused."""
        self._attached.write_owner(os.getpid(), url)

    def _refusal(self) -> StoreLocked:
        owner, served_at = self._attached.read_owner()
        root = self._layout.root
        if served_at:
            return StoreLocked(f"{root} is served by process {owner} at {served_at}", served_at)
        if owner:
            return StoreLocked(
                f"{root} is open in process {owner} with exclusive=True, which keeps others out:"
                " close it there, or end that process"
            )
        return StoreLocked(
            f"{root} is open in another place: exclusive=True, as in `ephemera serve`, needs it alone;"
            " close it there first"
        )


_in_use_for_ever: list[FileLock] = []
