"""A copy of a live store: a state, written out as a directory that opens as a store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ephemera.core._block import block
from ephemera.core.errors import InvalidArgument
from ephemera.engines.local._segment import Segment
from ephemera.engines.local.files import Files, system_errors, temporary_name
from ephemera.engines.local.layout import Layout
from ephemera.engines.local.views import State


def copy_state(state: State, path: str, files: Files) -> None:
    """Write a state to a new directory, which has its name only once it is whole.

    Raises InvalidArgument when something lies there already, or does when the copy is whole: of several
    backups to one path at once, one succeeds.
    """
    target = Layout(path).root
    with _made_whole(target, files) as unfinished:
        layout = Layout(unfinished)
        layout.prepare(files, create=True, mode=files.mode)
        state.txn.run(state.base.copy_state, layout.base_file(1))
        files.sync_path(layout.base_file(1))
        for segment, limit in zip(state.snapshot.segments, state.snapshot.limits, strict=True):
            _copy_segment(segment, limit, layout, files)
        for directory in (layout.base, layout.segments, layout.root):
            files.sync_directory(directory)


@block
def _made_whole(target: Path, files: Files) -> Iterator[Path]:
    """Where to make a directory that gets its name, durably, at the end of the block; half of one is
    removed. Nothing is removed that was not made there: nobody else has the name."""
    if os.path.lexists(target):
        raise _exists(target)
    unfinished = temporary_name(target)
    try:
        yield unfinished
        with system_errors(target):
            _rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    files.sync_directory(target.parent)


def _rename(unfinished: Path, target: Path) -> None:
    # A directory takes the place of an empty one without a word: so that one must be of our making.
    try:
        target.mkdir(mode=0o700)
    except FileExistsError:
        raise _exists(target) from None
    try:
        unfinished.rename(target)
    except OSError as error:
        raise InvalidArgument(
            f"{target} was written to by somebody else while the backup was made: {error.strerror}"
        ) from error


def _exists(target: Path) -> InvalidArgument:
    return InvalidArgument(f"{target} exists: a backup goes to a new directory")


def _copy_segment(segment: Segment, limit: int, layout: Layout, files: Files) -> None:
    # The space after the records is left out: nothing is ever written to a recovered segment.
    files.write_whole(layout.segment(segment.number), segment.image(limit))
