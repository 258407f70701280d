"""Commands on values as rows of bits: bit 0 is the highest of the first byte.

Nothing here goes bit by bit: bytes are skipped, counted and combined many at a time.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_, xor

from ephemera.resp.replies import Refused, Reply
from ephemera.server.arguments import SYNTAX_ERROR, bit_offset, integer, places
from ephemera.server.events import SETBIT
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("bitmap")

INVERTED = bytes(range(255, -1, -1))
OPERATIONS = {b"and": and_, b"or": or_, b"xor": xor}


@command("SETBIT", arity=4, flags="write denyoom", keys=KeyRange(1), since="2.2.0",
         summary="Sets or clears a bit; what it was.")  # fmt: skip
def setbit(call: Call) -> Reply:
    _, key, place, wanted = call.args
    offset = _offset(call, place)
    if wanted not in (b"0", b"1"):
        raise Refused("ERR bit is not an integer or out of range")
    old = call.keys.peek(key)
    was = _bit(old or b"", offset)
    # A bit that is as wanted is written only where the value has to grow.
    if old is None or len(old) <= offset // 8 or was != int(wanted):
        value = bytearray((old or b"").ljust(offset // 8 + 1, b"\0"))
        value[offset // 8] ^= (was ^ int(wanted)) << 7 - offset % 8
        call.keys.replace(key, old, bytes(value), SETBIT)
    return was


@command("GETBIT", arity=3, flags="readonly fast", keys=KeyRange(1), since="2.2.0",
         summary="The bit at a place; 0 beyond the value's end.")  # fmt: skip
def getbit(call: Call) -> Reply:
    offset = _offset(call, call.args[2])
    return _bit(call.keys.get(call.args[1]) or b"", offset)


def _offset(call: Call, argument: bytes) -> int:
    return bit_offset(argument, value_bytes_max=call.server.settings.proto_max_bulk_len)


def _bit(value: bytes, offset: int) -> int:
    return value[offset // 8] >> 7 - offset % 8 & 1 if offset // 8 < len(value) else 0


# --- counting and finding -------------------------------------------------------------------------


@command("BITCOUNT", arity=-2, flags="readonly", keys=KeyRange(1), since="2.6.0",
         summary="How many bits are set, in all of the value or in a range of bytes or bits.")  # fmt: skip
def bitcount(call: Call) -> Reply:
    args = call.args
    value = call.keys.get(args[1])
    if value is None:
        return 0
    if len(args) == 2:
        return int.from_bytes(value).bit_count()
    if len(args) not in (4, 5):
        raise Refused(SYNTAX_ERROR)
    start, end = integer(args[2]), integer(args[3])
    if end < start < 0:
        return 0
    bits = _bits(value, start, end, unit=_unit(args[4:]))
    return int.from_bytes(_cut(value, bits, filler=0)).bit_count()


@command("BITPOS", arity=-3, flags="readonly", keys=KeyRange(1), since="2.8.7",
         summary="The place of the first bit that is set, or clear, in the value or in a range of it.")  # fmt: skip
def bitpos(call: Call) -> Reply:
    args = call.args
    if (wanted := integer(args[2])) not in (0, 1):
        raise Refused("ERR The bit argument must be 1 or 0.")
    value = call.keys.get(args[1])
    if value is None:
        return -1 if wanted else 0
    if len(args) > 6:
        raise Refused(SYNTAX_ERROR)
    start = integer(args[3]) if len(args) > 3 else 0
    unit = _unit(args[5:])
    has_end = len(args) > 4
    end = integer(args[4]) if has_end else -1
    bits = _bits(value, start, end, unit=unit)
    if not bits:
        return -1
    found = _find(_cut(value, bits, filler=0x00 if wanted else 0xFF), wanted)
    if found is not None:
        return bits.start // 8 * 8 + found
    # Beyond a value whose end was not named lie zeros.
    return -1 if wanted or has_end else len(value) * 8


def _unit(options: list[bytes]) -> int:
    """How many bits the numbers of a range count."""
    unit = options[0].lower() if options else b"byte"
    if unit not in (b"byte", b"bit"):
        raise Refused(SYNTAX_ERROR)
    return 8 if unit == b"byte" else 1


def _bits(value: bytes, start: int, end: int, *, unit: int) -> range:
    found = places(start, end, len(value) * 8 // unit)
    return range(found.start * unit, found.stop * unit)


def _cut(value: bytes, bits: range, *, filler: int) -> bytearray:
    """The bytes in which these bits lie, with every bit around them as in the filler."""
    data = bytearray(value[bits.start // 8 : (bits.stop + 7) // 8])
    if bits:
        before, after = 0xFF00 >> bits.start % 8 & 0xFF, 0xFF >> (bits.stop - 1) % 8 + 1
        data[0] = data[0] & ~before | filler & before
        data[-1] = data[-1] & ~after | filler & after
    return data if bits else bytearray()


def _find(data: bytearray, wanted: int) -> int | None:
    """Where the first bit of this kind is."""
    number = int.from_bytes(data if wanted else data.translate(INVERTED))
    return len(data) * 8 - number.bit_length() if number else None


# --- combining ------------------------------------------------------------------------------------


@command("BITOP", arity=-4, flags="write denyoom",
         keys=(KeyRange(2, access="OW update"), KeyRange(3, -1, access="RO access")), since="2.6.0",
         summary="Stores what AND, OR, XOR or NOT makes of values; how many bytes that has.")  # fmt: skip
def bitop(call: Call) -> Reply:
    operation, target, *sources = call.args[1:]
    operation = operation.lower()
    if operation == b"not":
        if len(sources) != 1:
            raise Refused("ERR BITOP NOT must be called with a single source key.")
    elif operation not in OPERATIONS:
        raise Refused(SYNTAX_ERROR)
    values = [call.keys.get(key) or b"" for key in sources]
    if operation == b"not":
        result = values[0].translate(INVERTED)
    else:
        # With the first byte as the lowest, shorter values end in zeros by themselves.
        numbers = (int.from_bytes(value, "little") for value in values)
        size = max(len(value) for value in values)
        result = reduce(OPERATIONS[operation], numbers).to_bytes(size, "little")
    if result:
        call.keys.put(target, result)
    else:
        call.keys.delete(target)
    return len(result)
