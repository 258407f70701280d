"""What every test shares: how long Hypothesis searches, and that signals are heard."""

from __future__ import annotations

import os
import signal

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
