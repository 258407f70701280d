"""Moving whole rows into an engine and out of it, in batches, whatever the format.

A *source* yields records; `load` writes them to an engine. An *encoder* turns the contents of an engine
into bytes; `save` writes them to a file. Both hold a batch in memory, never all of it.

    source, encoder                    module
    an RDB file                        rdb_file
    an AOF, one file or several        aof
    JSON Lines                         jsonl
    a directory of diskcache           diskcache    (source)
    a running Redis                    live_redis   (source)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from ephemera.core.arguments import KEY_BYTES_MAX, VALUE_BYTES_MAX
from ephemera.core.clock import Clock
from ephemera.core.expiry import DEADLINE_MS_MAX, is_dead
from ephemera.core.keyvalue import Capability, FamilyRef, Range, View, Write
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats.files import DamagedFile, replacing
from ephemera.formats.omissions import Omissions

BATCH_RECORDS = 2_000
BATCH_BYTES = 1 << 20
SYNC_RECORDS = 50_000
"""After so many records they are made durable, and a source may note where it is."""
TICK_RECORDS = 2_000

Progress = Callable[[int, int | None], object]
"""Told how much is done, and of how much if that is known: for a bar, in a unit of the source's own."""


class Record(NamedTuple):
    """A key of a family, with its row."""

    family: str
    key: bytes
    row: Row


# Made a million times in an import, and twice as quickly as by their names.
make_record: Callable[[tuple[str, bytes, Row]], Record] = partial(tuple.__new__, Record)
make_row: Callable[[tuple[bytes, int, int, int, int]], Row] = partial(tuple.__new__, Row)
make_write: Callable[[tuple[FamilyRef, bytes, Row]], Write] = partial(tuple.__new__, Write)


class RecordSource(Protocol):
    """Where records come from. What it has and does not yield, it counts by the reason."""

    skipped: Omissions
    failed: Omissions
    damage: DamagedFile | None
    """The first place where it is not what it should be, if it was told to keep going."""
    unread_bytes: int
    """How much of it lies behind the damage and was not read."""

    def progress(self) -> tuple[int, int | None]: ...
    def prepare(self, tick: Callable[[], None]) -> None:
        """Find what is wrong before the first record is written; call `tick` now and then."""
        ...

    def __iter__(self) -> Iterator[Record]: ...
    def landed(self) -> None:
        """All that was yielded so far is durable."""
        ...


class TransferEngine(Protocol):
    """The part of `KeyValue` that an import or an export needs."""

    clock: Clock
    capabilities: frozenset[Capability]

    def family(self, name: str, *, create: bool) -> FamilyRef | None: ...
    def families(self) -> list[str]: ...
    def snapshot(self) -> View: ...
    def scan(
        self, family: FamilyRef, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]: ...
    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None: ...
    def sync(self) -> None: ...


# --- in -------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """How an import went: each key of the source is in exactly one of the four."""

    imported: int = 0
    dead: int = 0
    skipped: Omissions = field(default_factory=Omissions)
    failed: Omissions = field(default_factory=Omissions)
    damage: DamagedFile | None = None
    unread_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the source was left behind but keys that are dead."""
        return not self.skipped and not self.failed and self.damage is None


def load(engine: TransferEngine, source: RecordSource, progress: Progress | None = None) -> Loaded:
    """Write all that the source yields and that is alive, over what the engine holds.

    Raises DamagedFile before anything is written, unless the source was told to keep going.
    """
    prepare(source, progress)
    return load_prepared(engine, source, progress)


def prepare(source: RecordSource, progress: Progress | None = None) -> None:
    """Find what is wrong with a source while there need not be an engine yet. Raises DamagedFile."""
    source.prepare(lambda: _tell(source, progress))


def load_prepared(
    engine: TransferEngine, source: RecordSource, progress: Progress | None = None
) -> Loaded:
    """Do the rest of `load`."""
    loaded = Loaded()
    unsynced = 0
    for batch in _batches(engine, source, loaded):
        engine.write(batch, durable=False)
        loaded.imported += len(batch)
        unsynced += len(batch)
        _tell(source, progress)
        if unsynced >= SYNC_RECORDS:
            engine.sync()
            source.landed()
            unsynced = 0
    engine.sync()
    source.landed()
    _tell(source, progress)
    loaded.skipped.merge(source.skipped)
    loaded.failed.merge(source.failed)
    loaded.damage = source.damage
    loaded.unread_bytes = source.unread_bytes
    return loaded


def _tell(source: RecordSource, progress: Progress | None) -> None:
    if progress is not None:
        progress(*source.progress())


def _batches(engine: TransferEngine, source: RecordSource, loaded: Loaded) -> Iterator[list[Write]]:
    """What is to be written, piece by piece; what is not, counted."""
    families: dict[str, FamilyRef] = {}
    batch: list[Write] = []
    size = 0
    now_ms = engine.clock.now_ms()
    for name, key, row in source:
        value, _, deadline_ms, _, _ = row
        if is_dead(deadline_ms, now_ms):
            loaded.dead += 1
        elif why := reason_to_skip(key, value, deadline_ms):
            loaded.skipped.add(why, key)
        else:
            family = families.get(name) or _family(engine, families, name)
            batch.append(make_write((family, key, row)))
            size += len(value)
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
                now_ms = engine.clock.now_ms()
    yield batch


def _family(engine: TransferEngine, families: dict[str, FamilyRef], name: str) -> FamilyRef:
    family = engine.family(name, create=True)
    assert family is not None  # it was to be created
    families[name] = family
    return family


def reason_to_skip(key: bytes, value: bytes, deadline_ms: int) -> str | None:
    """Why no store holds such a row, or None."""
    if 0 < len(key) <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX:
        if deadline_ms <= DEADLINE_MS_MAX or deadline_ms == NEVER_MS:
            return None
        return "deadlines past the year 9999"
    if len(value) > VALUE_BYTES_MAX:
        return f"values of more than {VALUE_BYTES_MAX} bytes"
    return f"keys of more than {KEY_BYTES_MAX} bytes" if key else "an empty key"


# --- out ------------------------------------------------------------------------------------------


class Contents(NamedTuple):
    """What an engine holds at one instant: the records family by family."""

    families: list[str]
    now_ms: int
    records: Iterator[Record]


Encoder = Callable[[Contents], Iterator[bytes]]


def save(
    engine: TransferEngine,
    path: str | os.PathLike[str],
    encode: Encoder,
    *,
    families: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the live rows of these families (or all) to a file, in one piece; how many there were."""
    done = 0

    def count(now_done: int, total: int | None) -> None:
        nonlocal done
        done = now_done
        if progress is not None:
            progress(now_done, total)

    with replacing(Path(path)) as file:
        for chunk in chunks(engine, encode, families=families, progress=count):
            file.write(chunk)
    return done


def chunks(
    engine: TransferEngine,
    encode: Encoder,
    *,
    families: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Iterator[bytes]:
    """The bytes of an export, for whoever writes them elsewhere than to a file."""
    names = engine.families() if families is None else list(families)
    found = {name: engine.family(name, create=False) for name in names}
    refs = {name: ref for name, ref in found.items() if ref is not None}
    if Capability.SNAPSHOTS not in engine.capabilities:
        now_ms = engine.clock.now_ms()
        rows = ((name, engine.scan(ref, Range(), None)) for name, ref in refs.items())
        yield from encode(Contents(list(refs), now_ms, _records(rows, progress)))
        return
    with closing(engine.snapshot()) as view:
        rows = ((name, view.scan(ref, Range())) for name, ref in refs.items())
        yield from encode(Contents(list(refs), view.now_ms, _records(rows, progress)))


def _records(
    families: Iterable[tuple[str, Iterator[tuple[bytes, Row]]]], progress: Progress | None
) -> Iterator[Record]:
    done = 0
    for name, rows in families:
        for key, row in rows:
            yield Record(name, key, row)
            done += 1
            if progress is not None and done % TICK_RECORDS == 0:
                progress(done, None)
    if progress is not None:
        progress(done, None)
