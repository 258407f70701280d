"""What a key, a value and a family name may be: checked once, here, for every engine."""

from __future__ import annotations

import sys

from ephemera.core.errors import InvalidArgument

KEY_BYTES_MAX = 1_900
"""The base tier's limit (LMDB: 1,978) less the deadline and family id that stand before a key there."""
VALUE_BYTES_MAX = 512 * 1024 * 1024
FAMILY_NAME_BYTES_MAX = 255
RESERVED_PREFIX = "__ephemera_"
DEFAULT_FAMILY = "default"

BytesLike = bytes | bytearray | memoryview | str


def encode_key(key: object) -> bytes:
    """The key's bytes; raises InvalidArgument for a wrong type, an empty or an over-long key."""
    data = _encode(key, what="key")
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise InvalidArgument(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(data)}")
    return data


def encode_value(value: object) -> bytes:
    """The value's bytes; raises InvalidArgument for a wrong type or more than 512 MiB."""
    data = _encode(value, what="value")
    if len(data) > VALUE_BYTES_MAX:
        raise InvalidArgument(
            f"a value has at most {VALUE_BYTES_MAX} bytes, this one has {len(data)}"
        )
    return data


def encode_bound(bound: object, *, name: str) -> bytes:
    """The bytes of a prefix or of an end of a range, which unlike a key may be empty or long."""
    return _encode(bound, what=f"scan's {name}")


def check_durable(durable: object) -> bool | None:
    """True, False, or None for what the store was opened with."""
    if durable is None or isinstance(durable, bool):
        return durable
    raise InvalidArgument(f"durable must be True, False or None, not {durable!r}")


def check_family_name(name: object) -> str:
    """The name, if a family may be called so."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a family's name is a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"a family's name must be encodable as UTF-8: {name!r}") from None
    if not 0 < size <= FAMILY_NAME_BYTES_MAX:
        raise InvalidArgument(
            f"a family's name has 1 to {FAMILY_NAME_BYTES_MAX} bytes, this one has {size}"
        )
    if name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(f"family names that start with {RESERVED_PREFIX!r} are reserved")
    return name


def count_at_least(number: object, least: int, *, name: str) -> int:
    """A whole number no smaller than `least`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise InvalidArgument(f"{name} must be a whole number of at least {least}, not {number!r}")
    return min(number, sys.maxsize)


def _encode(data: object, *, what: str) -> bytes:
    if isinstance(data, bytes):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"a {what} given as str must be encodable as UTF-8") from None
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidArgument(f"a {what} is bytes or str, not {type(data).__name__}")
