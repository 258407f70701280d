"""The writer gate: plain writes beside each other, a transaction alone."""

import threading
from collections.abc import Callable

import pytest

from ephemera.core.errors import InvalidArgument, StoreBusy
from ephemera.core.writer_gate import TransactionToken, WriterGate

PATIENT_MS = 30_000
"""A timeout that no wait of a passing test reaches."""


def in_thread(call: Callable[[], object]) -> BaseException | None:
    """Run a call in another thread, and return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def write(gate: WriterGate) -> None:
    with gate.writing():
        pass


def test_plain_writes_run_beside_each_other() -> None:
    gate = WriterGate(0)
    with gate.writing(), gate.writing():
        assert in_thread(lambda: write(gate)) is None


@pytest.mark.parametrize("call", [WriterGate.wait_until_free, write, WriterGate.acquire])
def test_a_transaction_keeps_other_threads_out(call: Callable[[WriterGate], object]) -> None:
    gate = WriterGate(10)
    token = gate.acquire()
    error = in_thread(lambda: call(gate))
    assert isinstance(error, StoreBusy)
    assert str(error) == "the writer lock was not free within 0.01 s (lock_timeout)"
    gate.release(token)
    assert in_thread(lambda: call(gate)) is None


@pytest.mark.parametrize("call", [WriterGate.wait_until_free, write, WriterGate.acquire])
def test_a_thread_does_not_wait_for_its_own_transaction(
    call: Callable[[WriterGate], object],
) -> None:
    gate = WriterGate(PATIENT_MS)
    token = gate.acquire()
    with pytest.raises(InvalidArgument, match="this thread is inside a transaction"):
        call(gate)
    gate.release(token)


def test_a_transaction_waits_for_plain_writes() -> None:
    gate = WriterGate(0)
    with gate.writing():
        assert isinstance(in_thread(gate.acquire), StoreBusy)
    gate.release(gate.acquire())


def test_a_dropped_token_releases_the_gate() -> None:
    gate = WriterGate(0)
    token = gate.acquire()
    del token
    assert in_thread(gate.wait_until_free) is None


def test_only_the_token_that_holds_the_gate_releases_it() -> None:
    gate = WriterGate(0)
    token = gate.acquire()
    gate.release(TransactionToken())
    assert isinstance(in_thread(gate.acquire), StoreBusy)
    gate.release(token)


def test_closing_the_store_releases_the_gate_from_any_token() -> None:
    gate = WriterGate(0)
    token = gate.acquire()
    gate.release_any()
    assert in_thread(gate.wait_until_free) is None
    gate.release(token)
