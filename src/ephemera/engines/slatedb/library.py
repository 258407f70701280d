"""SlateDB's library: found, checked, and its methods by name; and what its errors mean to a caller.

`METHODS` is everything of it that is waited for. The functions are looked up in the package's own module, whose
converters also read and write the rarer arguments. What is called is held against the interface that `_calls.pyx`
was written for: a checksum of each declaration, which the library carries.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from ephemera.core.errors import (
    CorruptStore,
    EngineUnavailable,
    EphemeraError,
    InvalidArgument,
    StoreClosed,
    StoreFailed,
    StoreFenced,
    TransactionConflict,
    UnsupportedOperation,
)
from ephemera.engines.slatedb._calls import (
    BUFFER,
    HANDLE,
    NOTHING,
    Handle,
    HandleType,
    LibraryCall,
    Method,
    abandon,
    bind,
)

INSTALL = "pip install 'ephemera-kv[slatedb]'"

KINDS = (
    "admin", "db", "dbbuilder", "dbiterator", "dbreader", "dbreaderbuilder", "dbsnapshot",
    "dbtransaction", "writebatch", "writehandle",
)  # fmt: skip

DATABASES = ("db", "dbreader")

# Class and method -> the checksum of its declaration, and what it gives: an object, BUFFER or NOTHING.
METHODS: dict[str, tuple[int, str | int]] = {
    "admin_read_compaction": (50237, BUFFER),
    "admin_read_manifest": (1383, BUFFER),
    "admin_run_gc_once": (14634, NOTHING),
    "admin_submit_compaction": (20337, BUFFER),
    "db_begin": (38869, "dbtransaction"),
    "db_flush_with_options": (27835, NOTHING),
    "db_get_key_value": (35423, BUFFER),
    "db_scan_with_options": (63326, "dbiterator"),
    "db_shutdown_with_options": (54951, NOTHING),
    "db_snapshot": (53137, "dbsnapshot"),
    "db_write": (63711, "writehandle"),
    "dbbuilder_build": (18005, "db"),
    "dbiterator_next_batch": (61234, BUFFER),
    "dbreader_get_key_value": (12260, BUFFER),
    "dbreader_scan_with_options": (27137, "dbiterator"),
    "dbreader_shutdown": (34395, NOTHING),
    "dbreaderbuilder_build": (11741, "dbreader"),
    "dbsnapshot_get_key_value": (58808, BUFFER),
    "dbsnapshot_scan_with_options": (63293, "dbiterator"),
    "dbtransaction_commit": (56426, BUFFER),
    "dbtransaction_delete": (7933, NOTHING),
    "dbtransaction_get_key_value": (51665, BUFFER),
    "dbtransaction_put_with_options": (37260, NOTHING),
    "dbtransaction_rollback": (25213, NOTHING),
    "dbtransaction_scan_with_options": (5569, "dbiterator"),
    "writehandle_await_durable": (2953, NOTHING),
}

# Called at once, not waited for.
CALLED = {
    "db_status": 51988,
    "dbreader_status": 4488,
    "writebatch_delete": 58549,
    "writebatch_put_with_options": 31177,
}

ADDRESSES = {
    "batch_delete": "uniffi_slatedb_uniffi_fn_method_writebatch_delete",
    "batch_new": "uniffi_slatedb_uniffi_fn_constructor_writebatch_new",
    "batch_put": "uniffi_slatedb_uniffi_fn_method_writebatch_put_with_options",
    "buffer_alloc": "ffi_slatedb_uniffi_rustbuffer_alloc",
    "buffer_free": "ffi_slatedb_uniffi_rustbuffer_free",
    **{
        f"future_{step}_{kind}": f"ffi_slatedb_uniffi_rust_future_{step}_{kind}"
        for step in ("poll", "complete", "free")
        for kind in ("void", "u64", "rust_buffer")
    },
}

FENCED = "another writer has taken the store over: this one acknowledges nothing any more"
CLOSED = "the store was closed"
REOPENS = (
    "the next call opens the store again; begin snapshots, transactions and scans anew, and repeat writes "
    "since the last sync() that were not durable"
)
ANSWER_S = 30.0
"""How long a call waits for the object store before it raises EngineUnavailable. SlateDB itself asks again
for as long as it takes, so that its background tasks, whose failure would close it, survive an outage."""
LONG_ANSWER_S = 600.0
"""The same for what moves data without a bound: opening (replay of the log), a checkpoint, garbage collection."""
TOO_OLD = (
    "an object that this read needs is gone: a scan or snapshot may last as long as garbage_age says, "
    "so begin it again"
)


class Library(NamedTuple):
    """The library, bound: its own module, its classes, and its methods."""

    slatedb: ModuleType
    kinds: dict[str, HandleType]
    methods: dict[str, Method]

    # Any: the module has no types of its own, and what is written or read is one of its classes.
    def lower(self, kind: str, value: Any) -> bytes:
        """The bytes of an argument; `kind` is what the module calls its converter."""
        builder = self.slatedb._UniffiRustBufferBuilder()
        getattr(self.slatedb, f"_UniffiFfiConverter{kind}").write(value, builder)
        buffer = builder.finalize()
        try:
            return ctypes.string_at(buffer.data, buffer.len)
        finally:
            buffer.free()

    def lift(self, kind: str, data: bytes) -> Any:
        """The result that these bytes are."""
        stream = self.slatedb._UniffiRustBufferStream(data, len(data))
        return getattr(self.slatedb, f"_UniffiFfiConverter{kind}").read(stream)

    def borrow(self, kind: str, owner: Any) -> Handle:
        """An object of the module as one that `methods` take."""
        return Handle(self.kinds[kind], owner._handle, owner)

    def run(self, method: str, of: Handle, *given: bytes | Handle | int) -> Any:
        """Call a method and wait for what it gives."""
        return wait(self.methods[method](of, *given))

    def run_long(self, method: str, of: Handle, *given: bytes | Handle | int) -> Any:
        """The same for a method that may have much to do."""
        return wait(self.methods[method](of, *given), LONG_ANSWER_S)

    def close_reason(self, of: Handle, *, is_read_only: bool) -> Any:
        """Return why SlateDB has closed a database (a CloseReason), or None while it is open."""
        kind = self.slatedb.DbReader if is_read_only else self.slatedb.Db
        return kind._uniffi_make_instance(of.cloned()).status().close_reason


def wait(call: LibraryCall, limit_s: float | None = None) -> Any:  # Any: as `Method` says
    """Return what a call comes to: everything that this engine ever waits for, it waits for here.

    Raises EngineUnavailable after `limit_s` (ANSWER_S unless given). The call is cancelled then; a write that
    SlateDB already has in memory is still sent when the object store answers again.
    """
    limit_s = ANSWER_S if limit_s is None else limit_s
    if not call.block(limit_s):
        raise EngineUnavailable(
            f"the object store did not answer within {limit_s:g} s: check its endpoint, credentials and the "
            "network, and try again later; a write may still happen"
        )
    return call.result()


@cache
def load() -> Library:
    """The library. Raises UnsupportedOperation where it is not there, or another than is known here."""
    try:
        from slatedb.uniffi._slatedb_uniffi import slatedb
    except ImportError:
        raise UnsupportedOperation(f"this engine needs the package slatedb: {INSTALL}") from None
    functions = slatedb._UniffiLib
    for name, checksum in {**{name: known[0] for name, known in METHODS.items()}, **CALLED}.items():
        declared = getattr(functions, f"uniffi_slatedb_uniffi_checksum_method_{name}", None)
        if declared is None or declared() != checksum:
            raise UnsupportedOperation(
                f"the package slatedb that is installed has another {name} than version 0.17, "
                f"which this engine is for: {INSTALL}"
            )
    os.register_at_fork(after_in_child=_stay_away)
    kinds = {name: _kind(functions, name) for name in KINDS}
    bind({name: _address(functions, symbol) for name, symbol in ADDRESSES.items()}, failure)
    methods = {
        name: Method(
            _address(functions, f"uniffi_slatedb_uniffi_fn_method_{name}"),
            HANDLE if isinstance(gives, str) else gives,
            kinds[gives] if isinstance(gives, str) else None,
        )
        for name, (_, gives) in METHODS.items()
    }
    return Library(slatedb, kinds, methods)


def _stay_away() -> None:
    """A fork takes none of the library's threads along: in the child, nothing of it can be used."""
    abandon()
    _forked.append(True)


_forked: list[bool] = []


def check_threads() -> None:
    """Raises UnsupportedOperation in a process that was forked from one that had used the library."""
    if _forked:
        raise UnsupportedOperation(
            "SlateDB was in use when this process was forked, and its threads stayed behind: "
            "open the store in a process that is spawned, or before any fork in none"
        )


# Any: functions of ctypes, and errors of a module without types.
def _kind(functions: Any, name: str) -> HandleType:
    return HandleType(
        _address(functions, f"uniffi_slatedb_uniffi_fn_clone_{name}"),
        _address(functions, f"uniffi_slatedb_uniffi_fn_free_{name}"),
        is_database=name in DATABASES,
    )


def _address(functions: Any, symbol: str) -> int:
    address = ctypes.cast(getattr(functions, symbol), ctypes.c_void_p).value
    assert address is not None  # a function has one
    return address


def failure(told: bytes | str) -> EphemeraError:
    """What the caller of an operation is told of an error of the library."""
    if isinstance(told, str):
        return StoreFailed(f"SlateDB broke off: {told}; {REOPENS}")
    return explain(load().lift("TypeError", told))


def explain(error: Any) -> EphemeraError:
    """The same of an error that the module raised."""
    slatedb = load().slatedb
    message = getattr(error, "message", str(error))
    if isinstance(error, slatedb.Error.Transaction):
        return TransactionConflict("another writer changed what this one had read")
    if isinstance(error, slatedb.Error.Closed):
        if error.reason is slatedb.CloseReason.FENCED:
            return StoreFenced(FENCED)
        is_clean = error.reason is slatedb.CloseReason.CLEAN
        if is_clean:
            return StoreClosed(CLOSED)
        return StoreFailed(f"SlateDB closed itself: {message}; {REOPENS}")
    if isinstance(error, slatedb.Error.Unavailable):
        return EngineUnavailable(f"the object store does not answer: {message}")
    if isinstance(error, slatedb.Error.Invalid):
        return InvalidArgument(f"SlateDB refuses: {message}")
    if isinstance(error, slatedb.Error.Data):
        if "not found" in message:
            return EngineUnavailable(f"{TOO_OLD}: {message}")
        return CorruptStore("SlateDB's objects", None, message)
    return StoreFailed(f"SlateDB failed: {message}; {REOPENS}")
