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

begun = 0
"""How many forks have begun in this process."""

under_way = 0
"""How many have begun and not ended: threads may fork at the same time."""


def _begin() -> None:
    global begun, under_way
    under_way += 1
    begun += 1


def _end() -> None:
    global under_way
    under_way -= 1


def _note_fork() -> None:
    global generation, under_way
    generation += 1
    under_way = 0  # those of other threads end in the parent


# Registered before the hooks of the modules that import this one, and so called before them.
os.register_at_fork(before=_begin, after_in_parent=_end, after_in_child=_note_fork)
