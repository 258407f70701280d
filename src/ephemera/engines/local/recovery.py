"""Recovery: what the first process to open a store does, from the files alone.

Nothing in the control page is believed. Each segment after the last applied one is read record by
record; its intact prefix of whole batches counts and is indexed anew. What follows a segment's intact prefix is
lost with it, which only power loss can bring about, and only to what was never synced: bytes that
a stamp says were synced and that are damaged now were damaged from outside, and that is an error.
"""

from __future__ import annotations

import mmap
from itertools import zip_longest

from ephemera.core.errors import CorruptStore
from ephemera.engines.local._segment import Segment
from ephemera.engines.local.base_tier import APPLIED, BaseFile
from ephemera.engines.local.checkpoint import HIGH_WATER
from ephemera.engines.local.files import Files
from ephemera.engines.local.layout import Layout


class Recovered:
    """What recovery found: the numbers for the control page, and the latest time ever seen."""

    def __init__(self, applied: int, newest: int, latest_ms: int) -> None:
        self.applied = applied
        self.newest = newest
        self.latest_ms = latest_ms


def recover(layout: Layout, files: Files, base: BaseFile, *, hash_seed: int) -> Recovered:
    """Bring the segments in order. Raises CorruptStore for damage that no crash explains."""
    base.check_meta()
    applied = base.number(APPLIED)
    latest_ms = base.number(HIGH_WATER)
    segments = _open_segments(layout, files, applied, hash_seed)
    newest = applied
    for segment, following in zip_longest(segments, segments[1:]):
        end, written_ms, _ = segment.recover(following.previous_head if following else 0)
        synced, stamped_ms = segment.read_stamp()
        latest_ms = max(latest_ms, written_ms, stamped_ms)
        newest = segment.number
        if end < synced:
            raise CorruptStore(segment.path, end, "damaged, though it was synced")
        _write_again(segment, synced, end)
        if following is not None and end < following.previous_head:
            _lose(segments, segment, end, files, layout)
            break
    return Recovered(applied, newest, latest_ms)


def _write_again(segment: Segment, synced: int, end: int) -> None:
    """Have the next sync write all that was not synced: after one that failed, the system may take
    pages for written that are in its memory alone."""
    memory = segment.memory
    for at in range(synced, end, mmap.PAGESIZE):
        memory[at] = memory[at]
    if end > synced:
        memory[end - 1] = memory[end - 1]


def _open_segments(layout: Layout, files: Files, applied: int, hash_seed: int) -> list[Segment]:
    """The segments after the applied one, which must follow one another; older ones go."""
    segments: list[Segment] = []
    for number in layout.segment_numbers():
        path = layout.segment(number)
        if number <= applied:
            files.remove(path)
            continue
        if number != applied + 1 + len(segments):
            missing = layout.segment(applied + 1 + len(segments))
            raise CorruptStore(missing, None, f"the segment is missing, {path.name} is there")
        mapped = files.map_existing(path)
        segment = Segment(mapped.memory, str(path), hash_seed=hash_seed)
        if segment.number != number:
            raise CorruptStore(path, 16, f"is segment {segment.number}")
        segments.append(segment)
    return segments


def _lose(
    segments: list[Segment], truncated: Segment, end: int, files: Files, layout: Layout
) -> None:
    """Drop the segments after a truncated one: none of them was synced, or the truncation is damage."""
    later = [segment for segment in segments if segment.number > truncated.number]
    if any(segment.read_stamp()[0] for segment in later):
        raise CorruptStore(truncated.path, end, "damaged, though what follows it was synced")
    # One by one, the newest first, so that no crash in between leaves a gap.
    for segment in reversed(later):
        files.remove(layout.segment(segment.number))
        files.sync_directory(layout.segments)
