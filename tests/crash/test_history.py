"""Histories of many processes on few keys are linearizable; and the judge of that knows its job."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

import ephemera
from tests.crash.history import last_reads, work
from tests.crash.linearizability import (
    NEVER_NS,
    NOTHING,
    Kind,
    Operation,
    first_unexplained,
    is_linearizable,
    read_history,
    step,
)
from tests.crash.processes import PATIENCE_SECONDS, SMALL_SEGMENT_BYTES, TINY_SEGMENT_BYTES, peers


def op(
    kind: Kind, called: int, returned: int, first: int = 0, second: int = 0, result: int = 0
) -> Operation:
    return Operation(kind, 1, first, second, result, called, returned)


def put(value: int, called: int, returned: int) -> Operation:
    return op(Kind.PUT, called, returned, first=value)


def get(value: int, called: int, returned: int) -> Operation:
    return op(Kind.GET, called, returned, result=value)


GOOD = {
    "nothing happened": [],
    "a read of nothing": [get(NOTHING, 0, 1)],
    "a read after a write": [put(7, 0, 1), get(7, 2, 3)],
    "a read beside a write sees it": [put(7, 0, 9), get(7, 1, 2)],
    "a read beside a write misses it": [put(7, 0, 9), get(NOTHING, 1, 2)],
    "two writes at once, then either": [put(7, 0, 5), put(8, 0, 5), get(7, 6, 7), get(7, 8, 9)],
    "the write that returned later came first": [put(7, 0, 9), put(8, 1, 2), get(8, 10, 11)],
    "each of two wins one round": [
        op(Kind.PUT_IF_ABSENT, 0, 5, first=7, result=1),
        op(Kind.PUT_IF_ABSENT, 0, 5, first=8, result=0),
        op(Kind.POP, 6, 7, result=7),
    ],
    "counting": [
        op(Kind.INCR, 0, 9, first=1, result=2),
        op(Kind.INCR, 0, 9, first=1, result=1),
        op(Kind.COMPARE_AND_SET, 10, 11, first=2, second=5, result=1),
        op(Kind.DELETE, 12, 13, result=1),
        op(Kind.DELETE, 14, 15, result=0),
    ],
    "a killed write that took effect late": [
        put(7, 0, NEVER_NS),
        get(NOTHING, 1, 2),
        get(7, 3, 4),
    ],
    "a killed write that never took effect": [put(7, 0, NEVER_NS), get(NOTHING, 1, 2)],
}

BAD = {
    "a value from nowhere": [get(7, 0, 1)],
    "a lost write": [put(7, 0, 1), get(NOTHING, 2, 3)],
    "a stale read": [put(7, 0, 1), put(8, 2, 3), get(7, 4, 5)],
    "a read from the future": [get(7, 0, 1), put(7, 2, 3)],
    "time runs backwards for one reader": [
        put(7, 0, 9),
        get(7, 1, 2),
        get(NOTHING, 3, 4),
    ],
    "two readers disagree about the order": [
        put(7, 0, 1),
        put(8, 0, 1),
        get(7, 2, 3),
        get(8, 4, 5),
        get(7, 6, 7),
    ],
    "a lost increment": [
        op(Kind.INCR, 0, 5, first=1, result=1),
        op(Kind.INCR, 0, 5, first=1, result=1),
    ],
    "two winners": [
        op(Kind.PUT_IF_ABSENT, 0, 5, first=7, result=1),
        op(Kind.PUT_IF_ABSENT, 0, 5, first=8, result=1),
    ],
    "a compare that saw what was not there": [
        put(7, 0, 1),
        op(Kind.COMPARE_AND_SET, 2, 3, first=6, second=9, result=1),
    ],
    "popped twice": [put(7, 0, 1), op(Kind.POP, 2, 9, result=7), op(Kind.POP, 2, 9, result=7)],
    "deleted twice": [
        put(7, 0, 1),
        op(Kind.DELETE, 2, 9, result=1),
        op(Kind.DELETE, 2, 9, result=1),
    ],
    "a killed write came and went": [put(7, 0, NEVER_NS), get(7, 1, 2), get(NOTHING, 3, 4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_the_judge_accepts(name: str) -> None:
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_the_judge_rejects(name: str) -> None:
    assert not is_linearizable(BAD[name])


def test_the_judge_names_the_operation_that_nothing_explains() -> None:
    wrong = get(7, 4, 5)
    assert first_unexplained([put(7, 0, 1), put(8, 2, 3), wrong, get(8, 6, 7)]) == wrong


def test_keys_are_judged_apart() -> None:
    here, there = put(7, 0, 1), get(NOTHING, 2, 3)._replace(key=2)
    assert is_linearizable([here, there])
    assert not is_linearizable([here, there, get(8, 4, 5)])


def brute_force(history: list[Operation]) -> bool:
    """The definition itself: some order that respects time and that a map would have given."""
    for order in itertools.permutations(history):
        # Nobody comes before one that had returned when it was called.
        if any(
            later.returned_ns < earlier.called_ns
            for earlier, later in itertools.combinations(order, 2)
        ):
            continue
        state: int | None = NOTHING
        for operation in order:
            state = step(operation, state) if state is not None else None
        if state is not None:
            return True
    return False


def test_the_judge_agrees_with_the_definition() -> None:
    chance = random.Random(5)
    verdicts = []
    for _ in range(1_000):
        history = []
        for _ in range(4):
            called = chance.randrange(12)
            history.append(
                op(
                    chance.choice(list(Kind)),
                    called,
                    called + chance.randrange(6),
                    first=chance.choice([1, 2]),
                    second=chance.choice([1, 2]),
                    result=chance.choice([0, 1, 1, 2, NOTHING]),
                )
            )
        verdicts.append(is_linearizable(history))
        assert verdicts[-1] == brute_force(history), history
    assert 50 < sum(verdicts) < 950


def test_a_history_of_several_processes_is_linearizable(tmp_path: Path) -> None:
    run_history(tmp_path, processes=4, operations=2_000, keys=4, segment_bytes=TINY_SEGMENT_BYTES)


@pytest.mark.soak
def test_a_history_of_eight_hundred_thousand_operations_is_linearizable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run_history(
        tmp_path,
        processes=8,
        operations=100_000,
        keys=64,
        segment_bytes=SMALL_SEGMENT_BYTES * 4,
        patience_seconds=3600,
    )
    with capsys.disabled():
        print(f"\n{seen:,} operations of 8 processes: linearizable, nothing lost, check() clean")  # noqa: T201


def run_history(
    tmp_path: Path,
    *,
    processes: int,
    operations: int,
    keys: int,
    segment_bytes: int,
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    path = tmp_path / "history.eph"
    files = [tmp_path / f"{number}.history" for number in range(processes)]
    with ephemera.open(path, segment_bytes=segment_bytes) as store:
        with peers(processes, path, segment_bytes=segment_bytes) as workers:
            for number, worker in enumerate(workers):
                worker.tell(work, number, operations, keys, str(files[number]))
            counts = [worker.answer(patience_seconds) for worker in workers]
        assert counts == [operations] * processes
        history = [operation for file in files for operation in read_history(file)]
        assert len(history) == processes * operations
        history += last_reads(store, range(keys))
        assert first_unexplained(history) is None
        assert store.check().problems == ()
    # The next opening recovers what is there from the files alone.
    with ephemera.open(path) as store:
        assert first_unexplained(history + last_reads(store, range(keys))) is None
        assert store.check().problems == ()
    return len(history)


@pytest.mark.parametrize("killed", [1, 3])
def test_a_history_with_kills_is_linearizable(tmp_path: Path, killed: int) -> None:
    path = tmp_path / "history.eph"
    files = [tmp_path / f"{number}.history" for number in range(3)]
    with peers(3, path, segment_bytes=TINY_SEGMENT_BYTES) as workers:
        for number, worker in enumerate(workers):
            worker.tell(work, number, 3_000, 3, str(files[number]), True)
        for worker in workers:
            assert worker.answer() == "under way"
        for worker in workers[:killed]:
            worker.kill()
        for worker in workers[killed:]:
            assert worker.answer() == 3_000
    history = [operation for file in files for operation in read_history(file)]
    with ephemera.open(path) as store:
        assert first_unexplained(history + last_reads(store, range(3))) is None
        assert store.check().problems == ()
