"""Passwords that stand in no command line and no program."""

from __future__ import annotations

from pathlib import Path

import pytest

import ephemera
from ephemera import InvalidArgument
from ephemera.core.passwords import (
    password_from_environment,
    password_from_file,
    without_password,
)


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        (b"secret\r\n", "secret"),
        (b" two words \n", " two words "),
        (b"sl\xc3\xa9s\xff", "sl\u00e9s\udcff"),
    ],
)
def test_a_password_is_what_the_file_holds(tmp_path: Path, content: bytes, password: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert password_from_file(tmp_path / "secret") == password


def test_a_file_without_a_password_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    for name in ("empty", "absent"):
        with pytest.raises(InvalidArgument, match=name):
            password_from_file(tmp_path / name)


def test_a_variable_without_a_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_PASSWORD", "secret")
    assert password_from_environment("CACHE_PASSWORD") == "secret"
    monkeypatch.delenv("CACHE_PASSWORD")
    with pytest.raises(InvalidArgument, match="CACHE_PASSWORD"):
        password_from_environment("CACHE_PASSWORD")


def test_a_store_does_not_show_its_password() -> None:
    assert without_password("redis://ada:se:cret@cache:1/2") == "redis://cache:1/2"
    assert without_password("app.eph") == "app.eph"
    engine = ephemera.open("memory://").engine
    store = ephemera.Store(engine, "redis://:secret@cache", None)
    assert "secret" not in repr(store)
