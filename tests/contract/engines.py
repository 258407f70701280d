"""The engines that the contract suite runs on. A new engine joins by one entry in ENGINES.

An entry is a function from an empty directory of its own to an `EngineUnderTest`. What an engine
cannot do, it says through `store.capabilities`, and tests that need it skip with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ephemera
from tests.contract.checkpointing import CheckpointingStore

TINY_SEGMENT_BYTES = 64 * 1024
SMALL_SEGMENT_BYTES = 1024 * 1024


class Opener(Protocol):
    """Opens a store that tells the time by `clock`; None is the real one."""

    # Any: the options of `ephemera.open`, which checks them itself.
    def __call__(self, clock: ephemera.Clock | None, **options: Any) -> ephemera.Store: ...


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """How to open an empty store, and the same one again; `reopen` is None when nothing survives."""

    name: str
    open: Opener
    reopen: Opener | None = None


def memory(_place: Path) -> EngineUnderTest:
    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        return ephemera.open("memory://", clock=clock, **options)

    return EngineUnderTest("memory", open_store)


def local(place: Path, **settings: Any) -> EngineUnderTest:
    """The embedded engine: everything is read from its segments until a test says otherwise."""

    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        settled = {"segment_bytes": SMALL_SEGMENT_BYTES, **settings, **options}
        return ephemera.open(place / "contract.eph", clock=clock, **settled)

    return EngineUnderTest("local", open_store, open_store)


def local_tiny_segments(place: Path) -> EngineUnderTest:
    """Segments rotate all the time, and ordinary values need one of their own."""
    return local(place, segment_bytes=TINY_SEGMENT_BYTES)


def local_checkpointed(place: Path) -> EngineUnderTest:
    """Everything is read from the base tier."""
    return _checkpointing(local(place, segment_bytes=SMALL_SEGMENT_BYTES), every=1)


def local_mixed(place: Path) -> EngineUnderTest:
    """Some is read from the base tier, and some from the segments over it."""
    return _checkpointing(local(place, segment_bytes=SMALL_SEGMENT_BYTES), every=3)


ENGINES: dict[str, Callable[[Path], EngineUnderTest]] = {
    "memory": memory,
    "local": local,
    "local-tiny-segments": local_tiny_segments,
    "local-checkpointed": local_checkpointed,
    "local-mixed": local_mixed,
}


def _checkpointing(engine: EngineUnderTest, *, every: int) -> EngineUnderTest:
    def open_store(clock: ephemera.Clock | None, **options: Any) -> ephemera.Store:
        store = engine.open(clock, **options)
        return CheckpointingStore.over(store, every=every)

    return EngineUnderTest(engine.name, open_store, open_store)
