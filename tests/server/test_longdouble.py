"""Floating point with 64 bits of precision, held against numbers whose digits are known."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.resp.replies import Refused
from ephemera.server.longdouble import ZERO, Number, add, parse, show


def total(number: bytes, step: bytes) -> bytes:
    return show(add(parse(number), parse(step)))


@pytest.mark.parametrize(
    ("number", "step", "shown"),
    [
        (b"0.1", b"0.2", b"0.3"),
        (b"3.0e3", b"0", b"3000"),
        (b"9007199254740993", b"0.5", b"9007199254740993.5"),  # beyond a double
        (b"18446744073709551615", b"0.25", b"18446744073709551615"),  # 2**64 - 1: the last bit
        (b"18446744073709551615", b"0.5", b"18446744073709551616"),
        (b"-1", b"1", b"0"),
        (b"+.5", b"5.", b"5.5"),
        (b"0e99999999", b"-0", b"0"),
        (b"1e-18", b"0", b"0"),
        (b"-1e-18", b"0", b"0"),
        (b"1.1", b"1e-20", b"1.1"),
    ],
)
def test_sums_have_the_digits_that_redis_shows(number: bytes, step: bytes, shown: bytes) -> None:
    assert total(number, step) == shown


@pytest.mark.parametrize("text", [b"1e4933", b"-1e99999999999999999999", b"1e-4960", b"1" * 5120])
def test_what_lies_beyond_all_bounds_is_no_number(text: bytes) -> None:
    with pytest.raises(Refused):
        parse(text)


@given(st.integers(-(2**64) + 1, 2**64 - 1), st.integers(-40, 40))
def test_a_number_that_fits_is_exact(mantissa: int, exponent: int) -> None:
    assert value(add(Number(mantissa, exponent), ZERO)) == value(Number(mantissa, exponent))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30))
def test_rounding_changes_at_most_half_of_the_last_bit(number: Decimal) -> None:
    exact = Fraction(number)
    assert abs(value(parse(f"{number:f}".encode())) - exact) <= abs(exact) / 2**64


@given(st.floats(-1e15, 1e15), st.floats(-1e15, 1e15))
def test_a_sum_is_off_by_its_roundings_at_most(number: float, step: float) -> None:
    total = value(add(parse(repr(number).encode()), parse(repr(step).encode())))
    first, second = Fraction(repr(number)), Fraction(repr(step))
    assert abs(total - first - second) <= max(abs(first), abs(second)) * Fraction(3, 2**64)


def value(number: Number) -> Fraction:
    return number.mantissa * Fraction(2) ** number.exponent
