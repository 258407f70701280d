"""A store that moves what was written to the base tier before every so many operations.

The same tests then prove their behaviour on rows that left the segments. Inside a transaction it
holds still: a checkpoint there would wait for the writer lock, which the block itself holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import ephemera


class _Pace:
    """Counts operations, and checkpoints before each `every`th one."""

    def __init__(self, store: ephemera.Store, every: int) -> None:
        self._store = store
        self._every = every
        self._operations = 0
        self.transactions = 0

    def step(self) -> None:
        self._operations += 1
        if self.transactions == 0 and self._operations % self._every == 0:
            with suppress(ephemera.ReadOnly, ephemera.StoreClosed):
                self._store.checkpoint()


class CheckpointingStore:
    """Stands before a Store, a Family or a Snapshot and behaves like it."""

    def __init__(
        self, inner: Any, pace: _Pace
    ) -> None:  # Any: one of three classes, passed through
        self._inner = inner
        self._pace = pace

    @classmethod
    def over(cls, store: ephemera.Store, *, every: int) -> ephemera.Store:
        return cast(ephemera.Store, cls(store, _Pace(store, every)))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return self._paced(attribute) if callable(attribute) else attribute

    def family(self, *given: Any, **named: Any) -> CheckpointingStore:
        self._pace.step()
        return CheckpointingStore(self._inner.family(*given, **named), self._pace)

    @contextmanager
    def snapshot(self) -> Iterator[CheckpointingStore]:
        self._pace.step()
        with self._inner.snapshot() as snapshot:
            yield CheckpointingStore(snapshot, self._pace)

    @contextmanager
    def transaction(self, *given: Any, **named: Any) -> Iterator[ephemera.Transaction]:
        self._pace.step()
        with self._inner.transaction(*given, **named) as transaction:
            self._pace.transactions += 1
            try:
                yield transaction
            finally:
                self._pace.transactions -= 1

    def __enter__(self) -> CheckpointingStore:
        self._inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> Any:
        return self._inner.__exit__(*raised)

    def __getitem__(self, key: Any) -> Any:
        return self._paced(self._inner.__getitem__)(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._paced(self._inner.__setitem__)(key, value)

    def __delitem__(self, key: Any) -> None:
        self._paced(self._inner.__delitem__)(key)

    def __contains__(self, key: Any) -> bool:
        return bool(self._paced(self._inner.__contains__)(key))

    def __iter__(self) -> Iterator[bytes]:
        return cast(Iterator[bytes], self._paced(self._inner.__iter__)())

    def __len__(self) -> int:
        return cast(int, self._paced(self._inner.__len__)())

    def __bool__(self) -> bool:
        return bool(self._inner)

    def _paced(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def step_then_call(*given: Any, **named: Any) -> Any:
            self._pace.step()
            return operation(*given, **named)

        return step_then_call
