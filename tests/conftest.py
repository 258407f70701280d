"""What every test shares: how long Hypothesis searches, that signals are heard, a lack of threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from hypothesis import HealthCheck, settings

# In continuous integration every run tries the same examples, so that none depends on luck; at a
# desk every run tries new ones.
settings.register_profile(
    "default",
    max_examples=200,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    parent=settings.get_profile("default"),
    max_examples=20_000,
    stateful_step_count=100,
    derandomize=False,
)
settings.load_profile("default")

# Who starts the tests in the background, or with nohup, has them ignore some signals, and so would
# every process that a test starts and then sends them to.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

NoThreadsLeft = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def no_threads_left(monkeypatch: pytest.MonkeyPatch) -> NoThreadsLeft:
    """Makes a block in which the system has no threads left."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    @contextmanager
    def no_threads_left() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            yield

    return no_threads_left
