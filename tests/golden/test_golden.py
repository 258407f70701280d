"""Stores that an earlier release wrote are read as they were, whatever changed since."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ephemera import ManualClock, Store
from ephemera.engines.local._segment import FORMAT_VERSION
from ephemera.engines.local.layout import FORMAT_LINE
from tests.engines.local.stores import base_file, open_local, segment_files
from tests.golden.make import HERE, VERSION, contents

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
ARCHIVE_BYTES_MAX = 100_000


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def expected(name: str) -> dict[str, Any]:  # Any: what JSON has
    return contents_of(name)


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    return copy_of(name, tmp_path)


def contents_of(name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / f"{name}.json").read_text(encoding="ascii")))


def copy_of(name: str, place: Path) -> Path:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(place / name, filter="data")
    return place / name


def opened(path: Path, expected: dict[str, Any], **options: Any) -> tuple[Store, ManualClock]:
    clock = ManualClock(expected["now_ms"])
    return open_local(path, clock, **options), clock


def test_there_are_golden_files_of_this_version() -> None:
    assert {f"{maker}-{VERSION}" for maker in ("closed", "killed", "layered")} <= set(NAMES)
    assert VERSION == FORMAT_VERSION
    assert FORMAT_LINE == b"ephemera store, format %d\n" % VERSION
    assert all((HERE / f"{name}.tar.xz").stat().st_size < ARCHIVE_BYTES_MAX for name in NAMES)


def test_golden_stores_lie_where_they_are_meant_to(name: str, path: Path) -> None:
    segments = {"closed": [], "killed": [1], "layered": [3, 4, 5]}[name.partition("-")[0]]
    assert [int(file.stem) for file in segment_files(path)] == segments
    assert int(base_file(path).stem) == (2 if name.startswith("layered") else 1)


def test_everything_is_read_as_it_was_written(path: Path, expected: dict[str, Any]) -> None:
    store, _ = opened(path, expected)
    with store:
        assert contents(store) == expected
        assert store.check().is_clean


def test_everything_is_read_by_a_store_that_may_not_write(
    path: Path, expected: dict[str, Any]
) -> None:
    store, _ = opened(path, expected, read_only=True)
    with store:
        assert contents(store) == expected


def test_rows_die_when_it_was_said(path: Path, expected: dict[str, Any]) -> None:
    store, clock = opened(path, expected)
    deadlines = sorted(
        row["deadline_ms"]
        for family in expected["families"].values()
        for row in family["rows"].values()
        if "deadline_ms" in row
    )
    with store:
        for deadline_ms in dict.fromkeys(deadlines[:-1]):
            clock.advance((deadline_ms - clock.now_ms()) / 1_000)
            for family_name, family in expected["families"].items():
                alive = [
                    key.encode("latin-1")
                    for key, row in family["rows"].items()
                    if row.get("deadline_ms", deadline_ms + 1) > deadline_ms
                ]
                assert [key for key, _ in store.family(family_name).scan()] == alive
        assert store.purge_expired() > 0
        assert store.check().is_clean


def test_what_had_died_below_the_segments_is_hidden_and_told(
    tmp_path: Path,
) -> None:
    """Of forty rows in the base tier three were replaced and three deleted above; the rest is dead."""
    expected = contents_of("layered-1")
    store, _ = opened(copy_of("layered-1", tmp_path), expected)
    with store:
        told: list[bytes] = []
        store.on_expire(lambda event: told.append(event.key))
        assert store.stats()["base_rows"] > 40
        assert store.purge_expired() >= 34
        assert {key for key in told if key.startswith(b"base")} == {
            b"base %02d" % number for number in (*range(3, 30), *range(33, 40))
        }
        assert contents(store) == expected


def test_an_old_store_goes_on(path: Path, expected: dict[str, Any]) -> None:
    store, _ = opened(path, expected)
    with store:
        store.put("plain", "again")
        store.checkpoint()
        store.compact()
    store, _ = opened(path, expected)
    with store:
        rows = contents(store)["families"]["default"]["rows"]
        assert rows.pop("plain")["value"] == "again"
        del expected["families"]["default"]["rows"]["plain"]
        assert rows == expected["families"]["default"]["rows"]
        assert store.check().is_clean
