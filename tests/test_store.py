"""Opening a store: which engine a URL means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import ephemera


@pytest.mark.parametrize("url", ["memory", "Memory", "memory:", ":memory:", "memory:/"])
def test_a_store_in_memory_has_one_spelling(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ephemera.InvalidArgument, match=r"'memory://'.*\./memory"):
        ephemera.open(url)
    assert list(tmp_path.iterdir()) == []
    for path in ("./memory", Path("memory")):
        with ephemera.open(path) as store:
            assert store.stats()["engine"] == "local"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis:/x", "'redis://x'"),
        ("redis:localhost:6379", "'redis://localhost:6379'"),
        ("unix:/run/redis.sock", "'unix:///run/redis.sock'"),
        ("s3:bucket", "'s3://bucket'"),
        ("S3:/bucket/x", "'s3://bucket/x'"),
        ("app.eph?x=1", "options are arguments of open"),
        ("  ", "a path, memory://"),
    ],
)
def test_what_looks_like_a_misspelt_url_is_no_path(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ephemera.InvalidArgument) as raised:
        ephemera.open(url)
    assert says in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_plain_name_is_a_path_whatever_it_means_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("redis", "s3", "./redis:x", Path("app.eph?x=1"), "what?", "a:b"):
        ephemera.open(path).close()
        assert Path(path).is_dir()


@pytest.mark.parametrize("url", ["memory://", "MEMORY://"])
def test_a_url_names_the_engine(url: str) -> None:
    with ephemera.open(url) as store:
        assert store.stats()["engine"] == "memory"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_the_local_engine(tmp_path: Path, kind: type[str] | type[Path]) -> None:
    with ephemera.open(kind(tmp_path / "app.eph")) as store:
        assert store.stats()["engine"] == "local"


@pytest.mark.parametrize("url", ["http://host", "memroy://", "", None, 7, b"app.eph"])
def test_what_is_no_store_is_told_what_one_is(url: object) -> None:
    with pytest.raises(ephemera.InvalidArgument, match=r"a path, memory://"):
        ephemera.open(url)  # type: ignore[arg-type]  # wrong on purpose


def test_an_unknown_option_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ephemera.InvalidArgument, match=r"'ttl'.*default_ttl.*durability"):
        ephemera.open("memory://", ttl=60)


def test_a_bad_option_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ephemera.InvalidArgument):
        ephemera.open(tmp_path / "app.eph", durability="always")
    assert list(tmp_path.iterdir()) == []


def test_a_store_shows_where_it_is_and_whether_it_is_open() -> None:
    store = ephemera.open("memory://")
    assert repr(store) == "<Store 'memory://', open>"
    store.close()
    assert repr(store) == "<Store 'memory://', closed>"
    assert repr(ephemera.open("memory://").family("codes")) == "<Family 'codes'>"


def test_a_store_is_true_even_when_it_is_empty() -> None:
    with ephemera.open("memory://") as store:
        assert store
        assert len(store) == 0


def test_the_clock_of_a_store_is_the_one_it_was_given() -> None:
    clock = ephemera.ManualClock()
    with ephemera.open("memory://", clock=clock) as store:
        assert store.clock is clock


def test_a_family_may_do_without_the_stores_default() -> None:
    with ephemera.open("memory://", default_ttl=60, clock=ephemera.ManualClock()) as store:
        kept = store.family("kept", default_ttl=ephemera.Ttl.NEVER)
        store.put(b"key", b"")
        kept.put(b"key", b"")
        assert (store.ttl(b"key"), kept.ttl(b"key")) == (60.0, None)
        store.family("kept", default_ttl=ephemera.Ttl.DEFAULT)
        kept.put(b"key", b"")
        assert kept.ttl(b"key") == 60.0


def test_stats_tell_when_the_wall_clock_is_ignored() -> None:
    class Ahead(ephemera.ManualClock):
        ignores_wall = True

    for clock, is_ignored in ((ephemera.ManualClock(), False), (Ahead(), True)):
        with ephemera.open("memory://", clock=clock) as store:
            assert store.stats()["clock_ignores_wall"] is is_ignored
