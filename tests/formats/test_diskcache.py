"""Directories that a real diskcache wrote."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import diskcache
import pytest

from ephemera import InvalidArgument, Store
from ephemera.core.clock import wall_ms
from ephemera.core.row import NEVER_MS
from ephemera.formats.diskcache import DiskCache
from ephemera.formats.files import DamagedFile
from ephemera.formats.transfer import load
from tests.formats.samples import yielded


class Bomb:
    """Says so if it is unpickled."""

    def __reduce__(self) -> Any:  # Any: as pickle has it
        return (pytest.fail, ("something was unpickled",))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def change(place: Path, statement: str, *given: object) -> None:
    database = sqlite3.connect(place / "cache.db")
    with database:
        database.execute(statement, given)
    database.close()


def test_bytes_texts_and_numbers_are_taken(place: Path) -> None:
    large = bytes(range(256)) * 400
    with diskcache.Cache(str(place)) as cache:
        cache["text"] = "grüße"
        cache[b"bytes"] = b"\0\xff"
        cache["number"] = -7
        cache["float"] = 1.5
        cache[42] = "number as key"
        cache["large"] = large
        cache["large text"] = "ü" * 100_000
    assert yielded(DiskCache(place, family="cache")) == {
        ("cache", key): (value, NEVER_MS)
        for key, value in {
            b"text": "grüße".encode(),
            b"bytes": b"\0\xff",
            b"number": b"-7",
            b"float": b"1.5",
            b"42": b"number as key",
            b"large": large,
            b"large text": "ü".encode() * 100_000,
        }.items()
    }


def test_what_was_pickled_is_counted_and_never_unpickled(place: Path) -> None:
    with diskcache.Cache(str(place)) as cache:
        cache["good"] = b"1"
        cache["bomb"] = Bomb()
        cache["large bomb"] = [Bomb(), "x" * 100_000]
        cache["none"] = None
        cache["a", "tuple"] = b"2"
        cache["true"] = True
    source = DiskCache(place)
    assert yielded(source).keys() == {("default", b"good")}
    assert source.skipped == {"pickled values": 4, "pickled keys": 1}


def test_times_are_kept_and_the_dead_counted(place: Path, store: Store) -> None:
    now_ms = wall_ms()
    with diskcache.Cache(str(place)) as cache:
        cache.set("dead for this store", b"1", expire=60)
        cache.set("alive", b"2", expire=10_000_000)
        cache.set("permanent", b"3")
    change(place, "UPDATE Cache SET expire_time = 1699999999.5 WHERE key LIKE 'dead%'")
    change(
        place, "UPDATE Cache SET expire_time = 4000000000.123, store_time = 5 WHERE key = 'alive'"
    )
    loaded = load(store.engine, DiskCache(place))
    assert (loaded.imported, loaded.dead) == (2, 1)
    alive = store.entry("alive")
    assert alive is not None
    assert alive.deadline is not None
    assert alive.deadline.isoformat() == "2096-10-02T07:06:40.123000+00:00"
    assert alive.written_at.timestamp() == 5
    permanent = store.entry("permanent")
    assert permanent is not None
    assert permanent.deadline is None
    assert abs(permanent.written_at.timestamp() * 1000 - now_ms) < 120_000


def test_the_parts_of_a_fanout_are_read(place: Path, store: Store) -> None:
    with diskcache.FanoutCache(str(place), shards=4) as cache:
        for number in range(100):
            cache[f"key:{number}"] = b"%d" % number
    source = DiskCache(place)
    assert load(store.engine, source).imported == 100
    assert source.progress() == (100, 100)
    assert store.get("key:42") == b"42"


def test_a_file_that_is_missing_or_lies_elsewhere_is_counted(place: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    with diskcache.Cache(str(place)) as cache:
        for name in ("missing", "above", "elsewhere"):
            cache[name] = b"x" * 100_000
    change(place, "UPDATE Cache SET filename = 'nosuch' WHERE key = 'missing'")
    change(place, "UPDATE Cache SET filename = '../secret' WHERE key = 'above'")
    change(place, "UPDATE Cache SET filename = ? WHERE key = 'elsewhere'", str(secret))
    source = DiskCache(place)
    assert yielded(source) == {}
    assert source.failed == {"values whose file is missing": 1, "rows that cannot be read": 2}


def test_rows_that_make_no_sense_are_counted(place: Path) -> None:
    with diskcache.Cache(str(place)) as cache:
        for number in range(5):
            cache[f"{number}"] = b"1"
    change(place, "UPDATE Cache SET expire_time = 'soon' WHERE key = '0'")
    change(place, "UPDATE Cache SET value = NULL WHERE key = '1'")
    change(place, "UPDATE Cache SET expire_time = 9e999 WHERE key = '2'")
    change(place, "UPDATE Cache SET key = NULL WHERE key = '3'")
    source = DiskCache(place)
    assert {key for _, key in yielded(source)} == {b"2", b"4"}
    assert source.failed == {"rows that cannot be read": 3}


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory of diskcache"):
        DiskCache(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"nonsense" * 1_000])
def test_a_database_that_is_none_is_refused(place: Path, store: Store, damage: bytes) -> None:
    place.mkdir()
    (place / "cache.db").write_bytes(damage)
    with pytest.raises(DamagedFile, match=r"cache\.db"):
        load(store.engine, DiskCache(place))


def test_damaged_pages_are_found_before_anything_is_imported(place: Path, store: Store) -> None:
    with diskcache.Cache(str(place), sqlite_journal_mode="delete") as cache:
        for number in range(2_000):
            cache[f"key:{number}"] = b"v" * 100
    database = place / "cache.db"
    data = bytearray(database.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8_192] = b"\xa5" * 8_192
    database.write_bytes(data)
    with pytest.raises(DamagedFile):
        load(store.engine, DiskCache(place))
    assert store.count() == 0
    loaded = load(store.engine, DiskCache(place, keep_going=True))
    assert loaded.damage is not None
