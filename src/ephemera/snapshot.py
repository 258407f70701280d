"""A snapshot: consistent reads and scans at one instant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Self

from ephemera.core import forks
from ephemera.core.arguments import check_family_name
from ephemera.core.errors import InvalidArgument, ReadOnly, StoreClosed
from ephemera.core.keyvalue import FamilyRef, KeyValue, Range, View
from ephemera.core.row import Row
from ephemera.keyspace import Keyspace


class Frozen:
    """The access of a snapshot: reads one view at its one instant, and refuses every write."""

    end = "the snapshot was closed"

    def __init__(self, view: View) -> None:
        self._view: View | None = view
        self._fork_generation = forks.generation

    @property
    def is_open(self) -> bool:
        return self._view is not None

    def open_view(self) -> View:
        view = self._view  # read once: another thread may close it at any moment
        if view is None:
            raise StoreClosed(self.end)
        if self._fork_generation != forks.generation:
            raise StoreClosed(forks.INHERITED)
        return view

    def now_ms(self) -> int:
        return self.open_view().now_ms

    def family(self, name: str) -> FamilyRef:
        """The family of this name in this view. Raises InvalidArgument when there is none."""
        ref = self.open_view().family(check_family_name(name))
        if ref is None:
            raise InvalidArgument(
                f"there is no family {name!r} here: create it with store.family({name!r}) before"
            )
        return ref

    def get(self, family: FamilyRef, key: bytes, now_ms: int, /) -> bytes | None:
        row = self.row(family, key, now_ms)
        return None if row is None else row.value

    def row(self, family: FamilyRef, key: bytes, now_ms: int) -> Row | None:
        return self.open_view().row(family, key)

    def scan(
        self, family: FamilyRef, bounds: Range, now_ms: int | None
    ) -> Iterator[tuple[bytes, Row]]:
        return self._while_open(self.open_view().scan(family, bounds))

    def count(self, family: FamilyRef, now_ms: int) -> int:
        return sum(1 for _ in self.scan(family, Range(), now_ms))

    # Any: of whatever was given, nothing is looked at.
    def put(self, *_given: Any, **_named: Any) -> None:
        self._refuse()

    def delete(self, *_given: Any, **_named: Any) -> bool:
        self._refuse()

    def write(self, *_given: Any, **_named: Any) -> None:
        self._refuse()

    def update(self, *_given: Any, **_named: Any) -> None:
        self._refuse()

    def clear(self, *_given: Any, **_named: Any) -> None:
        self._refuse()

    def close(self) -> None:
        view = self._view
        if view is None:
            return
        try:
            view.close()
        except InvalidArgument:
            raise  # refused, in a thread that did not begin it: it is still open
        except BaseException:
            self._view = None
            raise
        self._view = None

    def _while_open(self, rows: Iterator[tuple[bytes, Row]]) -> Iterator[tuple[bytes, Row]]:
        self.open_view()
        for pair in rows:
            yield pair
            self.open_view()

    def _refuse(self) -> NoReturn:
        self.open_view()
        raise ReadOnly("a snapshot only reads; write through the store")


class Snapshot(Keyspace):
    """The store as it was at one instant, made by `store.snapshot()`; close it when done.

    It reads the `default` family; `family(name)` reads another. What was alive at its instant stays
    readable in it, and `ttl` counts from there.

    >>> import ephemera
    >>> store = ephemera.open("memory://")
    >>> store.put("name", "ada")
    >>> with store.snapshot() as snap:
    ...     store.put("name", "bob")
    ...     snap.get("name")
    b'ada'
    """

    __slots__ = ("__weakref__", "_frozen")

    def __init__(self, engine: KeyValue, ref: FamilyRef, store_ttl_ms: int | None) -> None:
        self._frozen = Frozen(engine.snapshot())
        super().__init__(self._frozen, ref, self._frozen, store_ttl_ms)

    def family(self, name: str) -> Keyspace:
        """Another family at the same instant. Raises InvalidArgument when there was none.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.family("sessions").put("ada", "{}")
        >>> with store.snapshot() as snap:
        ...     snap.family("sessions").get("ada")
        b'{}'
        """
        ref = self._frozen.family(name)
        return Keyspace(self._frozen, ref, self._frozen, self._store_ttl_ms)

    def close(self) -> None:
        """Let the snapshot go. Closing twice is fine.

        >>> import ephemera
        >>> snap = ephemera.open("memory://").snapshot()
        >>> snap.close()
        >>> snap.get("name")
        Traceback (most recent call last):
        ephemera.core.errors.StoreClosed: the snapshot was closed
        """
        self._frozen.close()

    def __enter__(self) -> Self:
        self._frozen.open_view()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
