import lmdb

from ephemera.engines.local._mapping import Mapping

class Tree:
    def __init__(
        self, txn: lmdb.Transaction[bytes], mapping: Mapping, file_bytes: int, name: bytes
    ) -> None: ...
    @property
    def is_sure(self) -> bool: ...
    def get(self, key: bytes) -> bytes | None: ...
