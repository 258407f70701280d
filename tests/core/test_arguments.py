"""What a key, a value, a family's name and a count may be."""

from __future__ import annotations

import sys

import pytest

from ephemera.core.arguments import (
    FAMILY_NAME_BYTES_MAX,
    KEY_BYTES_MAX,
    check_durable,
    check_family_name,
    count_at_least,
    encode_bound,
    encode_key,
    encode_value,
)
from ephemera.core.errors import InvalidArgument


class Label(bytes):
    """A kind of bytes that a caller may have made."""


@pytest.mark.parametrize(
    "given",
    [b"k\xc3\xb6", "kö", bytearray(b"k\xc3\xb6"), memoryview(b"k\xc3\xb6"), Label(b"k\xc3\xb6")],
)
def test_bytes_and_str_become_plain_bytes(given: object) -> None:
    for encode in (encode_key, encode_value):
        data = encode(given)
        assert data == b"k\xc3\xb6"
        assert type(data) is bytes


@pytest.mark.parametrize("given", [None, 1, 1.5, True, [b"a"], (b"a",), object])
def test_other_types_are_refused_by_name(given: object) -> None:
    for encode, what in ((encode_key, "key"), (encode_value, "value")):
        with pytest.raises(InvalidArgument, match=f"{what} .*{type(given).__name__}"):
            encode(given)


def test_a_key_has_1_to_1900_bytes() -> None:
    assert len(encode_key(b"k" * KEY_BYTES_MAX)) == 1_900
    for wrong in (b"", "", b"k" * 1_901, "ö" * 951):
        with pytest.raises(InvalidArgument, match="1 to 1900 bytes"):
            encode_key(wrong)


def test_a_value_may_be_empty() -> None:
    assert encode_value(b"") == encode_value("") == b""


def test_a_value_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ephemera.core.arguments.VALUE_BYTES_MAX", 4)
    assert encode_value(b"1234") == b"1234"
    with pytest.raises(InvalidArgument, match="at most 4 bytes, this one has 5"):
        encode_value(b"12345")


def test_str_that_is_no_utf_8_is_refused() -> None:
    for encode in (encode_key, encode_value):
        with pytest.raises(InvalidArgument, match="UTF-8"):
            encode("\ud800")


def test_a_bound_may_be_empty_or_long_and_is_named() -> None:
    assert encode_bound("", name="prefix") == b""
    assert len(encode_bound(b"k" * 5_000, name="end")) == 5_000
    with pytest.raises(InvalidArgument, match=r"scan's end .*int"):
        encode_bound(1, name="end")


@pytest.mark.parametrize(
    "name", ["default", "s", "sessions:eu", "größe", "n" * FAMILY_NAME_BYTES_MAX]
)
def test_a_family_may_have_any_ordinary_name(name: str) -> None:
    assert check_family_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "1 to 255 bytes"),
        ("n" * 256, "256"),
        ("ö" * 128, "256"),
        ("__ephemera_meta", "reserved"),
        ("\ud800", "UTF-8"),
        (b"name", "bytes"),
        (None, "NoneType"),
    ],
)
def test_a_family_may_not_have_another(name: object, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        check_family_name(name)


@pytest.mark.parametrize("number", [0, 1, 10**30])
def test_a_count_is_a_whole_number(number: int) -> None:
    assert count_at_least(number, 0, name="limit") == min(number, sys.maxsize)


@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
def test_what_is_no_count_is_refused_by_name(number: object) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        count_at_least(number, 0, name="limit")


@pytest.mark.parametrize("durable", [True, False, None])
def test_durable_is_a_choice_of_three(durable: bool | None) -> None:
    assert check_durable(durable) is durable


@pytest.mark.parametrize("durable", [0, 1, "yes", b""])
def test_durable_is_nothing_else(durable: object) -> None:
    with pytest.raises(InvalidArgument, match="durable"):
        check_durable(durable)
