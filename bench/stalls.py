"""How long a read waits while others write and keys die: GETs at a fixed rate beside a steady load (`bench.load`).

A reply's delay counts from the instant at which its request was due, not from when it could be sent, so
that a stall is felt by every request that falls into it. `python -m bench.stalls PATH` is a server
whose store does not checkpoint, to hold the ordinary one against. All else is the same, for as long only as
segments may wait; and nothing is there to be swept, since nothing reached the base tier.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.costs import percentile
from bench.load import VALUE, WRITES_A_SECOND, beside, tell_of_the_dead
from bench.servers import STORE, THEIRS, in_turns, start_ours, start_theirs
from ephemera.core.options import SEGMENT_BYTES_DEFAULT
from ephemera.engines.local.files import FileLock
from ephemera.engines.local.layout import Layout
from ephemera.engines.local.segments import SEGMENTS_WAITING_MAX
from ephemera.server.listener import Endpoint, Listener, run
from ephemera.server.server import Server, open_store
from ephemera.server.settings import Settings
from tests.wire.resp import Wire
from tests.wire.servers import Process, running

KEYS = 10_000
READS_A_SECOND = 1_000
ROW_BYTES = len(VALUE) + 80
"""What a write takes of a segment, at most."""
SECONDS_MAX = SEGMENTS_WAITING_MAX * SEGMENT_BYTES_DEFAULT / (WRITES_A_SECOND * ROW_BYTES)
"""In more than that writers would wait where nothing is checkpointed."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
CHECKED, UNCHECKED = "with checkpoints", "without"
CASES = {"untold": "", "told": ", one subscriber to `expired` events"}
"""Whether somebody is told of the dead, and how a table says so."""

Figures = dict[str, Any]  # Any: what `json` writes


def start_uncheckpointed(place: Path) -> Process:
    """Our server without checkpoints, on any free port."""
    process = Process([sys.executable, "-m", "bench.stalls", str(place / STORE)], r"at port (\d+)")
    process.port = int(process.found[1])
    return process


STARTS: dict[str, Callable[[Path], Process]] = {
    CHECKED: start_ours,
    UNCHECKED: start_uncheckpointed,
    THEIRS: start_theirs,
}


def compare(place: Path, rounds: int, seconds: float) -> Figures:
    """By case and server: the rounds."""
    if seconds > SECONDS_MAX:
        raise SystemExit(f"reads beside writes: {SECONDS_MAX:.0f} s at most, not {seconds:g}")
    found: Figures = {case: {name: [] for name in STARTS} for case in CASES}
    for turn in range(rounds):
        for case in CASES:
            for name in in_turns(list(STARTS), turn):
                measure = partial(_measure, name, place, seconds, is_told=case == "told")
                figures, stolen = machine.undisturbed(measure)
                found[case][name].append(figures | {"stolen": stolen})
    load = {"reads_a_second": READS_A_SECOND, "writes_a_second": WRITES_A_SECOND}
    return {"seconds": seconds} | load | found


def _measure(name: str, place: Path, seconds: float, *, is_told: bool) -> Figures:
    """The delays of GETs, in a fresh server; how many keys died, and what was checkpointed, meanwhile."""
    with (
        tempfile.TemporaryDirectory(dir=place) as fresh,
        running(STARTS[name](Path(fresh))) as server,
        Wire(server) as wire,
    ):
        for start in range(0, KEYS, 500):
            wire.pipeline([("SET", _key(n), b"v" * 100) for n in range(start, start + 500)])
        with ExitStack() as ended:
            if is_told:
                tell_of_the_dead(server)
                ended.enter_context(beside(server, "listen"))
            ended.enter_context(beside(server, "write"))
            delays = _paced(wire, seconds)
        told = _info(wire)
        return {
            **{f"{rank}_ms": percentile(delays, share) for rank, share in PERCENTILES.items()},
            "dead": int(told["expired_keys"]),
            "checkpoints": None if name == THEIRS else _checkpoints(Path(fresh, STORE)),
        }


def _paced(wire: Wire, seconds: float) -> list[float]:
    delays = []
    began = time.perf_counter()
    for n in range(int(seconds * READS_A_SECOND)):
        due = began + n / READS_A_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        wire("GET", _key(n * 7919 % KEYS))
        delays.append((time.perf_counter() - due) * 1000)
    return delays


def _info(wire: Wire) -> dict[str, str]:
    lines = wire("INFO", "stats").data.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _checkpoints(store: Path) -> int:
    """As many as segments are gone: with this load each is full, and waits in vain for another, before the next."""
    return min(Layout(store).segment_numbers()) - 1


def _key(n: int) -> bytes:
    return b"read:%08d" % n


async def _serve(path: str) -> None:
    open_store(path).close()
    # Only who has this lock may checkpoint, and that will be nobody.
    with FileLock(Layout(path).locks / "maintenance").held():
        listener = Listener(Server(open_store(path), Settings()))
        endpoint = await listener.listen(Endpoint(port=0))
        print(f"at port {endpoint.port}", flush=True)
        await listener.serve()


if __name__ == "__main__":
    run(_serve(sys.argv[1]))
