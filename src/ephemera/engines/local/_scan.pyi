from collections.abc import Iterator
from typing import Protocol, Self

from ephemera.core.clock import Clock
from ephemera.core.row import Row
from ephemera.engines.local._pages import Tree
from ephemera.engines.local._segment import Cut

class Closable:
    is_closed: bool

class _State(Protocol):
    cut: Cut
    @property
    def base(self) -> Closable: ...
    @property
    def tree(self) -> Tree | None: ...
    def ask(self, start: bytes, end: bytes, is_reverse: bool) -> Iterator[tuple[bytes, bytes]]: ...
    def must_be_open(self) -> None: ...
    def close(self) -> None: ...

class Scan:
    def __init__(
        self,
        state: _State,
        start: bytes,
        end: bytes,
        *,
        is_reverse: bool,
        clock: Clock | None,
        now_ms: int | None,
        ends_state: bool,
    ) -> None: ...
    def pairs(self) -> Iterator[tuple[bytes, bytes]]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[bytes, Row]: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
