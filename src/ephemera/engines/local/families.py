"""The table of families: which id a name has now, and which ids were given up.

The table is part of the base tier. An id is never used twice; clearing or dropping a family gives
up its id, which makes its rows unreachable at once, and leaves them to the sweeper.
"""

from __future__ import annotations

import struct
from collections.abc import Container

from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.engines.local._stack import FamilyRef
from ephemera.engines.local.base_tier import BaseFile, BaseWrite, ReadTransaction

_FAMILY = b"family:"
_GIVEN_UP = b"given-up:"
_NEXT_ID = b"next-family-id"
_ENTRY = struct.Struct("<Iq")
_INHERITS = -1


class Families:
    """The families of a store as this process knows them. Refs stay the same objects for ever."""

    def __init__(self) -> None:
        self._refs: dict[str, FamilyRef] = {}
        self._gone: dict[str, FamilyRef] = {}
        self._names: dict[int, str] = {}

    def load(self, base: BaseFile, txn: ReadTransaction) -> None:
        """Bring every ref up to date with the table."""
        table = {name.decode(): _ENTRY.unpack(stored) for name, stored in base.meta(txn, _FAMILY)}
        for name, (family_id, default_ttl_ms) in table.items():
            default = None if default_ttl_ms == _INHERITS else default_ttl_ms
            ref = self._refs.get(name) or self._gone.pop(name, None)
            if ref is None:
                ref = FamilyRef(name, family_id, default)
            ref.id, ref.default_ttl_ms = family_id, default
            self._refs[name] = ref
        for name in self._refs.keys() - table.keys():
            self._gone[name] = self._refs.pop(name)
            # No row has this id, so a ref of a dropped family reads as empty.
            self._gone[name].id = 0
        self._names = {ref.id: name for name, ref in self._refs.items()}

    def get(self, name: str) -> FamilyRef | None:
        return self._refs.get(name)

    def names(self) -> list[str]:
        return sorted(self._refs)

    def ids(self) -> dict[str, int]:
        """The table as it is now, for a view that must not change."""
        return {name: ref.id for name, ref in self._refs.items()}

    @property
    def live_ids(self) -> Container[int]:
        return self._names

    @property
    def live_prefixes(self) -> frozenset[bytes]:
        """What the base keys of living families begin with."""
        return frozenset(family_id.to_bytes(4, "big") for family_id in self._names)

    def name_of(self, family_id: int) -> str | None:
        return self._names.get(family_id)


def create(txn: BaseWrite, name: str, default_ttl_ms: int | None) -> None:
    """Give a name a new id; the id it had is given up."""
    old = _entry(txn, name)
    if old is not None:
        _give_up(txn, old[0])
    # 0 is nobody's id.
    family_id = max(1, txn.number(_NEXT_ID))
    txn.set_number(_NEXT_ID, family_id + 1)
    _set_entry(txn, name, family_id, default_ttl_ms)


def ensure_default(txn: BaseWrite) -> None:
    if _entry(txn, DEFAULT_FAMILY) is None:
        create(txn, DEFAULT_FAMILY, None)


def exists(txn: BaseWrite, name: str) -> bool:
    return _entry(txn, name) is not None


def drop(txn: BaseWrite, name: str) -> bool:
    old = _entry(txn, name)
    if old is None:
        return False
    _give_up(txn, old[0])
    txn.set_meta(_FAMILY + name.encode(), None)
    return True


def set_default_ttl(txn: BaseWrite, name: str, default_ttl_ms: int | None) -> None:
    entry = _entry(txn, name)
    if entry is not None:
        _set_entry(txn, name, entry[0], default_ttl_ms)


def live_ids(txn: BaseWrite) -> frozenset[int]:
    """The ids that names have now."""
    return frozenset(_ENTRY.unpack(stored)[0] for stored in txn.metas(_FAMILY))


def given_up(base: BaseFile, txn: ReadTransaction) -> list[int]:
    """The ids whose rows may still lie in the base tier."""
    return [int(name) for name, _ in base.meta(txn, _GIVEN_UP)]


def forget(txn: BaseWrite, family_id: int) -> None:
    """Nothing is left of a given-up id."""
    txn.set_meta(_GIVEN_UP + b"%d" % family_id, None)


def _entry(txn: BaseWrite, name: str) -> tuple[int, int | None] | None:
    stored = txn.meta(_FAMILY + name.encode())
    if stored is None:
        return None
    family_id, default_ttl_ms = _ENTRY.unpack(stored)
    return family_id, None if default_ttl_ms == _INHERITS else default_ttl_ms


def _set_entry(txn: BaseWrite, name: str, family_id: int, default_ttl_ms: int | None) -> None:
    stored = _ENTRY.pack(family_id, _INHERITS if default_ttl_ms is None else default_ttl_ms)
    txn.set_meta(_FAMILY + name.encode(), stored)


def _give_up(txn: BaseWrite, family_id: int) -> None:
    txn.set_meta(_GIVEN_UP + b"%d" % family_id, b"")
