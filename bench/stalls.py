"""How long a read waits while others write: GETs at a fixed rate beside a steady load of SETs.

A reply's delay counts from the instant at which its request was due, not from when it could be sent, so
that a stall is felt by every request that falls into it. `python -m bench.stalls PATH` is a server
whose store does not checkpoint, to hold the ordinary one against: all else is the same, but that it can
be so for as long only as segments may wait, and that it sweeps nothing, where nothing dies.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ephemera
from ephemera.engines.local.files import FileLock
from ephemera.engines.local.layout import Layout
from ephemera.server.listener import Endpoint, Listener, run
from ephemera.server.server import Server
from tests.wire.resp import Wire, request
from tests.wire.servers import PATIENCE_SECONDS, Process

KEYS = 10_000
READS_A_SECOND = 1_000
WRITES_AT_ONCE = 50
WRITE_PAUSE_SECONDS = 0.01
SECONDS_MAX = 20
VALUE_BYTES = 1_000
"""With so many writes a second a segment is full, and checkpointed, about every six seconds."""


def start_uncheckpointed(store: Path) -> Process:
    """Our server without checkpoints, on any free port."""
    process = Process([sys.executable, "-m", "bench.stalls", str(store)], r"at port (\d+)")
    process.port = int(process.found[1])
    return process


def read_delays_ms(server: Process, seconds: float) -> list[float]:
    """The delay of each GET beside the writes."""
    if seconds > SECONDS_MAX:
        raise SystemExit(f"reads beside writes: {SECONDS_MAX} seconds at most, not {seconds:g}")
    with Wire(server) as wire:
        for start in range(0, KEYS, 500):
            wire.pipeline([("SET", _key(n), b"v" * 100) for n in range(start, start + 500)])
    with _writing(server), Wire(server) as wire:
        return _paced(wire, seconds)


def _paced(wire: Wire, seconds: float) -> list[float]:
    delays = []
    began = time.perf_counter()
    for n in range(int(seconds * READS_A_SECOND)):
        due = began + n / READS_A_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        wire("GET", _key(n * 7919 % KEYS))
        delays.append((time.perf_counter() - due) * 1000)
    return delays


@contextmanager
def _writing(server: Process) -> Iterator[None]:
    """A process of its own that writes until the block ends."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "bench.stalls", "--write", f"{server.host}:{server.port}"],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline(), "the writer did not begin"
        yield
    finally:
        writer.terminate()
        writer.wait(PATIENCE_SECONDS)
        writer.stdout.close()


def _write(place: str) -> None:
    host, _, port = place.rpartition(":")
    server = Process.__new__(Process)  # known by its address alone
    server.host, server.port = host, int(port)
    with Wire(server) as wire:
        print("writing", flush=True)
        n = 0
        while True:
            began = time.perf_counter()
            wire.send(
                b"".join(
                    request("SET", _key((n + i) * 104_729 % KEYS), b"w" * VALUE_BYTES)
                    for i in range(WRITES_AT_ONCE)
                )
            )
            for _ in range(WRITES_AT_ONCE):
                wire.read()
            n += WRITES_AT_ONCE
            time.sleep(max(0.0, WRITE_PAUSE_SECONDS - (time.perf_counter() - began)))


def _key(n: int) -> bytes:
    return b"read:%08d" % n


async def _serve(path: str) -> None:
    ephemera.open(path).close()
    # Only who has this lock may checkpoint, and that will be nobody.
    with FileLock(Layout(path).locks / "maintenance").held():
        listener = Listener(Server(ephemera.open(path, exclusive=True)))
        endpoint = await listener.listen(Endpoint(port=0))
        print(f"at port {endpoint.port}", flush=True)
        await listener.serve()


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        _write(sys.argv[2])
    else:
        run(_serve(sys.argv[1]))
