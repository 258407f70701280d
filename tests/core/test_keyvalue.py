"""Ranges of keys, and what a check reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ephemera.core.keyvalue import CheckReport, Range, prefix_end, prefix_range

keys = st.lists(st.sampled_from([b"\x00", b"a", b"b", b"\xfe", b"\xff"]), max_size=4).map(b"".join)


def test_a_range_holds_its_start_and_not_its_end() -> None:
    bounds = Range(b"b", b"d")
    assert [key for key in (b"a", b"b", b"c", b"cz", b"d") if bounds.holds(key)] == [
        b"b",
        b"c",
        b"cz",
    ]


def test_a_range_without_bounds_holds_everything() -> None:
    assert all(Range().holds(key) for key in (b"\x00", b"a", b"\xff" * 9))


def test_after_a_prefix_comes_the_next_byte_string() -> None:
    assert prefix_end(b"a") == b"b"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"a\xfe") == b"a\xff"
    assert prefix_end(b"\xff\xff") is None
    assert prefix_end(b"") is None


@given(keys, keys)
def test_a_prefix_range_holds_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    assert prefix_range(prefix, b"", None).holds(key) == key.startswith(prefix)


@given(keys, keys, st.none() | keys, keys)
def test_prefix_and_bounds_hold_together(
    prefix: bytes, start: bytes, end: bytes | None, key: bytes
) -> None:
    is_within = key.startswith(prefix) and start <= key and (end is None or key < end)
    assert prefix_range(prefix, start, end).holds(key) == is_within


def test_the_direction_is_kept() -> None:
    assert prefix_range(b"a", b"", None, is_reverse=True) == Range(b"a", b"b", True)


def test_a_report_is_clean_without_problems() -> None:
    assert CheckReport(1, 1, 1, ()).is_clean
    assert not CheckReport(1, 1, 1, ("a row has no entry",)).is_clean
