"""The moments at which Python may run something else: a signal's handler, or another thread.

They come by luck; here they are counted. Python looks for both as a function of Python begins or goes on, at
a jump back, and after a call of compiled code.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any

from ephemera import Store

LOOKS_AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}
Trace = Callable[[FrameType, str, Any], Any]
"""What `sys.settrace` takes. Any: what an event comes with, and another of these."""
CALLED_BY_COMPILED = {"__init__", "__new__"}


class Moments:
    """A trace function that raises KeyboardInterrupt at the moment of this number, counted from 1."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0
        self.place = "no moment"
        self.callers: set[str] = set()
        self._returned: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Trace:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._meet(frame)  # as it begins or goes on
        return self._follow(instruction_names(frame.f_code))

    def _follow(self, names: dict[int, str]) -> Trace:
        """What is called for every instruction of a frame: most of the time of these tests is spent here."""
        done = -1

        def step(frame: FrameType, event: str, _: Any) -> Trace:
            nonlocal done
            if event == "opcode":
                name, done = names.get(done), frame.f_lasti
                returned, self._returned = self._returned, None
                if name in LOOKS_AFTER and self._is_moment(frame, name, names[done], returned):
                    self._meet(frame)
            elif event == "return":
                self._returned = frame
            return step

        return step

    def interrupt(self, act: Callable[..., object], *given: Any) -> None:
        """Do this until the moment comes. Any: passed on."""
        with suppress(KeyboardInterrupt):
            sys.settrace(self)
            try:
                act(*given)
            finally:
                sys.settrace(None)

    def is_met_in(self, act: Callable[[Store], None], store: Store) -> bool:
        """Do this with a store until the moment comes, and then something else; whether it came."""
        try:
            sys.settrace(self)
            try:
                act(store)
            finally:
                sys.settrace(None)
        except KeyboardInterrupt:
            try:
                store.incr("after")
                act(store)
            except Exception as error:
                raise AssertionError(f"after an interrupt at {self.place}") from error
            return True
        if self.count < self.fatal:
            return False
        store.incr("after")  # nobody saw it: it came in a `__del__`
        return True

    def _is_moment(
        self, frame: FrameType, name: str, following: str, returned: FrameType | None
    ) -> bool:
        # Python raises inside the call. A trace function does before what follows, and no `try` has a
        # `return`'s last step inside.
        if following == "RETURN_VALUE":
            return False
        # A call of one function of Python by another is no call of compiled code.
        is_inside_python = (
            returned is not None
            and returned.f_back is frame
            and not returned.f_code.co_flags & CO_GENERATOR
            and returned.f_code.co_name not in CALLED_BY_COMPILED
        )
        return not (name.startswith("CALL") and is_inside_python)

    def _meet(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self.fatal:
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            caller: FrameType | None = frame
            while caller is not None:
                self.callers.add(caller.f_code.co_name)
                caller = caller.f_back
            raise KeyboardInterrupt


_names: dict[CodeType, dict[int, str]] = {}


def instruction_names(code: CodeType) -> dict[int, str]:
    if code not in _names:
        _names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
    return _names[code]
