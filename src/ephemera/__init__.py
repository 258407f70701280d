"""Durable storage for data with a deadline: a key-value store where every key may carry one.

>>> import ephemera
>>> clock = ephemera.ManualClock()
>>> store = ephemera.open("memory://", clock=clock)
>>> store.put("code:ada", "492817", ttl=300)
>>> store.get("code:ada")
b'492817'
>>> clock.advance(300)
>>> store.get("code:ada") is None
True
"""

from ephemera.core.clock import Clock, ManualClock
from ephemera.core.errors import (
    AccessDenied,
    CorruptStore,
    EngineUnavailable,
    EphemeraError,
    InvalidArgument,
    NewerFormat,
    ReadOnly,
    ResourcesExhausted,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    StoreFenced,
    StoreFull,
    StoreLocked,
    TransactionConflict,
    UnsupportedOperation,
)
from ephemera.core.expiry import Ttl
from ephemera.core.keyvalue import Capability, CheckReport, Expired
from ephemera.family import Family
from ephemera.keyspace import Entry
from ephemera.snapshot import Snapshot
from ephemera.store import Store, open
from ephemera.transaction import Transaction

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Capability",
    "CheckReport",
    "Clock",
    "CorruptStore",
    "EngineUnavailable",
    "Entry",
    "EphemeraError",
    "Expired",
    "Family",
    "InvalidArgument",
    "ManualClock",
    "NewerFormat",
    "ReadOnly",
    "ResourcesExhausted",
    "Snapshot",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreFailed",
    "StoreFenced",
    "StoreFull",
    "StoreLocked",
    "Transaction",
    "TransactionConflict",
    "Ttl",
    "UnsupportedOperation",
    "__version__",
    "open",
]
