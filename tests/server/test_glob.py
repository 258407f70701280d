"""Patterns, as Redis matches them."""

from __future__ import annotations

import pytest

from ephemera.server.glob import glob


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (b"*", b"", True),
        (b"*", b"a\nb", True),
        (b"h?llo", b"hello", True),
        (b"h?llo", b"hllo", False),
        (b"h[ae]llo", b"hallo", True),
        (b"h[^e]llo", b"hello", False),
        (b"h[a-c]llo", b"hbllo", True),
        (b"h[c-a]llo", b"hbllo", True),
        (b"a\\*b", b"a*b", True),
        (b"a\\*b", b"axb", False),
        (b"[\\]]", b"]", True),
        (b"[a", b"a", True),
        (b"[]", b"a", False),
        (b"[^]", b"a", True),
        (b"a.c", b"abc", False),
        (b"a**b", b"axxb", True),
        (b"ab\\", b"ab\\", True),
        (b"*ab*ab", b"aabab", True),
        (b"*ab*ab", b"ab", False),
        (b"a*b*c", b"abbcc", True),
        (b"A", b"a", False),
    ],
)
def test_a_pattern_matches(pattern: bytes, text: bytes, matches: bool) -> None:
    assert bool(glob(pattern).fullmatch(text)) is matches


def test_a_hostile_pattern_is_not_slow() -> None:
    assert not glob(b"*a" * 30 + b"*b").fullmatch(b"a" * 1_900)


def test_case_may_be_ignored() -> None:
    assert glob(b"MaxMem*", ignores_case=True).fullmatch(b"maxmemory")
