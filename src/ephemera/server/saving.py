"""SAVE and its kin: files for Redis and for whoever keeps copies, in the store's own directory.

Nothing here is needed to keep what was acknowledged: the store does that. No command says where the
files go, so no client can write anywhere else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ephemera import EphemeraError, Store
from ephemera.core.clock import elapsed_ns
from ephemera.formats.aof import encode_aof
from ephemera.formats.files import remove_leftovers
from ephemera.formats.rdb_file import encode_rdb
from ephemera.formats.transfer import Encoder, save
from ephemera.resp.replies import Refused

_log = logging.getLogger("ephemera.server")

EXPORTS = "exports"
NO_DIRECTORY = "ERR this store has no directory to save to; one that is opened by a path has"


class SaveFile:
    """One of the files that can be saved, and how it went."""

    def __init__(self, name: str, encode: Encoder) -> None:
        self.name = name
        self.encode = encode
        self.count = 0
        self.has_failed = False
        self.took_seconds = -1
        self._began_ns: int | None = None
        self._lock = threading.Lock()

    @property
    def running_seconds(self) -> int:
        """How long it is being saved; -1 while it is not."""
        return -1 if self._began_ns is None else _seconds_since(self._began_ns)

    def write(self, store: Store, directory: Path, families: Sequence[str]) -> None:
        """Write the file from one snapshot, in place of the former. Raises Refused."""
        with self._lock:  # SAVE, and one that was scheduled and begins meanwhile
            self._began_ns = began_ns = elapsed_ns()
            self.has_failed = True
            try:
                self._write(store, directory / self.name, families)
            except (EphemeraError, OSError) as error:
                raise Refused(f"ERR saving failed: {_reason(error)}") from error
            finally:
                self.took_seconds = _seconds_since(began_ns)
                self._began_ns = None
            self.has_failed = False
            self.count += 1

    def _write(self, store: Store, path: Path, families: Sequence[str]) -> None:
        store.sync()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(path)
        save(store.engine, path, self.encode, families=families)


class Saving:
    """Saves now, or in a thread of its own, one after the other."""

    def __init__(self, store: Store, families: Sequence[str], changes: Callable[[], int]) -> None:
        numbers = {name: number for number, name in enumerate(families)}
        self.rdb = SaveFile("dump.rdb", partial(encode_rdb, numbers=numbers))
        self.aof = SaveFile("appendonly.aof", partial(encode_aof, numbers=numbers))
        self.saved_ms = store.clock.now_ms()
        self.running: SaveFile | None = None
        """What is being saved in the background."""
        self.scheduled: list[SaveFile] = []
        path = store.stats().get("path")
        self.directory = None if path is None else Path(path).absolute() / EXPORTS
        self._store = store
        self._families = families
        self._changes = changes
        self._saved_changes = changes()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def unsaved_changes(self) -> int:
        return self._changes() - self._saved_changes

    def save(self, kind: SaveFile) -> None:
        """Return when the file is on the disk. Raises Refused."""
        directory = self.check_directory()
        changes = self._changes()
        kind.write(self._store, directory, self._families)
        if kind is self.rdb:
            self.saved_ms = self._store.clock.now_ms()
            self._saved_changes = changes

    def start(self, kind: SaveFile) -> None:
        """Save in the background: now, or when the one under way has ended."""
        with self._lock:
            if self.running is None:
                # No daemon: a process that ends lets it see that the store was closed, and clear up.
                self._thread = threading.Thread(
                    target=self._work, args=(kind,), name="ephemera-save", daemon=False
                )
                self._thread.start()
                self.running = kind
            elif kind not in self.scheduled:
                self.scheduled.append(kind)

    def wait(self) -> None:
        """Return when nothing is being saved in the background, and nothing is scheduled."""
        if self._thread is not None:
            self._thread.join()

    def check_directory(self) -> Path:
        """Where the files go. Raises Refused for a store without a place on the disk."""
        if self.directory is None:
            raise Refused(NO_DIRECTORY)
        return self.directory

    def _work(self, first: SaveFile) -> None:
        kind: SaveFile | None = first
        while kind is not None:
            try:
                self.save(kind)
            except Exception as error:  # whatever it is, the next one gets its turn
                kind.has_failed = True
                _log.error("saving %s failed: %s", kind.name, error.__cause__ or error)
            with self._lock:
                kind = self.running = self.scheduled.pop(0) if self.scheduled else None


def _seconds_since(began_ns: int) -> int:
    return (elapsed_ns() - began_ns) // 1_000_000_000


def _reason(error: Exception) -> str:
    """What a client may know of it: no path of this machine."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
