"""The libraries that scripts have besides Lua's own: cjson and bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import and_, or_, xor
from typing import TYPE_CHECKING, Any

from ephemera.resp.replies import Refused

if TYPE_CHECKING:
    from ephemera.server.lua import Lua, LuaValue

JSON_DEPTH_MAX = 128
JSON_BYTES_MAX = 64 * 1024 * 1024
"""A table that holds others twice is small in Lua and without bound as JSON."""
SPARSE_RATIO_MAX = 2
SPARSE_SAFE = 10
"""An array with holes is one up to this length, and beyond it while it is no more than half empty."""

ESCAPES = {
    **{code: b"\\u%04x" % code for code in (*range(0x20), 0x7F)},
    **{ord(char): b"\\" + char.encode() for char in '"\\/'},
    **{ord(char): b"\\" + name for char, name in zip("\b\t\n\f\r", (b"b", b"t", b"n", b"f", b"r"), strict=True)},
}  # fmt: skip
ESCAPED = [ESCAPES.get(code, bytes((code,))) for code in range(256)]


def libraries(lua: Lua) -> Mapping[str, Mapping[str, object]]:
    """Each by its name in scripts."""
    return {"cjson": {"encode": Encoder(lua), "decode": Decoder(lua)}, "bit": BIT}


# --- cjson ----------------------------------------------------------------------------------------


class Encoder:
    """A value of Lua as JSON."""

    def __init__(self, lua: Lua) -> None:
        self._lua = lua

    def __call__(self, value: LuaValue = None) -> bytes:
        parts, size = [], 0
        for part in self._lua.looked_at(self._parts(value, 1)):
            size += len(part)
            if size > JSON_BYTES_MAX:
                raise Refused("ERR Cannot serialise, the text would be too large")
            parts.append(part)
        return b"".join(parts)

    def _parts(self, value: LuaValue, depth: int) -> Iterator[bytes]:
        if isinstance(value, bool):
            yield b"true" if value else b"false"
        elif isinstance(value, bytes):
            yield _quoted(value)
        elif isinstance(value, int | float):
            yield _number(value)
        elif self._lua.is_table(value):
            if depth > JSON_DEPTH_MAX:
                raise Refused(f"ERR Cannot serialise, excessive depth ({depth})")
            yield from self._table(dict(self._lua.looked_at(self._lua.fields(value))), depth)
        elif self._lua.is_function(value):
            raise Refused("ERR Cannot serialise function: type not supported")
        else:
            yield b"null"  # nil, or cjson.null: there is no other userdata

    def _table(self, fields: dict[Any, LuaValue], depth: int) -> Iterator[bytes]:
        length = _length(fields)
        separator = b""
        yield b"{" if length is None else b"["
        if length is None:
            for name, value in fields.items():
                yield separator + _quoted(_name(name)) + b":"
                yield from self._parts(value, depth + 1)
                separator = b","
        else:
            for place in range(1, length + 1):
                yield separator
                yield from self._parts(fields.get(place), depth + 1)
                separator = b","
        yield b"}" if length is None else b"]"


def _length(fields: dict[Any, LuaValue]) -> int | None:
    """How long an array these fields are, None when they are none."""
    if not fields or not all(type(name) is int and name > 0 for name in fields):
        return None
    length = max(fields)
    if length > SPARSE_SAFE and length > len(fields) * SPARSE_RATIO_MAX:
        raise Refused("ERR Cannot serialise table: excessively sparse array")
    return int(length)


def _name(name: LuaValue) -> bytes:
    if isinstance(name, bytes):
        return name
    if isinstance(name, int | float) and not isinstance(name, bool):
        return b"%.14g" % name
    raise Refused("ERR Cannot serialise table: table key must be a number or string")


def _number(number: float) -> bytes:
    if not abs(number) < float("inf"):
        raise Refused("ERR Cannot serialise number: must not be NaN or Inf")
    return b"%.14g" % number


def _quoted(text: bytes) -> bytes:
    return b'"%b"' % b"".join([ESCAPED[code] for code in text])


class Decoder:
    """A value of Lua from JSON."""

    def __init__(self, lua: Lua) -> None:
        self._lua = lua

    def __call__(self, text: LuaValue = None) -> LuaValue:
        if not isinstance(text, bytes):
            raise Refused("ERR bad argument #1 to 'decode' (string expected)")
        try:
            # Bytes that are no UTF-8 come out as they went in.
            found = json.loads(text.decode(errors="surrogateescape"), parse_int=float)
            return self._value(found)
        except json.JSONDecodeError as error:
            raise Refused(
                f"ERR Expected value but found invalid token at character {error.pos + 1}"
            ) from None
        except (RecursionError, UnicodeEncodeError):
            raise Refused("ERR Found too many nested data structures, or no text") from None

    def _value(self, found: object) -> LuaValue:
        if found is None:
            return self._lua.null
        if isinstance(found, str):
            return found.encode(errors="surrogateescape")
        if isinstance(found, list):
            return self._lua.array(self._lua.looked_at(map(self._value, found)))
        if isinstance(found, dict):
            fields = self._lua.looked_at(found.items())
            return self._lua.table({self._value(name): self._value(v) for name, v in fields})
        return found


# --- bit ------------------------------------------------------------------------------------------

WORD = 2**32


def _signed(number: int) -> int:
    return (number + WORD // 2) % WORD - WORD // 2


def _word(value: LuaValue) -> int:
    """The lowest 32 bits of a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        raise Refused("ERR bad argument to a function of bit (number expected)")
    return round(value) % WORD


def _folded(operate: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda first, *rest: _signed(reduce(operate, map(_word, (first, *rest))))


def _shifted(shift: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda value, by: _signed(shift(_word(value), _word(by) % 32))


def _rotated(word: int, by: int) -> int:
    return word << by | word >> (32 - by)


def _tohex(value: LuaValue, digits: LuaValue = 8) -> bytes:
    wanted = _signed(_word(digits))
    text = b"%08x" % _word(value)
    return (text.upper() if wanted < 0 else text)[-min(abs(wanted), 8) :] if wanted else b""


BIT: dict[str, object] = {
    "tobit": lambda value: _signed(_word(value)),
    "bnot": lambda value: _signed(~_word(value)),
    "band": _folded(and_),
    "bor": _folded(or_),
    "bxor": _folded(xor),
    "lshift": _shifted(lambda word, by: word << by),
    "rshift": _shifted(lambda word, by: word >> by),
    "arshift": _shifted(lambda word, by: _signed(word) >> by),
    "rol": _shifted(_rotated),
    "ror": _shifted(lambda word, by: _rotated(word, (32 - by) % 32)),
    "bswap": lambda value: _signed(int.from_bytes(_word(value).to_bytes(4, "big"), "little")),
    "tohex": _tohex,
}
