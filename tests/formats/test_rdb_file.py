"""RDB files: the parts of the format, every type that is passed over, and damage."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from ephemera import Store
from ephemera.core.row import NEVER_MS
from ephemera.formats._codec import crc64, encode_length, encode_string
from ephemera.formats.files import DamagedFile
from ephemera.formats.rdb_file import RdbFile, encode_rdb
from ephemera.formats.rdb_types import TYPES
from ephemera.formats.transfer import load, save
from tests.formats.conftest import NOW_MS
from tests.formats.samples import Keys, client_of, yielded
from tests.wire.servers import running, start_redis

L = encode_length
S = encode_string
RAW_8 = b"\xff" * 8
RAW_16 = b"\xfe" * 16


def rdb(*parts: bytes, version: int = 12, checksum: int | None = None) -> bytes:
    """A file of these parts; its checksum is right unless one is given."""
    body = b"REDIS%04d" % version + b"".join(parts) + b"\xff"
    if version < 5:
        return body
    return body + struct.pack("<Q", crc64(body) if checksum is None else checksum)


def string(key: bytes, value: bytes) -> bytes:
    return b"\x00" + S(key) + S(value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dump.rdb"


def read(path: Path, data: bytes) -> tuple[Keys, Counter[str]]:
    path.write_bytes(data)
    source = RdbFile(path, now_ms=NOW_MS)
    return yielded(source), source.skipped


# --- what stands in a file ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 13))
def test_every_version_is_read(path: Path, version: int) -> None:
    keys, _ = read(path, rdb(b"\xfe\x00", string(b"a", b"1"), version=version))
    assert keys == {("default", b"a"): (b"1", NEVER_MS)}


@pytest.mark.parametrize("version", [0, 1, 13, 80, 9999])
def test_other_versions_are_refused_by_name(path: Path, version: int) -> None:
    with pytest.raises(DamagedFile, match=f"version {version}: those from 2 to 12"):
        read(path, rdb(string(b"a", b"1"), version=version))


def test_a_deadline_belongs_to_the_next_key_alone(path: Path) -> None:
    keys, _ = read(
        path,
        rdb(
            b"\xfc" + struct.pack("<q", NOW_MS + 1) + string(b"ms", b"1"),
            b"\xfd" + struct.pack("<i", 1_800_000_000) + string(b"s", b"2"),
            b"\xfc" + struct.pack("<q", NOW_MS) + b"\x01" + S(b"list") + L(0),
            string(b"none", b"3"),
            b"\xfc" + struct.pack("<q", -1) + string(b"never", b"4"),
        ),
    )
    assert keys == {
        ("default", b"ms"): (b"1", NOW_MS + 1),
        ("default", b"s"): (b"2", 1_800_000_000_000),
        ("default", b"none"): (b"3", NEVER_MS),
        ("default", b"never"): (b"4", NEVER_MS),
    }


def test_what_is_of_no_use_is_passed_over(path: Path) -> None:
    keys, skipped = read(
        path,
        rdb(
            b"\xfa" + S(b"redis-ver") + S(b"7.4.0"),
            b"\xfa" + S(b"redis-bits") + S(b"64"),
            b"\xf5" + S(b"#!lua name=mylib\n" * 10),
            b"\xf7" + L(2**63) + L(2) + L(1) + L(2) + L(70_000) + L(0),
            b"\xfe" + L(11) + b"\xfb" + L(300) + L(20_000),
            b"\xf4" + L(5) + L(6) + L(7),
            b"\xf8" + L(100_000) + string(b"idle", b"1"),
            b"\xf9\x7f" + string(b"frequent", b"2"),
        ),
    )
    assert keys == {("db11", b"idle"): (b"1", NEVER_MS), ("db11", b"frequent"): (b"2", NEVER_MS)}
    assert skipped == {}


def test_a_checksum_of_zero_is_none(path: Path) -> None:
    keys, _ = read(path, rdb(string(b"a", b"1"), checksum=0))
    assert len(keys) == 1


def test_keys_that_no_store_holds_are_counted(path: Path, store: Store) -> None:
    too_far = b"\xfc" + struct.pack("<q", 300_000_000_000_000)
    dead = b"\xfc" + struct.pack("<q", NOW_MS)
    path.write_bytes(
        rdb(
            string(b"", b"1"),
            string(b"k" * 1901, b"2"),
            too_far + string(b"far", b"3"),
            dead + string(b"dead", b"4"),
            string(b"good", b"5"),
        )
    )
    loaded = load(store.engine, RdbFile(path, now_ms=NOW_MS))
    assert (loaded.imported, loaded.dead) == (1, 1)
    assert loaded.skipped == {
        "an empty key": 1,
        "keys of more than 1900 bytes": 1,
        "deadlines past the year 9999": 1,
    }


# --- values of other types ------------------------------------------------------------------------

STREAM_1 = L(1) + S(RAW_16) + S(b"listpack") + L(1) + L(2**40) + L(0)
GROUP_1 = S(b"group") + L(2**40) + L(1)
PENDING = L(2) + (RAW_16 + RAW_8 + L(1)) * 2
CONSUMER = S(b"consumer") + RAW_8
STREAM_2 = STREAM_1 + L(1) + L(0) + L(0) + L(0) + L(1)
GROUP_2 = GROUP_1 + L(3)
GOLDEN = {
    1: L(3) + S(b"a") + S(b"1") + S(b"x" * 100),
    2: L(2) + S(b"a") + S(b"-300"),
    3: L(4) + S(b"a") + b"\x031.5" + S(b"b") + b"\xfd" + S(b"c") + b"\xfe" + S(b"d") + b"\xff",
    4: L(1) + S(b"field") + S(b"value"),
    5: L(2) + S(b"a") + RAW_8 + S(b"b") + RAW_8,
    9: S(b"\x01\x05field\x05\x00value\xff"),
    10: S(b"ziplist"),
    11: S(b"\x02\x00\x00\x00\x01\x00\x00\x00\x07\x00"),
    12: S(b"ziplist"),
    13: b"\xc3\x09\x40\x64\x01aa\xe0\x57\x00\x01aa",  # compressed
    14: L(2) + S(b"ziplist") + S(b"ziplist"),
    15: STREAM_1 + L(1) + GROUP_1 + PENDING + L(1) + CONSUMER + L(1) + RAW_16,
    16: S(b"listpack"),
    17: S(b"listpack"),
    18: L(2) + L(2) + S(b"listpack") + L(1) + S(b"plain"),
    19: STREAM_2 + L(1) + GROUP_2 + PENDING + L(1) + CONSUMER + L(1) + RAW_16,
    20: S(b"listpack"),
    21: STREAM_2 + L(1) + GROUP_2 + PENDING + L(1) + CONSUMER + RAW_8 + L(1) + RAW_16,
    22: L(1) + L(2**40) + S(b"field") + S(b"value"),
    23: S(b"listpack"),
    24: RAW_8 + L(1) + L(5) + S(b"field") + S(b"value"),
    25: RAW_8 + S(b"listpack"),
}


def test_there_is_a_value_of_every_type() -> None:
    assert GOLDEN.keys() == TYPES.keys()


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_value_of_another_type_is_passed_over_exactly(path: Path, kind: int) -> None:
    value = bytes([kind]) + S(b"key") + GOLDEN[kind]
    keys, skipped = read(path, rdb(string(b"a", b"1"), value, string(b"b", b"2"), value))
    assert keys == {("default", b"a"): (b"1", NEVER_MS), ("default", b"b"): (b"2", NEVER_MS)}
    assert skipped == {TYPES[kind][0]: 2}


def test_a_value_of_a_module_is_counted_by_its_name(path: Path) -> None:
    number = 0
    for character in "ReJSON-RL":
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        number = number << 6 | alphabet.index(character)
    parts = L(1) + L(5) + L(2) + L(2**40) + L(3) + b"1234" + L(4) + RAW_8 + L(5) + S(b"text")
    value = b"\x07" + S(b"doc") + L(number << 10 | 3) + parts + L(0)
    keys, skipped = read(path, rdb(value, string(b"b", b"2")))
    assert keys == {("default", b"b"): (b"2", NEVER_MS)}
    assert skipped == {"module ReJSON-RL": 1}


def test_every_type_that_redis_writes_is_counted(tmp_path: Path, path: Path) -> None:
    commands = [
        "RPUSH list:small a 1 -5",
        *(f"RPUSH list:large {'x' * 3_000} {number}" for number in range(20)),
        f"RPUSH list:plain {'y' * 20_000} b",
        "SADD set:numbers 1 2 70000 -9000000000",
        "SADD set:texts a b c",
        "SADD set:large " + " ".join(f"member:{number}" for number in range(600)),
        "HSET hash:small f v",
        f"HSET hash:large f {'z' * 500}",
        "ZADD zset:small 1 a 2.5 b",
        "ZADD zset:large inf a -inf b 0.1 " + "m" * 200,
        "XADD stream:plain 1-1 f v",
        *(f"XADD stream:read {number + 1}-0 f {'v' * 100}" for number in range(300)),
        "XGROUP CREATE stream:read group 0",
        "XREADGROUP GROUP group one COUNT 7 STREAMS stream:read >",
        "XREADGROUP GROUP group two COUNT 3 STREAMS stream:read >",
        "XDEL stream:read 5-0",
        "PFADD loglog a b c",  # a string to Redis and to us
    ]
    with running(start_redis(tmp_path)) as server, client_of(server) as client:
        for number, command in enumerate(commands):
            client.execute_command(*command.split(" "))
            client.set(f"string:{number}", "between")
        client.function_load("#!lua name=lib\nredis.register_function('f', function() end)")
        client.pexpireat("list:small", 4_000_000_000_000)
        client.save()
    source = RdbFile(path, now_ms=NOW_MS)
    keys = yielded(source)
    assert len(keys) == len(commands) + 1
    assert {held for held in keys.values() if held[0] != b"between"} != set()
    assert source.skipped == {"list": 3, "set": 3, "hash": 2, "zset": 2, "stream": 2}


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"", 0, "9 bytes were to follow, and 0 do"),
        (b"RDBIS0010", 9, "begins with REDIS"),
        (b"REDIS00x0", 9, "begins with REDIS"),
        (rdb(string(b"a", b"1"))[:-4], 15, "8 bytes were to follow, and 4 do"),
        (rdb(string(b"a", b"1"), checksum=5), 23, "checksum"),
        (rdb(b"\x1a" + S(b"a")), 10, "type 26"),
        (rdb(b"\x06" + S(b"a") + L(1)), 10, "type 6"),
        (rdb(b"\xf6"), 10, "type 246"),
        (rdb(b"\x07" + S(b"a") + L(1) + L(9)), 14, "kind 9"),
        (rdb(string(b"a", b"1")) + b"more", 23, "goes on after its end"),
        (rdb(b"\x01" + S(b"a") + L(2**64 - 1)), 21, "elements"),
        (rdb(b"\x00" + b"\x81" + b"\xff" * 8), 19, "more than a value has"),
        (rdb(b"\xfa" + S(b"ephemera-family-1") + S(b"__ephemera_x")), 41, "no family"),
    ],
)
def test_damage_is_named_with_its_offset(
    path: Path, store: Store, data: bytes, offset: int, reason: str
) -> None:
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=reason) as raised:
        load(store.engine, RdbFile(path, now_ms=NOW_MS))
    assert (raised.value.offset, raised.value.path) == (offset, str(path))
    assert f"{path} at offset {offset}: " in str(raised.value)


def test_nothing_is_imported_from_a_damaged_file(path: Path, store: Store) -> None:
    path.write_bytes(rdb(*(string(b"%d" % n, b"v") for n in range(5_000)), checksum=5))
    with pytest.raises(DamagedFile):
        load(store.engine, RdbFile(path, now_ms=NOW_MS))
    assert store.count() == 0


def test_keeping_going_imports_what_stands_before_the_damage(path: Path, store: Store) -> None:
    path.write_bytes(rdb(string(b"a", b"1"), b"\x1a", string(b"b", b"2")))
    loaded = load(store.engine, RdbFile(path, now_ms=NOW_MS, keep_going=True))
    assert list(store) == [b"a"]
    assert loaded.damage is not None
    assert "type 26" in loaded.damage.reason


def test_an_export_of_nothing_is_a_file_of_nothing(path: Path, store: Store) -> None:
    assert save(store.engine, path, encode_rdb) == 0
    assert read(path, path.read_bytes()) == ({}, {})
