"""A mapped file that is let go of is still the file."""

from __future__ import annotations

import mmap
from pathlib import Path

from ephemera.engines.local._mapping import Mapping

PAGES = 16


def test_what_was_written_is_there_after_letting_go(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(PAGES * mmap.PAGESIZE)
        mapping, other = (Mapping(file.fileno(), PAGES * mmap.PAGESIZE) for _ in range(2))
        with memoryview(mapping) as memory, memoryview(other) as seen:
            for page in range(PAGES):
                memory[page * mmap.PAGESIZE] = page + 1
            mapping.let_go()
            first = [page * mmap.PAGESIZE for page in range(PAGES)]
            assert [seen[at] for at in first] == [memory[at] for at in first]
            assert [memory[at] for at in first] == list(range(1, PAGES + 1))
