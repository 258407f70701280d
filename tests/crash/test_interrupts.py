"""An interrupt at every moment of an operation at which Python may raise one: no lock stays taken.

Signals come by luck; here the moments are counted. Python looks for signals as a function of Python
begins or goes on, at a jump back, and after a call of compiled code. What handles the interrupt keeps
its traceback alive, and with it every frame that the interrupt left.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import ephemera
from ephemera import Store
from ephemera.core.clock import ManualClock
from ephemera.engines.local import base_tier
from tests.engines.local.stores import engine_of

LOOKS_AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}
CALLED_BY_COMPILED = {"__init__", "__new__"}


class Moments:
    """A trace function that raises KeyboardInterrupt at the moment of this number, counted from 1."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0
        self.place = "no moment"
        self.callers: set[str] = set()
        self._done: dict[FrameType, int] = {}
        self._returned: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Moments:
        frame.f_trace_opcodes = True
        if event == "call":
            self._meet(frame)  # as it begins or goes on
        elif event == "return":
            self._done.pop(frame, None)
            self._returned = frame
        elif event == "opcode":
            done = self._done.get(frame)
            self._done[frame] = frame.f_lasti
            returned, self._returned = self._returned, None
            if done is not None and self._is_moment(frame, done, returned):
                self._meet(frame)
        return self

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

    def _is_moment(self, frame: FrameType, done: int, returned: FrameType | None) -> bool:
        names = instruction_names(frame.f_code)
        name, following = names[done], names[frame.f_lasti]
        # Python raises inside the call. A trace function does before what follows, and no `try` has a
        # `return`'s last step inside.
        if name not in LOOKS_AFTER or following == "RETURN_VALUE":
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


def compact(store: Store) -> None:
    store.compact()


def checkpoint(store: Store) -> None:
    store.put("a", "1")
    store.checkpoint()


def purge(store: Store) -> None:
    store.put("dies", "1", ttl=0.001)
    assert isinstance(store.clock, ManualClock)
    store.clock.advance(1)
    store.purge_expired()


def begin_and_end(store: Store) -> None:
    with store.transaction() as txn, store.snapshot() as snap:
        txn.incr("a")
        snap.get("a")


def drop(store: Store) -> None:
    store.family("own").put("a", "1")
    store.family("own").clear()
    store.drop_family("own")


def walk(store: Store) -> None:
    list(store.scan())
    store.check()


@pytest.fixture
def open_before() -> frozenset[tuple[int, int]]:
    """The files that earlier tests in this process have not let go of: one that failed may still be held."""
    return frozenset(base_tier._environments)


@pytest.fixture
def store(open_before: frozenset[tuple[int, int]], tmp_path: Path) -> Iterator[Store]:
    # A lock that stays taken shows as StoreBusy soon, or as the time limit of the test.
    with ephemera.open(
        tmp_path / "s.eph",
        maintenance="manual",
        clock=ManualClock(),
        lock_timeout=1,
        size_limit=2**26,
    ) as store:
        store.put("a", "1")
        yield store


# An interrupt in a `__del__` is told to nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", [compact, checkpoint, purge, begin_and_end, drop, walk])
def test_whoever_handles_an_interrupt_can_go_on_with_the_store(
    open_before: frozenset[tuple[int, int]], store: Store, act: Callable[[Store], None]
) -> None:
    interrupts = 0
    while Moments(interrupts + 1).is_met_in(act, store):
        interrupts += 1
    assert interrupts > 20
    assert store.get("after") == str(interrupts).encode()
    assert store.check().problems == ()
    store.close()
    assert base_tier._environments.keys() <= open_before


def lay_dead(store: Store, number: int) -> set[bytes]:
    """Keys that are dead and untold, in every place where there can be any; half of them were written again."""
    assert isinstance(store.clock, ManualClock)
    keys = [
        f"{number} {place}" for place in ("untold", "below", "below again", "above", "above again")
    ]
    store.put(keys[0], "1", ttl=1)
    store.clock.advance(2)
    store.checkpoint()
    store.put_many(dict.fromkeys(keys[1:3], "1"), ttl=1)
    store.checkpoint()
    store.put_many(dict.fromkeys(keys[3:], "1"), ttl=1)
    store.clock.advance(2)
    store.put_many({keys[2]: "2", keys[4]: "2"})
    return {key.encode() for key in keys}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", [Store.purge_expired, Store.checkpoint])
def test_an_interrupt_costs_no_death_but_the_one_that_is_being_told(
    store: Store, act: Callable[[Store], object]
) -> None:
    told: Counter[bytes] = Counter()
    store.on_expire(lambda event: told.update([event.key]))
    moments = Moments(0)
    while moments.count == moments.fatal:
        moments = Moments(moments.fatal + 1)
        keys = lay_dead(store, moments.fatal)
        moments.interrupt(act, store)
        store.purge_expired()
        missing = keys - told.keys()
        assert len(missing) <= ("_tell" in moments.callers), moments.place
        assert all(told[key] <= 1 for key in keys), moments.place
    assert moments.count > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_of_what_the_background_does_for_others_costs_no_more(store: Store) -> None:
    assert isinstance(store.clock, ManualClock)
    told: Counter[bytes] = Counter()
    store.on_expire(lambda event: told.update([event.key]))
    telling = engine_of(store)._expiry
    moments = Moments(0)
    while moments.count == moments.fatal:
        moments = Moments(moments.fatal + 1)
        below, above = b"%d below" % moments.fatal, b"%d above" % moments.fatal
        store.put(below, "1", ttl=1)
        store.checkpoint()
        store.put(above, "1", ttl=1)
        store.clock.advance(2)
        moments.interrupt(telling.announce, store.clock.now_ms())
        telling.announce(store.clock.now_ms())
        assert told[below] + told[above] >= 2 - ("_tell" in moments.callers), moments.place
        assert max(told[below], told[above]) == 1, moments.place
    assert moments.count > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fatal", range(1, 9))
def test_a_file_that_nobody_has_any_more_is_let_go_whatever_interrupts_its_end(
    open_before: frozenset[tuple[int, int]], tmp_path: Path, fatal: int
) -> None:
    path = tmp_path / "00000001.mdb"
    path.touch()
    held = [base_tier.BaseFile(path, 1)]
    held[0].open(2**26, creates=True)
    sys.settrace(Moments(fatal))
    try:
        held.clear()
    finally:
        sys.settrace(None)
    base_tier._close_released()
    assert base_tier._environments.keys() <= open_before
