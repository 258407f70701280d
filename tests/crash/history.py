"""Processes that do random operations on a few keys and write down what they saw, and when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import ephemera
from tests.crash.linearizability import NEVER_NS, NOTHING, RECORD, Kind, Operation
from tests.crash.processes import Seat

TTL_SECONDS = 3600
VALUES_PER_PROCESS = 10**9
STEPS_MAX = 1000
RECENT_VALUES = 16

KINDS = tuple(Kind)
WEIGHTS = (30, 15, 10, 15, 15, 10, 5)


def name_of(key: int) -> bytes:
    return b"key:%d" % key


def encode(value: int) -> bytes:
    return b"%d" % value


def decode(data: bytes | None) -> int:
    return NOTHING if data is None else int(data)


def work(
    seat: Seat, number: int, operations: int, keys: int, target: str, notes_calls: bool = False
) -> int:
    """Do so many operations and write them to the file; returns how many there were.

    With `notes_calls` each is written when it is called and again when it returned, so that one that
    a kill interrupts is in the file too.
    """
    apply = _applier(seat.store)
    choose = Chooser(number, keys)
    with Path(target).open("wb", buffering=0 if notes_calls else 1 << 16) as file:
        for index in range(operations):
            kind, key, first, second = choose.next()
            called_ns = time.monotonic_ns()
            if notes_calls:
                file.write(RECORD.pack(kind, key, first, second, 0, called_ns, NEVER_NS))
            result = apply[kind](name_of(key), first, second)
            returned_ns = time.monotonic_ns()
            if notes_calls:
                file.seek(index * RECORD.size)
            file.write(RECORD.pack(kind, key, first, second, result, called_ns, returned_ns))
            choose.saw(kind, key, result)
            if notes_calls and index == 0:
                seat.say("under way")
    return operations


class Chooser:
    """Picks operations; what it lately saw of a key is what it expects when it compares."""

    def __init__(self, number: int, keys: int) -> None:
        self._random = random.Random(number)
        self._keys = keys
        self._fresh = (number + 1) * VALUES_PER_PROCESS
        self._last_seen = [NOTHING] * keys

    def next(self) -> tuple[int, int, int, int]:
        (kind,) = self._random.choices(KINDS, WEIGHTS)
        key = self._random.randrange(self._keys)
        # Apart by more than the increments to a value, so that each value has one origin.
        self._fresh += STEPS_MAX
        if kind == Kind.COMPARE_AND_SET:
            return kind, key, self._last_seen[key], self._fresh
        if kind == Kind.INCR:
            return kind, key, self._random.randint(1, 3), 0
        return kind, key, self._fresh if kind in (Kind.PUT, Kind.PUT_IF_ABSENT) else 0, 0

    def saw(self, kind: int, key: int, result: int) -> None:
        if kind in (Kind.GET, Kind.INCR):
            self._last_seen[key] = result


def _applier(store: ephemera.Store) -> dict[int, Callable[[bytes, int, int], int]]:
    """Each kind of operation as a function from key and two numbers to a number."""

    def put(key: bytes, first: int, _: int) -> int:
        store.put(key, encode(first), ttl=TTL_SECONDS)
        return 0

    def compare_and_set(key: bytes, first: int, second: int) -> int:
        expected = None if first == NOTHING else encode(first)
        return store.compare_and_set(key, expected, encode(second), ttl=TTL_SECONDS)

    return {
        Kind.GET: lambda key, _, __: decode(store.get(key)),
        Kind.PUT: put,
        Kind.DELETE: lambda key, _, __: store.delete(key),
        Kind.INCR: lambda key, first, _: store.incr(key, first),
        Kind.COMPARE_AND_SET: compare_and_set,
        Kind.PUT_IF_ABSENT: lambda key, first, _: store.put_if_absent(key, encode(first)),
        Kind.POP: lambda key, _, __: decode(store.pop(key, None)),
    }


def last_reads(store: ephemera.Store, keys: Iterable[int]) -> list[Operation]:
    """What is there in the end, as reads of the history: what was acknowledged must explain it."""
    reads = []
    for key in keys:
        called_ns = time.monotonic_ns()
        value = decode(store.get(name_of(key)))
        reads.append(Operation(Kind.GET, key, 0, 0, value, called_ns, time.monotonic_ns()))
    return reads
