"""BITFIELD: integers of any width at any bit of a value, bit 0 being the highest of the first byte.

An operation reads and writes the bytes that its field touches as one integer. The operations of a
call see each other's writes, and the value is stored once, after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ephemera.core.arguments import VALUE_BYTES_MAX
from ephemera.resp.replies import Refused, Reply
from ephemera.server.arguments import INTEGER_MIN, SYNTAX_ERROR, bit_offset, integer
from ephemera.server.events import SETBIT
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("bitmap")

OPERANDS = {b"get": 2, b"set": 3, b"incrby": 3, b"overflow": 1}
WRITING = {b"set", b"incrby"}
OVERFLOWS = {b"wrap", b"sat", b"fail"}
WIDTHS_MAX = {b"i": 64, b"u": 63}

INVALID_TYPE = (
    "ERR Invalid bitfield type. Use something like i16 u8. "
    "Note that u64 is not supported but i64 is."
)
INVALID_OVERFLOW = "ERR Invalid OVERFLOW type specified"
READ_ONLY = "ERR BITFIELD_RO only supports the GET subcommand"


class Field(NamedTuple):
    """An integer inside a value: its first bit, its width in bits, and whether it has a sign."""

    offset: int
    width: int
    is_signed: bool

    @property
    def touched(self) -> slice:
        """The bytes in which the field lies."""
        return slice(self.offset // 8, (self.offset + self.width + 7) // 8)

    @property
    def shift(self) -> int:
        """How many bits of the last byte follow the field."""
        return -(self.offset + self.width) % 8

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    @property
    def low(self) -> int:
        return -(1 << self.width - 1) if self.is_signed else 0

    @property
    def high(self) -> int:
        return self.low + self.mask


class Operation(NamedTuple):
    """GET, SET or INCRBY of a field; `operand` is the number that the latter two are given."""

    name: bytes
    field: Field
    operand: int
    overflow: bytes


@command("BITFIELD", arity=-2, flags="write denyoom",
         keys=KeyRange(1, access="RW access update variable_flags"), since="3.2.0",
         summary="Reads, sets and increments integers of any width inside a value.")  # fmt: skip
def bitfield(call: Call) -> Reply:
    operations = _parse(call)
    if not _has_writes(operations):
        return _read_all(call, operations)
    key = call.args[1]
    old = call.keys.peek(key)
    value = bytearray(old or b"")
    size = max(each.field.touched.stop for each in operations if each.name in WRITING)
    if size > VALUE_BYTES_MAX:
        raise Refused(
            f"ERR a value has at most {VALUE_BYTES_MAX} bytes, this one would have {size}"
        )
    value.extend(bytes(max(size - len(value), 0)))
    # The value grows, and is stored, even where every operation then fails.
    is_changed = len(value) > len(old or b"")
    replies: list[Reply] = []
    for operation in operations:
        was = read(value, operation.field)
        reply, new = apply(operation, was)
        if new != was:
            write(value, operation.field, new)
            is_changed = True
        replies.append(reply)
    if is_changed:
        call.keys.replace(key, old, bytes(value), SETBIT)
    return replies


@command("BITFIELD_RO", arity=-2, flags="readonly fast", keys=KeyRange(1), since="6.0.0",
         summary="Reads integers of any width inside a value.")  # fmt: skip
def bitfield_ro(call: Call) -> Reply:
    operations = _parse(call)
    if _has_writes(operations):
        raise Refused(READ_ONLY)
    return _read_all(call, operations)


def _read_all(call: Call, operations: list[Operation]) -> Reply:
    value = call.keys.get(call.args[1]) or b""
    return [read(value, each.field) for each in operations]


def _has_writes(operations: list[Operation]) -> bool:
    return any(each.name in WRITING for each in operations)


# --- the arguments --------------------------------------------------------------------------------


def split(args: list[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the name of each operation, or `overflow`, in lower case with its operands.

    Raises Refused where something else stands, or operands are missing.
    """
    at = 0
    while at < len(args):
        name = args[at].lower()
        end = at + 1 + OPERANDS.get(name, len(args))
        if end > len(args):
            raise Refused(SYNTAX_ERROR)
        yield name, args[at + 1 : end]
        at = end


def _parse(call: Call) -> list[Operation]:
    value_bytes_max = call.server.settings.proto_max_bulk_len
    operations = []
    overflow = b"wrap"
    for name, operands in split(call.args[2:]):
        if name == b"overflow":
            overflow = operands[0].lower()
            if overflow not in OVERFLOWS:
                raise Refused(INVALID_OVERFLOW)
        else:
            field = _field(operands[0], operands[1], value_bytes_max=value_bytes_max)
            operand = integer(operands[2]) if name in WRITING else 0
            operations.append(Operation(name, field, operand, overflow))
    return operations


def _field(kind: bytes, offset: bytes, *, value_bytes_max: int) -> Field:
    width = integer(kind[1:], INVALID_TYPE)
    if not 1 <= width <= WIDTHS_MAX.get(kind[:1], 0):
        raise Refused(INVALID_TYPE)
    at = bit_offset(offset, value_bytes_max=value_bytes_max, width=width)
    return Field(at, width, is_signed=kind.startswith(b"i"))


# --- the integers ---------------------------------------------------------------------------------


def read(value: bytes | bytearray, field: Field) -> int:
    """Return the integer of a field; bits beyond the value's end are 0.

    >>> read(b"\\x0f\\xf0", Field(4, 8, is_signed=False)), read(b"\\x0f\\xf0", Field(4, 8, is_signed=True))
    (255, -1)
    """
    size = field.touched.stop - field.touched.start
    touched = int.from_bytes(value[field.touched].ljust(size, b"\0"))
    return _wrap(touched >> field.shift, field)


def write(value: bytearray, field: Field, number: int) -> None:
    """Set a field of a value that is long enough."""
    touched = int.from_bytes(value[field.touched]) & ~(field.mask << field.shift)
    touched |= (number & field.mask) << field.shift
    value[field.touched] = touched.to_bytes(field.touched.stop - field.touched.start)


def apply(operation: Operation, was: int) -> tuple[int | None, int]:
    """Return the reply to an operation, and what its field holds afterwards.

    The reply is None where the number does not fit and overflow is to fail.
    """
    if operation.name == b"get":
        return was, was
    is_set = operation.name == b"set"
    wanted = _number_to_set(operation) if is_set else was + operation.operand
    new = fit(wanted, operation.field, operation.overflow)
    if new is None:
        return None, was
    return was if is_set else new, new


def fit(number: int, field: Field, overflow: bytes) -> int | None:
    """Return the number that a field takes for this one; None if it has to fit and does not."""
    if field.low <= number <= field.high or overflow == b"wrap":
        return _wrap(number, field)
    if overflow == b"sat":
        return field.high if number > field.high else field.low
    return None


def _wrap(number: int, field: Field) -> int:
    """Return the lowest bits of a number, as many as the field has, with its sign."""
    return (number - field.low & field.mask) + field.low


def _number_to_set(operation: Operation) -> int:
    """Return the operand of SET as Redis compares it with the largest number of the field.

    Redis does so in 64 bits. A negative number is a large one for an unsigned field, and so is one
    near -2**63 for a signed field, from which the distance to the largest number is negative.
    """
    number, field = operation.operand, operation.field
    is_far = number - INTEGER_MIN <= field.high
    if number < field.low and (is_far or not field.is_signed):
        return number + 2**64
    return number
