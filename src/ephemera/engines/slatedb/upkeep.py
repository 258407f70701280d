"""Looking after a store: the dead, the rows of families that are gone, and everything rewritten without them.

Compaction removes what has died, as SlateDB rewrites rows anyway: it costs what is rewritten, and nothing on
top. How long the dead stay at most is `compaction_interval`: then everything is rewritten once. What
`purge_expired` adds is that somebody can ask for it now; SlateDB has no order by deadline, so that walks
over all rows.
"""

from __future__ import annotations

import heapq
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ephemera.core._block import WakeEvent
from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import (
    EngineUnavailable,
    EphemeraError,
    InvalidArgument,
    StoreClosed,
)
from ephemera.core.threads import start_thread
from ephemera.engines.slatedb import library
from ephemera.engines.slatedb._calls import Handle
from ephemera.engines.slatedb.library import load
from ephemera.engines.slatedb.location import StoreLocation
from ephemera.engines.slatedb.opening import open_admin, read_manifest

COMPACTION_TRIES = 20
LOOKS_PER_POLL = 4
"""How often a compaction is looked for, for each time that its compactor looks for work."""
COMPACTION_POLLS_MAX = 3_600
BEHIND = "invalid clock tick"
"""What SlateDB says where the clock that it reads now is behind the last writer's: of another machine, or of this
one, in the same millisecond but rounded otherwise."""
BEHIND_TRIES = 40
BEHIND_PAUSE_S = 0.05
IDLE_S = 60.0
"""How long the background thread sleeps at most, when nothing wakes it."""

log = logging.getLogger("ephemera")


class ExpiredRow(NamedTuple):
    """A row that is dead: since when, and where it is."""

    deadline_ms: int
    prefix: bytes
    key: bytes


def in_batches(
    found: Iterator[ExpiredRow], *, limit: int | None, batch: int
) -> Iterator[list[ExpiredRow]]:
    """So many at a time; with a limit, the longest dead among all of them.

    >>> dead = [ExpiredRow(3, b"", b"c"), ExpiredRow(1, b"", b"a"), ExpiredRow(2, b"", b"b")]
    >>> [[key for _, _, key in some] for some in in_batches(iter(dead), limit=2, batch=1)]
    [[b'a'], [b'b']]
    """
    chosen = found if limit is None else iter(heapq.nsmallest(limit, found))
    while some := list(islice(chosen, batch)):
        yield some


class Compactions:
    """Rewriting everything, and removing what was rewritten."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._admin: Handle | None = None
        self._pause = WakeEvent()

    @property
    def admin(self) -> Handle:
        if self._admin is None:
            self._admin = open_admin(self._location)
        return self._admin

    def rewrite(self) -> None:
        """Return when everything that was flushed is one sorted run without the dead."""
        for _ in range(COMPACTION_TRIES):
            submitted = self._submit()
            if submitted is None or self._await(submitted):
                return
        raise EngineUnavailable(
            f"{COMPACTION_TRIES} compactions of {self._location} were overtaken by others: try again"
        )

    def collect_garbage(self) -> None:
        """Remove the objects that nothing refers to any more and that are old enough."""
        library = load()
        slatedb = library.slatedb
        old = slatedb.GarbageCollectorDirectoryOptions(
            min_age_ms=round(self._location.garbage_age * 1000), dry_run=False
        )
        options = slatedb.GarbageCollectorOptions(
            manifest_options=old, wal_options=old, compacted_options=old, compactions_options=old
        )
        library.run_long(
            "admin_run_gc_once",
            self.admin,
            library.lower("OptionalTypeGarbageCollectorOptions", options),
        )

    def _submit(self) -> str | None:
        """The id of a compaction of everything; None when there is nothing to compact."""
        library = load()
        slatedb = library.slatedb
        manifest = read_manifest(self.admin)
        if manifest is None or not (manifest.l0 or manifest.compacted):
            return None
        runs = [run.id for run in manifest.compacted]
        spec = slatedb.CompactionSpec.TIERED(
            segment=b"",
            sources=[
                *(slatedb.SourceId.SST_VIEW(view.id) for view in manifest.l0),
                *(slatedb.SourceId.SORTED_RUN(run) for run in runs),
            ],
            destination=min(runs, default=0),
        )
        answer = self._ask(library.lower("TypeCompactionSpec", spec))
        compaction: str = library.lift("TypeCompaction", answer).id
        return compaction

    def _ask(self, spec: bytes) -> bytes:
        """Ask for a compaction, again and again while the clock is behind."""
        for _ in range(BEHIND_TRIES):
            try:
                answer: bytes = load().run("admin_submit_compaction", self.admin, spec)
            except InvalidArgument as error:
                if BEHIND not in str(error):
                    raise
                self._pause.wait(BEHIND_PAUSE_S)
            else:
                return answer
        raise EngineUnavailable(
            f"the clock of this machine is more than {BEHIND_TRIES * BEHIND_PAUSE_S:g} s behind that of "
            f"the last writer of {self._location}"
        )

    def _await(self, compaction: str) -> bool:
        """Whether it was done; it is not when another one took its sources first."""
        library = load()
        status = library.slatedb.CompactionStatus
        for _ in range(COMPACTION_POLLS_MAX * LOOKS_PER_POLL):
            answer = library.run(
                "admin_read_compaction",
                self.admin,
                compaction.encode(),
                library.lower("OptionalUInt64", None),
            )
            found: Any = library.lift("OptionalTypeCompaction", answer)  # Any: of an untyped module
            if found is None or found.status is status.COMPLETED:
                return True
            if found.status is status.FAILED:
                return False
            self._pause.wait(self._location.poll_interval / LOOKS_PER_POLL)
        raise EngineUnavailable(f"the compactor of {self._location} does not answer")


class Background:
    """A thread that sweeps when told to, and rewrites everything now and then, until the store is closed."""

    def __init__(
        self, sweep: Callable[[], object], rewrite: Callable[[], object], interval_s: float
    ) -> None:
        self._wake = WakeEvent()
        self._is_over = False
        # It knows the engine by weak references: a store that was forgotten ends its thread.
        acts = (weakref.WeakMethod(sweep), weakref.WeakMethod(rewrite))
        self._thread = threading.Thread(
            target=_work, args=(weakref.ref(self), self._wake, *acts, interval_s), daemon=True
        )
        self._thread.name = "ephemera-upkeep"
        start_thread(self._thread)

    def wake(self) -> None:
        self._wake.set()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def end(self) -> None:
        """No more after what is under way, which is waited for, but not for longer than for an answer."""
        self._is_over = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(library.ANSWER_S)


def _work(
    background: weakref.ref[Background],
    wake: WakeEvent,
    sweep: weakref.WeakMethod[Callable[[], object]],
    rewrite: weakref.WeakMethod[Callable[[], object]],
    interval_s: float,
) -> None:
    rewritten_ns = elapsed_ns()
    while True:
        wake.wait(min(IDLE_S, interval_s or IDLE_S))
        this = background()
        if this is None or this.is_over:
            return
        del this
        if not _do(sweep):
            return
        if interval_s and elapsed_ns() - rewritten_ns >= interval_s * 1e9:
            rewritten_ns = elapsed_ns()
            if not _do(rewrite):
                return


def _do(act: weakref.WeakMethod[Callable[[], object]]) -> bool:
    """Whether to go on."""
    call = act()
    if call is None:
        return False
    try:
        call()
    except StoreClosed:
        return False
    except EphemeraError as error:
        log.warning("the upkeep of a store failed, and is tried again later: %s", error)
    return True
