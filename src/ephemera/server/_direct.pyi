from collections.abc import Callable
from typing import TYPE_CHECKING

from ephemera.core._access import CompiledAccess
from ephemera.core._clock import Now
from ephemera.core._counter import Addition
from ephemera.core.clock import Clock
from ephemera.core.keyvalue import KeyValue
from ephemera.resp.parser import Parser, Request
from ephemera.resp.replies import Reply, Simple
from ephemera.server._latency import Histogram
from ephemera.server.events import Event

if TYPE_CHECKING:
    from ephemera import Family
    from ephemera.server.database import Database
    from ephemera.server.server import OnChange, Server
    from ephemera.server.session import Session
    from ephemera.server.table import Command, Handler

POSTPONED: Simple
OUTPUT_BYTES_PAUSE: int

class ServerCounters:
    changes: int
    hits: int
    misses: int
    input_bytes: int
    output_bytes: int
    listeners: list[OnChange]
    tells_new_keys: bool
    tells_misses: bool
    slow_ns: float
    tracks_latency: bool
    processing_ns_max: float
    paced: CompiledAccess | None
    broadcast: Callable[[], object] | None
    @property
    def now(self) -> Now: ...
    def __init__(self, clock: Clock) -> None: ...
    def send_broadcast(self) -> None: ...

class CommandStats:
    handler: Handler
    direct_arity: int
    calls: int
    failed: int
    rejected: int
    spent_ns: int
    latency: Histogram
    is_write: bool
    def count_run(self, counters: ServerCounters, took_ns: int) -> None: ...
    def reset_counters(self) -> None: ...

class Names:
    def __init__(self, by_name: dict[bytes, Command]) -> None: ...

class Call:
    args: Request
    command: Command
    keys: Database
    server: Server
    session: Session
    def __init__(self, session: Session, command: Command) -> None: ...

class Keys:
    number: int
    space: Family
    @property
    def counters(self) -> Server: ...
    def __init__(
        self, counters: Server, number: int, space: Family, engine: KeyValue | None
    ) -> None: ...
    def put_by_rule(self, key: bytes, value: bytes, ttl_ms: int | None) -> None: ...
    def add_by_rule(self, key: bytes, addition: Addition) -> None: ...
    def peek(self, key: bytes) -> bytes | None: ...
    def get(self, key: bytes) -> bytes | None: ...
    def put(
        self, key: bytes, value: bytes, ttl_ms: int | None = None, event: Event = ...
    ) -> None: ...
    def add(self, key: bytes, step: int) -> Addition: ...

class RequestLoop:
    is_direct: bool
    is_in_place: bool
    is_closing: bool
    has_waiting: bool
    is_postponed: bool
    protocol: int
    active_ms: int
    @property
    def is_processing(self) -> bool: ...
    @property
    def parser(self) -> Parser: ...
    call: Call
    def __init__(
        self,
        counters: Server,
        parser: Parser,
        by_name: dict[bytes, Command],
        names: Names,
    ) -> None: ...
    def answer_specially(self, args: Request) -> tuple[Command | None, Reply]: ...
    def note_read(self, command: Command, args: Request) -> None: ...
    def refuse(self, command: Command, error: Exception) -> Reply: ...
    def postpone(self, args: Request) -> None: ...
    def keep_waiting(self, data: bytes) -> None: ...
    def look_for_error(self) -> None: ...
    def feed(self, data: bytes) -> bytes: ...
    def go_on_with(self, request: Request | None, rest: bytes) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def write_after_this(self, data: bytes) -> None: ...
    @property
    def reply_buffer(self) -> tuple[int, int, int]: ...
