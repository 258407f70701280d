"""Damaged files: whatever the bytes, they are read or refused in words, and nothing half imported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ephemera
from ephemera import ManualClock, Store
from ephemera.formats._codec import encode_length
from ephemera.formats.aof import AofLog, encode_aof
from ephemera.formats.files import DamagedFile
from ephemera.formats.jsonl import JsonLines, encode_jsonl
from ephemera.formats.rdb_file import RdbFile, encode_rdb
from ephemera.formats.transfer import RecordSource, chunks, load
from tests.formats.conftest import NOW_MS
from tests.formats.test_aof import log
from tests.formats.test_rdb_file import GOLDEN, S, rdb, string

MEMORY_MAX = 32 << 20
COMMANDS = [
    "SELECT 2",
    "MULTI",
    "SET a 1",
    "INCRBY a 5",
    "EXEC",
    "RENAME a b",
    "APPEND b xyz",
    "PEXPIREAT b 1800000000000",
    "SETRANGE b 2 q",
    "MSET c 1 d 2",
    "COPY c e DB 3",
    "RPUSH l 1",
    "SWAPDB 2 3",
    "FLUSHDB",
    "SET f 2 EX 50",
]


def exported(encode: Callable[..., Iterator[bytes]]) -> bytes:
    with ephemera.open("memory://", clock=ManualClock(NOW_MS)) as store:
        for number in range(20):
            store.put(f"key:{number}", f"value {number} \\ " * number, ttl=number + 1)
            store.family("db2").put(b"\xff%d" % number, b"%d" % number, idle=60)
        return b"".join(chunks(store.engine, encode))


def all_types() -> bytes:
    """An RDB with a value of every type between strings; without a checksum, so that damage gets in."""
    parts = [
        bytes([kind]) + S(b"key") + value + string(b"s", b"v") for kind, value in GOLDEN.items()
    ]
    return rdb(*parts, checksum=0)


Reader = Callable[..., RecordSource]
WHOLE: dict[str, tuple[bytes, Reader]] = {
    "rdb": (exported(encode_rdb)[:-8] + b"\0" * 8, RdbFile),
    "rdb of all types": (all_types(), RdbFile),
    "aof": (exported(encode_aof), AofLog),
    "aof of many commands": (log(*COMMANDS), AofLog),
    "aof with an rdb": (exported(encode_rdb) + log(*COMMANDS), AofLog),
    "jsonl": (exported(encode_jsonl), JsonLines),
}


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name of a format, and a file of it with some bytes changed, cut out, doubled or put in."""
    name = draw(st.sampled_from(list(WHOLE)))
    data = bytearray(WHOLE[name][0])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 12))
        how = draw(st.sampled_from(["change", "cut out", "double", "put in", "cut off"]))
        if how == "change":
            data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
        elif how == "cut out":
            del data[at : at + size]
        elif how == "double":
            data[at:at] = data[at : at + size * 10]
        elif how == "put in":
            data[at:at] = draw(
                st.sampled_from([b"\xff" * size, b"\x81" + b"\xff" * 8, b"9" * size])
            )
        else:
            del data[at:]
    return name, bytes(data)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage") / "file"


@given(mutations())
def test_a_damaged_file_is_read_or_refused(path: Path, mutation: tuple[str, bytes]) -> None:
    name, data = mutation
    path.write_bytes(data)
    with ephemera.open("memory://", clock=ManualClock(NOW_MS)) as store:
        damage = refusal(store, WHOLE[name][1](path, now_ms=NOW_MS))
        if damage is not None:
            assert damage.offset is not None
            assert 0 <= damage.offset <= len(data)
            assert held(store) == 0


def refusal(store: Store, source: RecordSource) -> DamagedFile | None:
    """What an import raises."""
    try:
        load(store.engine, source)
    except DamagedFile as error:
        return error
    return None


@given(mutations())
def test_keeping_going_never_fails(path: Path, mutation: tuple[str, bytes]) -> None:
    name, data = mutation
    path.write_bytes(data)
    with ephemera.open("memory://", clock=ManualClock(NOW_MS)) as store:
        loaded = load(store.engine, WHOLE[name][1](path, now_ms=NOW_MS, keep_going=True))
        assert loaded.imported >= held(store)


def held(store: Store) -> int:
    return sum(store.family(name).count() for name in store.families())


HOSTILE: dict[str, tuple[bytes, Reader]] = {
    "a long key": (rdb(b"\x00" + encode_length(500 << 20)), RdbFile),
    "a long value": (rdb(b"\x00\x01k" + encode_length(500 << 20)), RdbFile),
    "a value that unpacks to much": (
        rdb(b"\x00\x01k\xc3" + encode_length(5) + encode_length(500 << 20) + b"\x00abcd"),
        RdbFile,
    ),
    "a long list": (rdb(b"\x01\x01k" + encode_length(2**47)), RdbFile),
    "a long pending list": (
        rdb(b"\x0f\x01k" + encode_length(0) * 4 + encode_length(2**47)),
        RdbFile,
    ),
    "many words": (b"*9999999999\r\n", AofLog),
    "a long word": (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nv", AofLog),
    "nested arrays": (b"[" * 1_000_000, JsonLines),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_file_claims_takes_no_memory(path: Path, name: str) -> None:
    data, reader = HOSTILE[name]
    path.write_bytes(data)
    with ephemera.open("memory://", clock=ManualClock(NOW_MS)) as store:
        tracemalloc.start()
        try:
            loaded = load(store.engine, reader(path, now_ms=NOW_MS, keep_going=True))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert loaded.damage is not None
    assert peak < MEMORY_MAX
