"""The writes of an event-loop tick, gathered: an engine that takes them at once, served to many clients.

Between an engine that `Gathers` and the server stands this one. What commands write is kept here and read from
here, and goes to the engine as one batch when the listener ends the tick; the replies wait for it. Nobody
else writes to the engine, so what is read here and there together is the one state that every command
sees, in the order in which the commands ran.

`PendingTicks` are the ticks whose writes have not arrived yet. Replies go out in the order of the ticks, so a
client that reads what another wrote is answered after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ephemera import EphemeraError
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import (
    Change,
    CheckReport,
    Expired,
    FamilyRef,
    Gathers,
    KeyValue,
    Range,
    Underway,
    View,
    Write,
    WriteTransaction,
)
from ephemera.core.row import Row

RowKey = tuple[FamilyRef, bytes]
Kept = tuple[Row | None]
"""What was written: a row, or None for a delete; each write its own object."""


T = TypeVar("T")

_new_tuple = tuple.__new__


class Gathered:
    """An engine whose writes wait for the end of the tick. Everything here belongs to one thread."""

    def __init__(self, engine: KeyValue) -> None:
        assert isinstance(engine, Gathers)
        self._engine = engine
        self._gathers: Gathers = engine
        self.name = engine.name
        self.clock = engine.clock
        self.capabilities = engine.capabilities
        self.waits = engine.waits
        self.is_read_only = engine.is_read_only
        self._kept: dict[RowKey, Kept] = {}
        """The last write to a row that the engine may not show yet."""
        self._written: dict[RowKey, Kept] = {}
        """The writes of the tick that has not ended."""
        self._underway: deque[tuple[Underway, dict[RowKey, Kept]]] = deque()

    # --- the end of a tick --------------------------------------------------------------------

    def end_tick(self, *, durable: bool) -> Underway:
        """Send what was written to the engine; what it comes to is to be watched."""
        written, self._written = self._written, {}
        underway = self._gathers.write_soon(_rows(written), durable=durable)
        self._underway.append((underway, written))
        return underway

    def arrived(self) -> None:
        """The first tick whose writes were under way is over: the engine shows its writes itself."""
        _, written = self._underway.popleft()
        for row_key, kept in written.items():
            if self._kept.get(row_key) is kept:
                del self._kept[row_key]

    @property
    def has_writes(self) -> bool:
        """Whether the tick that has not ended has written anything yet."""
        return bool(self._written)

    def check_writer(self) -> None:
        self._gathers.check_writer()

    def settled(self) -> KeyValue:
        """The engine, once it shows everything that was written."""
        if self._written:
            written, self._written = self._written, {}
            self._gathers.write_soon(_rows(written), durable=False).settle()
        for underway, _ in self._underway:
            underway.settle()
        self._kept.clear()
        return self._engine

    # --- one key ------------------------------------------------------------------------------

    def get(self, family: FamilyRef, key: bytes, now_ms: int, /) -> bytes | None:
        kept = self._kept.get((family, key))
        if kept is None:
            return self._engine.get(family, key, now_ms)
        row = kept[0]
        return None if row is None or is_dead(row.deadline_ms, now_ms) else row.value

    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None:
        kept = self._kept.get((family, key))
        if kept is None:
            return self._engine.row(family, key, now_ms)
        row = kept[0]
        return None if row is None or is_dead(row.deadline_ms, now_ms) else row

    def put(
        self,
        family: FamilyRef,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None:
        row_key = (family, key)
        # Row's own constructor is Python, and this is the hot path.
        row = _new_tuple(Row, (value, written_ms, deadline_ms, idle_ms, hard_ms))
        self._kept[row_key] = self._written[row_key] = (row,)

    def delete(self, family: FamilyRef, key: bytes, *, durable: bool | None) -> bool:
        is_there = self.row(family, key, self.clock.now_ms()) is not None
        if is_there:
            self._keep(family, key, None)
        return is_there

    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        for family, key, row in writes:
            self._keep(family, key, row)

    def update(
        self, family: FamilyRef, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        now_ms = self.clock.now_ms()
        old = self.row(family, key, now_ms)
        new = change(old, now_ms)
        if new is not old:
            self._keep(family, key, new)

    def _keep(self, family: FamilyRef, key: bytes, row: Row | None) -> None:
        self._kept[family, key] = self._written[family, key] = (row,)

    # --- all of it: asked of the engine, once it knows everything -------------------------------

    def scan(
        self, family: FamilyRef, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        return self.settled().scan(family, bounds, now_ms)

    def count(self, family: FamilyRef, now_ms: int) -> int:
        return self.settled().count(family, now_ms)

    def clear(self, family: FamilyRef) -> None:
        self.settled().clear(family)

    def snapshot(self) -> View:
        return self.settled().snapshot()

    def begin(self) -> WriteTransaction:
        return self.settled().begin()

    def family(self, name: str, *, create: bool) -> FamilyRef | None:
        return self._engine.family(name, create=create)

    def set_default_ttl(self, family: FamilyRef, ttl_ms: int | None) -> None:
        self.settled().set_default_ttl(family, ttl_ms)

    def families(self) -> list[str]:
        return self._engine.families()

    def drop_family(self, name: str) -> bool:
        return self.settled().drop_family(name)

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        return self.settled().purge_expired(limit=limit, batch=batch)

    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        return self._engine.on_expire(callback)

    def stats(self) -> dict[str, Any]:  # Any: as the engine reports
        return self._engine.stats()

    def check(self) -> CheckReport:
        return self.settled().check()

    def repair(self) -> int:
        return self.settled().repair()

    def backup(self, path: str) -> None:
        self.settled().backup(path)

    def compact(self) -> None:
        self.settled().compact()

    def checkpoint(self) -> None:
        self.settled().checkpoint()

    def sync(self) -> None:
        self.settled().sync()

    def close(self) -> None:
        try:
            if self._written:
                self.settled()
        finally:
            self._engine.close()


def _rows(written: dict[RowKey, Kept]) -> list[tuple[FamilyRef, bytes, Row | None]]:
    return [(family, key, kept[0]) for (family, key), kept in written.items()]


class PendingTicks(Generic[T]):
    """The ticks that have ended, until their writes have arrived; `T` is what is then released.

    `hand_over` calls a function in the thread that all of this belongs to.
    """

    def __init__(
        self,
        engine: Gathered,
        *,
        durable: bool,
        hand_over: Callable[[Callable[[], object]], object],
        release: Callable[[T], object],
        fail: Callable[[EphemeraError, list[T]], object],
    ) -> None:
        self._engine = engine
        self._durable = durable
        self._hand_over = hand_over
        self._release = release
        self._fail = fail
        self._ended: deque[tuple[Underway | None, T]] = deque()

    def __len__(self) -> int:
        return len(self._ended)

    def end(self, held: T, *, has_writes: bool = False) -> None:
        """Let go of what is held once the writes of this tick, and of all before it, have arrived."""
        has_writes = has_writes or self._engine.has_writes
        if not has_writes and not self._ended:
            self._release(held)
            return
        try:
            underway = self._engine.end_tick(durable=self._durable) if has_writes else None
        except EphemeraError as error:
            self._give_up(error, held)
            return
        self._ended.append((underway, held))
        if len(self._ended) == 1:
            self._look()

    def run_cron(self, nothing: T) -> None:
        """Send the writes for which no reply waits, and fail when another writer has taken over, though
        nobody writes here."""
        if self._engine.has_writes:
            self.end(nothing)
        try:
            self._engine.check_writer()
        except EphemeraError as error:
            self._give_up(error)

    def _look(self) -> None:
        while self._ended:
            underway, held = self._ended[0]
            if underway is not None:
                try:
                    has_arrived = underway.go_on()
                except EphemeraError as error:
                    self._give_up(error)
                    return
                if not has_arrived:
                    underway.notify(self._look_later)
                    return
                self._engine.arrived()
            self._ended.popleft()
            self._release(held)

    def _look_later(self) -> None:
        self._hand_over(self._look)

    def _give_up(self, error: EphemeraError, *held: T) -> None:
        unreleased = [*(later for _, later in self._ended), *held]
        self._ended.clear()
        self._fail(error, unreleased)
