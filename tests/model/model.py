"""What a store must do, said as plainly as a dictionary can say it.

The model shares nothing with the package but the clock that the test hands to both: it decides by
itself what is dead. Its methods are named like the store's. A `ttl` here is seconds, "never",
"default" or None; what the store refuses with InvalidArgument, the model refuses with ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COUNTER = re.compile(rb"-?[0-9]+")

Pair = tuple[bytes, bytes]
Pairs = list[Pair]
Death = tuple[int, str, bytes, bytes]
"""A dead item as (deadline in ms, family, key, value)."""


@dataclass(frozen=True)
class Life:
    """Until when an item lives, how long it may lie idle, and what no touch can move it past."""

    deadline_ms: int | None = None
    idle_ms: int | None = None
    hard_ms: int | None = None


@dataclass(frozen=True)
class Item:
    value: bytes
    written_ms: int
    life: Life


class FamilyModel:
    """A dictionary that still holds its dead items, and shows only the live ones."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.items: dict[bytes, Item] = {}
        self.default_ttl: float | None = None

    def is_dead(self, item: Item) -> bool:
        return item.life.deadline_ms is not None and item.life.deadline_ms <= self._now_ms()

    def live(self) -> dict[bytes, Item]:
        return {key: item for key, item in self.items.items() if not self.is_dead(item)}

    # --- reading ------------------------------------------------------------------------------

    def get(
        self, key: bytes, default: bytes | None = None, max_age: float | None = None
    ) -> bytes | None:
        item = self.live().get(key)
        if item is None:
            return default
        if max_age is not None and self._now_ms() - item.written_ms > to_ms(max_age):
            return default
        return item.value

    def entry(self, key: bytes) -> tuple[bytes, datetime, datetime | None, float | None] | None:
        item = self.live().get(key)
        if item is None:
            return None
        deadline_ms = item.life.deadline_ms
        deadline = None if deadline_ms is None else instant(deadline_ms)
        return item.value, instant(item.written_ms), deadline, self.ttl(key)

    def ttl(self, key: bytes) -> float | None:
        deadline_ms = self.live()[key].life.deadline_ms
        return None if deadline_ms is None else (deadline_ms - self._now_ms()) / 1000

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return {key: self.live()[key].value for key in keys if key in self.live()}

    def scan(
        self,
        prefix: bytes = b"",
        start: bytes | None = None,
        end: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Pairs:
        found = [
            (key, item.value)
            for key, item in sorted(self.live().items(), reverse=reverse)
            if key.startswith(prefix)
            and (start is None or start <= key)
            and (end is None or key < end)
        ]
        return found[:limit]

    def count(self) -> int:
        return len(self.live())

    # --- writing ------------------------------------------------------------------------------

    def put(
        self,
        key: bytes,
        value: bytes,
        ttl: float | str | None = None,
        at: float | None = None,
        idle: float | None = None,
    ) -> None:
        self.put_many([(key, value)], ttl=ttl, at=at, idle=idle)

    def put_many(
        self,
        pairs: Pairs,
        ttl: float | str | None = None,
        at: float | None = None,
        idle: float | None = None,
    ) -> None:
        life = self._life(ttl, at, idle)
        if any(key == b"" for key, _ in pairs):
            raise ValueError("an empty key")
        for key, value in pairs:
            self.items[key] = Item(value, self._now_ms(), life)

    def touch(
        self,
        key: bytes,
        ttl: float | str | None = None,
        at: float | None = None,
        idle: float | None = None,
    ) -> bool:
        life = self._life(ttl, at, idle)
        item = self.live().get(key)
        if item is None:
            return False
        if ttl is None and at is None and idle is None:
            life = self._renewed(item.life)
        self.items[key] = replace(item, life=life)
        return True

    def persist(self, key: bytes) -> bool:
        return self.touch(key, ttl="never")

    def delete(self, key: bytes) -> bool:
        return self.delete_many([key]) == 1

    def delete_many(self, keys: Iterable[bytes]) -> int:
        there = [key for key in set(keys) if key in self.live()]
        for key in there:
            del self.items[key]
        return len(there)

    def pop(self, key: bytes, *default: bytes | None) -> bytes | None:
        if key not in self.live():
            if not default:
                raise KeyError(key)
            return default[0]
        return self.items.pop(key).value

    def put_if_absent(
        self,
        key: bytes,
        value: bytes,
        ttl: float | str | None = None,
        at: float | None = None,
        idle: float | None = None,
    ) -> bool:
        return self.compare_and_set(key, None, value, ttl=ttl, at=at, idle=idle)

    def compare_and_set(
        self,
        key: bytes,
        expected: bytes | None,
        value: bytes,
        ttl: float | str | None = None,
        at: float | None = None,
        idle: float | None = None,
    ) -> bool:
        life = self._life(ttl, at, idle)
        item = self.live().get(key)
        if self.get(key) != expected:
            return False
        if item is not None and ttl is None and at is None and idle is None:
            life = item.life
        self.items[key] = Item(value, self._now_ms(), life)
        return True

    def incr(self, key: bytes, by: int = 1, ttl: float | str | None = None) -> int:
        life = self._life(ttl, None, None)
        item = self.live().get(key)
        digits = b"0" if item is None else item.value
        if not COUNTER.fullmatch(digits) or not -(2**63) <= int(digits) + by < 2**63:
            raise ValueError("no counter, or out of bounds")
        total = int(digits) + by
        self.items[key] = Item(b"%d" % total, self._now_ms(), life if item is None else item.life)
        return total

    def clear(self) -> None:
        self.items.clear()

    # --- lifetimes ----------------------------------------------------------------------------

    def _life(self, ttl: float | str | None, at: float | None, idle: float | None) -> Life:
        now_ms = self._now_ms()
        hard_ms: int | None
        if at is not None:
            hard_ms = to_ms(at)
        elif ttl == "never":
            hard_ms = None
        elif ttl is None or isinstance(ttl, str):
            hard_ms = None if self.default_ttl is None else now_ms + to_ms(self.default_ttl)
        else:
            hard_ms = now_ms + to_ms(ttl)
        if hard_ms is not None and hard_ms <= now_ms:
            raise ValueError("a deadline that is no later than now")
        if idle is None:
            return Life(hard_ms)
        idle_ms = to_ms(idle)
        return Life(_earlier(now_ms + idle_ms, hard_ms), idle_ms, hard_ms)

    def _renewed(self, life: Life) -> Life:
        if life.idle_ms is not None:
            return replace(life, deadline_ms=_earlier(self._now_ms() + life.idle_ms, life.hard_ms))
        if self.default_ttl is not None:
            return Life(self._now_ms() + to_ms(self.default_ttl))
        return life


class Model:
    """Families by name. A frozen copy of it, with a time of its own, is a snapshot or transaction."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.families: dict[str, FamilyModel] = {}
        self.family("default")

    def family(self, name: str, default_ttl: float | str | None = None) -> FamilyModel:
        family = self.families.setdefault(name, FamilyModel(self._now_ms))
        if default_ttl == "never":
            family.default_ttl = None
        elif default_ttl is not None and not isinstance(default_ttl, str):
            family.default_ttl = default_ttl
        return family

    def drop_family(self, name: str) -> bool:
        return self.families.pop(name, None) is not None

    def frozen(self) -> Model:
        """A copy in which it stays now."""
        instant_ms = self._now_ms()
        copy = Model(lambda: instant_ms)
        for name, family in self.families.items():
            copy.family(name, family.default_ttl).items = dict(family.items)
        return copy

    def adopt(self, other: Model) -> None:
        """HeldLock what the other holds: the commit of a transaction."""
        for name, family in other.families.items():
            self.families[name].items = dict(family.items)

    def dead(self) -> list[Death]:
        """Everything that a purge has to remove, the earliest deadline first."""
        return sorted(
            (item.life.deadline_ms or 0, name, key, item.value)
            for name, family in self.families.items()
            for key, item in family.items.items()
            if family.is_dead(item)
        )

    def bury(self, deaths: Iterable[Death]) -> None:
        for _, name, key, _ in deaths:
            del self.families[name].items[key]


def to_ms(seconds: float) -> int:
    return round(seconds * 1000)


def instant(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _earlier(deadline_ms: int, hard_ms: int | None) -> int:
    return deadline_ms if hard_ms is None else min(deadline_ms, hard_ms)
