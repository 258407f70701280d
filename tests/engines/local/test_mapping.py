"""A mapped file that is let go of is still the file, and no memory of this process."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

import ephemera
from ephemera.engines.local._mapping import Mapping

PAGES = 16
SMAPS = Path("/proc/self/smaps")

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc here")


def resident(path: Path) -> int:
    """How many bytes of a mapped file, or of all in a directory, count as this process's memory."""
    size, is_wanted = 0, False
    for line in SMAPS.read_text().splitlines():
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):
            is_wanted = len(rest) == 5 and rest[4].startswith(str(path))
        elif is_wanted and name == "Rss:":
            size += int(rest[0]) * 1024
    return size


def test_what_was_written_is_there_after_letting_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(PAGES * mmap.PAGESIZE)
        mapping = Mapping(file.fileno(), PAGES * mmap.PAGESIZE)
    with memoryview(mapping) as memory:
        first = [page * mmap.PAGESIZE for page in range(PAGES)]
        for number, at in enumerate(first):
            memory[at] = number + 1
        assert resident(path) == PAGES * mmap.PAGESIZE
        mapping.let_go()
        assert resident(path) == 0
        assert [memory[at] for at in first] == list(range(1, PAGES + 1))


def test_an_applied_segment_is_memory_again_when_it_is_read(tmp_path: Path) -> None:
    path, value = tmp_path / "kept.eph", b"v" * 1_000
    with ephemera.open(path, exclusive=True, maintenance="manual") as store:
        for number in range(2_000):
            store.put(b"%d" % number, value)
        before = resident(path / "segments")
        store.checkpoint()
        assert store.get(b"none") is None
        let_go = resident(path / "segments")
        assert before > 2_000_000
        # The system maps what is around a page, too.
        assert let_go < 500_000
        assert [store.get(b"%d" % number) for number in range(2_000)] == [value] * 2_000
        assert resident(path / "segments") > 2_000_000
