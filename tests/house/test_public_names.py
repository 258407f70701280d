"""The public names are part of the contract: changing this file is changing it."""

from __future__ import annotations

import pytest

import ephemera

NAMES = [
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

STORE_METHODS = [
    "backup",
    "check",
    "checkpoint",
    "clear",
    "close",
    "compact",
    "compare_and_set",
    "count",
    "delete",
    "delete_many",
    "drop_family",
    "entries",
    "entry",
    "families",
    "family",
    "get",
    "get_many",
    "incr",
    "next_deadlines",
    "on_expire",
    "persist",
    "pop",
    "purge_expired",
    "put",
    "put_if_absent",
    "put_many",
    "repair",
    "scan",
    "snapshot",
    "stats",
    "sync",
    "touch",
    "transaction",
    "ttl",
]

STORE_OPERATORS = [
    "__contains__",
    "__delitem__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__setitem__",
]


def test_the_package_exports_exactly_these_names() -> None:
    assert sorted(ephemera.__all__) == sorted(NAMES)


def test_every_exported_name_exists() -> None:
    assert all(hasattr(ephemera, name) for name in ephemera.__all__)


@pytest.mark.parametrize("name", STORE_METHODS + STORE_OPERATORS)
def test_a_store_has(name: str) -> None:
    assert callable(getattr(ephemera.Store, name))
