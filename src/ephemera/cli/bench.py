"""`ephemera bench`: what this machine can do."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import ephemera
from ephemera import Store
from ephemera.cli import output
from ephemera.cli.stores import Json
from ephemera.core.clock import elapsed_ns

VALUE = b"v" * 100
TTL_SECONDS = 3600
SYNCED_PUTS = 50
EVENT_TTL_SECONDS = 0.05
EVENT_WAIT_SECONDS = 10.0


class Measured(NamedTuple):
    """One workload: how many operations it did in how many seconds."""

    name: str
    operations: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


def bench(
    keys: Annotated[int, typer.Option(min=1, metavar="N", help="How many keys.")] = 100_000,
    at: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Where to measure; else the temporary directory."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a store of its own on this machine: puts and gets with a TTL, syncs, scans, an event."""
    with (
        tempfile.TemporaryDirectory(prefix="ephemera-bench-", dir=at) as directory,
        ephemera.open(Path(directory) / "bench.eph") as store,
        output.progress("measuring") as advance,
    ):
        results = [
            _measure(advance, step, *workload)
            for step, workload in enumerate(_workloads(store, keys))
        ]
        lag_ms = _event_lag_ms(store)
    if as_json:
        output.record(
            {
                "keys": keys,
                "value_bytes": len(VALUE),
                "per_second": {each.name: round(each.per_second) for each in results},
                "event_lag_ms": lag_ms,
            }
        )
        return
    output.table(
        ("", ">per second"),
        [
            *((each.name, f"{each.per_second:,.0f}") for each in results),
            ("expiry event after its deadline", f"{lag_ms} ms"),
        ],
    )


def _workloads(store: Store, keys: int) -> list[tuple[str, int, Callable[[], object]]]:
    names = [b"key:%010d" % number for number in range(keys)]

    def put() -> None:
        for name in names:
            store.put(name, VALUE, ttl=TTL_SECONDS)

    def get() -> None:
        for name in names:
            store.get(name)

    def put_synced() -> None:
        for name in names[:SYNCED_PUTS]:
            store.put(name, VALUE, ttl=TTL_SECONDS, durable=True)

    return [
        ("put with a TTL", keys, put),
        ("get, just written", keys, get),
        ("checkpoint", keys, store.checkpoint),
        ("get, from the base tier", keys, get),
        ("scan", keys, lambda: sum(1 for _ in store.scan())),
        ("put, synced each", min(keys, SYNCED_PUTS), put_synced),
    ]


def _measure(
    advance: output.Advance, step: int, name: str, operations: int, work: Callable[[], object]
) -> Measured:
    advance(step, None)
    began_ns = elapsed_ns()
    work()
    return Measured(name, operations, (elapsed_ns() - began_ns) / 1e9)


def _event_lag_ms(store: Store) -> int | None:
    """How many milliseconds after its deadline a key's death is told; None when it is not."""
    lags: list[int] = []
    is_told = threading.Event()

    def note(expired: ephemera.Expired) -> None:
        lags.append(store.clock.now_ms() - expired.deadline_ms)
        is_told.set()

    store.on_expire(note)
    store.put("mayfly", b"", ttl=EVENT_TTL_SECONDS)
    is_told.wait(EVENT_WAIT_SECONDS)
    return lags[0] if lags else None
