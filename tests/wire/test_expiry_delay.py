"""`expired` events come on time, however many other keys wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.costs import percentile
from bench.delays import expiry_delays_ms
from bench.server_targets import DELAY_MS_AT_MOST
from bench.servers import fill
from tests.wire.servers import Process, running, start_ephemera

ROUNDING_MS = 2.0
"""Deadlines and clocks are whole milliseconds."""
BUSY_DELAY_MS_AT_MOST = 250.0
"""Of the latest event, beside other tests that use the same processors."""


def test_events_come_on_time_while_many_keys_wait(ephemera_server: Process) -> None:
    fill(ephemera_server, 50_000)
    delays = expiry_delays_ms(ephemera_server, expiring=200, seconds=1)
    assert min(delays) > -ROUNDING_MS, "an event before its deadline"
    assert percentile(delays, 0.5) <= DELAY_MS_AT_MOST
    assert max(delays) <= BUSY_DELAY_MS_AT_MOST


@pytest.mark.soak
def test_events_come_on_time_while_a_million_keys_wait(place: Path) -> None:
    with running(start_ephemera(place / "million.eph")) as server:
        fill(server, 1_000_000)
        delays = expiry_delays_ms(server, expiring=1_000, seconds=10)
    assert min(delays) > -ROUNDING_MS
    assert percentile(delays, 0.99) <= DELAY_MS_AT_MOST
