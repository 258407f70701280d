"""A family: an ordered map with its own default TTL, straight on the engine."""

from __future__ import annotations

from collections.abc import Iterable

from ephemera.core.arguments import BytesLike, check_durable
from ephemera.core.keyvalue import Bulk, FamilyRef, KeyValue
from ephemera.keyspace import Keyspace, encode_keys
from ephemera.transaction import begin


class Family(Keyspace):
    """One of the store's maps, made by `store.family(name)`.

    >>> import ephemera
    >>> store = ephemera.open("memory://", clock=ephemera.ManualClock())
    >>> sessions = store.family("sessions", default_ttl=1800)
    >>> sessions.put("ada", "{}")
    >>> sessions.ttl("ada")
    1800.0
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: KeyValue, ref: FamilyRef, store_ttl_ms: int | None) -> None:
        super().__init__(engine, ref, engine.clock, store_ttl_ms)
        self._engine = engine

    @property
    def name(self) -> str:
        return self._ref.name

    @property
    def default_ttl(self) -> float | None:
        """The seconds that keys live when nothing is said; None: they are permanent."""
        ttl_ms = self._default_ttl_ms()
        return None if ttl_ms is None else ttl_ms / 1000

    def delete_many(self, keys: Iterable[BytesLike], *, durable: bool | None = None) -> int:
        # The engine deletes blindly in a batch; to count what was there needs the writer lock.
        wanted = encode_keys(keys)
        check_durable(durable)
        if isinstance(self._engine, Bulk):
            return self._engine.delete_many(self._ref, wanted, durable=durable)
        with begin(self._engine, durable=durable) as pending:
            return sum(pending.delete(self._ref, key, durable=None) for key in wanted)

    def __repr__(self) -> str:
        return f"<Family {self.name!r}>"
