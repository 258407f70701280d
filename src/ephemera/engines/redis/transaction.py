"""A transaction on one server: what it read is remembered, and the commit holds if all of it is still so.

The commit is one script, so it compares everything and writes everything with nobody in between. What the
block read may be of different instants while it runs; if so, the commit finds it out and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ephemera.core.errors import TransactionConflict
from ephemera.core.keyvalue import Capability, Range, Write, unsupported
from ephemera.core.row import Row
from ephemera.core.writer_gate import TransactionToken
from ephemera.engines.redis.families import RedisFamily
from ephemera.engines.redis.swap import ANYTHING, DELETE, LEAVE, NOTHING, Known, Swap, exactly

if TYPE_CHECKING:
    from ephemera.engines.redis.engine import RedisEngine


class RedisTransaction:
    """The writer gate of this store's threads, held by a token, and what was read meanwhile."""

    def __init__(self, engine: RedisEngine, now_ms: int, token: TransactionToken) -> None:
        self._engine = engine
        self.now_ms = now_ms
        self._token = token
        self._read: dict[bytes, bytes | None] = {}  # as it was, by native key

    def family(self, name: str) -> RedisFamily | None:
        return self._engine.family(name, create=False)

    def row(self, family: RedisFamily, key: bytes) -> Row | None:
        native = self._engine.native(family, key)
        if native not in self._read:
            self._read[native] = self._engine.read_data(native)
        return self._engine.layout.row(native, (self._read[native],), self.now_ms)

    def scan(self, family: RedisFamily, bounds: Range) -> Iterator[tuple[bytes, Row]]:
        raise unsupported(
            self._engine.name,
            Capability.ORDERED_SCAN,
            "nor count and clear inside a transaction, where it cannot tell which keys came "
            "meanwhile; name the keys, or do it outside",
        )

    def commit(self, writes: Sequence[Write], *, durable: bool | None) -> None:
        """Write everything if nothing that was read has changed, and release the writer gate.

        Raises TransactionConflict when something has.
        """
        try:
            swaps = self._swaps(writes)
            if not self._engine.swap(swaps):
                raise TransactionConflict(
                    "another writer changed what this transaction had read: try the block again"
                )
        finally:
            self.close()

    def close(self) -> None:
        self._engine.writer_gate.release(self._token)

    def _swaps(self, writes: Sequence[Write]) -> list[Swap]:
        acts = {}
        for write in writes:
            assert isinstance(write.family, RedisFamily)  # our own
            native = self._engine.native(write.family, write.key)
            row = write.row
            acts[native] = DELETE if row is None else self._engine.layout.act(write.key, row, None)
        return [
            Swap(native, self._known(native), acts.get(native, LEAVE))
            for native in dict.fromkeys([*self._read, *acts])
        ]

    def _known(self, native: bytes) -> Known:
        if native not in self._read:
            return ANYTHING
        data = self._read[native]
        return NOTHING if data is None else exactly(data)
