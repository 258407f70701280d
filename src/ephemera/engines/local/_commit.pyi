from collections.abc import Callable

from ephemera.engines.local._control import Control
from ephemera.engines.local._segment import Segment

class GroupCommit:
    syncs: int

    def __init__(self, control: Control, *, syncs_directly: bool) -> None: ...
    def wait(
        self,
        segment: Segment | None,
        number: int,
        position: int,
        now_ms: int,
        sync: Callable[[], int],
        timeout: float,
    ) -> None: ...
