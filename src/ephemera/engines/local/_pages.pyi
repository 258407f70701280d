from typing import Self

import lmdb

from ephemera.engines.local._branch_cache import BranchCache
from ephemera.engines.local._mapping import Mapping

class Tree:
    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        mapping: Mapping,
        file_bytes: int,
        name: bytes,
        learned: BranchCache | None = None,
    ) -> None: ...
    @property
    def cache(self) -> BranchCache | None: ...
    @property
    def is_sure(self) -> bool: ...
    def get(self, key: bytes) -> bytes | None: ...
    def abandon(self) -> None: ...

class Walk:
    def __init__(self, tree: Tree, bound: bytes, *, is_reverse: bool) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[bytes, bytes]: ...
