"""What `ephemera import` takes as SOURCE: the same URLs as a store on Redis, and clear refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from tests.cli.typing_it import ok, refused
from tests.formats.samples import client_of
from tests.wire.servers import Process, free_port, running, start_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(start_redis(tmp_path_factory.mktemp("source"))) as started:
        with client_of(started) as client:
            client.set("a", "1")
        with client_of(started, 2) as client:
            client.set("b", "2")
        yield started


@pytest.mark.parametrize(
    ("rest", "count"),
    [
        ("", 2),
        ("/", 2),
        ("/0", 1),
        ("/0?values=plain", 1),
        ("?timeout=1", 2),
        ("/2?timeout=0.5", 1),
    ],
)
def test_a_url_is_read_as_that_of_a_store_on_redis(
    path: Path, server: Process, rest: str, count: int
) -> None:
    done = ok("import", path, f"redis://127.0.0.1:{server.port}{rest}", "--json")
    assert done.json["imported"] == count


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("?foo=1", "no parameter 'foo'"),
        ("/abc", "'abc'"),
        ("?timeout=soon", "'soon'"),
        ("?prefix=shop", "ephemera copy"),
        ("?values=rows", "ephemera copy"),
        ("?wait_replicas=1", "wait_replicas is about writes"),
        ("?retry_for=3", "--resume"),
    ],
)
def test_a_parameter_that_an_import_has_no_use_for_is_refused(
    path: Path, rest: str, says: str
) -> None:
    assert says in refused("import", path, f"redis://127.0.0.1:1{rest}")
    assert not path.exists()


@pytest.mark.parametrize(
    "source",
    [
        "redis+cluster://a:7000",
        "s3://bucket/x",
        "memory://",
        "http://host/dump.rdb",
        "FTP://host/x",
    ],
)
@pytest.mark.parametrize("origin", [[], ["--from", "redis"], ["--from", "diskcache"]], ids=str)
def test_another_url_is_refused_as_it_was_typed(path: Path, source: str, origin: list[str]) -> None:
    told = refused("import", path, source, *origin)
    assert f"import does not read {source!r}" in told
    assert "redis://, rediss:// or unix://" in told
    assert ("ephemera copy" in told) == (source not in ("http://host/dump.rdb", "FTP://host/x"))
    assert not path.exists()


def test_a_path_is_no_running_redis(path: Path) -> None:
    assert "'dump.rdb' is no URL of a running Redis" in refused(
        "import", path, "dump.rdb", "--from", "redis"
    )


@pytest.mark.parametrize("origin", [[], ["--from", "diskcache"]], ids=str)
def test_a_store_is_copied_not_imported(path: Path, tmp_path: Path, origin: list[str]) -> None:
    with ephemera.open(tmp_path / "other.eph") as store:
        store.put("a", "1")
    told = refused("import", path, tmp_path / "other.eph", *origin)
    assert f"`ephemera copy {tmp_path / 'other.eph'} {path}`" in told
    assert not path.exists()


def test_a_closed_port_says_what_to_do(path: Path) -> None:
    port = free_port()
    told = refused("import", path, f"redis://:secret@127.0.0.1:{port}")
    assert told == (
        f"127.0.0.1:{port} did not answer within 1 s (Connection refused)."
        " Is a server running there?"
    )


def test_a_missing_password_says_where_to_give_it(path: Path, tmp_path: Path) -> None:
    with running(start_redis(tmp_path, "--requirepass", "secret")) as process:
        told = refused("import", path, f"redis://127.0.0.1:{process.port}")
    assert "?password_file=" in told
    assert "?password_env=" in told
