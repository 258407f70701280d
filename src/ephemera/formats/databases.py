"""Which family a numbered database of Redis is, and which number a family gets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

from ephemera.core.arguments import DEFAULT_FAMILY

NUMBERED = re.compile(r"db([1-9][0-9]{0,9})")


def family_of(number: int) -> str:
    """The family that a database is: 0 is the store's own, so that a program finds it there.

    >>> family_of(0), family_of(3)
    ('default', 'db3')
    """
    return f"db{number}" if number else DEFAULT_FAMILY


def numbers_of(families: Iterable[str]) -> dict[str, int]:
    """A number for each family: its own, or in the order of their names the lowest that is free.

    >>> numbers_of(["default", "db1", "sessions", "codes"])
    {'default': 0, 'db1': 1, 'codes': 2, 'sessions': 3}
    """
    numbers: dict[str, int] = {}
    nameless = []
    for family in sorted(families, key=lambda name: (name != DEFAULT_FAMILY, name)):
        found = NUMBERED.fullmatch(family)
        if found is None and family != DEFAULT_FAMILY:
            nameless.append(family)
        else:
            numbers[family] = int(found[1]) if found else 0
    free = (number for number in count(1) if number not in numbers.values())
    return numbers | dict(zip(nameless, free, strict=False))
