"""Walking over everything that a store holds, and saying what does not agree."""

from __future__ import annotations

from ephemera.core.keyvalue import CheckReport, Range
from ephemera.core.row import NEVER_MS, decode_row
from ephemera.engines.slatedb._calls import plain_rows
from ephemera.engines.slatedb.families import ID_BYTES, OWN_ID, SlateFamilyTable
from ephemera.engines.slatedb.reading import ReadHandle


def check_rows(state: ReadHandle, table: SlateFamilyTable) -> CheckReport:
    """Every row must be one, belong to a family, and die when SlateDB thinks it does."""
    names = {entry.id: name for name, entry in table.families.items()}
    unswept = set(table.given_up)
    count, mortal, problems = 0, 0, []
    for answer in state.walk(b"", Range()):
        for key, data, deadline_ms in plain_rows(answer):
            family_id = int.from_bytes(key[:ID_BYTES], "big")
            if family_id == OWN_ID or family_id in unswept:
                continue
            count += 1
            mortal += deadline_ms is not None
            problem = _problem(names.get(family_id), data, deadline_ms)
            if problem is not None:
                name = names.get(family_id, f"family {family_id}")
                problems.append(f"{name}: {key[ID_BYTES:]!r} {problem}")
    return CheckReport(count, mortal, 0, tuple(problems))


def _problem(name: str | None, data: bytes, deadline_ms: int | None) -> str | None:
    if name is None:
        return "belongs to no family"
    try:
        row = decode_row(data)
    except ValueError as error:
        return f"is no row: {error}"
    # A store that was opened with a clock of its own tells SlateDB no deadlines.
    if deadline_ms is not None and deadline_ms != row.deadline_ms:
        own = "never" if row.deadline_ms == NEVER_MS else f"at {row.deadline_ms}"
        return f"dies {own}, and for SlateDB at {deadline_ms}"
    return None
