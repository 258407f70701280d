"""A file is read as what it begins with."""

from __future__ import annotations

import os
from pathlib import Path

import diskcache
import pytest

from ephemera import InvalidArgument
from ephemera.formats._codec import encode_string
from ephemera.formats.aof import AofLog
from ephemera.formats.detect import open_source
from ephemera.formats.diskcache import DiskCache
from ephemera.formats.jsonl import JsonLines
from ephemera.formats.rdb_file import RdbFile
from tests.formats.conftest import NOW_MS
from tests.formats.samples import yielded
from tests.formats.test_aof import log
from tests.formats.test_rdb_file import rdb, string


def field(name: bytes, value: bytes) -> bytes:
    return b"\xfa" + encode_string(name) + encode_string(value)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (rdb(string(b"a", b"1")), RdbFile),
        (rdb(field(b"aof-base", b"0"), string(b"a", b"1")), RdbFile),
        (rdb(field(b"aof-preamble", b"1"), string(b"a", b"1")), AofLog),
        (rdb(field(b"aof-base", b"1")) + log("SET a 1"), AofLog),
        (log("SET a 1"), AofLog),
        (b"#TS:1700000000\r\n" + log("SET a 1"), AofLog),
        (b'\n{"key": "a", "value": "1"}\n', JsonLines),
    ],
)
def test_a_file_is_known_by_its_first_bytes(tmp_path: Path, data: bytes, kind: type) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    source = open_source(path, now_ms=NOW_MS)
    assert type(source) is kind
    assert [key for _, key in yielded(source)] == [b"a"]


def test_directories_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "a.manifest").write_text("")
    with diskcache.FanoutCache(str(tmp_path / "cache"), shards=2) as cache:
        cache["a"] = "1"
    assert type(open_source(tmp_path, now_ms=NOW_MS)) is AofLog
    assert type(open_source(tmp_path / "appendonlydir" / "a.manifest", now_ms=NOW_MS)) is AofLog
    assert type(open_source(tmp_path / "cache", now_ms=NOW_MS)) is DiskCache


@pytest.mark.parametrize("data", [b"", b"VALKEY080", b"\x80\x04pickle", b"[1]", b"key,value\n"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match="is no RDB file"):
        open_source(path, now_ms=NOW_MS)


def test_what_is_not_there_and_empty_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is not there"):
        open_source(tmp_path / "nosuch", now_ms=NOW_MS)
    with pytest.raises(InvalidArgument, match="no directory of diskcache"):
        open_source(tmp_path, now_ms=NOW_MS)


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgument, match="neither a file nor a directory"):
        open_source(tmp_path / "pipe", now_ms=NOW_MS)
