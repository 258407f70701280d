"""The libraries that scripts have besides Lua's own: cjson and bit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from json.decoder import (  # type: ignore[attr-defined]  # the parts that are not in C
    JSONArray,
    JSONObject,
)
from json.encoder import encode_basestring
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # the one not in C
from operator import and_, or_, xor
from typing import TYPE_CHECKING, Any

from ephemera.resp.replies import Refused
from ephemera.server.lua import LOOK_STEPS

if TYPE_CHECKING:
    from ephemera.server.lua import Lua, LuaValue

JSON_DEPTH_MAX = 128
JSON_BYTES_MAX = 64 * 1024 * 1024
"""A table that holds others twice is small in Lua and without bound as JSON."""
JSON_VALUES_MAX = 4 * 1024 * 1024
"""Values in one text: more of them would not fit into the interpreter."""
FIELD_BYTES = JSON_BYTES_MAX // JSON_VALUES_MAX
"""What a field of a table counts besides its text: few bytes of JSON may be many of memory."""
PIECE_BYTES = 1024 * 1024
"""How much text is encoded or decoded between two looks at the script."""
SPARSE_RATIO_MAX = 2
SPARSE_SAFE = 10
"""An array with holes is one up to this length, and beyond it while it is no more than half empty."""

ESCAPED = re.compile(rb'[\x00-\x1f"\\/\x7f]')
NUMBER = (int, float)
TOO_LARGE = "ERR Cannot serialise, the text would be too large"


def libraries(lua: Lua) -> Mapping[str, Mapping[str, object]]:
    """Each by its name in scripts."""
    return {"cjson": {"encode": Encoder(lua), "decode": Decoder(lua)}, "bit": BIT}


# --- cjson ----------------------------------------------------------------------------------------


class Encoder:
    """A value of Lua as JSON."""

    def __init__(self, lua: Lua) -> None:
        self._lua = lua

    def __call__(self, value: LuaValue = None) -> bytes:
        self._read = 0
        scalar = self._scalar(value)
        if scalar is not None:
            return _joined([scalar])
        return _joined(self._lua.looked_at(self._parts(value, 1)))

    def _scalar(self, value: LuaValue) -> bytes | None:
        """What is no table, as JSON; None for a table."""
        if isinstance(value, bytes):
            return self._quoted(value)
        if isinstance(value, bool):
            return b"true" if value else b"false"
        if isinstance(value, NUMBER):
            return _number(value)
        if self._lua.is_table(value):
            return None
        if self._lua.is_function(value):
            raise Refused("ERR Cannot serialise function: type not supported")
        return b"null"  # nil, or cjson.null: there is no other userdata

    def _parts(self, table: LuaValue, depth: int) -> Iterator[bytes]:
        if depth > JSON_DEPTH_MAX:
            raise Refused(f"ERR Cannot serialise, excessive depth ({depth})")
        fields = self._fields(table)
        length = _length(fields)
        separator = b"{" if length is None else b"["
        for name in fields if length is None else range(1, length + 1):
            label = self._quoted(_name(name)) + b":" if length is None else b""
            value = fields.get(name)
            scalar = self._scalar(value)
            yield separator + label + (scalar or b"")
            if scalar is None:
                yield from self._parts(value, depth + 1)
            separator = b","
        yield b"]" if length is not None else b"}" if fields else b"{}"

    def _fields(self, table: LuaValue) -> dict[Any, LuaValue]:
        """All fields, of which all will be encoded: where they are too large, that is known before."""
        fields: dict[Any, LuaValue] = {}
        for size, batch in self._lua.batches(table):
            fields.update(batch)
            self._read += size
            if self._read + FIELD_BYTES * len(fields) > JSON_BYTES_MAX:
                raise Refused(TOO_LARGE)
        self._read += FIELD_BYTES * len(fields)
        return fields

    def _quoted(self, text: bytes) -> bytes:
        is_short = len(text) <= PIECE_BYTES
        return b'"%b"' % (_escaped(text) if is_short else _joined(self._pieces(text)))

    def _pieces(self, text: bytes) -> Iterator[bytes]:
        for start in range(0, len(text), PIECE_BYTES):
            self._lua.check()
            yield _escaped(text[start : start + PIECE_BYTES])


def _joined(parts: Iterable[bytes]) -> bytes:
    """The text of these parts. Raises Refused as soon as it is too large."""
    found, size = [], 0
    for part in parts:
        size += len(part)
        if size > JSON_BYTES_MAX:
            raise Refused(TOO_LARGE)
        found.append(part)
    return b"".join(found)


def _length(fields: dict[Any, LuaValue]) -> int | None:
    """How long an array these fields are, None when they are none."""
    if type(next(iter(fields), None)) is not int:
        return None
    if not all(type(name) is int and name > 0 for name in fields):
        return None
    length = max(fields)
    if length > SPARSE_SAFE and length > len(fields) * SPARSE_RATIO_MAX:
        raise Refused("ERR Cannot serialise table: excessively sparse array")
    return int(length)


def _name(name: LuaValue) -> bytes:
    if isinstance(name, bytes):
        return name
    if isinstance(name, NUMBER) and not isinstance(name, bool):
        return b"%.14g" % name
    raise Refused("ERR Cannot serialise table: table key must be a number or string")


def _number(number: float) -> bytes:
    if not abs(number) < float("inf"):
        raise Refused("ERR Cannot serialise number: must not be NaN or Inf")
    return b"%.14g" % number


def _escaped(text: bytes) -> bytes:
    if ESCAPED.search(text) is None:
        return text
    escaped = encode_basestring(text.decode("latin-1"))[1:-1]
    return escaped.replace("/", "\\/").replace("\x7f", "\\u007f").encode("latin-1")


class Decoder:
    """A value of Lua from JSON."""

    def __init__(self, lua: Lua) -> None:
        self._lua = lua

    def __call__(self, text: LuaValue = None) -> LuaValue:
        if not isinstance(text, bytes):
            raise Refused("ERR bad argument #1 to 'decode' (string expected)")
        try:
            # Bytes that are no UTF-8 come out as they went in.
            return self._value(self._decode(text.decode(errors="surrogateescape")))
        except json.JSONDecodeError as error:
            raise Refused(
                f"ERR Expected value but found invalid token at character {error.pos + 1}"
            ) from None
        except (RecursionError, UnicodeEncodeError):
            raise Refused("ERR Found too many nested data structures, or no text") from None

    def _decode(self, text: str) -> object:
        if len(text) <= PIECE_BYTES:
            return json.loads(text, parse_int=float)
        return Interruptible(self._lua).decode(text)

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


class Interruptible(json.JSONDecoder):
    """The same as json.loads in many steps of Python, with a look at the script now and then."""

    def __init__(self, lua: Lua) -> None:
        super().__init__(parse_int=float)
        self._lua = lua
        self._values = 0
        self.parse_array = lambda state, _: JSONArray(state, self._scan)
        self.parse_object = lambda state, strict, _, *rest: JSONObject(
            state, strict, self._scan, *rest
        )
        self.scan_once = self._inner = py_make_scanner(self)

    def _scan(self, text: str, start: int) -> tuple[object, int]:
        self._values += 1
        if self._values % LOOK_STEPS == 0:
            self._lua.check()
        if self._values > JSON_VALUES_MAX:
            raise Refused("ERR Cannot decode, the text has too many values")
        found: tuple[object, int] = self._inner(text, start)
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
