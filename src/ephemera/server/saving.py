"""SAVE and its kin: everything written so far to the disk and into the base tier.

Acknowledged writes are kept without it. What is left for it is to make them survive a power loss at
once, and to leave nothing for the next start to recover.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ephemera import EphemeraError, Store

_log = logging.getLogger("ephemera.server")


class Saving:
    """Saves now, or in a thread of its own, one at a time; and remembers how it went."""

    def __init__(self, store: Store, changes: Callable[[], int]) -> None:
        self._store = store
        self._changes = changes
        self._saved_changes = changes()
        self._thread: threading.Thread | None = None
        self.saved_ms = store.clock.now_ms()
        self.count = 0
        self.has_failed = False

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def unsaved_changes(self) -> int:
        return self._changes() - self._saved_changes

    def save(self) -> None:
        """Return when all is safe. Raises what the store raises."""
        changes = self._changes()
        try:
            self._store.sync()
            self._store.checkpoint()
        except EphemeraError:
            self.has_failed = True
            raise
        self.has_failed = False
        self.count += 1
        self.saved_ms = self._store.clock.now_ms()
        self._saved_changes = changes

    def start(self) -> None:
        """Save in the background. The caller looked whether one `is_running`."""
        self._thread = threading.Thread(target=self._save_alone, name="ephemera-save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when the one in the background has ended."""
        if self._thread is not None:
            self._thread.join()

    def _save_alone(self) -> None:
        try:
            self.save()
        except EphemeraError as error:
            _log.error("saving in the background failed: %s", error)
