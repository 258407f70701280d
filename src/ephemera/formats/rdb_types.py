"""The types of RDB that are no strings: what they are called, and how many bytes each value takes.

Numbers are those of the files; they never change. A value is passed over exactly, so that the key
after it is found.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial
from itertools import repeat

from ephemera.formats._codec import Malformed, Window

Skip = Callable[[Window], object]

DOUBLE_BYTES = 8
FLOAT_BYTES = 4
TIME_BYTES = 8
STREAM_ID_BYTES = 16
COUNT_MAX = 1 << 48
TEXT_DOUBLES = {253, 254, 255}
"""In the place of the length of a number: not a number, and the two infinities."""

MODULE_NAME_CHARACTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
MODULE_NAME_LENGTH = 9
MODULE_VERSION_BITS = 10


# --- parts of values ------------------------------------------------------------------------------


def _times(window: Window) -> repeat[None]:
    return repeat(None, _count(window))


def _count(window: Window) -> int:
    count = window.length()
    if count > COUNT_MAX:
        raise Malformed(f"{count} elements are more than a value has")
    return count


def _strings(window: Window, *, each: int = 1) -> None:
    for _ in _times(window):
        for _ in range(each):
            window.skip_string()


def _text_double(window: Window) -> None:
    size = window.byte()
    if size not in TEXT_DOUBLES:
        window.skip(size)


def _scored_strings(window: Window, skip_score: Skip) -> None:
    for _ in _times(window):
        window.skip_string()
        skip_score(window)


def _contained_strings(window: Window) -> None:
    for _ in _times(window):
        window.length()
        window.skip_string()


def _timed_strings(window: Window, *, has_earliest: bool) -> None:
    """The fields of a hash, each with a deadline of its own."""
    if has_earliest:
        window.skip(TIME_BYTES)
    for _ in _times(window):
        window.length()
        window.skip_string()
        window.skip_string()


def _timed_listpack(window: Window) -> None:
    window.skip(TIME_BYTES)
    window.skip_string()


def _lengths(window: Window, count: int) -> None:
    for _ in range(count):
        window.length()


# --- streams --------------------------------------------------------------------------------------


def _stream(window: Window, *, version: int) -> None:
    _strings(window, each=2)
    # How many entries and the last id; then the first id, the highest deleted one, how many ever.
    _lengths(window, 3 if version == 1 else 8)
    for _ in _times(window):
        _stream_group(window, version)


def _stream_group(window: Window, version: int) -> None:
    window.skip_string()
    _lengths(window, 2 if version == 1 else 3)
    for _ in _times(window):
        window.skip(STREAM_ID_BYTES + TIME_BYTES)
        window.length()
    for _ in _times(window):
        window.skip_string()
        window.skip(TIME_BYTES if version < 3 else 2 * TIME_BYTES)
        window.skip(STREAM_ID_BYTES * _count(window))


# --- modules --------------------------------------------------------------------------------------


def module_name(number: int) -> str:
    """The name within the number of a module: nine characters of six bits, then a version.

    >>> module_name(0x460D_0BD2_F4B1_A401)
    'Rg0L0vSxp'
    """
    number >>= MODULE_VERSION_BITS
    places = range(6 * (MODULE_NAME_LENGTH - 1), -1, -6)
    return "".join(MODULE_NAME_CHARACTERS[number >> place & 0x3F] for place in places)


def skip_module_parts(window: Window) -> None:
    """The parts that a module wrote, each with its kind, up to the one that ends them."""
    while kind := window.length():
        if kind not in MODULE_PARTS:
            raise Malformed(f"a part of kind {kind} in a module's value")
        MODULE_PARTS[kind](window)


MODULE_PARTS: dict[int, Skip] = {
    1: Window.length,
    2: Window.length,
    3: lambda window: window.skip(FLOAT_BYTES),
    4: lambda window: window.skip(DOUBLE_BYTES),
    5: Window.skip_string,
}


# --- all types ------------------------------------------------------------------------------------

MODULE_TYPE = 7
TYPES: dict[int, tuple[str, Skip]] = {
    1: ("list", _strings),
    2: ("set", _strings),
    3: ("zset", partial(_scored_strings, skip_score=_text_double)),
    4: ("hash", partial(_strings, each=2)),
    5: ("zset", partial(_scored_strings, skip_score=lambda window: window.skip(DOUBLE_BYTES))),
    9: ("hash", Window.skip_string),  # zipmap
    10: ("list", Window.skip_string),  # ziplist
    11: ("set", Window.skip_string),  # intset
    12: ("zset", Window.skip_string),  # ziplist
    13: ("hash", Window.skip_string),  # ziplist
    14: ("list", _strings),  # quicklist of ziplists
    15: ("stream", partial(_stream, version=1)),
    16: ("hash", Window.skip_string),  # listpack
    17: ("zset", Window.skip_string),  # listpack
    18: ("list", _contained_strings),  # quicklist of listpacks and plain values
    19: ("stream", partial(_stream, version=2)),
    20: ("set", Window.skip_string),  # listpack
    21: ("stream", partial(_stream, version=3)),
    22: ("hash", partial(_timed_strings, has_earliest=False)),
    23: ("hash", Window.skip_string),  # listpack of fields with deadlines
    24: ("hash", partial(_timed_strings, has_earliest=True)),
    25: ("hash", _timed_listpack),
}


def skip_key_and_value(window: Window, kind: int) -> tuple[str, bytes]:
    """Pass over both; return what the value was, and the key. Raises Malformed for a type that is not known."""
    if kind not in TYPES and kind != MODULE_TYPE:
        raise Malformed(f"a value of type {kind}, which is not known here")
    key = window.string()
    if kind == MODULE_TYPE:
        name = f"module {module_name(window.length())}"
        skip_module_parts(window)
        return name, key
    name, skip = TYPES[kind]
    skip(window)
    return name, key
