"""The protocol of an engine. The rules about deadlines live above it, once, in the store.

An engine keeps rows in families. What it returns is alive at the `now_ms` it was given; what it is
given to write was checked before. It knows four kinds of access:

    get, row, scan        read, without waiting for any writer
    put, delete, write    write blindly, all or nothing
    update                read one key and write it, with nobody in between
    begin                 hold the writer lock, read a consistent view, write once at the end
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ephemera.core._access import CompiledAccess
from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument, UnsupportedOperation
from ephemera.core.expiry import is_dead
from ephemera.core.row import Row


class Capability(enum.Enum):
    """What an engine may or may not be able to do."""

    ORDERED_SCAN = "ordered scans"
    TRANSACTIONS = "transactions over several keys"
    SNAPSHOTS = "snapshots"
    EXPIRY_EVENTS = "expiry events"
    BACKUP = "backup to a directory"


def unsupported(engine: str, capability: Capability, alternative: str) -> UnsupportedOperation:
    """What an engine raises that is asked for a capability it does not have.

    >>> unsupported("memory", Capability.BACKUP, "open a store at a path")
    UnsupportedOperation('the memory engine has no backup to a directory: open a store at a path')
    """
    return UnsupportedOperation(f"the {engine} engine has no {capability.value}: {alternative}")


class Waits(enum.Enum):
    """What the operations of an engine wait for, for whoever must not wait: see `ephemera.aio`."""

    FOR_WRITERS = "writes wait for the writer lock or the disk, and reads of a key for nothing"
    FOR_REPLIES = "every operation waits for something beyond this machine"


NO_DEFAULT_TTL_MS = 0
"""As a family's `default_ttl_ms`: its keys take no default, not even the store's."""


class FamilyRef(Protocol):
    """An engine's handle of a family. It stays good when the family is cleared, not when dropped: then
    every use of it raises InvalidArgument, also when another family was made under the same name.

    `default_ttl_ms` is None where the store's default holds; see also `NO_DEFAULT_TTL_MS`.
    """

    @property
    def name(self) -> str: ...
    @property
    def default_ttl_ms(self) -> int | None: ...


def family_dropped(name: str) -> InvalidArgument:
    """What a handle of a family that is gone raises."""
    return InvalidArgument(
        f"the family {name!r} was dropped: make it anew with store.family({name!r})"
    )


class Write(NamedTuple):
    """One key's part of a batch: the row to store, or None to delete."""

    family: FamilyRef
    key: bytes
    row: Row | None


class Range(NamedTuple):
    """Which keys a scan visits: `start` is in it, `end` is not."""

    start: bytes = b""
    end: bytes | None = None
    is_reverse: bool = False

    def holds(self, key: bytes) -> bool:
        return self.start <= key and (self.end is None or key < self.end)


def prefix_range(
    prefix: bytes, start: bytes, end: bytes | None, *, is_reverse: bool = False
) -> Range:
    """The keys with this prefix that lie between `start` and `end`.

    >>> prefix_range(b"a:", b"", None)
    Range(start=b'a:', end=b'a;', is_reverse=False)
    """
    after = prefix_end(prefix)
    low = max(prefix, start)
    high = after if end is None else end if after is None else min(after, end)
    return Range(low, high, is_reverse)


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys with this prefix; None when there is no such key."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def living(
    rows: Iterable[tuple[bytes, Row]], now: Callable[[], int], check_open: Callable[[], object]
) -> Iterator[tuple[bytes, Row]]:
    """Those that are alive when they are handed out, while the store is open."""
    check_open()
    for key, row in rows:
        if not is_dead(row.deadline_ms, now()):
            yield key, row
            check_open()


class Expired(NamedTuple):
    """What `on_expire` callbacks are told: a key, its family, its last value, and when it died."""

    family: str
    key: bytes
    value: bytes
    deadline_ms: int


class CheckReport(NamedTuple):
    """What `check()` walked, and every disagreement it found."""

    rows: int
    index_entries: int
    records: int
    problems: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not self.problems


Change = Callable[[Row | None, int], Row | None]
"""From the live row (or None) and the instant of the change to the row to store: the same object
keeps it, None deletes it. The instant is read under the writer lock, so waiting for it ages nothing."""


class View(Protocol):
    """A consistent state at one `now_ms`, until closed."""

    @property
    def now_ms(self) -> int: ...
    def family(self, name: str) -> FamilyRef | None:
        """The family of this name in this state, whatever became of it since."""
        ...

    def row(self, family: FamilyRef, key: bytes) -> Row | None: ...
    def scan(self, family: FamilyRef, bounds: Range) -> Iterator[tuple[bytes, Row]]: ...
    def close(self) -> None: ...


class WriteTransaction(View, Protocol):
    """The writer lock with the view it reads; `commit` writes and ends it, `close` only ends it."""

    def commit(self, writes: Sequence[Write], *, durable: bool | None) -> None: ...


class Access(Protocol):
    """The operations on the keys of a family: an engine has them, a transaction and a snapshot too.

    A compiled one may also offer them to compiled callers: as `compiled`, a `CompiledAccess` of
    `core/_access.pyx`.

    `durable` is True, False, or None for what the store was opened with.
    """

    def get(self, family: FamilyRef, key: bytes, now_ms: int, /) -> bytes | None: ...
    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None: ...
    def scan(
        self, family: FamilyRef, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        """Rows in key order, of one consistent state. Without `now_ms` an engine holds each row
        against the clock when it is yielded, so that a slow caller is never handed a dead one; a
        transaction or snapshot goes by its one instant.

        The iterator may have a method `pairs`: then that is an iterator over keys and values, for
        whoever needs no rows."""
        ...

    def count(self, family: FamilyRef, now_ms: int) -> int: ...

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
    ) -> None: ...
    def delete(self, family: FamilyRef, key: bytes, *, durable: bool | None) -> bool: ...
    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None: ...
    def update(
        self, family: FamilyRef, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        """Apply `change` to the live row, with no other write in between. An optimistic engine may
        call it again; only the last call counts."""
        ...

    def clear(self, family: FamilyRef) -> None: ...


@runtime_checkable
class Bulk(Protocol):
    """An access for which many keys in one call are cheaper than one after the other."""

    def get_many(self, family: FamilyRef, keys: Sequence[bytes], now_ms: int) -> dict[bytes, bytes]:
        """The values of those that are alive."""
        ...

    def delete_many(self, family: FamilyRef, keys: Sequence[bytes], *, durable: bool | None) -> int:
        """How many were there. All go at once if the engine has transactions."""
        ...


@runtime_checkable
class BulkPuts(Protocol):
    """An access that takes many values of one lifetime as they are, without a row for each."""

    def put_many(
        self,
        family: FamilyRef,
        values: dict[bytes, bytes],
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        *,
        durable: bool | None,
    ) -> None:
        """Store all of them, or none."""
        ...


class Underway(Protocol):
    """Writes that are on their way, for who must not wait for them."""

    def go_on(self) -> bool:
        """Whether they are as safe as they were to be. Raises what has become of them otherwise."""
        ...

    def notify(self, callback: Callable[[], object]) -> None:
        """Have `callback` called, in any thread, when `go_on` is to be asked again, which it may not do
        itself; it may be now."""
        ...

    def settle(self) -> None:
        """Return when everybody reads them, whether they are safe yet or not."""
        ...


@runtime_checkable
class Gathers(Protocol):
    """An engine that nobody else writes to, and that takes many writes at once much sooner than one by one."""

    def write_soon(
        self, writes: Sequence[tuple[FamilyRef, bytes, Row | None]], *, durable: bool
    ) -> Underway:
        """Let writes happen after all before them, all or none; without any, be told when those are safe."""
        ...

    def check_writer(self) -> None:
        """Raises StoreFenced when another writer has taken over."""
        ...


@runtime_checkable
class FallsBehind(Protocol):
    """An engine whose writers may have to wait until it has caught up: for one of them, who must not wait."""

    compiled: CompiledAccess

    @property
    def patience(self) -> float:
        """For how many seconds they wait."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether they have to wait now."""
        ...

    def hasten(self) -> bool:
        """Have it catch up soon; False where there is no room for that, and they wait in vain."""
        ...

    def go_on_here(self) -> bool:
        """Let this thread never wait for that from now on, but be refused where it is `nonblocking`; whether that
        can be. It asks `is_behind` before it begins with a command, so that none stops in its middle."""
        ...


class KeyValue(Access, Protocol):
    """An engine."""

    name: str
    clock: Clock
    capabilities: frozenset[Capability]
    waits: Waits
    is_read_only: bool

    def snapshot(self) -> View: ...
    def begin(self) -> WriteTransaction: ...

    def family(self, name: str, *, create: bool) -> FamilyRef | None: ...
    def set_default_ttl(self, family: FamilyRef, ttl_ms: int | None) -> None: ...
    def families(self) -> list[str]: ...
    def drop_family(self, name: str) -> bool: ...

    def purge_expired(self, *, limit: int | None, batch: int) -> int: ...
    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]: ...

    def stats(self) -> dict[str, Any]:  # Any: each engine reports what it has to tell
        ...

    def check(self) -> CheckReport: ...
    def repair(self) -> int: ...
    def backup(self, path: str) -> None: ...
    def compact(self) -> None: ...
    def checkpoint(self) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
