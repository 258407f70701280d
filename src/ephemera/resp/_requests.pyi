class Limits:
    bulk_bytes_max: int
    buffer_bytes_max: int
    is_trusted: bool
    def __init__(
        self, bulk_bytes_max: int = ..., buffer_bytes_max: int = ..., is_trusted: bool = True
    ) -> None: ...

class PlainParser:
    limits: Limits
    request: list[bytes]
    held: int
    awaited: int
    is_inside: bool
    missing: int
    def __init__(self, limits: Limits) -> None: ...
    def feed(self, data: bytes) -> list[list[bytes]]: ...
    def read_exactly(self, data: bytes) -> int: ...
