"""A copy of a live store: a state, written out as a directory that opens as a store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ephemera.core.errors import InvalidArgument
from ephemera.engines.local._segment import Segment
from ephemera.engines.local.files import TEMPORARY_SUFFIX, Files
from ephemera.engines.local.layout import Layout
from ephemera.engines.local.views import State


def copy_state(state: State, path: str, files: Files) -> None:
    """Write a state to a new directory, which has its name only once it is whole.

    Raises InvalidArgument when something lies there already.
    """
    target = Layout(path).root
    if target.exists():
        raise InvalidArgument(f"{target} exists: a backup goes to a new directory")
    unfinished = Path(f"{target}{TEMPORARY_SUFFIX}")
    shutil.rmtree(unfinished, ignore_errors=True)
    layout = Layout(unfinished)
    try:
        layout.prepare(files, create=True, mode=files.mode)
        state.base.copy(layout.base_file(1), state.txn)
        files.sync_path(layout.base_file(1))
        for segment, limit in zip(state.cut.segments, state.cut.limits, strict=True):
            _copy_segment(segment, limit, layout, files)
        for directory in (layout.base, layout.segments, layout.root):
            files.sync_directory(directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    os.rename(unfinished, target)
    files.sync_directory(target.parent)


def _copy_segment(segment: Segment, limit: int, layout: Layout, files: Files) -> None:
    # The space after the records is left out: nothing is ever written to a recovered segment.
    files.write_whole(layout.segment(segment.number), segment.image(limit))
