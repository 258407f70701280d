"""What the documentation says is true: its programs run, its names exist, its bytes are on the disk."""

from __future__ import annotations

import importlib
import inspect
import io
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import lmdb
import pytest

import ephemera
from ephemera import aio
from ephemera.core import errors
from ephemera.core.options import Options
from ephemera.core.row import NEVER_MS, Row, encode_row
from ephemera.engines.local._segment import crc32c
from tests.house.source import ROOT, name_of, tracked

PAGES = [path for path in tracked() if path.suffix == ".md"]
DECISIONS = [path for path in PAGES if path.parent.name == "decisions"]
FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

PROGRAM = re.compile(
    r"^```python\n(.*?)^```\n(?:[^`#]*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
OPTION_IN_HELP = re.compile(r"^ *(\w+)=(\S+)  +\S.*$", re.MULTILINE)
OWN_PATH = re.compile(r"`((?:tests|docs|bench|examples|src)/[\w./-]+)`")
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "8 bytes": "8s"}
NOW_MS = 1_700_000_000_000

PROGRAMS = [
    pytest.param(code, output, id=f"{name_of(path)}-{number}")
    for path in PAGES
    for number, (code, output) in enumerate(PROGRAM.findall(path.read_text(encoding="utf-8")))
]


def table(page: str, head: str) -> list[list[str]]:
    """The rows of all tables of a page whose head begins with these cells."""
    found: list[list[str]] = []
    is_inside = False
    for line in page.splitlines():
        if not line.startswith("|"):
            is_inside = False
        elif line.startswith(head):
            is_inside = True
        elif is_inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def layout(section: str) -> list[tuple[int, str, str]]:
    """(position, field, type) of the fields of fixed size in a section of the format page."""
    body = FORMAT.split(f"\n### {section}\n")[1].split("\n#")[0]
    rows = table(body, "| at | field |")
    return [(int(at), field, TYPES[kind]) for at, field, kind, _ in rows if kind in TYPES]


def fields_at(data: bytes, start: int, section: str) -> dict[str, Any]:  # Any: of many types
    return {
        field: struct.unpack_from("<" + kind, data, start + at)[0]
        for at, field, kind in layout(section)
    }


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "output"), PROGRAMS)
def test_a_program_prints_what_its_page_says(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "a program of the documentation", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == output


def test_a_program_of_the_readme_prints_the_same_when_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for code, output in PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        for _ in range(2):
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(code, "a program of the README", "exec"), {"__name__": "__main__"})
            assert printed.getvalue() == output


def test_the_readme_has_programs_with_their_output() -> None:
    assert len(PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8"))) == 2


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    missing += [name for name in OWN_PATH.findall(text) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_tests_that_a_page_names_exist(path: Path) -> None:
    sources = "\n".join(
        other.read_text(encoding="utf-8") for other in tracked() if other.name.startswith("test_")
    )
    named = re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if f"def {name}(" not in sources] == []


def test_modules_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    known = {path.name for path in tracked()}
    named = re.findall(r"`(?:[\w/]*/)?(\w+\.(?:py|pyx|h))`", text)
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize("path", DECISIONS, ids=name_of)
def test_a_decision_has_its_number_and_its_sections(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(path.name[:4])}. ")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections == ["Context", "Decision", "Rejected", "Updates"]


# --- the interface ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in dir(ephemera.Store) if name[0] != "_"])
def test_every_public_method_of_a_store_is_mentioned(name: str) -> None:
    assert re.search(rf"`{name}[(`]", API)


def test_every_option_is_mentioned_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in table(API, "| option |")}
    assert list(told) == [option.name for option in fields(Options)]
    assert all(eval(told[option.name]) == option.default for option in fields(Options))


@pytest.mark.parametrize("opener", [ephemera.open, aio.open], ids=["ephemera", "aio"])
def test_help_on_open_lists_every_option_with_its_default(opener: Callable[..., object]) -> None:
    told = dict(OPTION_IN_HELP.findall(inspect.getdoc(opener) or ""))
    assert list(told) == [option.name for option in fields(Options)]
    assert all(eval(told[option.name]) == option.default for option in fields(Options))


def test_help_on_both_ways_to_open_says_the_same_of_the_options() -> None:
    plain, awaited = (
        [line for line in (inspect.getdoc(opener) or "").splitlines() if OPTION_IN_HELP.match(line)]
        for opener in (ephemera.open, aio.open)
    )
    assert plain == awaited


def test_every_error_is_mentioned() -> None:
    told = {row[0].strip("`") for row in table(API, "| error |")}
    assert told == {kind.__name__ for kind in errors.EphemeraError.__subclasses__()}


# --- the bytes on disk ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), table(FORMAT, "| constant |"))
def test_a_constant_of_the_format_is_that_of_the_code(name: str, value: str) -> None:
    module, _, constant = name.strip("`").rpartition(".")
    in_code = getattr(importlib.import_module(f"ephemera.{module}"), constant)
    assert in_code == int(value.replace(",", ""))


@pytest.mark.parametrize(
    ("row", "flags"),
    [
        (Row(b"value", 1), 0),
        (Row(b"value", 1, deadline_ms=2), 1),
        (Row(b"value", 1, idle_ms=3, hard_ms=4), 2),
        (Row(b"", 1, deadline_ms=2, idle_ms=3, hard_ms=NEVER_MS), 3),
    ],
)
def test_a_row_has_the_bytes_that_the_format_says(row: Row, flags: int) -> None:
    assert read_row(encode_row(row)) == {
        "flags": flags,
        "written_ms": 1,
        **({"deadline_ms": 2} if flags & 1 else {}),
        **({"idle_ms": 3, "hard_ms": row.hard_ms} if flags & 2 else {}),
        "value": row.value,
    }


def read_row(data: bytes) -> dict[str, Any]:  # Any: numbers and bytes
    """The fields of a row, read by the table of the format page."""
    found: dict[str, Any] = {}
    at = 0
    for field, kind, when in table(FORMAT, "| field | type | there |"):
        if kind == "bytes":
            found[field] = data[at:]
        elif when == "always" or found["flags"] & int(when.removeprefix("flag ")):
            found[field] = struct.unpack_from("<" + TYPES[kind], data, at)[0]
            at += struct.calcsize("<" + TYPES[kind])
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A closed store with a put, a batch of two and a deletion in its one segment."""
    clock = ephemera.ManualClock(NOW_MS)
    with ephemera.open(tmp_path / "s.eph", clock=clock, maintenance="manual") as store:
        store.put("a", "1", ttl=60)
        with store.transaction() as txn:
            txn.put("bb", "22")
            txn.put("ccc", "333", idle=5)
        store.delete("a")
    return tmp_path / "s.eph"


def test_a_segments_header_has_the_bytes_that_the_format_says(place: Path) -> None:
    data = (place / "segments" / "00000001.seg").read_bytes()
    header = fields_at(data, 0, "Header")
    end = list(records(data))[-1][1]
    seed = struct.pack("<QQ", header["number"], header["salt"])
    stamp = struct.pack("<Qq", header["synced"], header["clock_ms"])
    slots = 64
    while 128 * slots * 2 <= len(data):
        slots *= 2
    assert header | {"salt": 0} == {
        "magic": b"EPHSEG\r\n",
        "version": 1,
        "checksum": crc32c(data[16:64]),
        "number": 1,
        "size": len(data),
        "slots": slots,
        "previous_head": 0,
        "salt": 0,
        "created_ms": NOW_MS,
        "head": end,
        "first_deadline": next(records(data))[0],
        "synced": end,
        "clock_ms": NOW_MS,
        "stamp_checksum": crc32c(seed + stamp),
        "told_ms": 0,
        "told_number": 0,
        "told_position": 0,
        "told_checksum": 0,
    }


def test_a_segment_says_how_far_its_deaths_were_told(place: Path) -> None:
    clock = ephemera.ManualClock(NOW_MS)
    with ephemera.open(place, clock=clock, maintenance="manual") as store:
        store.put("dies", "1", ttl=1)
        clock.advance(1)
        assert store.purge_expired() == 1
    number = max(int(path.stem) for path in (place / "segments").iterdir())
    data = (place / "segments" / f"{number:08}.seg").read_bytes()
    header = fields_at(data, 0, "Header")
    last = list(records(data))[-1][0]
    told = struct.pack("<qQQ", NOW_MS + 1_000, number, last)
    seed = struct.pack("<QQ", number, header["salt"])
    assert {name: value for name, value in header.items() if name.startswith("told_")} == {
        "told_ms": NOW_MS + 1_000,
        "told_number": number,
        "told_position": last,
        "told_checksum": crc32c(seed + told),
    }


def test_records_have_the_bytes_that_the_format_says(place: Path) -> None:
    data = (place / "segments" / "00000001.seg").read_bytes()
    header = fields_at(data, 0, "Header")
    told = []
    for start, after in records(data):
        record = fields_at(data, start, "Record")
        end = start + 24 + record["key_size"] + record["row_size"]
        seed = struct.pack("<QQQ", header["number"], header["salt"], start)
        assert record["checksum"] == crc32c(seed + data[start + 12 : end])
        assert data[end:after] == bytes(after - end)
        assert (record["family"], record["zero"]) == (1, 0)
        key = data[start + 24 : start + 24 + record["key_size"]]
        row = read_row(data[start + 24 + record["key_size"] : end])
        told.append((key, row["value"], row["flags"], record["mark"]))
    assert told == [
        (b"a", b"1", 1, 0),
        (b"bb", b"22", 0, 2),
        (b"ccc", b"333", 3, 0),
        (b"a", b"", 0, 1),
    ]


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each record begins, and where the next one may."""
    start = 4096 + 4 * fields_at(data, 0, "Header")["slots"]
    while (record := fields_at(data, start, "Record"))["key_size"]:
        after = -(-(start + 24 + record["key_size"] + record["row_size"]) // 8) * 8
        yield start, after
        start = after


def test_the_base_tier_has_the_bytes_that_the_format_says(place: Path) -> None:
    clock = ephemera.ManualClock(NOW_MS)
    with ephemera.open(place, clock=clock, maintenance="manual") as store:
        store.family("codes", default_ttl=9).put("dies", "early", ttl=1)
        clock.advance(1)
        store.checkpoint()
    trees = read_trees(place / "base" / "00000001.mdb")
    assert list(trees) == sorted(name.strip("`") for name, *_ in table(FORMAT, "| tree |"))
    base_key = struct.pack(">I", 1) + b"ccc"
    stored = trees["rows"][base_key]
    assert list(trees["rows"]) == [struct.pack(">I", 1) + b"bb", base_key]
    assert stored[:4] == struct.pack("<I", crc32c(base_key + stored[4:]))
    assert read_row(stored[4:])["value"] == b"333"
    assert trees["deadlines"] == {struct.pack(">q", NOW_MS + 5_000) + base_key: b""}
    entry = struct.pack(">qI", NOW_MS + 1_000, 2) + b"dies"
    checksum = struct.pack("<I", crc32c(entry + b"\xa5early"))
    assert trees["untold"] == {entry: b"\xa5" + checksum + b"early"}


def test_the_names_in_meta_are_those_that_the_format_says(place: Path) -> None:
    clock = ephemera.ManualClock(NOW_MS)
    with ephemera.open(place, clock=clock, maintenance="manual") as store:
        _ = store.family("codes", default_ttl=9), store.family("gone")
        store.drop_family("gone")
        store.put("dies", "1", ttl=1)
        clock.advance(1)
        assert store.purge_expired() == 1
        store.checkpoint()
    sealed = read_trees(place / "base" / "00000001.mdb")["meta"]
    meta = {name: stored[4:] for name, stored in sealed.items()}
    assert all(
        stored[:4] == struct.pack("<I", crc32c(name + stored[4:]))
        for name, stored in sealed.items()
    )
    assert meta == {
        b"applied-segment": struct.pack("<q", 2),
        b"clock-high-water": struct.pack("<q", NOW_MS + 1_000),
        b"family:codes": struct.pack("<IqI", 2, 9_000, 2),
        b"family:default": struct.pack("<IqI", 1, -1, 1),
        b"given-up:3": b"",
        b"next-family-id": struct.pack("<q", 4),
    }
    told = {row[0].split("`")[1] for row in table(FORMAT, "| name in `meta` |")}
    assert told == {"superseded-by"} | {re.sub(r":.*", ":", name.decode()) for name in meta}


def read_trees(path: Path) -> dict[str, dict[bytes, bytes]]:
    """Everything in a file of the base tier that nobody has open."""
    with lmdb.open(str(path), subdir=False, readonly=True, max_dbs=4, lib_version=1) as env:
        with env.begin() as txn:
            # LMDB 1.0 keeps the zero byte at the end of a tree's name.
            names = [name.rstrip(b"\0") for name in txn.cursor().iternext(values=False)]
        handles = {name: env.open_db(name, create=False) for name in names}
        with env.begin() as txn:
            return {
                name.decode(): dict(txn.cursor(handle)) for name, handle in sorted(handles.items())
            }
