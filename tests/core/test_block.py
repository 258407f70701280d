"""What interrupts cannot spoil: a lock that is given up for a while is had again, whatever happens."""

from __future__ import annotations

import threading

import pytest

from ephemera.core._block import WakeEvent


class Interrupted:
    """A lock whose next taking is interrupted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.interrupts = 1

    def acquire(self) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


def test_whoever_waited_has_the_lock_again_also_after_an_interrupt() -> None:
    given_up = Interrupted()
    given_up.lock.acquire()
    wake = WakeEvent()
    wake.set()
    with pytest.raises(KeyboardInterrupt):
        wake.wait_without(given_up, 60)  # type: ignore[arg-type]  # a lock that tests interrupt
    assert given_up.lock.locked()
