"""A store behaves like a dictionary with deadlines, in every order of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import StoreMachine

# Longer than Hypothesis takes to make a failing run short: its report is worth the wait.
pytestmark = pytest.mark.timeout(900)


class MemoryMachine(StoreMachine):
    engine_name = "memory"


class LocalMachine(StoreMachine):
    engine_name = "local"


class TinySegmentsMachine(StoreMachine):
    engine_name = "local-tiny-segments"


MACHINES = [MemoryMachine, LocalMachine, TinySegmentsMachine]
each_machine = pytest.mark.parametrize(
    "machine", MACHINES, ids=[machine.engine_name for machine in MACHINES]
)


@each_machine
def test_a_store_behaves_like_a_dictionary_with_deadlines(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings())


@pytest.mark.soak
@each_machine
def test_a_store_behaves_like_a_dictionary_for_a_hundred_thousand_steps(
    machine: type[StoreMachine],
) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=1_000, stateful_step_count=100)
    )
