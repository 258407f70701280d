"""Append-only logs: their files, their ends, and what their commands leave behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ephemera import InvalidArgument, Store
from ephemera.core.row import NEVER_MS
from ephemera.formats.aof import AofLog, encode_aof
from ephemera.formats.files import DamagedFile
from ephemera.formats.rdb import dump
from ephemera.formats.rdb_file import encode_rdb
from ephemera.formats.transfer import load, save
from tests.formats.conftest import NOW_MS
from tests.formats.samples import held_by_store, yielded


def log(*commands: str | list[bytes]) -> bytes:
    """Commands as a log has them."""
    out = b""
    for command in commands:
        words = command if isinstance(command, list) else command.encode().split()
        out += b"*%d\r\n" % len(words)
        out += b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "appendonly.aof"


def left_by(path: Path, *commands: str | list[bytes]) -> dict[str, str]:
    """What the commands leave: values and, behind an @, the milliseconds from now to the deadline."""
    path.write_bytes(log(*commands))
    keys = yielded(AofLog(path, now_ms=NOW_MS))
    left = {}
    for (family, key), (value, deadline_ms) in keys.items():
        name = key.decode() if family == "default" else f"{family}/{key.decode()}"
        until = "" if deadline_ms == NEVER_MS else f"@{deadline_ms - NOW_MS}"
        left[name] = value.decode() + until
    return left


# --- commands -------------------------------------------------------------------------------------

AT = NOW_MS + 5_000
AT_S = AT // 1000


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        (["SET a 1"], {"a": "1"}),
        (["set a 1 px 70"], {"a": "1@70"}),
        (["SET a 1 EX 7"], {"a": "1@7000"}),
        ([f"SET a 1 PXAT {AT}"], {"a": "1@5000"}),
        ([f"SET a 1 EXAT {AT_S}"], {"a": "1@5000"}),
        (["SET a 1 NX", "SET a 2 NX"], {"a": "1"}),
        (["SET a 1 XX"], {}),
        (["SET a 1", "SET a 2 XX GET"], {"a": "2"}),
        (["SET a 1 PX 70", "SET a 2 KEEPTTL"], {"a": "2@70"}),
        (["SET a 1 PX 70", "SET a 2"], {"a": "2"}),
        (["SETEX a 7 1", "PSETEX b 7 2", "SETNX b 3", "SETNX c 4"], {"a": "1@7000", "b": "2@7", "c": "4"}),
        (["SETEX a 7 1", "GETSET a 2"], {"a": "2"}),
        (["MSET a 1 b 2", "MSETNX b 3 c 4", "MSETNX d 5"], {"a": "1", "b": "2", "d": "5"}),
        (["APPEND a x", "APPEND a y", "SETRANGE a 3 z"], {"a": "xy\0z"}),
        (["SET a 1 PX 70", "APPEND a 2"], {"a": "12@70"}),
        (["SET a abc", "SETRANGE a 1 X"], {"a": "aXc"}),
        (["SETBIT a 1 1", "SETBIT a 7 1", "SETBIT a 1 0"], {"a": "\x01"}),
        (["INCR a", "INCRBY a 10", "DECR a", "DECRBY a 3"], {"a": "7"}),
        (["SET a 1 PX 70", "INCR a"], {"a": "2@70"}),
        (["MSET a 1 b 2 c 3", "DEL a nosuch", "UNLINK b"], {"c": "3"}),
        (["SET a 1", "GETDEL a"], {}),
        (["SET a 1 PX 70", "RENAME a b"], {"b": "1@70"}),
        (["SET a 1", "SET b 2", "RENAME a b"], {"b": "1"}),
        (["SET a 1", "SET b 2", "RENAMENX a b"], {"a": "1", "b": "2"}),
        (["RPUSH list x", "SET a 1", "RENAME list a"], {}),
        (["SET a 1 PX 70", "COPY a b", "COPY a b DB 2"], {"a": "1@70", "b": "1@70", "db2/b": "1@70"}),
        (["MSET a 1 b 2", "COPY a b", "COPY b a REPLACE"], {"a": "2", "b": "2"}),
        (["MSET a 1 b 2", "MOVE a 3", "SELECT 3", "MOVE a 0"], {"a": "1", "b": "2"}),
        (["SET a 1", "EXPIRE a 7"], {"a": "1@7000"}),
        (["SET a 1", "PEXPIRE a 7"], {"a": "1@7"}),
        (["SET a 1", f"EXPIREAT a {AT_S}"], {"a": "1@5000"}),
        (["SET a 1", f"PEXPIREAT a {AT}"], {"a": "1@5000"}),
        (["SET a 1", "PEXPIRE a 9 NX", "PEXPIRE a 5 GT", "PEXPIRE a 8 NX"], {"a": "1@9"}),
        (["SET a 1", "PEXPIRE a 9 XX", "PEXPIRE a 9 GT", "PEXPIRE a 8 LT"], {"a": "1@8"}),
        (["SET a 1 PX 70", "PERSIST a", "PERSIST nosuch"], {"a": "1"}),
        (["SET a 1 PX 70", "GETEX a PERSIST", "SET b 1", "GETEX b PX 9"], {"a": "1", "b": "1@9"}),
        (["SET a 1", "SELECT 5", "SET a 2"], {"a": "1", "db5/a": "2"}),
        (["SET a 1", "SELECT 5", "SET a 2", "SET b 3", "FLUSHDB", "SET c 4"], {"a": "1", "db5/c": "4"}),
        (["SET a 1", "SELECT 5", "SET a 2", "FLUSHALL ASYNC", "SET c 4"], {"db5/c": "4"}),
        (["SET a 1", "SWAPDB 0 5", "SET b 2"], {"db5/a": "1", "b": "2"}),
        (["MULTI", "SET a 1", "INCR a", "EXEC"], {"a": "2"}),
        (["MULTI", "SET a 1", "DISCARD", "SET b 2"], {"b": "2"}),
        (["SET a 1 PX 1", "PERSIST a"], {"a": "1"}),
        (["SET a 1 PXAT 5", "PERSIST a"], {"a": "1"}),  # it lived when the command was given
        (["SET a 1", "SUNIONSTORE a b c"], {}),
        ([[b"RESTORE", b"a", b"0", dump(b"v")]], {"a": "v"}),
        ([[b"RESTORE", b"a", b"70", dump(b"v"), b"REPLACE"]], {"a": "v@70"}),
        ([[b"RESTORE", b"a", b"%d" % AT, dump(b"v"), b"ABSTTL"]], {"a": "v@5000"}),
        (["SET a 1", [b"RESTORE", b"a", b"0", b"\x01a list", b"REPLACE"]], {}),
    ],
)  # fmt: skip
def test_commands_leave_what_they_leave_in_redis(
    path: Path, commands: list[str | list[bytes]], left: dict[str, str]
) -> None:
    assert left_by(path, *commands) == left


def test_commands_that_are_not_carried_out_are_counted(path: Path) -> None:
    path.write_bytes(log("RPUSH l 1", "rpush l 2", "PFADD h a", "PING", "HSET h f v", "SET a 1"))
    source = AofLog(path, now_ms=NOW_MS)
    assert yielded(source) == {("default", b"a"): (b"1", NEVER_MS)}
    assert source.skipped == {"RPUSH": 2, "PFADD": 1, "HSET": 1}


@pytest.mark.parametrize(
    "command",
    [
        "SET a",
        "SET a 2 EX",
        "SET a 2 PX x",
        "SETEX a 1",
        "MSET a 2 b",
        "INCR a",
        "INCRBY a 9223372036854775808",
        "EXPIRE a",
        "EXPIRE a 1_0",
        "SELECT -1",
        "SELECT x",
        "SETRANGE a 536870900 x",
        "SETBIT a 99999999999 1",
        "RENAME a",
        "PEXPIRE a 5 QQ",
    ],
)
def test_a_command_that_is_wrong_is_counted_and_changes_nothing(path: Path, command: str) -> None:
    path.write_bytes(log("SET a text", command, "SET b 1"))
    source = AofLog(path, now_ms=NOW_MS)
    keys = yielded(source)
    assert keys["default", b"b"] == (b"1", NEVER_MS)
    assert keys["default", b"a"] == (b"text", NEVER_MS)
    assert source.failed == {command.split()[0]: 1}


def test_deadlines_beyond_all_bounds_are_counted(path: Path, store: Store) -> None:
    path.write_bytes(
        log(f"SET a 1 PXAT {2**63 - 1}", f"SET b 1 EX {2**62}", "SET c 1 PXAT -5", "SET d 1")
    )
    loaded = load(store.engine, AofLog(path, now_ms=NOW_MS))
    assert (loaded.imported, loaded.dead) == (1, 1)
    assert loaded.skipped == {"deadlines past the year 9999": 2}


# --- files ----------------------------------------------------------------------------------------


def test_an_empty_log_holds_nothing(path: Path) -> None:
    assert left_by(path) == {}


@pytest.mark.parametrize("cut", range(1, len(log("SET b 2"))))
def test_a_tail_that_is_cut_is_told_and_what_precedes_it_read(path: Path, cut: int) -> None:
    path.write_bytes(log("SET a 1", "SET b 2")[:-cut])
    source = AofLog(path, now_ms=NOW_MS)
    assert yielded(source) == {("default", b"a"): (b"1", NEVER_MS)}
    assert source.damage is not None
    assert source.damage.offset == len(log("SET a 1"))


@pytest.mark.parametrize("tail", [b"", log("SET c 3")[:-3]])
def test_a_transaction_that_is_cut_is_dropped_as_a_whole(path: Path, tail: bytes) -> None:
    path.write_bytes(log("SET a 1", "MULTI", "SET a 2", "SET b 2") + tail)
    source = AofLog(path, now_ms=NOW_MS)
    assert yielded(source) == {("default", b"a"): (b"1", NEVER_MS)}
    assert source.damage is not None
    assert source.damage.offset == len(log("SET a 1"))


def test_damage_in_the_middle_is_raised_and_nothing_imported(path: Path, store: Store) -> None:
    path.write_bytes(log("SET a 1") + b"garbage" + log("SET b 2"))
    with pytest.raises(DamagedFile, match=r"'g' in the place of '\*'") as raised:
        load(store.engine, AofLog(path, now_ms=NOW_MS))
    assert raised.value.offset == len(log("SET a 1"))
    assert store.count() == 0
    loaded = load(store.engine, AofLog(path, now_ms=NOW_MS, keep_going=True))
    assert (loaded.imported, loaded.damage is not None) == (1, True)


def directory(tmp_path: Path, base: bytes, *more: bytes) -> Path:
    """A log of several files, in Redis's directory of data."""
    place = tmp_path / "appendonlydir"
    place.mkdir()
    (place / "l.1.base.rdb").write_bytes(base)
    lines = ["file l.1.base.rdb seq 1 type b", 'file "old.aof" seq 1 type h', ""]
    (place / "old.aof").write_bytes(log("SET old 1"))
    for number, data in enumerate(more, 1):
        (place / f"l.{number}.incr.aof").write_bytes(data)
        lines.append(f"file l.{number}.incr.aof seq {number} type i")
    (place / "l.manifest").write_text("\n".join(lines))
    return place


@pytest.fixture
def base(tmp_path: Path, store: Store) -> bytes:
    store.put("base", "1")
    save(store.engine, tmp_path / "base.rdb", encode_rdb)
    store.clear()
    return (tmp_path / "base.rdb").read_bytes()


def test_the_files_of_a_manifest_are_read_in_order(tmp_path: Path, base: bytes) -> None:
    place = directory(tmp_path, base, log("INCR base", "SET a 1"), log("SET a 2"))
    expected = {("default", b"base"): (b"2", NEVER_MS), ("default", b"a"): (b"2", NEVER_MS)}
    for given in (tmp_path, place, place / "l.manifest"):
        assert yielded(AofLog(given, now_ms=NOW_MS)) == expected


def test_only_the_last_file_may_be_cut(tmp_path: Path, base: bytes) -> None:
    place = directory(tmp_path, base, log("SET a 1")[:-3], log("SET b 2"))
    with pytest.raises(DamagedFile) as raised:
        yielded(AofLog(place, now_ms=NOW_MS))
    assert raised.value.path.endswith("l.1.incr.aof")


def test_an_rdb_that_is_cut_is_no_tail(path: Path, base: bytes) -> None:
    path.write_bytes(base[:-3])
    with pytest.raises(DamagedFile):
        yielded(AofLog(path, now_ms=NOW_MS))


@pytest.mark.parametrize(
    "line",
    [
        "file nosuch seq 1 type i",
        "file ../l.1.base.rdb seq 1 type i",
        "file l.1.base.rdb seq 1 type x",
        "file l.1.base.rdb seq",
        'file "l.1 seq 1 type b',
        "\udcff",
    ],
)
def test_a_wrong_line_of_a_manifest_is_refused(tmp_path: Path, base: bytes, line: str) -> None:
    place = directory(tmp_path, base)
    manifest = place / "l.manifest"
    offset = manifest.stat().st_size
    with open(manifest, "ab") as file:
        file.write(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedFile) as raised:
        AofLog(place, now_ms=NOW_MS)
    assert raised.value.offset == offset


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="0 manifests"):
        AofLog(tmp_path, now_ms=NOW_MS)


# --- writing --------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(path: Path, store: Store) -> None:
    store.put(b"\r\n$", b"\0\xff", ttl=1.234)
    store.put("permanent", "")
    store.family("db4").put("other", "1", at=4_000_000_000)
    assert save(store.engine, path, encode_aof) == 3
    assert b"PXAT" in path.read_bytes()
    assert yielded(AofLog(path, now_ms=0)) == held_by_store(store)


def test_relative_deadlines_are_whole_seconds_rounded_up(path: Path, store: Store) -> None:
    store.put("a", "1", ttl=1.001)
    store.put("b", "1", ttl=5)
    save(store.engine, path, partial(encode_aof, relative=True))
    assert path.read_bytes().count(b"$2\r\nEX\r\n") == 2
    assert yielded(AofLog(path, now_ms=NOW_MS)) == {
        ("default", b"a"): (b"1", NOW_MS + 2_000),
        ("default", b"b"): (b"1", NOW_MS + 5_000),
    }
