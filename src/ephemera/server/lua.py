"""The Lua in which scripts run: one interpreter in a sandbox, and the conversion between its values and replies.

`sandbox.lua` is what a script sees. Conversions follow Redis: protocol 2 unless the script asked for 3, and
tables with a field `ok`, `err`, `double`, … for what Lua has no type for. Fields are read raw, so that
returning a table runs none of the script's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from random import getrandbits
from typing import Any, TypeVar

from ephemera import UnsupportedOperation
from ephemera.resp.encoder import LINE_BREAKS, double
from ephemera.resp.replies import (
    NO_ARRAY,
    NO_REPLY,
    BigNumber,
    Refused,
    Reply,
    Simple,
    Unordered,
    Verbatim,
)
from ephemera.server import _lua_guard
from ephemera.server._lua_guard import Called, Guard, missing_function
from ephemera.server.arguments import INTEGER_MAX, INTEGER_MIN

INSTALL = "pip install 'ephemera-kv[server]'"
SOURCE = b"@user_script"
KILOBYTES_MAX = 256 * 1024
"""How much scripts may hold when that is looked at."""
MEMORY_BYTES_MAX = 2 * KILOBYTES_MAX * 1024
"""The size of anything larger is an error in the script. It is far more than the above, because at this limit
our own calls of the interpreter would fail too, which it does not survive."""
LOOK_STEPS = 1_000
"""After how many steps in a function of ours, such as members that cjson encodes."""
DEPTH_MAX = 128
TOO_DEEP = Refused("ERR reached lua stack limit")
TOO_LARGE = "ERR too large for the interpreter of scripts"
MEMBER_BYTES = 64
"""What a member of a table takes, at most, besides its text."""

LuaValue = (
    Any  # what lupa hands over: bytes, numbers, bools, None, and handles of Lua's own objects
)
Pairs = Iterable[tuple[LuaValue, LuaValue]]
Function = Callable[..., LuaValue]
T = TypeVar("T")


class Failed(Exception):
    """A script ended with an error: its text, and where it happened, if that is known."""

    def __init__(self, text: bytes, place: bytes = b"") -> None:
        super().__init__(text)
        self.text = text
        self.place = place


class Lua:
    """An interpreter that offers these functions and constants to scripts.

    `functions` is what scripts find in `redis`. They get and return values of Lua, and refuse by raising
    Refused. `libraries` makes the others, given the interpreter.
    """

    def __init__(
        self,
        functions: Mapping[str, object],
        libraries: Callable[[Lua], Mapping[str, Mapping[str, object]]],
        *,
        explain: Callable[[object], bytes],
        look: Callable[[bool], bool],
        check: Callable[[], None],
    ) -> None:
        lupa = _lupa()
        self.check = check
        self._explain = explain
        self.guard = Guard(look, min(KILOBYTES_MAX, MEMORY_BYTES_MAX * 3 // 4 // 1024))
        self._room = self._counted = 0
        self._kind: Callable[[LuaValue], str | None] = lupa.lua_type
        self._error: type[Exception] = lupa.LuaError
        self._runtime = lupa.LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            attribute_filter=_refuse_attribute,
            max_memory=MEMORY_BYTES_MAX,
        )
        (
            self._compile,
            self._run,
            self.null,
            self._collect,
            self._fields,
            self._read,
        ) = self._sandbox(functions, libraries(self))

        # What the fields stand for that make a table something else than an array.
        self._tagged: dict[bytes, Callable[[LuaValue, int, int], Reply]] = {
            b"err": lambda text, *_: Refused(text),
            b"ok": lambda text, *_: Simple(text.translate(LINE_BREAKS)),
            b"double": lambda number, *_: float(number),
            b"map": self._map,
            b"set": self._set,
            b"big_number": lambda digits, *_: BigNumber(digits),
            b"verbatim_string": lambda text, *_: Verbatim(text),
        }

    def _sandbox(
        self,
        functions: Mapping[str, object],
        libraries: Mapping[str, Mapping[str, object]],
    ) -> tuple[LuaValue, ...]:
        """What sandbox.lua hands out."""
        try:
            made: tuple[LuaValue, ...] = self._runtime.execute(
                _source("sandbox.lua"),
                self._named(functions),
                self.table({name.encode(): self._named(each) for name, each in libraries.items()}),
                self._called(partial(getrandbits, 31)),
                _source("patterns.lua"),
                _lua_guard.__file__.encode(),
                self.guard.address,
            )
        except self._error as error:
            raise UnsupportedOperation(f"scripts need another lupa ({error}): {INSTALL}") from None
        return made

    # --- running ------------------------------------------------------------------------------

    def compile(self, code: bytes) -> Function:
        """A script, ready to run. Raises Failed where it is no Lua, Refused where it is too large."""
        self._need(2 * len(code))
        function, error = self._compile(code, SOURCE)
        if function is None:
            raise Failed(error)
        return function  # type: ignore[no-any-return]  # lupa has no types

    def run(self, script: Function, keys: list[bytes], arguments: list[bytes]) -> LuaValue:
        """What the script returns. Raises Failed where it fails."""
        try:
            given = self.array(keys), self.array(arguments)
        except Refused as refused:
            raise Failed(refused.text) from None
        self.guard.begin()
        try:
            is_well, value, *place = self._run(script, *given)
        except self._error as error:
            raise Failed(str(error).encode()) from None
        finally:
            self.guard.end()
        if is_well:
            return value
        text = value if isinstance(value, bytes) else b"ERR unknown error"
        raise Failed(text, self.guard.place or (place[0] if place and place[0] else b""))

    def looked_at(self, steps: Iterable[T]) -> Iterator[T]:
        """The same steps of work outside the interpreter, with a look at the script now and then.

        Raises Refused where it has to end.
        """
        for number, step in enumerate(steps, 1):
            if number % LOOK_STEPS == 0:
                self.check()
            yield step

    # --- values -------------------------------------------------------------------------------

    def _named(self, members: Mapping[str, object]) -> LuaValue:
        return self.table(
            {
                name.encode(): self._called(member) if callable(member) else member
                for name, member in members.items()
            }
        )

    def _called(self, function: Callable[..., object]) -> Called:
        return Called(self.guard, function, self._explain, self._need)

    def is_table(self, value: LuaValue) -> bool:
        return self._kind(value) == "table"

    def is_function(self, value: LuaValue) -> bool:
        """Of Lua, or one of ours."""
        kind = self._kind(value)
        return kind == "function" or (kind is None and callable(value))

    def table(self, fields: Mapping[Any, LuaValue]) -> LuaValue:  # Any: keys of Lua
        self._need(_size(fields) + _size(fields.values()))
        return self._runtime.table_from(fields)

    def array(self, values: Iterable[LuaValue]) -> LuaValue:
        made = list(values)
        self._need(_size(made))
        return self._runtime.table_from(made)

    def _need(self, size: int) -> None:
        """Raise Refused where so many bytes more come near the limit of memory.

        An allocation that fails inside a function of lupa jumps out of it past the state of Python.
        """
        room = MEMORY_BYTES_MAX - MEMORY_BYTES_MAX // 8
        if self._runtime.get_memory_used() + size > room:
            self._collect()
            if self._runtime.get_memory_used() + size > room:
                raise Refused(TOO_LARGE)

    @property
    def memory_bytes(self) -> int:
        """What the interpreter holds, its own libraries included."""
        return int(self._runtime.get_memory_used(total=True))

    @property
    def is_crowded(self) -> bool:
        """Whether what outlives scripts, which is other scripts, takes so much that they lack it."""
        if self._runtime.get_memory_used() < KILOBYTES_MAX * 1024 // 2:
            return False
        self._collect()
        return bool(self._runtime.get_memory_used() >= KILOBYTES_MAX * 1024 // 2)

    def fields(self, table: LuaValue) -> Iterator[tuple[LuaValue, LuaValue]]:
        """The names and values in a table."""
        for _, fields in self.batches(table):
            yield from fields

    def batches(self, table: LuaValue) -> Iterator[tuple[int, Pairs]]:
        """The same, some at a time, and how large their texts are.

        Raises Refused where the script has to end meanwhile.
        """
        read, size, *found = self._fields(table)
        yield size, zip(found[::2], found[1::2], strict=True)
        while read is not None:
            self.check()
            read, size, *found = read()
            yield size, zip(found[::2], found[1::2], strict=True)

    def from_reply(self, reply: Reply, protocol: int) -> LuaValue:
        """A reply as scripts get it."""
        if reply is None or reply is NO_ARRAY or reply is NO_REPLY:
            return None if protocol == 3 else False
        if isinstance(reply, Refused):
            return self.table({b"err": reply.text})
        if isinstance(reply, Simple):
            return self.table({b"ok": bytes(reply)})
        if isinstance(reply, bytes) and not isinstance(reply, Verbatim | BigNumber):
            return reply
        if isinstance(reply, int) and not isinstance(reply, bool):
            return reply
        if isinstance(reply, list | tuple) and not (protocol == 3 and isinstance(reply, Unordered)):
            return self.array(self.from_reply(member, protocol) for member in reply)
        return self._from_reply3(reply) if protocol == 3 else self._from_reply2(reply)

    def _from_reply2(self, reply: Reply) -> LuaValue:
        """What only RESP3 has, as RESP2 puts it."""
        if isinstance(reply, Verbatim | BigNumber):
            return bytes(reply)
        if isinstance(reply, float):
            return double(reply)
        if isinstance(reply, dict):
            return self.from_reply([member for pair in reply.items() for member in pair], 2)
        return int(reply)  # type: ignore[arg-type]  # a bool: nothing else is left

    def _from_reply3(self, reply: Reply) -> LuaValue:
        if isinstance(reply, Verbatim):
            text = self.table({b"string": bytes(reply), b"format": b"txt"})
            return self.table({b"verbatim_string": text})
        if isinstance(reply, BigNumber):
            return self.table({b"big_number": bytes(reply)})
        if isinstance(reply, float):
            return self.table({b"double": reply})
        if isinstance(reply, dict):
            pairs = {
                self.from_reply(key, 3): self.from_reply(value, 3) for key, value in reply.items()
            }
            return self.table({b"map": self.table(pairs)})
        if isinstance(reply, Unordered):
            return self.table(
                {b"set": self.table({self.from_reply(each, 3): True for each in reply})}
            )
        return reply  # a bool

    def to_reply(self, value: LuaValue, protocol: int) -> Reply:
        """What a script returned, as a reply. Raises Refused where it is too large or the script has to end.

        A table that holds others twice, which hold others twice, is small in Lua and without bound in a reply.
        """
        self._room, self._counted = KILOBYTES_MAX * 1024, 0
        return self._reply(value, protocol, 0)

    def _count(self, size: int) -> None:
        self._counted += 1
        self._room -= MEMBER_BYTES + size
        if self._room < 0:
            raise Refused("ERR the script's reply is too large")
        if self._counted % LOOK_STEPS == 0:
            self.check()

    def _reply(self, value: LuaValue, protocol: int, depth: int) -> Reply:
        self._count(len(value) if isinstance(value, bytes) else 0)
        if isinstance(value, bool):
            return value if protocol == 3 else 1 if value else None
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | float):
            return _whole(value)
        if not self.is_table(value):
            return None
        if depth == DEPTH_MAX:
            return TOO_DEEP
        tag, *found = self._read(value, 0)
        if tag:
            return self._tagged[tag](found[0], protocol, depth + 1)
        members = [self._reply(member, protocol, depth + 1) for member in found[1:]]
        while found[0]:
            _, *found = self._read(value, len(members))
            members.extend(self._reply(member, protocol, depth + 1) for member in found[1:])
        return tuple(members)

    def _map(self, value: LuaValue, protocol: int, depth: int) -> Reply:
        return {
            self._reply(key, protocol, depth): self._reply(held, protocol, depth)
            for key, held in self.fields(value)
            if not self.is_table(key)
        }

    def _set(self, value: LuaValue, protocol: int, depth: int) -> Reply:
        return Unordered(self._reply(member, protocol, depth) for member, _ in self.fields(value))


def _whole(number: float) -> int:
    """A number of Lua as an integer: without its fraction, and as C does it where 64 bits do not hold it."""
    if INTEGER_MIN <= number < INTEGER_MAX:
        return int(number)
    return INTEGER_MIN


def _size(values: Iterable[LuaValue]) -> int:
    return sum(MEMBER_BYTES + (len(v) if isinstance(v, bytes) else 0) for v in values)


def _source(name: str) -> bytes:
    return files("ephemera.server").joinpath(name).read_bytes()


def _refuse_attribute(_: object, name: object, __: bool) -> str:
    raise AttributeError(f"scripts see nothing of {name!r}")


def _lupa() -> Any:  # Any: lupa has no types
    try:
        import lupa.lua51
    except ImportError:
        raise UnsupportedOperation(f"scripts need lupa: {INSTALL}") from None
    missing = missing_function(lupa.lua51.__file__)
    if missing is not None:
        raise UnsupportedOperation(f"scripts need a lupa that exports {missing}: {INSTALL}")
    return lupa.lua51
