"""Moving rows in and out of engines: batches, counts, progress, files that are whole."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import Capability, InvalidArgument, ManualClock, Store
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats import transfer
from ephemera.formats.aof import AofLog, encode_aof
from ephemera.formats.databases import family_of, numbers_of
from ephemera.formats.files import DamagedFile
from ephemera.formats.jsonl import JsonLines, encode_jsonl
from ephemera.formats.omissions import Omissions
from ephemera.formats.rdb_file import RdbFile, encode_rdb
from ephemera.formats.transfer import Contents, Record, RecordSource, chunks, load, save
from tests.formats.conftest import NOW_MS
from tests.formats.samples import held_by_store

FORMATS: list[tuple[transfer.Encoder, Callable[..., RecordSource]]] = [
    (encode_rdb, RdbFile),
    (encode_aof, AofLog),
    (encode_jsonl, JsonLines),
]


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_saved_file_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        with ephemera.open("memory://") as store:
            save(store.engine, tmp_path / "all.jsonl", encode_jsonl)
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "all.jsonl").stat().st_mode) == 0o600


class Listed:
    """A source of given records that remembers what it was told."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.skipped = Omissions()
        self.failed = Omissions()
        self.damage: DamagedFile | None = None
        self.unread_bytes = 0
        self.landings = 0
        self.done = 0

    def progress(self) -> tuple[int, int]:
        return self.done, len(self.records)

    def prepare(self, tick: Callable[[], None]) -> None:
        tick()

    def __iter__(self) -> Iterator[Record]:
        for record in self.records:
            self.done += 1
            yield record

    def landed(self) -> None:
        self.landings += 1


@pytest.fixture(params=["memory://", "s.eph"])
def target(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """A store of each engine."""
    url = request.param if "://" in request.param else tmp_path / request.param
    with ephemera.open(url, clock=clock, maintenance="manual") as opened:
        yield opened


def numbered(count: int, size: int = 1) -> list[Record]:
    return [Record("default", b"%05d" % n, Row(b"v" * size, NOW_MS)) for n in range(count)]


# --- in -------------------------------------------------------------------------------------------


def test_rows_are_written_as_they_are(target: Store, clock: ManualClock) -> None:
    row = Row(b"v", NOW_MS - 5_000, NOW_MS + 60_000, 60_000, NOW_MS + 90_000)
    load(target.engine, Listed([Record("sessions", b"k", row)]))
    sessions = target.family("sessions")
    entry = sessions.entry("k")
    assert entry is not None
    assert entry.written_at.timestamp() * 1000 == NOW_MS - 5_000
    clock.advance(50)
    sessions.touch("k")
    assert sessions.ttl("k") == 40  # the hard deadline came along


def test_a_key_without_a_deadline_stays_without(target: Store) -> None:
    codes = target.family("codes", default_ttl=60)
    load(target.engine, Listed([Record("codes", b"k", Row(b"v", NOW_MS))]))
    assert codes.ttl("k") is None


def test_what_is_there_is_replaced_and_the_rest_stays(target: Store) -> None:
    target.put("00000", "old", ttl=60)
    target.put("other", "stays")
    load(target.engine, Listed(numbered(1)))
    assert (target.get("00000"), target.ttl("00000"), target.get("other")) == (b"v", None, b"stays")


def test_the_dead_are_counted_and_not_written(target: Store) -> None:
    rows = [Row(b"v", NOW_MS, NOW_MS + left_ms) for left_ms in (-1, 0, 1)]
    records = [Record("default", b"%d" % number, row) for number, row in enumerate(rows)]
    loaded = load(target.engine, Listed(records))
    assert (loaded.imported, loaded.dead, list(target)) == (1, 2, [b"2"])


def test_batches_are_bounded_in_records_and_in_bytes(
    target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    engine: Any = Seen(target.engine, sizes)
    load(engine, Listed(numbered(5_000)))
    load(engine, Listed(numbered(10, size=300_000)))
    assert sizes == [2_000, 2_000, 1_000, 4, 4, 2]
    assert target.count() == 5_000


class Seen:
    """An engine that notes the sizes of batches, and has no snapshots."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, engine: object, sizes: list[int]) -> None:
        self._engine: Any = engine
        self._sizes = sizes

    def write(self, writes: list[Any], *, durable: bool | None) -> None:
        self._sizes.append(len(writes))
        self._engine.write(writes, durable=durable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_progress_and_landings_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BATCH_RECORDS", 10)
    monkeypatch.setattr(transfer, "SYNC_RECORDS", 30)
    told: list[tuple[int, int | None]] = []
    source = Listed(numbered(100))
    load(store.engine, source, lambda done, total: told.append((done, total)))
    assert told[0] == (0, 100)
    assert told[-1] == (100, 100)
    assert told == sorted(told)
    assert source.landings == 4


@pytest.mark.parametrize(("encode", "reader"), FORMATS)
@pytest.mark.parametrize("keep_going", [False, True])
def test_the_progress_of_a_file_ends_at_its_total(
    tmp_path: Path, store: Store, encode: transfer.Encoder, reader: Any, keep_going: bool
) -> None:
    load(store.engine, Listed(numbered(10_000)))
    save(store.engine, tmp_path / "file", encode)
    told: list[tuple[int, int | None]] = []
    source = reader(tmp_path / "file", now_ms=NOW_MS, keep_going=keep_going)
    load(store.engine, source, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert len(set(told)) >= 5
    assert told[-1][0] == told[-1][1]


# --- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("encode", "reader"), FORMATS)
def test_a_store_goes_out_and_comes_in_again(
    tmp_path: Path,
    target: Store,
    store: Store,
    encode: transfer.Encoder,
    reader: Callable[..., RecordSource],
) -> None:
    target.put_many({f"{number:04}": "v" * number for number in range(1_000)}, ttl=60)
    target.family("db3").put(b"\0\xff", b"\xff" * 300_000)
    target.family("db3").put("idle", "1", idle=5)
    told: list[tuple[int, int | None]] = []
    saved = save(
        target.engine, tmp_path / "file", encode, progress=lambda *given: told.append(given)
    )
    assert (saved, told[-1]) == (1_002, (1_002, None))
    loaded = load(store.engine, reader(tmp_path / "file", now_ms=NOW_MS))
    assert (loaded.imported, loaded.dead, loaded.skipped) == (1_002, 0, {})
    assert held_by_store(store) == held_by_store(target)


def test_the_dead_stay_behind(target: Store, clock: ManualClock) -> None:
    target.put("dead", "1", ttl=1)
    target.put("alive", "1", ttl=2)
    clock.advance(1)
    assert b'"key": "dead"' not in b"".join(chunks(target.engine, encode_jsonl))


def test_an_export_shows_one_instant(target: Store, clock: ManualClock) -> None:
    target.put_many({f"{number:05}": "v" * 100 for number in range(5_000)}, ttl=60)
    parts = chunks(target.engine, encode_jsonl)
    first = next(parts)
    target.clear()
    clock.advance(100)
    assert b"".join([first, *parts]).count(b"\n") == 5_000


def test_an_engine_without_snapshots_is_scanned(store: Store) -> None:
    store.put("a", "1")
    engine: Any = Seen(store.engine, [])
    assert b'"key": "a"' in b"".join(chunks(engine, encode_jsonl))


def test_families_may_be_chosen(store: Store) -> None:
    store.put("a", "1")
    store.family("sessions").put("b", "2")
    text = b"".join(chunks(store.engine, encode_jsonl, families=["sessions", "nosuch"]))
    assert text.count(b"\n") == 1
    assert b'"sessions"' in text


def test_a_failure_leaves_the_former_file_and_nothing_else(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "dump.rdb"
    path.write_bytes(b"former")

    def fail(contents: Contents) -> Iterator[bytes]:
        yield b"half"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        save(store.engine, path, fail)
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path: Path, store: Store) -> None:
    def fail(contents: Contents) -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: .*dump\.rdb"):
        save(store.engine, tmp_path / "dump.rdb", fail)


def test_only_files_are_replaced(tmp_path: Path, store: Store) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgument, match="is there already and is no file"):
        save(store.engine, tmp_path / "pipe", encode_rdb)
    with pytest.raises(InvalidArgument, match="is there already and is no file"):
        save(store.engine, tmp_path, encode_rdb)
    with pytest.raises(InvalidArgument, match="there is no directory"):
        save(store.engine, tmp_path / "nowhere" / "dump.rdb", encode_rdb)
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


# --- databases ------------------------------------------------------------------------------------


def test_numbered_families_keep_their_numbers_and_others_get_free_ones() -> None:
    assert numbers_of(["x", "db2", "default", "db01", "db1", "w"]) == {
        "default": 0,
        "db1": 1,
        "db2": 2,
        "db01": 3,
        "w": 4,
        "x": 5,
    }
    assert [family_of(number) for number in (0, 1, 15)] == ["default", "db1", "db15"]


def test_a_row_that_says_never_has_no_deadline(store: Store) -> None:
    load(store.engine, Listed([Record("default", b"k", Row(b"v", NOW_MS, NEVER_MS))]))
    assert store.ttl("k") is None
