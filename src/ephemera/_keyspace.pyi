from collections.abc import Callable, Iterator
from typing import TypeVar, overload

from ephemera.core.arguments import BytesLike
from ephemera.core.clock import Clock
from ephemera.core.expiry import AtLike, Lifetime, Seconds, TtlLike
from ephemera.core.keyvalue import Access, FamilyRef
from ephemera.core.row import Row

T = TypeVar("T")

class OneKey:
    @property
    def _access(self) -> Access: ...
    @property
    def _ref(self) -> FamilyRef: ...
    @property
    def _now_ms(self) -> Callable[[], int]: ...
    @property
    def _store_ttl_ms(self) -> int | None: ...
    def __init__(
        self, access: Access, ref: FamilyRef, clock: Clock, store_ttl_ms: int | None
    ) -> None: ...
    @overload
    def get(
        self, key: BytesLike, default: None = None, max_age: Seconds | None = None
    ) -> bytes | None: ...
    @overload
    def get(self, key: BytesLike, default: T, max_age: Seconds | None = None) -> bytes | T: ...
    def put(
        self,
        key: BytesLike,
        value: BytesLike,
        *,
        ttl: TtlLike = None,
        at: AtLike = None,
        idle: Seconds | None = None,
        durable: bool | None = None,
    ) -> None: ...
    def _lifetime(self, now_ms: int, ttl: object, at: object, idle: object) -> Lifetime: ...

def pairs_of(
    rows: Iterator[tuple[bytes, Row]],
) -> Iterator[tuple[bytes, bytes]]: ...
