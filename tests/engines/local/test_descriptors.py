"""How many file descriptors a store takes: what the page on operations says, and no more."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path

import ephemera
from ephemera import Store
from ephemera.engines.local.segments import SEGMENTS_WAITING_MAX
from tests.engines.local.stores import (
    ROOT,
    SEGMENT_BYTES,
    THOUSAND,
    engine_of,
    open_files_of,
)

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## File descriptors\n")[2].partition("\n## ")[0]
LOCKS, SEGMENTS, BASE = (
    (int(usual), int(most))
    for usual, most in re.findall(r"^\|.*\| (\d+) \| (\d+) \|$", SECTION, re.MULTILINE)
)
"""For each part of a store: how many it usually has, and at most."""
USUAL, MOST = (sum(part) for part in zip(LOCKS, SEGMENTS, BASE, strict=True))


def fill(store: Store, segments: int) -> None:
    for number in range(segments * SEGMENT_BYTES // len(THOUSAND)):
        store.put(b"%d" % number, THOUSAND)


def test_a_store_takes_the_descriptors_that_the_page_says(store: Store, path: Path) -> None:
    opened = LOCKS[0] + BASE[0]
    assert len(open_files_of(path)) == opened
    store.put("a", "1")
    assert len(open_files_of(path)) == opened + SEGMENTS[0] == USUAL
    with store.snapshot() as snapshot, store.transaction() as transaction:
        assert snapshot.get("a") == transaction.get("a") == b"1"
        assert len(open_files_of(path)) == USUAL
    store.checkpoint()
    assert len(open_files_of(path)) == opened
    assert f"{opened} file descriptors" in SECTION
    assert f"{USUAL} once" in SECTION
    assert f"at most {MOST}" in SECTION


def test_handles_of_one_process_share_the_base_tier(
    open_store: Callable[..., Store], path: Path
) -> None:
    first, second = open_store(), open_store()
    first.put("a", "1")
    assert second.get("a") == b"1"
    assert len(open_files_of(path)) == BASE[0] + 2 * (LOCKS[0] + SEGMENTS[0])
    second.close()
    assert len(open_files_of(path)) == USUAL


def test_segments_that_wait_for_a_checkpoint_take_no_more_than_the_page_says(
    store: Store, path: Path
) -> None:
    others = LOCKS[0] + BASE[0]
    taken = set()
    for number in range(1_000):
        store.put(b"%d" % number, THOUSAND)
        engine_of(store)._segments.prepare()  # as the background does: a spare
        taken.add(len(open_files_of(path)) - others)
    assert SEGMENTS_WAITING_MAX < max(taken) <= SEGMENTS[1]


def test_a_store_works_with_as_many_descriptors_as_it_takes_at_most(
    path: Path, first_free: int
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + MOST, before[1]))
    try:
        with ephemera.open(path, segment_bytes=SEGMENT_BYTES) as store:
            fill(store, 20)
            store.compact()
            fill(store, 20)
            store.backup(str(path) + ".copy")
            assert store.check().is_clean
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
