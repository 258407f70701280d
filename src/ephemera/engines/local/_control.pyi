from typing import Self

CONTROL_BYTES: int
CLOCK_OFFSET_AT: int
NAMESPACES_AT: int
NAMESPACES_BYTES: int

class Lock:
    patience: float
    @property
    def is_inconsistent(self) -> bool: ...
    def reattach(self, fd: int) -> None: ...
    def take(self, timeout: float) -> Turn: ...

class Turn:
    is_held: bool
    @property
    def is_ours(self) -> bool: ...
    def leave(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...

class Control:
    writer: Lock
    syncer: Lock
    memory: memoryview
    newest: int
    active: int
    applied: int
    base: int
    families: int
    synced: tuple[int, int]
    map_bytes: int
    full_rows: int
    oldest_reader: tuple[int, int]

    def __init__(
        self,
        memory: object,
        *,
        is_first: bool,
        writer_fd: int = -1,
        syncer_fd: int = -1,
        hash_seed: int = 0,
        size_limit: int = 0,
    ) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def size_limit(self) -> int: ...
    @property
    def hash_seed(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    def keep_if_held(self) -> None: ...
    def supersede_base(self, former: int, generation: int) -> None: ...
    def publish(self) -> None: ...
    def publish_families(self) -> None: ...
    def fail(self) -> None: ...
