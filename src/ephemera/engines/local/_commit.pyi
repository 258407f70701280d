from collections.abc import Callable

from ephemera.engines.local._control import Control
from ephemera.engines.local._segment import Segment

class GroupCommit:
    syncs: int

    def __init__(
        self,
        control: Control,
        *,
        now_ms: Callable[[], int],
        sync: Callable[[], int],
        sync_alone: Callable[[], int],
        syncs_directly: bool,
        timeout: float,
    ) -> None: ...
    def wait(self, segment: Segment | None, number: int, position: int) -> int: ...
