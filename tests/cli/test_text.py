"""What is shown can be typed again, by the command line's rule and by the shell's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera import InvalidArgument, Ttl
from ephemera.cli.output import show_bytes
from ephemera.cli.text import parse, quote, show, show_short
from ephemera.cli.times import parse_seconds, parse_ttl, show_seconds
from ephemera.resp.parser import split_inline

data = st.binary(max_size=40) | st.text(max_size=40).map(
    lambda text: text.encode("utf-8", "replace")
)


@given(data)
def test_what_is_shown_can_be_typed_again(given: bytes) -> None:
    shown = show(given)
    assert shown.isprintable()
    assert shown != "-"
    assert parse(shown) == given


@given(data)
def test_what_the_shell_quotes_is_one_word_of_it(given: bytes) -> None:
    assert quote(given).isprintable()
    assert split_inline(quote(given).encode()) == [given]


@pytest.mark.parametrize("typed", ["\\", "a\\", "\\q", "\\x", "\\xf", "\\xgg"])
def test_a_backslash_that_begins_no_escape_is_refused(typed: str) -> None:
    with pytest.raises(InvalidArgument, match="--raw"):
        parse(typed)


def test_a_long_value_is_cut_where_the_table_ends() -> None:
    assert show_short(b"x" * 1000, 10) == "x" * 9 + "…"
    assert show_short(b"short", 10) == "short"


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90", 90), ("0.5", 0.5), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("250ms", 0.25),
     ("59m 12s", 3552), ("1.5h", 5400)],
)  # fmt: skip
def test_durations_are_typed_in_units(typed: str, seconds: float) -> None:
    assert parse_seconds(typed) == seconds


@pytest.mark.parametrize("typed", ["", "soon", "1x", "h", "1h soon", "-5m"])
def test_what_is_no_duration_is_refused(typed: str) -> None:
    with pytest.raises(InvalidArgument, match="1h30m"):
        parse_seconds(typed)


def test_never_is_a_lifetime() -> None:
    assert parse_ttl("never") is Ttl.NEVER
    assert parse_ttl(None) is None


@given(st.integers(min_value=1, max_value=10**13))
def test_a_duration_is_shown_by_two_units_that_can_be_typed(left_ms: int) -> None:
    shown = show_seconds(left_ms / 1000)
    typed = parse_seconds(shown)
    assert len(shown.split()) <= 2
    assert 0 < typed <= left_ms / 1000 < typed * 2


def test_sizes_have_the_unit_that_a_person_would_use() -> None:
    assert [show_bytes(size) for size in (0, 1023, 1024, 5 * 1024**3)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 GiB",
    ]  # fmt: skip
