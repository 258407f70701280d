from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from ephemera.core.clock import Clock
from ephemera.core.row import Row
from ephemera.engines.local._segment import Cut

CHUNK_KEYS: int

class _Base(Protocol):
    is_closed: bool

class _State(Protocol):
    @property
    def base(self) -> _Base: ...
    def must_be_open(self) -> None: ...
    def close(self) -> None: ...

def merged_rows(
    cut: Cut,
    below: Iterator[tuple[bytes, bytes]],
    start: bytes,
    end: bytes,
    is_reverse: bool,
    errors: AbstractContextManager[object],
) -> Generator[tuple[bytes, Row]]: ...
def live_rows(
    state: _State, rows: Iterator[tuple[bytes, Row]], clock: Clock, now_ms: int | None
) -> Generator[tuple[bytes, Row]]: ...
