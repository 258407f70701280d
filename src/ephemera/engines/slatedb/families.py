"""The families of a store: which id a name has now, and which ids were given up.

All of it is one record of the store, so that one read tells a view or a reader everything, and one write
changes it. An id stands before the keys of its family and is never used twice: clearing or dropping a
family gives its id up, which makes its rows unreachable at once and leaves them to be swept.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.errors import CorruptStore, InvalidArgument
from ephemera.core.keyvalue import family_dropped

# Stored; never renumber.
FORMAT = 1
ID_BYTES = 4
OWN_ID = 0
"""Before the store's own records, which belong to no family."""


def prefix_of(family_id: int) -> bytes:
    """What the keys of a family begin with."""
    return family_id.to_bytes(ID_BYTES, "big")


TABLE_KEY = prefix_of(OWN_ID) + b"families"
CLOCK_KEY = prefix_of(OWN_ID) + b"clock"
OWNER_KEY = prefix_of(OWN_ID) + b"owner"
"""Names the writer that has last opened the store, by its `Claim`."""


class SlateFamilyEntry(NamedTuple):
    """What the table says of a name. `first_id` is the id that the family was made with."""

    id: int
    default_ttl_ms: int | None
    first_id: int


@dataclass(slots=True)
class SlateFamilyTable:
    """The record itself."""

    next_id: int = OWN_ID + 1
    families: dict[str, SlateFamilyEntry] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)

    def encode(self) -> bytes:
        """The bytes of the record.

        >>> table = SlateFamilyTable(2, {"default": SlateFamilyEntry(1, None, 1)})
        >>> SlateFamilyTable.decode(table.encode()).families["default"].id
        1
        """
        stored = {
            "format": FORMAT,
            "next_id": self.next_id,
            "families": self.families,
            "given_up": self.given_up,
        }
        return json.dumps(stored, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> SlateFamilyTable:
        """The table of these bytes; None is that of a new store. Raises CorruptStore."""
        if data is None:
            table = cls()
            table.add(DEFAULT_FAMILY)
            return table
        try:
            stored = json.loads(data)
            if stored["format"] != FORMAT:
                raise InvalidArgument(
                    f"the store has format {stored['format']!r}, and this version reads {FORMAT}"
                )
            families = {
                name: SlateFamilyEntry(*entry) for name, entry in stored["families"].items()
            }
            return cls(stored["next_id"], families, list(stored["given_up"]))
        except (LookupError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise CorruptStore(
                "the table of families", None, f"cannot be read: {error!r}"
            ) from None

    def copy(self) -> SlateFamilyTable:
        return SlateFamilyTable(self.next_id, dict(self.families), list(self.given_up))

    def add(self, name: str) -> None:
        """Make a family, unless somebody has just done so."""
        if name in self.families:
            return
        self.families[name] = SlateFamilyEntry(self.next_id, None, self.next_id)
        self.next_id += 1

    def drop(self, name: str) -> bool:
        """Whether it was there."""
        if name not in self.families:
            return False
        self.given_up.append(self.families.pop(name).id)
        return True

    def entry(self, family: SlateFamily) -> SlateFamilyEntry:
        """What it says of a family. Raises InvalidArgument where it is not there."""
        entry = self.families.get(family.name)
        if entry is None or entry.first_id != family.first_id:
            raise family_dropped(family.name)
        return entry

    def clear(self, family: SlateFamily) -> None:
        entry = self.entry(family)
        self.given_up.append(entry.id)
        self.families[family.name] = entry._replace(id=self.next_id)
        self.next_id += 1

    def forget(self, family_id: int) -> None:
        """Nothing is left of an id that was given up."""
        if family_id in self.given_up:
            self.given_up.remove(family_id)

    def set_default_ttl(self, family: SlateFamily, ttl_ms: int | None) -> None:
        self.families[family.name] = self.entry(family)._replace(default_ttl_ms=ttl_ms)


class SlateFamily:
    """A handle of a family. `prefix` is None once it was dropped."""

    __slots__ = ("default_ttl_ms", "first_id", "name", "prefix")

    def __init__(self, name: str, entry: SlateFamilyEntry) -> None:
        self.name = name
        self.first_id = entry.first_id
        self.follow(entry)

    def follow(self, entry: SlateFamilyEntry | None) -> None:
        """Be what the table says now."""
        if entry is None or entry.first_id != self.first_id:
            self.prefix: bytes | None = None
            return
        self.prefix = prefix_of(entry.id)
        self.default_ttl_ms: int | None = entry.default_ttl_ms


class SlateFamilies:
    """The families as this process knows them. A handle is the same object as long as its family is there."""

    def __init__(self, data: bytes | None) -> None:
        self._lock = threading.Lock()
        self._handles: dict[str, SlateFamily] = {}
        self.load(data)

    def load(self, data: bytes | None) -> None:
        """Bring every handle up to date with the record."""
        table = SlateFamilyTable.decode(data)
        with self._lock:
            self.data, self.table = data, table
            for name, handle in list(self._handles.items()):
                handle.follow(table.families.get(name))
                if handle.prefix is None:
                    del self._handles[name]

    def get(self, name: str) -> SlateFamily | None:
        with self._lock:
            handle = self._handles.get(name)
            if handle is None and name in self.table.families:
                handle = self._handles[name] = SlateFamily(name, self.table.families[name])
            return handle
