from collections.abc import Callable

class Called:
    def __init__(
        self,
        function: Callable[..., object],
        explain: Callable[[object], bytes],
        need: Callable[[int], None],
    ) -> None: ...
    def __call__(self, *arguments: object) -> object: ...
