"""Additions: what counts as a number, and what comes of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ephemera.core._counter import Addition
from ephemera.core.expiry import Lifetime
from ephemera.core.row import Row

SMALLEST, LARGEST = -(2**63), 2**63 - 1
LENIENT = re.compile(rb"-?[0-9]{1,19}")
STRICT = re.compile(rb"0|-?[1-9][0-9]{0,18}")

steps = st.integers(SMALLEST, LARGEST) | st.sampled_from([SMALLEST, -1, 0, 1, LARGEST])
digits = st.from_regex(rb"-?[0-9]{1,22}", fullmatch=True) | st.binary(max_size=24) | steps.map(
    lambda number: b"%d" % number
)  # fmt: skip


@given(digits, steps, st.booleans())
@example(b"9223372036854775808", -1, False)
@example(b"-9223372036854775808", 0, True)
@example(b"-9223372036854775809", 1, True)
@example(b"9999999999999999999", -LARGEST, False)
@example(b"-0", 1, True)
@example(b"007", 1, True)
@example(b"-", 1, False)
def test_an_addition_counts_as_python_does(value: bytes, by: int, is_strict: bool) -> None:
    addition = Addition(by, is_strict=is_strict)
    result = addition.on(value)
    is_number = (STRICT if is_strict else LENIENT).fullmatch(value) is not None
    is_number = is_number and SMALLEST <= int(value) <= LARGEST
    assert addition.is_no_number == (not is_number)
    is_sum = is_number and SMALLEST <= int(value) + by <= LARGEST
    assert addition.is_out_of_range == (is_number and not is_sum)
    assert result == (b"%d" % (int(value) + by) if is_sum else None)
    assert not is_sum or addition.total == int(value) + by


@given(steps)
def test_what_is_not_there_begins_at_zero(by: int) -> None:
    addition = Addition(by)
    assert addition.on(None) == b"%d" % by
    assert (addition.total, addition.is_new) == (by, True)


def test_a_new_counter_gets_the_lifetime_of_its_instant() -> None:
    addition = Addition(5, life=lambda now_ms: Lifetime(now_ms + 60))
    assert addition(None, 100) == Row(b"5", 100, 160)
    assert Addition(5)(None, 100) == Row(b"5", 100)


def test_a_counter_keeps_its_lifetime() -> None:
    addition = Addition(5, life=lambda now_ms: Lifetime(now_ms + 60))
    assert addition(Row(b"1", 50, 160, 30, 900), 100) == Row(b"6", 100, 160, 30, 900)
    assert not addition.is_new


@pytest.mark.parametrize("value", [b"x", b"9223372036854775807"])
def test_what_cannot_be_counted_on_stays(value: bytes) -> None:
    row = Row(value, 50)
    assert Addition(1)(row, 100) is row
