"""What a URL of Redis may say, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ephemera import InvalidArgument
from ephemera.engines.redis.settings import PARAMETERS, Address, RedisSettings, read_url


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("redis://localhost", RedisSettings(addresses=(Address("localhost", 6379),))),
        ("redis://cache:7000/3", RedisSettings(addresses=(Address("cache", 7000),), database=3)),
        (
            "redis://ada:s%40cret@cache",
            RedisSettings(addresses=(Address("cache", 6379),), username="ada", password="s@cret"),
        ),
        (
            "redis://:secret@cache/",
            RedisSettings(addresses=(Address("cache", 6379),), password="secret"),
        ),
        ("redis://[::1]:7000", RedisSettings(addresses=(Address("::1", 7000),))),
        ("rediss://cache", RedisSettings(addresses=(Address("cache", 6379),), is_tls=True)),
        (
            "rediss://cache?ca_file=/ca.pem&cert_file=/c.pem&key_file=/k.pem",
            RedisSettings(
                addresses=(Address("cache", 6379),),
                is_tls=True,
                ca_file="/ca.pem",
                cert_file="/c.pem",
                key_file="/k.pem",
            ),
        ),
        ("unix:///run/redis.sock?db=2", RedisSettings(socket="/run/redis.sock", database=2)),
        (
            "redis+cluster://a:1,b?wait_replicas=1&timeout=0.5&retry_for=3&tls=yes",
            RedisSettings(
                addresses=(Address("a", 1), Address("b", 6379)),
                is_cluster=True,
                is_tls=True,
                wait_replicas=1,
                timeout_s=0.5,
                retry_for_s=3.0,
            ),
        ),
        (
            "redis://cache?prefix=shop.2&values=plain",
            RedisSettings(addresses=(Address("cache", 6379),), prefix=b"shop.2", is_plain=True),
        ),
    ],
)
def test_a_url_says_where_and_how(url: str, settings: RedisSettings) -> None:
    assert read_url(url) == settings


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://", "host"),
        ("redis://a:0", "a:0"),
        ("redis://a:65536", "65536"),
        ("redis://a:b", "a:b"),
        ("redis://a,b", "redis+cluster"),
        ("redis://a/one", "'one'"),
        ("redis://a/-1", "'-1'"),
        ("redis://a?db=1", "unix"),
        ("redis://a#part", "part"),
        ("redis+cluster://a,", "host"),
        ("redis+cluster://a/1", "no databases"),
        ("unix://", "unix:///"),
        ("unix://host/path", "unix:///"),
        ("redis://a?timeout=0", "'0'"),
        ("redis://a?timeout=-1", "'-1'"),
        ("redis://a?timeout=soon", "'soon'"),
        ("redis://a?timeout=1e3", "'1e3'"),
        ("redis://a?timeout=nan", "'nan'"),
        ("redis://a?retry_for=86401", "day"),
        ("redis://a?wait_replicas=-1", "'-1'"),
        ("redis://a?wait_replicas=65", "64"),
        ("redis://a?wait_replicas=1.5", "'1.5'"),
        ("redis://a?values=json", "rows, plain"),
        ("redis://a?tls=1", "no, yes"),
        ("redis://a?prefix=", "1 to 32"),
        ("redis://a?prefix={slot}", "letters"),
        ("redis://a?prefix=a*", "letters"),
        ("redis://a?prefix=a:1", "letters"),
        ("redis://a?prefix=" + "p" * 33, "32"),
        ("redis://a?ca_file=", "path"),
        ("redis://a?timeout=1&timeout=2", "twice"),
        ("redis://a?password_file=/nowhere", "/nowhere"),
        ("redis://a?password_env=EPHEMERA_NO_SUCH", "EPHEMERA_NO_SUCH"),
    ],
)
def test_what_is_wrong_in_a_url_is_named(url: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read_url(url)
    assert says in str(raised.value)


def test_a_password_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("sesame\n")
    monkeypatch.setenv("CACHE_PASSWORD", "open")
    in_file, in_environment = f"password_file={tmp_path}/secret", "password_env=CACHE_PASSWORD"
    assert read_url(f"redis://ada@cache?{in_file}").password == "sesame"
    assert read_url(f"unix:///redis.sock?{in_environment}").password == "open"
    for url in (f"redis://:pw@cache?{in_file}", f"redis://cache?{in_file}&{in_environment}"):
        with pytest.raises(InvalidArgument, match="twice"):
            read_url(url)


def test_an_unknown_parameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument) as raised:
        read_url("redis://a?socket_timeout=1")
    assert "'socket_timeout'" in str(raised.value)
    assert all(name in str(raised.value) for name in PARAMETERS)


def test_a_place_is_told_without_the_password() -> None:
    assert read_url("redis://ada:secret@cache:7000").place == "cache:7000"
