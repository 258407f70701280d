from collections.abc import Callable, Collection
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

class OpenFile:
    fd: int
    is_open: bool
    def __init__(self, open: Callable[[], int]) -> None: ...
    def use(
        self, function: Callable[Concatenate[int, P], T], *given: P.args, **named: P.kwargs
    ) -> T: ...
    def close(self) -> None: ...

class LockFile(OpenFile):
    def try_lock(self, *, is_shared: bool) -> bool: ...
    def unlock(self) -> None: ...

def close_inherited(kept: Collection[OpenFile]) -> None: ...
