"""What both layouts have in common: every operation as commands, each with what a lost answer means.

    get, row, get_many, scan, count     read; asked again until answered
    put, write                          repeated: storing the same rows twice is storing them once
    delete, update, commit, families    not repeated once sent: EngineUnavailable says that nobody knows
    purge_expired, sweeping             not repeated, and harmless to call again

What no Redis can do is refused here, with what to do instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

from ephemera.core.clock import Clock, SteadyClock
from ephemera.core.errors import ReadOnly, UnsupportedOperation
from ephemera.core.expiry import duration_ms, is_dead
from ephemera.core.keyvalue import (
    Capability,
    Change,
    Expired,
    Range,
    Waits,
    Write,
    unsupported,
)
from ephemera.core.options import Options
from ephemera.core.row import Row
from ephemera.core.writer_gate import WriterGate
from ephemera.engines.redis.families import RedisFamily
from ephemera.engines.redis.layout import KeyLayout, set_command
from ephemera.engines.redis.routing import Patience, Request, Router, read, swap_request
from ephemera.engines.redis.settings import RedisSettings
from ephemera.engines.redis.swap import DELETE, NOTHING, Swap, exactly
from ephemera.engines.redis.walking import KeyWalk

L = TypeVar("L", bound=KeyLayout)


class Operations(ABC, Generic[L]):
    """Rows on one server or a cluster, whatever their layout."""

    capabilities: frozenset[Capability] = frozenset()
    waits = Waits.FOR_REPLIES
    clock: Clock

    def __init__(self, settings: RedisSettings, options: Options, layout: L) -> None:
        if options.exclusive:
            raise UnsupportedOperation(
                "redis keeps nobody out, so exclusive=True promises too much: "
                "give the store a prefix, a database or a server of its own"
            )
        self.name = "redis+cluster" if settings.is_cluster else "redis"
        self.is_read_only = options.read_only
        self.layout = layout
        self.settings = settings
        self.router = Router(settings)
        self.writer_gate = WriterGate(duration_ms(options.lock_timeout, name="lock_timeout"))
        self.walk = KeyWalk(self.router, layout)

    @abstractmethod
    def native(self, family: RedisFamily, key: bytes) -> bytes:
        """The key as Redis has it. Raises InvalidArgument when the family was dropped."""

    @abstractmethod
    def named(self, family: RedisFamily) -> Iterator[tuple[bytes, bytes]]:
        """Every key of a family with its native one, in the order of the keys."""

    # --- reading ------------------------------------------------------------------------------

    def get(self, family: RedisFamily, key: bytes, now_ms: int, /) -> bytes | None:
        self.check_open()
        native = self.native(family, key)
        return self.layout.value(native, self.read_data(native), now_ms)

    def get_many(
        self, family: RedisFamily, keys: Sequence[bytes], now_ms: int
    ) -> dict[bytes, bytes]:
        self.check_open()
        natives = [self.native(family, key) for key in keys]
        replies = self.router.run([Request(native, ((b"GET", native),)) for native in natives])
        value = self.layout.value
        found = (
            (key, value(native, data, now_ms))
            for key, native, (data,) in zip(keys, natives, replies, strict=True)
        )
        return {key: data for key, data in found if data is not None}

    def row(self, family: RedisFamily, key: bytes, now_ms: int) -> Row | None:
        self.check_open()
        return self._read_row(self.native(family, key), now_ms)[0]

    def scan(
        self, family: RedisFamily, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        self.check_open()
        if bounds != Range():
            raise unsupported(
                self.name,
                Capability.ORDERED_SCAN,
                "it would read all keys to find some; scan() visits all, or open a store at a path",
            )
        return self._visit(family, now_ms)

    def _visit(self, family: RedisFamily, now_ms: int | None) -> Iterator[tuple[bytes, Row]]:
        """All rows in the order of their keys, each as it is when it is reached."""
        self.check_open()
        keys = {native: key for key, native in self.named(family)}
        seen_ms = self.clock.now_ms() if now_ms is None else now_ms
        for native, row in self.walk.rows(keys, seen_ms):
            at_ms = self.clock.now_ms() if now_ms is None else now_ms
            if not is_dead(row.deadline_ms, at_ms):
                yield keys[native], row
                self.check_open()
        self.check_open()

    def read_data(self, native: bytes) -> bytes | None:
        data: bytes | None = self.router.ask(read(native, b"GET", native))
        return data

    def _read_row(self, native: bytes, now_ms: int) -> tuple[Row | None, bytes | None]:
        """The live row under a key, and the bytes that are there, dead or alive."""
        requests = [Request(native, (command,)) for command in self.layout.reads(native)]
        replies = tuple(reply for (reply,) in self.router.run(requests))
        return self.layout.row(native, replies, now_ms), replies[0]

    def time_of_day(self) -> SteadyClock:
        """The system's clock, which goes on from a server's if that is ahead."""
        seconds, micros = self.router.ask(read(b"", b"TIME"))
        clock = SteadyClock()
        clock.never_before(int(seconds) * 1000 + int(micros) // 1000)
        return clock

    # --- writing ------------------------------------------------------------------------------

    def put(
        self,
        family: RedisFamily,
        key: bytes,
        value: bytes,
        written_ms: int,
        deadline_ms: int,
        idle_ms: int,
        hard_ms: int,
        durable: bool | None,
        /,
    ) -> None:
        self.check_writable()
        native = self.native(family, key)
        act = self.layout.act(key, Row(value, written_ms, deadline_ms, idle_ms, hard_ms), None)
        self.router.ask(Request(native, (set_command(native, act),), is_write=True))

    def write(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        """All or nothing on one server; on a cluster each key by itself."""
        self.check_writable()
        commands = dict(map(self._write_command, writes))
        if self.settings.is_cluster or len(commands) < 2:
            self.router.run(
                [Request(native, (one,), is_write=True) for native, one in commands.items()]
            )
        else:
            together = ((b"MULTI",), *commands.values(), (b"EXEC",))
            self.router.run([Request(next(iter(commands)), together, is_write=True)])

    def _write_command(self, write: Write) -> tuple[bytes, tuple[bytes, ...]]:
        assert isinstance(write.family, RedisFamily)  # our own
        native = self.native(write.family, write.key)
        if write.row is None:
            return native, (b"UNLINK", native)
        return native, set_command(native, self.layout.act(write.key, write.row, None))

    def update(
        self, family: RedisFamily, key: bytes, change: Change, *, durable: bool | None
    ) -> None:
        self.check_writable()
        patience = Patience(self.router)
        while True:
            native = self.native(family, key)
            now_ms = self.clock.now_ms()
            old, data = self._read_row(native, now_ms)
            new = change(old, now_ms)
            if new is old:
                return
            act = DELETE if new is None else self.layout.act(key, new, old)
            known = NOTHING if data is None else exactly(data)
            if self.swap([Swap(native, known, act)]):
                return
            patience.after_conflict(f"the key {key!r}")

    def swap(self, swaps: Sequence[Swap]) -> bool:
        """Change keys of one server or slot if all are as they were; whether they were."""
        self.check_open()
        return bool(self.router.ask(swap_request(swaps)))

    def delete(self, family: RedisFamily, key: bytes, *, durable: bool | None) -> bool:
        return self.delete_many(family, [key], durable=durable) == 1

    @abstractmethod
    def delete_many(
        self, family: RedisFamily, keys: Sequence[bytes], *, durable: bool | None
    ) -> int:
        """How many were there: all go at once on one server, on a cluster each by itself."""

    # --- what no Redis does -------------------------------------------------------------------

    def snapshot(self) -> NoReturn:
        self.check_open()
        raise unsupported(
            self.name,
            Capability.SNAPSHOTS,
            "it keeps no older state; read with get_many, or copy the store to a path",
        )

    def on_expire(self, callback: Callable[[Expired], object]) -> NoReturn:
        self.check_open()
        raise unsupported(
            self.name,
            Capability.EXPIRY_EVENTS,
            "Redis forgets a value before it tells of its death; open a store at a path, or listen "
            "to the keyspace events of the server",
        )

    def backup(self, path: str) -> NoReturn:
        self.check_open()
        raise unsupported(
            self.name, Capability.BACKUP, "let the server BGSAVE, or export the store"
        )

    # --- housekeeping -------------------------------------------------------------------------

    def compact(self) -> None:
        """The memory is the server's to look after."""
        self.check_writable()

    def checkpoint(self) -> None:
        """There is no base tier."""
        self.check_writable()

    def sync(self) -> None:
        """All that was acknowledged is with the server, whose settings decide what it survives."""
        self.check_open()

    def close(self) -> None:
        self.router.close()

    def check_open(self) -> None:
        self.router.check_open()

    def check_writable(self) -> None:
        """Return when a write may go ahead."""
        self.check_not_read_only()
        self.writer_gate.wait_until_free()

    def check_not_read_only(self) -> None:
        self.check_open()
        if self.is_read_only:
            raise ReadOnly("the store was opened with read_only=True")
