"""`check()`: walk rows, index and segments of one state and report every disagreement."""

from __future__ import annotations

from collections.abc import Iterator

from ephemera.core.errors import CorruptStore
from ephemera.core.keyvalue import CheckReport
from ephemera.core.row import NEVER_MS
from ephemera.engines.local import families
from ephemera.engines.local._base import unpack_deadline, unpack_row
from ephemera.engines.local.base_tier import family_of
from ephemera.engines.local.views import State


def check_state(state: State) -> CheckReport:
    """The report on a state."""
    problems: list[str] = []
    living = {family.id for family in state.families.values()}
    known = {*living, *families.given_up(state.base, state.txn)}
    rows = entries = records = 0
    for base_key, stored in state.base.scan(state.txn, b"", None, is_reverse=False):
        rows += 1
        deadline_ms = unpack_deadline(stored)
        if deadline_ms != NEVER_MS and not state.base.has_entry(state.txn, deadline_ms, base_key):
            problems.append(f"row {base_key!r} has a deadline, {deadline_ms}, and no index entry")
        problems.extend(_row_problems(base_key, stored, known))
    for deadline_ms, base_key in state.base.entries(state.txn, -1, NEVER_MS - 1):
        entries += 1
        row = state.txn.get(base_key)
        if row is None or unpack_deadline(row) != deadline_ms:
            problems.append(f"index entry {deadline_ms} of {base_key!r} has no such row")
    for segment in state.cut.segments:
        records += segment.count_records()
        problems.extend(segment.problems())
    return CheckReport(rows, entries, records, tuple(problems))


def _row_problems(base_key: bytes, stored: bytes, known: set[int]) -> Iterator[str]:
    try:
        unpack_row(base_key, stored)
    except CorruptStore as error:
        yield str(error)
    if family_of(base_key) not in known:
        yield f"row {base_key!r} is of no family"
