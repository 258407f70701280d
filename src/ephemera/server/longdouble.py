"""The numbers of INCRBYFLOAT: floating point with 64 bits of precision, as Redis adds and writes them.

Whole numbers stand for them, so that sums are rounded as an x87 would round them: counting in Redis
or here gives the same digits.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from ephemera.resp.replies import Refused

PRECISION_BITS = 64
EXPONENT_MAX = 16_384
DECIMAL_EXPONENT_MAX = 4_932
DECIMAL_EXPONENT_MIN = -4_951
TEXT_BYTES_MAX = 5 * 1024 - 1
SHOWN_DECIMALS = 17

FINITE = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
INFINITE = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)

NOT_A_FLOAT = "ERR value is not a valid float"


class Number(NamedTuple):
    """`mantissa` times two to the power of `exponent`."""

    mantissa: int
    exponent: int

    @property
    def is_finite(self) -> bool:
        return self.mantissa.bit_length() + self.exponent <= EXPONENT_MAX


ZERO = Number(0, 0)
INFINITY = Number(1, EXPONENT_MAX)


def parse(text: bytes) -> Number:
    """The number that is written there. Raises Refused.

    >>> parse(b"-0.5"), parse(b"inf").is_finite
    (Number(mantissa=-9223372036854775808, exponent=-64), False)
    """
    if INFINITE.fullmatch(text):
        return INFINITY
    if len(text) > TEXT_BYTES_MAX or not FINITE.fullmatch(text):
        raise Refused(NOT_A_FLOAT)
    try:
        number = Decimal(text.decode())
    except InvalidOperation:  # an exponent beyond all bounds
        raise Refused(NOT_A_FLOAT) from None
    if not number:
        return ZERO
    # Before it is written out in full: that could take more digits than there is memory.
    if not DECIMAL_EXPONENT_MIN <= number.adjusted() <= DECIMAL_EXPONENT_MAX:
        raise Refused(NOT_A_FLOAT)
    nearest = _nearest(*number.as_integer_ratio())
    if not nearest.is_finite:
        raise Refused(NOT_A_FLOAT)
    return nearest


def add(number: Number, step: Number) -> Number:
    """The rounded sum. Raises Refused when it is not finite."""
    if number.is_finite and step.is_finite:
        least = min(number.exponent, step.exponent)
        exact = sum(each.mantissa << each.exponent - least for each in (number, step))
        rounded = _nearest(exact, 1)
        total = Number(rounded.mantissa, rounded.exponent + least)
        if total.is_finite:
            return total
    raise Refused("ERR increment would produce NaN or Infinity")


def show(number: Number) -> bytes:
    """With at most 17 decimals, and no zeros at their end.

    >>> show(add(parse(b"10.50"), parse(b"0.1"))), show(add(parse(b"5.0e3"), parse(b"2.0e2")))
    (b'10.6', b'5200')
    """
    units = abs(number.mantissa) * 10**SHOWN_DECIMALS
    units = _divided(units << max(number.exponent, 0), 1 << max(-number.exponent, 0))
    # By way of Decimal, which writes numbers of any length.
    digits = f"{Decimal(units):f}".rjust(SHOWN_DECIMALS + 1, "0")
    decimals = digits[-SHOWN_DECIMALS:].rstrip("0")
    sign = "-" if number.mantissa < 0 and units else ""
    return (sign + digits[:-SHOWN_DECIMALS] + (f".{decimals}" if decimals else "")).encode()


def _nearest(numerator: int, denominator: int) -> Number:
    """The number with a mantissa of 64 bits that is nearest to a fraction."""
    size = abs(numerator)
    if not size:
        return ZERO
    # Off by one at most: the quotient has 64 bits, or 65.
    exponent = size.bit_length() - denominator.bit_length() - PRECISION_BITS
    size <<= max(-exponent, 0)
    denominator <<= max(exponent, 0)
    if size // denominator >> PRECISION_BITS:
        exponent += 1
        denominator <<= 1
    mantissa = _divided(size, denominator)
    return Number(mantissa if numerator > 0 else -mantissa, exponent)


def _divided(size: int, by: int) -> int:
    """The nearest whole number; of two equally near, the even one."""
    quotient, rest = divmod(size, by)
    return quotient + (2 * rest > by or (2 * rest == by and quotient & 1))
