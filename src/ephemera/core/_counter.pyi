from collections.abc import Callable

from ephemera.core.expiry import Lifetime
from ephemera.core.row import Row

class Addition:
    by: int
    total: int
    is_new: bool
    is_no_number: bool
    is_out_of_range: bool
    def __init__(
        self, by: int, *, life: Callable[[int], Lifetime] | None = None, is_strict: bool = False
    ) -> None: ...
    def on(self, digits: bytes | None) -> bytes | None: ...
    def __call__(self, row: Row | None, now_ms: int) -> Row | None: ...
