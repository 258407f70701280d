"""A store's contents into another store, whatever their engines: whole rows, families, default TTLs.

    copy       every row of the source, in key order; where it stands is noted in the target as it goes
    catch up   both stores side by side; what differs is carried, until nothing does, a few times at most
    verify     both side by side once more; what differs is told, and nothing is written

The note lies in a reserved family of the target, which goes when all is carried. A copy that was
interrupted, however hard, finds it there and goes on. Only what `copy` itself made is ever removed from the target,
unless the caller says that it may be.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ephemera.core.arguments import RESERVED_PREFIX
from ephemera.core.errors import CorruptStore, InvalidArgument
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import Capability, FamilyRef, Range, Write
from ephemera.core.row import Row
from ephemera.formats.files import DamagedFile
from ephemera.formats.omissions import Omissions
from ephemera.formats.transfer import (
    BATCH_BYTES,
    BATCH_RECORDS,
    Loaded,
    Progress,
    Record,
    TransferEngine,
    load,
)

NOTE_FAMILY = RESERVED_PREFIX + "copy"
NOTE_KEY = b"progress"
PASSES_MAX = 3
"""So often a copy compares the two stores before it says that the source does not stand still."""
TICK_ROWS = 2_000


class CopyEngine(TransferEngine, Protocol):
    """The part of `KeyValue` that a copy needs: rows of single keys and changes of families too."""

    def set_default_ttl(self, family: FamilyRef, ttl_ms: int | None) -> None: ...
    def drop_family(self, name: str) -> bool: ...
    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None: ...


@dataclass
class Copied:
    """How a copy went."""

    is_resumed: bool = False
    copied: int = 0
    dead: int = 0
    """Keys that died between being read and being written."""
    caught_up: int = 0
    """Keys that were written to the target by comparing."""
    removed: int = 0
    """Keys that the source no longer had."""
    left: int = 0
    """Keys of the target that the source does not have, and that are not the copy's to remove."""
    is_settled: bool = False
    """Whether the last comparison found nothing to carry."""


class Difference(NamedTuple):
    """What is not the same in both: a key, or with no key a family's default TTL."""

    family: str
    key: bytes | None
    source: Row | int | None
    target: Row | int | None


class Note(NamedTuple):
    """How far a copy came: all keys of families before `family`, and of this one up to `after`."""

    source: str
    family: str = ""
    after: bytes = b""
    is_copied: bool = False

    def to_bytes(self) -> bytes:
        fields = self._replace(after=base64.b64encode(self.after))._asdict()
        return json.dumps(fields, default=bytes.decode).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        try:
            fields = json.loads(data)
            fields["after"] = base64.b64decode(fields["after"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError):
            raise CorruptStore(NOTE_FAMILY, None, "no note of a copy is kept in it") from None


class Copy:
    """A copy from one store to another. `label` is what the source is called in the note."""

    def __init__(
        self, source: CopyEngine, target: CopyEngine, *, label: str, removes: bool
    ) -> None:
        self._source = source
        self._target = target
        self._label = label
        self.done = Copied()
        self._note = self._kept_note()
        # What lies in a target that was empty when it began, the copy has put there.
        self._removes = removes or self._note is not None
        self._note_family: FamilyRef | None = None

    def restart(self) -> None:
        """Forget where an earlier copy stood."""
        if self._note is not None:
            self._note = Note(self._label)

    def run(self, progress: Progress) -> Copied:
        """Copy, and catch up. Raises InvalidArgument when the target has a copy of another source."""
        if self._note is not None and self._note.source != self._label:
            raise InvalidArgument(
                f"the target holds an unfinished copy of {self._note.source}, not of {self._label}: "
                "finish that one, or begin anew with --restart"
            )
        self.done.is_resumed = self._note is not None and self._note != Note(self._label)
        if self._note is None and _is_empty(self._target):
            self._note = Note(self._label)
            self._removes = True
        if self._note is not None:
            if not self._note.is_copied:
                self._copy_rows(self._note, progress)
            self._keep(Note(self._label, is_copied=True))
        self._catch_up(progress)
        return self.done

    # --- all rows, once -----------------------------------------------------------------------

    def _copy_rows(self, note: Note, progress: Progress) -> None:
        self._keep(note)
        self._carry_families()
        rows = _StoreSource(self._source, note, self._keep)
        loaded: Loaded = load(self._target, rows, progress)
        self.done.copied = loaded.imported
        self.done.dead = loaded.dead

    def _carry_families(self) -> None:
        for name in families_of(self._source):
            theirs = self._source.family(name, create=False)
            ours = self._target.family(name, create=True)
            assert ours is not None  # it was to be created
            if theirs is not None and theirs.default_ttl_ms != ours.default_ttl_ms:
                self._target.set_default_ttl(ours, theirs.default_ttl_ms)

    # --- what changed meanwhile ---------------------------------------------------------------

    def _catch_up(self, progress: Progress) -> None:
        for _ in range(PASSES_MAX):
            self._carry_families()
            carried = self._drop_families() + self._carry_differences(progress)
            if not carried:
                self.done.is_settled = True
                self._target.drop_family(NOTE_FAMILY)
                break
        self._target.sync()

    def _carry_differences(self, progress: Progress) -> int:
        """Let the target have what the source has; how many keys that took."""
        carried = left = 0
        batch: list[Write] = []
        size = 0
        for found in differences(self._source, self._target, progress):
            if found.key is None:
                # The next pass carries the default; a family that stays is counted by its keys.
                carried += self._source.family(found.family, create=False) is not None
            elif found.source is None and not self._removes:
                left += 1
            else:
                row = found.source if isinstance(found.source, Row) else None
                family = self._target.family(found.family, create=True)
                assert family is not None  # it was to be created
                batch.append(Write(family, found.key, row))
                size += 0 if row is None else len(row.value)
                self.done.caught_up += row is not None
                self.done.removed += row is None
                carried += 1
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                self._target.write(batch, durable=False)
                batch, size = [], 0
        self._target.write(batch, durable=False)
        self.done.left = left
        return carried

    def _drop_families(self) -> int:
        """Take the families away that the source no longer has, if they are the copy's; how many."""
        if not self._removes:
            return 0
        gone = set(families_of(self._target)) - set(families_of(self._source))
        for name in gone:
            self.done.removed += sum(1 for _ in _rows_of(self._target, name))
            self._target.drop_family(name)
        return len(gone)

    # --- the note -----------------------------------------------------------------------------

    def _kept_note(self) -> Note | None:
        family = self._target.family(NOTE_FAMILY, create=False)
        if family is None:
            return None
        row = self._target.row(family, NOTE_KEY, self._target.clock.now_ms())
        return None if row is None else Note.from_bytes(row.value)

    def _keep(self, note: Note) -> None:
        if self._note_family is None:
            self._note_family = self._target.family(NOTE_FAMILY, create=True)
        assert self._note_family is not None  # it was to be created
        row = Row(note.to_bytes(), self._target.clock.now_ms())
        self._target.write([Write(self._note_family, NOTE_KEY, row)], durable=False)


class _StoreSource:
    """The rows of a store as a source of `load`, from where a note says."""

    def __init__(self, engine: CopyEngine, note: Note, keep: Callable[[Note], None]) -> None:
        self.skipped = Omissions()
        self.failed = Omissions()
        self.damage: DamagedFile | None = None
        self.unread_bytes = 0
        self._engine = engine
        self._note = note
        self._keep = keep
        self._done = 0

    def progress(self) -> tuple[int, int | None]:
        return self._done, None

    def prepare(self, tick: Callable[[], None]) -> None:
        """Nothing can be wrong before it is read."""

    def __iter__(self) -> Iterator[Record]:
        if Capability.SNAPSHOTS not in self._engine.capabilities:
            yield from self._walk(lambda ref, bounds: self._engine.scan(ref, bounds, None))
            return
        with closing(self._engine.snapshot()) as view:
            yield from self._walk(view.scan)

    def _walk(
        self, scan: Callable[[FamilyRef, Range], Iterator[tuple[bytes, Row]]]
    ) -> Iterator[Record]:
        for name in families_of(self._engine):
            ref = self._engine.family(name, create=False)
            if name < self._note.family or ref is None:
                continue
            after = self._note.after if name == self._note.family else b""
            for key, row in scan(ref, self._range_after(after)):
                if key > after:
                    self._note = self._note._replace(family=name, after=key)
                    self._done += 1
                    yield Record(name, key, row)

    def _range_after(self, after: bytes) -> Range:
        """Where an engine cannot begin in the middle, what comes before is read and passed over."""
        is_ordered = Capability.ORDERED_SCAN in self._engine.capabilities
        return Range(after) if is_ordered else Range()

    def landed(self) -> None:
        self._keep(self._note)


# --- side by side -----------------------------------------------------------------------------------


def differences(
    source: CopyEngine, target: CopyEngine, progress: Progress | None = None
) -> Iterator[Difference]:
    """Every key, value, deadline and default TTL that is not the same in both.

    What differs when the two are walked is looked at once more: a live store may have changed between
    the two readings, and a key may have died.

    >>> import ephemera
    >>> one, other = ephemera.open("memory://"), ephemera.open("memory://")
    >>> one.put("name", "ada")
    >>> [(found.key, found.target) for found in differences(one.engine, other.engine)]
    [(b'name', None)]
    """
    done = 0
    for name in sorted({*families_of(source), *families_of(target)}):
        theirs, ours = source.family(name, create=False), target.family(name, create=False)
        if theirs is None or ours is None or theirs.default_ttl_ms != ours.default_ttl_ms:
            yield Difference(name, None, _default_of(theirs), _default_of(ours))
        for key, is_same in _side_by_side(_rows_of(source, name), _rows_of(target, name)):
            done += 1
            if progress is not None and done % TICK_ROWS == 0:
                progress(done, None)
            if not is_same:
                found = Difference(name, key, _row(source, name, key), _row(target, name, key))
                if not _is_settled(found, source, target):
                    yield found
    if progress is not None:
        progress(done, None)


def _side_by_side(
    theirs: Iterable[tuple[bytes, Row]], ours: Iterable[tuple[bytes, Row]]
) -> Iterator[tuple[bytes, bool]]:
    """Every key of both, in order, and whether both have the same row."""
    left, right = iter(theirs), iter(ours)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None  # or the loop had ended
            yield one[0], False
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], False
            other = next(right, None)
        else:
            yield one[0], one[1] == other[1]
            one, other = next(left, None), next(right, None)


def _is_settled(found: Difference, source: CopyEngine, target: CopyEngine) -> bool:
    """Whether both have the same after all. What one clock holds for dead, the other soon will."""
    if found.source == found.target:
        return True
    only = found.target if found.source is None else found.source
    is_one_sided = found.source is None or found.target is None
    now_ms = max(source.clock.now_ms(), target.clock.now_ms())
    return is_one_sided and isinstance(only, Row) and is_dead(only.deadline_ms, now_ms)


def families_of(engine: CopyEngine) -> list[str]:
    """The families of a store, in order, without those that Ephemera keeps for itself."""
    return sorted(name for name in engine.families() if not name.startswith(RESERVED_PREFIX))


def _rows_of(engine: CopyEngine, family: str) -> Iterator[tuple[bytes, Row]]:
    ref = engine.family(family, create=False)
    return iter(()) if ref is None else engine.scan(ref, Range(), None)


def _row(engine: CopyEngine, family: str, key: bytes) -> Row | None:
    ref = engine.family(family, create=False)
    return None if ref is None else engine.row(ref, key, engine.clock.now_ms())


def _default_of(family: FamilyRef | None) -> int | None:
    return None if family is None else family.default_ttl_ms


def _is_empty(engine: CopyEngine) -> bool:
    return all(next(_rows_of(engine, name), None) is None for name in families_of(engine))
