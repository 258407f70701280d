"""How much room a store takes on the disk."""

from __future__ import annotations

import contextlib
import os

from ephemera.store import SCHEME

BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's own blocks are."""


def disk_bytes(url: str) -> int | None:
    """What the file system counts for a store's directory; None for a store that is no directory."""
    return None if SCHEME.match(url) else directory_bytes(url)


def directory_bytes(path: str) -> int:
    """The allocated bytes of all files below; those that go meanwhile are passed over."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(directory, name)).st_blocks * BLOCK_BYTES
    return total
