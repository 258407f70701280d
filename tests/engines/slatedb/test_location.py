"""URLs: what they mean, and what they cannot mean."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import ephemera
from ephemera import InvalidArgument, UnsupportedOperation
from ephemera.engines.slatedb.location import StoreLocation, read_location


def test_a_bucket_and_a_path_are_a_place_with_defaults() -> None:
    assert read_location("s3://bucket/a/b") == StoreLocation(
        scheme="s3", bucket="bucket", path="a/b"
    )
    assert str(read_location("gs://bucket/a/")) == "gs://bucket/a"
    assert read_location("az://container/a").bucket == "container"


def test_a_directory_is_a_place() -> None:
    location = read_location("file:///var/lib/a%20b?engine=slatedb")
    assert (location.scheme, location.bucket, location.path) == ("file", "", "var/lib/a b")


def test_the_directory_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    with ephemera.open(f"{directory.as_uri()}?engine=slatedb") as store:
        store.put("a", "1")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(UnsupportedOperation, match="mode"):
        ephemera.open(f"{directory.as_uri()}?engine=slatedb", mode=0o660)


def test_settings_are_read() -> None:
    location = read_location(
        "s3://bucket/a?cache=1024&flush_interval=0.25&compaction_interval=0&garbage_age=60"
        "&poll_interval=2&endpoint=http://127.0.0.1:9000&region=eu-west-1&engine=slatedb"
    )
    assert (location.cache, location.flush_interval, location.compaction_interval) == (
        1024,
        0.25,
        0.0,
    )
    assert (location.garbage_age, location.poll_interval) == (60.0, 2.0)
    assert (location.endpoint, location.region) == ("http://127.0.0.1:9000", "eu-west-1")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "s3://bucket/a?colour=red",
            "no setting 'colour'; there are engine, cache, flush_interval",
        ),
        ("s3://bucket/a?scheme=gs", "no setting 'scheme'"),
        ("s3://bucket/a?cache=1&cache=2", "cache is given twice"),
        ("s3://bucket/a?cache=-1", "cache must be a whole number of bytes, not '-1'"),
        ("s3://bucket/a?cache=64MiB", "cache must be a whole number of bytes, not '64MiB'"),
        ("s3://bucket/a?cache=", "cache must be a whole number"),
        ("s3://bucket/a?flush_interval=soon", "flush_interval must be a number of seconds"),
        ("s3://bucket/a?flush_interval=0", "flush_interval must be a number of seconds"),
        ("s3://bucket/a?poll_interval=nan", "poll_interval must be a number of seconds"),
        (
            "s3://bucket/a?poll_interval=5&garbage_age=49",
            r"garbage_age \(49\) must be at least 10 times",
        ),
        ("s3://bucket/a?engine=rocksdb", "the engine of such a URL is slatedb"),
        ("s3://bucket", "a store has a path of its own"),
        ("s3://bucket/", "a store has a path of its own"),
        ("s3:///a", "name the bucket"),
        ("s3://user:secret@bucket/a", "credentials come from the environment"),
        ("s3://bucket/a#b", "nothing else is in its URL"),
        ("gs://bucket/a?region=x", "settings of s3:// alone"),
        ("file:///a", r"add \?engine=slatedb"),
        ("file://a/b?engine=slatedb", "three slashes"),
        ("file:///?engine=slatedb", "a store has a path of its own"),
    ],
)
def test_what_a_url_cannot_mean_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ephemera.open(url)


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no store at file://"):
        ephemera.open(f"file://{tmp_path}/none?engine=slatedb", read_only=True)
    assert not (tmp_path / "none").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InvalidArgument, match="taken"):
        ephemera.open(f"file://{tmp_path}/taken/store?engine=slatedb")
