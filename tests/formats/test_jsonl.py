"""JSON Lines: what a line says, both ways, and lines that say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ephemera
from ephemera import ManualClock, Store
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.core.row import NEVER_MS, Row
from ephemera.formats.files import DamagedFile
from ephemera.formats.jsonl import JsonLines, encode_jsonl
from ephemera.formats.transfer import Contents, Record, load, save
from tests.formats.conftest import NOW_MS
from tests.formats.samples import held_by_store

INSTANTS = st.integers(0, DEADLINE_MS_MAX)
DEADLINES = INSTANTS | st.just(NEVER_MS)
VALUES = st.binary(max_size=30)
ROWS = st.tuples(VALUES, INSTANTS, DEADLINES).map(lambda given: Row(*given))
IDLE_ROWS = st.builds(Row, VALUES, INSTANTS, INSTANTS, st.integers(1, 10**10), DEADLINES)
KEYS = st.binary(min_size=1, max_size=20) | st.text(min_size=1, max_size=9).map(str.encode)
RECORDS = st.builds(Record, st.sampled_from(["default", 'quo"te', "größe"]), KEYS, ROWS | IDLE_ROWS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


def written(records: list[Record]) -> bytes:
    return b"".join(encode_jsonl(Contents([], NOW_MS, iter(records))))


@given(st.lists(RECORDS, max_size=5))
def test_every_record_comes_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    path = tmp_path_factory.getbasetemp() / "generated.jsonl"
    path.write_bytes(written(records))
    source = JsonLines(path, now_ms=NOW_MS)
    assert list(source) == records
    source.prepare(lambda: None)
    assert list(source) == records


def test_a_line_reads_well() -> None:
    record = Record("default", b"code", Row(b"492817", NOW_MS, NOW_MS + 1, 60_500, NOW_MS + 2))
    line = written([record])
    assert line == (
        b'{"family": "default", "key": "code", "value": "492817", '
        b'"written_at": "2023-11-14T22:13:20.000Z", "deadline": "2023-11-14T22:13:20.001Z", '
        b'"idle": 60.5, "hard_deadline": "2023-11-14T22:13:20.002Z"}\n'
    )


def test_bytes_that_are_no_text_are_base64() -> None:
    line = json.loads(written([Record("default", b"\xff", Row(b"\0" * 100, NOW_MS))]))
    assert line["key_base64"] == "/w=="
    assert line["value_base64"] == "A" * 134 + "=="


def test_times_travel_with_the_rows(path: Path, store: Store, clock: ManualClock) -> None:
    store.put("session", "{}", idle=60, ttl=3600)
    store.family("codes").put("ada", "1", ttl=0.5)
    store.put("permanent", "1")
    clock.advance(0.1)
    assert save(store.engine, path, encode_jsonl) == 3
    with ephemera.open("memory://", clock=clock) as other:
        assert load(other.engine, JsonLines(path, now_ms=NOW_MS)).imported == 3
        assert held_by_store(other) == held_by_store(store)
        assert other.entry("session") == store.entry("session")
        clock.advance(30)
        assert other.touch("session")
        assert other.ttl("session") == 60


def test_a_key_and_a_value_are_enough(path: Path) -> None:
    path.write_text('\n  {"value":"v","key":"k"}  \r\n\n{"key": "l", "value_base64": ""}')
    assert list(JsonLines(path, now_ms=NOW_MS)) == [
        Record("default", b"k", Row(b"v", NOW_MS)),
        Record("default", b"l", Row(b"", NOW_MS)),
    ]


def test_other_time_zones_are_understood(path: Path) -> None:
    path.write_text('{"key": "k", "value": "v", "deadline": "2023-11-15T00:13:20.5+02:00"}')
    (record,) = JsonLines(path, now_ms=NOW_MS)
    assert record.row.deadline_ms == NOW_MS + 500


WRONG_LINES = [
    "{",
    "[]",
    "7",
    "null",
    "{}",
    '{"key": "k"}',
    '{"key": 7, "value": "v"}',
    '{"key": null, "value": "v"}',
    '{"key_base64": "!", "value": "v"}',
    '{"key_base64": 7, "value": "v"}',
    '{"key": "\\ud800", "value": "v"}',
    '{"key": "k", "value": "v", "deadlin": "x"}',
    '{"key": "k", "value": "v", "deadline": "tomorrow"}',
    '{"key": "k", "value": "v", "deadline": "2023-11-15T00:13:20"}',
    '{"key": "k", "value": "v", "deadline": 1700000000}',
    '{"key": "k", "value": "v", "idle": 5}',
    '{"key": "k", "value": "v", "idle": -5, "deadline": "2023-11-15T00:13:20Z"}',
    '{"key": "k", "value": "v", "idle": 1e999, "deadline": "2023-11-15T00:13:20Z"}',
    '{"key": "k", "value": "v", "family": "__ephemera_x"}',
    '{"key": "k", "value": "v", "family": 7}',
    '{"key": "k", "value": "v"} {"key": "l", "value": "v"}',
    '{"family": "default", "key": "k", "value": "v", "written_at": "5Z"}',
    "[" * 100_000,
    "9" * 5_000,
]


@pytest.mark.parametrize("line", WRONG_LINES, ids=lambda line: line[:60])
def test_a_line_that_is_no_record_is_named_by_its_offset(
    path: Path, store: Store, line: str
) -> None:
    good = b'{"key": "good", "value": "1"}\n'
    path.write_bytes(good + line.encode() + b"\n" + good)
    with pytest.raises(DamagedFile, match="no record") as raised:
        load(store.engine, JsonLines(path, now_ms=NOW_MS))
    assert raised.value.offset == len(good)
    assert store.count() == 0


def test_bytes_that_are_no_utf_8_are_refused(path: Path) -> None:
    path.write_bytes(written([Record("default", b"k", Row(b"v", NOW_MS))]).replace(b"v", b"\xff"))
    with pytest.raises(DamagedFile):
        list(JsonLines(path, now_ms=NOW_MS))


def test_keeping_going_passes_over_wrong_lines(path: Path, store: Store) -> None:
    path.write_text("\n".join([*WRONG_LINES, '{"key": "good", "value": "1"}']))
    loaded = load(store.engine, JsonLines(path, now_ms=NOW_MS, keep_going=True))
    assert list(store) == [b"good"]
    assert loaded.failed == {"lines that are no records": len(WRONG_LINES)}
    assert loaded.damage is not None
    assert loaded.damage.offset == 0


def test_a_line_without_an_end_is_not_read_without_an_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ephemera.formats.jsonl.LINE_BYTES_MAX", 100)
    path.write_bytes(b'{"key": "k", "value": "' + b"v" * 1_000)
    with pytest.raises(DamagedFile):
        list(JsonLines(path, now_ms=NOW_MS))
