"""Is a history of concurrent operations on a key one that a single map could have had?

A history is linearizable when every operation can be given one instant between its call and its
return such that, taken in that order, each returned what a plain map would have returned. Keys are
independent, so each is judged alone.

The search is that of Wing and Gong, with memory, made just in time: the events are walked in the
order of their times, together with every configuration that is still possible, which is the state of the key and
the set of operations under way that have taken effect already. When an operation returns, it
must have taken effect: configurations in which it has not are expanded by whatever is under
way until it has, or are dropped. No configuration left: no order explains the history. An operation that
never returned (its process was killed) stays under way for ever: it may take effect at any
time, or never.
"""

from __future__ import annotations

import enum
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

NOTHING = -(2**63)
"""Stands for "absent", in states and results; all values are other whole numbers."""
NEVER_NS = 2**63 - 1
"""When an operation returned that did not."""


class Kind(enum.IntEnum):
    GET = 0  # result: the value
    PUT = 1  # first: the value
    DELETE = 2  # result: whether it was there
    INCR = 3  # first: the step; result: the sum
    COMPARE_AND_SET = 4  # first: expected, second: the value; result: whether it was stored
    PUT_IF_ABSENT = 5  # first: the value; result: whether it was stored
    POP = 6  # result: the value


class Operation(NamedTuple):
    """One operation of a history, with its times on a clock that all processes share."""

    kind: int
    key: int
    first: int
    second: int
    result: int
    called_ns: int
    returned_ns: int


RECORD = struct.Struct("<BHqqqqq")
"""An operation in a file."""

Configuration = tuple[int, frozenset[int]]


def is_linearizable(history: Iterable[Operation], *, initial: int = NOTHING) -> bool:
    """Whether there is an order that explains the whole history, all of its keys."""
    return first_unexplained(history, initial=initial) is None


def first_unexplained(history: Iterable[Operation], *, initial: int = NOTHING) -> Operation | None:
    """The first operation, in the order of returns, that no order explains."""
    by_key: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for operations in by_key.values():
        culprit = _judge_key(operations, initial)
        if culprit is not None:
            return culprit
    return None


def step(operation: Operation, state: int) -> int | None:
    """The state after the operation took effect in `state`; None when it returned something else."""
    kind, _, first, second, result, _, returned_ns = operation
    is_known = returned_ns != NEVER_NS
    if kind == Kind.GET:
        return state if not is_known or result == state else None
    if kind == Kind.PUT:
        return first
    if kind == Kind.INCR:
        total = first if state == NOTHING else state + first
        return total if not is_known or result == total else None
    if kind == Kind.POP:
        return NOTHING if not is_known or result == state else None
    if kind == Kind.DELETE:
        happens, after = state != NOTHING, NOTHING
    elif kind == Kind.COMPARE_AND_SET:
        happens, after = state == first, second
    else:
        happens, after = state == NOTHING, first
    if is_known and bool(result) != happens:
        return None
    return after if happens else state


def _judge_key(operations: list[Operation], initial: int) -> Operation | None:
    under_way: dict[int, Operation] = {}
    possible: set[Configuration] = {(initial, frozenset())}
    for _, is_return, index in _events(operations):
        if not is_return:
            under_way[index] = operations[index]
            continue
        possible = _returned(index, under_way, possible)
        del under_way[index]
        if not possible:
            return operations[index]
    return None


def _events(operations: list[Operation]) -> list[tuple[int, bool, int]]:
    """Calls and returns in the order of time; a call and a return at one instant overlapped."""
    calls = [(operation.called_ns, False, i) for i, operation in enumerate(operations)]
    returns = [
        (operation.returned_ns, True, i)
        for i, operation in enumerate(operations)
        if operation.returned_ns != NEVER_NS
    ]
    return sorted(calls + returns)


def _returned(
    index: int, under_way: dict[int, Operation], possible: set[Configuration]
) -> set[Configuration]:
    """What is possible once the operation has taken effect in every configuration."""
    settled: set[Configuration] = set()
    seen = set(possible)
    waiting = list(possible)
    while waiting:
        state, done = waiting.pop()
        if index in done:
            settled.add((state, done - {index}))
            continue
        for other, operation in under_way.items():
            if other in done:
                continue
            after = step(operation, state)
            if after is None:
                continue
            if other == index:
                settled.add((after, done))
            elif (following := (after, done | {other})) not in seen:
                seen.add(following)
                waiting.append(following)
    return settled


def read_history(path: Path) -> Iterator[Operation]:
    """The operations of a file; a last one that a kill cut short is left out."""
    data = path.read_bytes()
    whole = len(data) - len(data) % RECORD.size
    return map(Operation._make, RECORD.iter_unpack(data[:whole]))
