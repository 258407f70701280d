import lmdb

from ephemera.engines.local._mapping import Mapping
from ephemera.engines.local._signs import Signs

class Tree:
    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        mapping: Mapping,
        file_bytes: int,
        name: bytes,
        learned: Signs | None = None,
    ) -> None: ...
    @property
    def signs(self) -> Signs | None: ...
    @property
    def is_sure(self) -> bool: ...
    def get(self, key: bytes) -> bytes | None: ...
    def abandon(self) -> None: ...
