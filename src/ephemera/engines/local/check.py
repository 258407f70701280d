"""`check()`: walk rows, index, segments and pages of one state and report every disagreement."""

from __future__ import annotations

from collections.abc import Iterator

from ephemera.core.errors import CorruptStore
from ephemera.core.keyvalue import CheckReport
from ephemera.core.row import NEVER_MS
from ephemera.engines.local import families
from ephemera.engines.local._base import unpack_deadline, unpack_row
from ephemera.engines.local.base_tier import ReadTransaction, family_of, lmdb_errors
from ephemera.engines.local.views import State


def check_state(state: State) -> CheckReport:
    """The report on a state."""
    return state.txn.run(_check, state)


def _check(txn: ReadTransaction, state: State) -> CheckReport:
    rows = entries = records = 0
    # The pages first: they are read without LMDB, which trusts them.
    problems = [f"{state.base.path}: {problem}" for problem in state.base.page_problems()]
    try:
        with lmdb_errors(state.base.path):
            living = {family.id for family in state.families.values()}
            known = {*living, *families.given_up(state.base, txn)}
            for base_key, stored in state.base.scan(txn, b"", None, False):
                rows += 1
                problems.extend(_row_problems(txn, state, base_key, stored, known))
            for deadline_ms, base_key in state.base.entries(txn, -1, NEVER_MS - 1):
                entries += 1
                row = txn.get(base_key)
                if row is None or unpack_deadline(row) != deadline_ms:
                    problems.append(f"index entry {deadline_ms} of {base_key!r} has no such row")
            problems.extend(
                f"what is undelivered of {base_key!r} is damaged"
                for _, base_key, value, _ in state.base.undelivered(txn, NEVER_MS)
                if value is None
            )
    except CorruptStore as error:
        problems.append(str(error))
    for segment in state.snapshot.segments:
        records += segment.count_records()
        problems.extend(segment.problems())
    return CheckReport(rows, entries, records, tuple(problems))


def _row_problems(
    txn: ReadTransaction, state: State, base_key: bytes, stored: bytes, known: set[int]
) -> Iterator[str]:
    deadline_ms = unpack_deadline(stored)
    if deadline_ms != NEVER_MS and not state.base.has_entry(txn, deadline_ms, base_key):
        yield f"row {base_key!r} has a deadline, {deadline_ms}, and no index entry"
    if txn.get(base_key) != stored:
        yield f"row {base_key!r} is not found by its key"
    try:
        unpack_row(base_key, stored)
    except CorruptStore as error:
        yield str(error)
    if family_of(base_key) not in known:
        yield f"row {base_key!r} is of no family"
