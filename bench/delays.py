"""How late `expired` events arrive: keys that die one after the other, while many others wait."""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.costs import percentile
from bench.load import EVENTS, tell_of_the_dead
from bench.servers import OURS, THEIRS, fill, in_turns, started
from tests.wire.resp import Wire
from tests.wire.servers import Process

HEAD_START_MS = 500
"""What setting up may take before the first deadline."""
PATIENCE_SECONDS = 30.0
"""How long after the last deadline events are waited for."""
PERCENTILES = {"p50": 0.5, "p99": 0.99}

Figures = dict[str, Any]  # Any: what `json` writes


def compare(place: Path, rounds: int, waiting: int, expiring: int, seconds: float) -> Figures:
    """By server: the rounds. What a percentile is where so many events did not come is null."""

    def measure(name: str) -> list[float]:
        # A server of its own each time: what is dead and not told of yet would be taken for what dies now.
        with (
            tempfile.TemporaryDirectory(dir=place) as fresh,
            started(name, Path(fresh)) as (server, _),
        ):
            fill(server, waiting)
            return expiry_delays_ms(server, expiring, seconds)

    found: Figures = {OURS: [], THEIRS: []}
    for turn in range(rounds):
        for name in in_turns(list(found), turn):
            delays, stolen = machine.undisturbed(partial(measure, name))
            ranked = {f"{rank}_ms": percentile(delays, of) for rank, of in PERCENTILES.items()}
            found[name].append(
                {rank: None if math.isinf(late) else late for rank, late in ranked.items()}
                | {"missing": delays.count(math.inf), "stolen": stolen}
            )
    return {
        "waiting": waiting,
        "expiring": expiring,
        "seconds": seconds,
        "patience": PATIENCE_SECONDS,
        **found,
    }


def expiry_delays_ms(server: Process, expiring: int, seconds: float) -> list[float]:
    """How long after its deadline the event of each of so many keys arrived; infinite if it did not."""
    with Wire(server, seconds + PATIENCE_SECONDS) as listener, Wire(server) as wire:
        tell_of_the_dead(server)
        listener("SUBSCRIBE", EVENTS)
        first_ms = time.time() * 1000 + HEAD_START_MS
        deadlines = {
            b"dies:%d" % n: int(first_ms + n * seconds * 1000 / expiring) for n in range(expiring)
        }
        replies = wire.pipeline([("SET", k, "v", "PXAT", at) for k, at in deadlines.items()])
        assert not any(reply.is_error for reply in replies), replies[0]
        delays = dict.fromkeys(deadlines, math.inf)
        last_ms = first_ms + (seconds + PATIENCE_SECONDS) * 1000
        with suppress(TimeoutError):
            for _ in deadlines:
                listener.socket.settimeout(max(0.001, last_ms / 1000 - time.time()))
                key = listener.read().members[2].data
                delays[key] = time.time() * 1000 - deadlines[key]
    return list(delays.values())
