"""The Lua in which scripts run: one interpreter in a sandbox, and the conversion between its values and replies.

`sandbox.lua` is what a script sees. Conversions follow Redis: protocol 2 unless the script asked for 3, and
tables with a field `ok`, `err`, `double`, … for what Lua has no type for. Fields are read raw, so that
returning a table runs none of the script's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
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
from ephemera.server.arguments import INTEGER_MAX, INTEGER_MIN

INSTALL = "pip install 'ephemera-kv[server]'"
SOURCE = b"@user_script"
KILOBYTES_MAX = 256 * 1024
"""How much scripts may hold when that is looked at."""
MEMORY_BYTES_MAX = 4 * KILOBYTES_MAX * 1024
"""The size of anything larger is an error in the script. It is far more than the above, because at this limit
our own calls of the interpreter would fail too, which it does not survive."""
OUT_OF_MEMORY = b"not enough memory"
LOOK_FIRST = 100
LOOK_EVERY_MAX = 10_000
"""After how many instructions a script is looked at: the first time, and at most. A look takes a microsecond,
and so many plain instructions take thirty or more: looking more often would be felt."""
LOOK_STEPS = 1_000
"""After how many steps in a function of ours, such as members that cjson encodes."""
DEPTH_MAX = 128
TOO_DEEP = Refused("ERR reached lua stack limit")

LuaValue = (
    Any  # what lupa hands over: bytes, numbers, bools, None, and handles of Lua's own objects
)
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
        look: Callable[[int], int],
        note_end: Callable[[bytes], None],
        check: Callable[[], None],
    ) -> None:
        lupa = _lupa()
        self._check = check
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
        sandbox = files("ephemera.server").joinpath("sandbox.lua").read_bytes()
        (
            self._compile,
            self._run,
            self.null,
            self._arm,
            self._sethook,
            self._collect,
        ) = self._runtime.execute(
            sandbox,
            self._named(functions),
            self.table(
                {name.encode(): self._named(each) for name, each in libraries(self).items()}
            ),
            explain,
            look,
            note_end,
            LOOK_FIRST,
            KILOBYTES_MAX,
        )

        # The fields that make a table something else than an array, in the order of looking for them.
        self._tagged: dict[bytes, Callable[[LuaValue, int, int], Reply]] = {
            b"err": self._error_reply,
            b"ok": self._status,
            b"double": self._double,
            b"map": self._map,
            b"set": self._set,
            b"big_number": self._big_number,
            b"verbatim_string": self._verbatim,
        }

    # --- running ------------------------------------------------------------------------------

    def compile(self, code: bytes) -> Function:
        """A script, ready to run. Raises Failed where it is no Lua."""
        function, error = self._compile(code, SOURCE)
        if function is None:
            raise Failed(error)
        return function  # type: ignore[no-any-return]  # lupa has no types

    def run(self, script: Function, keys: list[bytes], arguments: list[bytes]) -> LuaValue:
        """What the script returns. Raises Failed where it fails."""
        try:
            self._arm()
            outcome = self._run(script, self.array(keys), self.array(arguments))
        except self._error as error:
            raise Failed(str(error).encode()) from None
        finally:
            # This function of C itself: one of Lua would not pass the hook once a script had to end.
            self._sethook()
        if not isinstance(outcome, tuple):
            return None  # it went well, and returned nothing
        is_well, value = outcome[:2]
        if is_well:
            return value
        if value == OUT_OF_MEMORY:
            self._collect()
        if not self.is_table(value):
            raise Failed(b"ERR %b" % value if isinstance(value, bytes) else b"ERR unknown error")
        fields = dict(value.items())
        text = fields.get(b"err")
        place = b"%b:%d" % (fields[b"source"], fields[b"line"]) if b"source" in fields else b""
        raise Failed(text if isinstance(text, bytes) else b"ERR unknown error", place)

    def looked_at(self, steps: Iterable[T]) -> Iterator[T]:
        """The same steps of work outside the interpreter, with a look at the script now and then.

        Raises Refused where it has to end.
        """
        for number, step in enumerate(steps, 1):
            if number % LOOK_STEPS == 0:
                self._check()
            yield step

    # --- values -------------------------------------------------------------------------------

    def _named(self, members: Mapping[str, object]) -> LuaValue:
        return self.table({name.encode(): member for name, member in members.items()})

    def is_table(self, value: LuaValue) -> bool:
        return self._kind(value) == "table"

    def is_function(self, value: LuaValue) -> bool:
        """Of Lua, or one of ours."""
        kind = self._kind(value)
        return kind == "function" or (kind is None and callable(value))

    def table(self, fields: Mapping[Any, LuaValue]) -> LuaValue:  # Any: keys of Lua
        return self._runtime.table_from(fields)

    def array(self, values: Iterable[LuaValue]) -> LuaValue:
        return self._runtime.table_from(list(values))

    def from_reply(self, reply: Reply, protocol: int) -> LuaValue:
        """A reply as scripts get it."""
        if reply is None or reply is NO_ARRAY or reply is NO_REPLY:
            return None if protocol == 3 else False
        if isinstance(reply, Refused):
            return self.table({b"err": reply.text})
        if isinstance(reply, Simple):
            return self.table({b"ok": bytes(reply)})
        if isinstance(reply, bytes) and not isinstance(reply, Verbatim):
            return reply
        if isinstance(reply, int) and not isinstance(reply, bool | BigNumber):
            return reply
        if isinstance(reply, list | tuple) and not (protocol == 3 and isinstance(reply, Unordered)):
            return self.array(self.from_reply(member, protocol) for member in reply)
        return self._from_reply3(reply) if protocol == 3 else self._from_reply2(reply)

    def _from_reply2(self, reply: Reply) -> LuaValue:
        """What only RESP3 has, as RESP2 puts it."""
        if isinstance(reply, Verbatim):
            return bytes(reply)
        if isinstance(reply, BigNumber):
            return b"%d" % reply
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
            return self.table({b"big_number": b"%d" % reply})
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

    def to_reply(self, value: LuaValue, protocol: int, depth: int = 0) -> Reply:
        """What a script returned, as a reply."""
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
        fields = dict(value.items())
        for name, convert in self._tagged.items():
            if name in fields:
                reply = convert(fields[name], protocol, depth + 1)
                if reply is not None:
                    return reply
        return self._sequence(fields, protocol, depth + 1)

    def _sequence(self, fields: dict[Any, LuaValue], protocol: int, depth: int) -> Reply:
        """The members from 1 up to the first that is missing."""
        members: list[Reply] = []
        while (len(members) + 1) in fields:
            members.append(self.to_reply(fields[len(members) + 1], protocol, depth))
        return tuple(members)

    def _error_reply(self, value: LuaValue, *_: int) -> Reply:
        return Refused(value) if isinstance(value, bytes) else None

    def _status(self, value: LuaValue, *_: int) -> Reply:
        return Simple(value.translate(LINE_BREAKS)) if isinstance(value, bytes) else None

    def _double(self, value: LuaValue, *_: int) -> Reply:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None

    def _map(self, value: LuaValue, protocol: int, depth: int) -> Reply:
        if not self.is_table(value):
            return None
        return {
            self.to_reply(key, protocol, depth): self.to_reply(held, protocol, depth)
            for key, held in value.items()
            if not self.is_table(key)
        }

    def _set(self, value: LuaValue, protocol: int, depth: int) -> Reply:
        if not self.is_table(value):
            return None
        return Unordered(self.to_reply(member, protocol, depth) for member in value)

    def _big_number(self, value: LuaValue, *_: int) -> Reply:
        if not isinstance(value, bytes):
            return None
        return BigNumber(value) if value.removeprefix(b"-").isdigit() else value

    def _verbatim(self, value: LuaValue, *_: int) -> Reply:
        text = dict(value.items()).get(b"string") if self.is_table(value) else None
        return Verbatim(text) if isinstance(text, bytes) else None


def _whole(number: float) -> int:
    """A number of Lua as an integer: without its fraction, and as C does it where 64 bits do not hold it."""
    if INTEGER_MIN <= number < INTEGER_MAX:
        return int(number)
    return INTEGER_MIN


def _refuse_attribute(_: object, name: object, __: bool) -> str:
    raise AttributeError(f"scripts see nothing of {name!r}")


def _lupa() -> Any:  # Any: lupa has no types
    try:
        import lupa.lua51
    except ImportError:
        raise UnsupportedOperation(f"scripts need lupa: {INSTALL}") from None
    return lupa.lua51
