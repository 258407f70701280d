"""The fork generation: what was begun before a fork belongs to the parent.

A transaction, a snapshot or an open file of an earlier generation must neither be used nor ended in
this process: its locks and its place among the readers are the parent's.
"""

from __future__ import annotations

import os

INHERITED = (
    "this was begun by the parent process, before the fork: begin another one in this process"
)

generation = 0
"""How often this process's line has forked since the interpreter started."""

seen = 0
"""Counts up when a fork begins, and again when it has ended: odd while one is under way."""


def _count() -> None:
    global seen
    seen += 1


def _note_fork() -> None:
    global generation
    generation += 1
    _count()


# Registered before the hooks of the modules that import this one, and so called before them.
os.register_at_fork(before=_count, after_in_parent=_count, after_in_child=_note_fork)
