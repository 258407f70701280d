"""A store behaves like a dictionary with deadlines, in every order of operations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ephemera import Store
from tests.engines.local.stores import crash_copy
from tests.model.machine import StoreMachine

# Longer than Hypothesis takes to make a failing run short: its report is worth the wait.
pytestmark = pytest.mark.timeout(900)


def crash_local(store: Store) -> None:
    """Put the files as they are while the store is open in the place of those that closing leaves."""
    path = Path(store.stats()["path"])
    copy = crash_copy(path, path.with_name("crashed"))
    store.close()
    shutil.rmtree(path)
    copy.rename(path)


class MemoryMachine(StoreMachine):
    engine_name = "memory"


class LocalMachine(StoreMachine):
    engine_name = "local"
    crash = crash_local


class TinySegmentsMachine(StoreMachine):
    engine_name = "local-tiny-segments"
    crash = crash_local


class SlateMachine(StoreMachine):
    engine_name = "slatedb-file"


MACHINES = [MemoryMachine, LocalMachine, TinySegmentsMachine, SlateMachine]
SLOW: dict[type[StoreMachine], int] = {SlateMachine: 10}
"""By how much fewer examples are tried where each of them takes longer."""
each_machine = pytest.mark.parametrize(
    "machine", MACHINES, ids=[machine.engine_name for machine in MACHINES]
)


@each_machine
def test_a_store_behaves_like_a_dictionary_with_deadlines(machine: type[StoreMachine]) -> None:
    examples = settings().max_examples // SLOW.get(machine, 1)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))


@pytest.mark.soak
@each_machine
def test_a_store_behaves_like_a_dictionary_for_a_hundred_thousand_steps(
    machine: type[StoreMachine],
) -> None:
    examples = 1_000 // SLOW.get(machine, 1)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=100)
    )
