"""The table of families: which id a name has now, and which ids were given up.

The table is part of the base tier. An id is never used twice; clearing or dropping a family gives
up its id, which makes its rows unreachable at once, and leaves them to the sweeper.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from typing import NamedTuple

from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.keyvalue import family_dropped
from ephemera.engines.local._segment_set import FamilyRef
from ephemera.engines.local.base_tier import BaseFile, BaseWrite, ReadTransaction

_FAMILY = b"family:"
_GIVEN_UP = b"given-up:"
_NEXT_ID = b"next-family-id"
_ENTRY = struct.Struct("<IqI")
_INHERITS = -1


class _Entry(NamedTuple):
    """What the table says of a name. `first_id` is the id that the family was made with."""

    id: int
    default_ttl_ms: int | None
    first_id: int


class Families:
    """The families of a store as this process knows them. A ref is the same object for as long as its
    family is there."""

    def __init__(self) -> None:
        self._refs: dict[str, FamilyRef] = {}
        self._names: dict[int, str] = {}
        self.table: Mapping[str, FamilyRef] = {}
        """Refs that never change: the families as they are now, for views."""

    def load(self, base: BaseFile, txn: ReadTransaction) -> None:
        """Bring every ref up to date with the table."""
        table = {name.decode(): _unpack(stored) for name, stored in base.meta(txn, _FAMILY)}
        refs = {name: self._ref(name, entry) for name, entry in table.items()}
        for name, ref in self._refs.items():
            if refs.get(name) is not ref:
                ref.id = 0  # nobody's: a handle that still has it reports that it was dropped
        self._refs = refs
        self._names = {entry.id: name for name, entry in table.items()}
        self.table = {name: FamilyRef(name, *entry) for name, entry in table.items()}

    def _ref(self, name: str, entry: _Entry) -> FamilyRef:
        ref = self._refs.get(name)
        if ref is None or ref.first_id != entry.first_id:
            return FamilyRef(name, *entry)
        ref.id, ref.default_ttl_ms = entry.id, entry.default_ttl_ms
        return ref

    def get(self, name: str) -> FamilyRef | None:
        return self._refs.get(name)

    def names(self) -> list[str]:
        return sorted(self._refs)

    @property
    def live_ids(self) -> Container[int]:
        return self._names

    @property
    def live_prefixes(self) -> frozenset[bytes]:
        """What the base keys of living families begin with."""
        return frozenset(family_id.to_bytes(4, "big") for family_id in self._names)

    def name_of(self, family_id: int) -> str | None:
        return self._names.get(family_id)


def create(txn: BaseWrite, name: str) -> None:
    """Make a family, with an id that none has had before."""
    family_id = _new_id(txn)
    _set_entry(txn, name, _Entry(family_id, None, family_id))


def clear(txn: BaseWrite, family: FamilyRef) -> None:
    """Give a family another id. Raises InvalidArgument when it was dropped."""
    entry = _entry(txn, family.name)
    if entry is None or entry.first_id != family.first_id:
        raise family_dropped(family.name)
    _give_up(txn, entry.id)
    _set_entry(txn, family.name, entry._replace(id=_new_id(txn)))


def ensure_default(txn: BaseWrite) -> None:
    if _entry(txn, DEFAULT_FAMILY) is None:
        create(txn, DEFAULT_FAMILY)


def exists(txn: BaseWrite, name: str) -> bool:
    return _entry(txn, name) is not None


def drop(txn: BaseWrite, name: str) -> bool:
    old = _entry(txn, name)
    if old is None:
        return False
    _give_up(txn, old.id)
    txn.set_meta(_FAMILY + name.encode(), None)
    return True


def set_default_ttl(txn: BaseWrite, name: str, default_ttl_ms: int | None) -> None:
    entry = _entry(txn, name)
    if entry is not None:
        _set_entry(txn, name, entry._replace(default_ttl_ms=default_ttl_ms))


def live_ids(txn: BaseWrite) -> frozenset[int]:
    """The ids that names have now."""
    return frozenset(_unpack(stored).id for stored in txn.metas(_FAMILY))


def given_up(base: BaseFile, txn: ReadTransaction) -> list[int]:
    """The ids whose rows may still lie in the base tier."""
    return [int(name) for name, _ in base.meta(txn, _GIVEN_UP)]


def forget(txn: BaseWrite, family_id: int) -> None:
    """Nothing is left of a given-up id."""
    txn.set_meta(_GIVEN_UP + b"%d" % family_id, None)


def _entry(txn: BaseWrite, name: str) -> _Entry | None:
    stored = txn.meta(_FAMILY + name.encode())
    return None if stored is None else _unpack(stored)


def _unpack(stored: bytes) -> _Entry:
    family_id, default_ttl_ms, first_id = _ENTRY.unpack(stored)
    return _Entry(family_id, None if default_ttl_ms == _INHERITS else default_ttl_ms, first_id)


def _set_entry(txn: BaseWrite, name: str, entry: _Entry) -> None:
    default_ttl_ms = _INHERITS if entry.default_ttl_ms is None else entry.default_ttl_ms
    stored = _ENTRY.pack(entry.id, default_ttl_ms, entry.first_id)
    txn.set_meta(_FAMILY + name.encode(), stored)


def _new_id(txn: BaseWrite) -> int:
    # 0 is nobody's id.
    family_id = max(1, txn.number(_NEXT_ID))
    txn.set_number(_NEXT_ID, family_id + 1)
    return family_id


def _give_up(txn: BaseWrite, family_id: int) -> None:
    txn.set_meta(_GIVEN_UP + b"%d" % family_id, b"")
