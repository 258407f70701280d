"""A reader beside the writer: it follows, and it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import Capability, InvalidArgument, ReadOnly, Store, UnsupportedOperation
from tests.engines.slatedb.buckets import file_url
from tests.waiting import wait_until


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Store]:
    with ephemera.open(file_url(tmp_path)) as store:
        yield store


@pytest.fixture
def reader(tmp_path: Path, writer: Store) -> Iterator[Store]:
    writer.put("first", "1", durable=True)
    with ephemera.open(file_url(tmp_path), read_only=True) as store:
        yield store


def test_a_reader_follows_the_writer(writer: Store, reader: Store) -> None:
    assert reader.get("first") == b"1"
    writer.put("second", "2", ttl=600)
    wait_until(lambda: reader.get("second") == b"2", what="the reader sees a put")
    assert 0 < (reader.ttl("second") or 0) <= 600
    writer.delete("first")
    wait_until(lambda: reader.get("first") is None, what="the reader sees a delete")
    assert list(reader.scan()) == [(b"second", b"2")]


def test_a_reader_follows_families(writer: Store, reader: Store) -> None:
    writer.family("one", default_ttl=60).put("a", "1")
    wait_until(lambda: "one" in reader.families(), what="the reader sees a family")
    family = reader.family("one")
    wait_until(lambda: family.get("a") == b"1", what="the reader sees its row")
    writer.family("one").clear()
    wait_until(lambda: family.get("a") is None, what="the reader sees that it was cleared")
    writer.family("one").put("b", "2")
    wait_until(lambda: dict(family.scan()) == {b"b": b"2"}, what="the reader sees what came then")
    writer.drop_family("one")

    def is_refused() -> bool:
        try:
            family.get("b")
        except InvalidArgument:
            return True
        return False

    wait_until(is_refused, what="the reader sees that it was dropped")


def test_a_reader_has_no_snapshots_and_a_scan_of_one_state(writer: Store, reader: Store) -> None:
    assert Capability.SNAPSHOTS in writer.capabilities
    assert Capability.SNAPSHOTS not in reader.capabilities
    with pytest.raises(UnsupportedOperation, match="a reader follows the writer"):
        reader.snapshot()
    writer.put_many({f"key:{number:04}": "old" for number in range(1_000)})
    wait_until(lambda: reader.count() == 1_001, what="the reader sees all of it")
    walk = reader.scan("key:")
    next(walk)
    writer.put_many({f"key:{number:04}": "new" for number in range(1_000)})
    wait_until(lambda: reader.get("key:0999") == b"new", what="the reader goes on")
    assert {value for _, value in walk} == {b"old"}


def test_a_reader_refuses_to_write(reader: Store) -> None:
    with pytest.raises(ReadOnly):
        reader.put("a", "1")
    with pytest.raises(ReadOnly):
        reader.family("new")
    with pytest.raises(ReadOnly):
        reader.compact()


def test_a_reader_fences_nobody(writer: Store, reader: Store) -> None:
    assert reader.get("first") == b"1"
    writer.put("after", "1", durable=True)
    assert writer.get("after") == b"1"
