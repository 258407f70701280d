"""The coroutines have the names, arguments and defaults of the plain methods, and cannot drift from them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import ephemera
from ephemera import aio
from ephemera import keyspace as plain_keyspace

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (plain_keyspace.Keyspace, aio.Keyspace),
    (ephemera.Family, aio.Family),
    (ephemera.Store, aio.Store),
    (ephemera.Transaction, aio.Transaction),
    (ephemera.Snapshot, aio.Snapshot),
]
AWAITED_OR_ENTERED = {"transaction", "snapshot"}
COMPILED = {"get", "put"}
"""Their annotations are in `_keyspace.pyi`, where the type checker alone sees them."""
METHODS = [
    pytest.param(plain, awaited, name, id=f"{plain.__name__}.{name}")
    for plain, awaited in PAIRS
    for name in dir(plain)
    if not name.startswith("_") and callable(getattr(plain, name))
]


@pytest.mark.parametrize(("plain", "awaited"), PAIRS, ids=lambda each: each.__module__)
def test_both_have_the_same_public_names(plain: type[Any], awaited: type[Any]) -> None:
    def public(kind: type[Any]) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(awaited) == public(plain)


@pytest.mark.parametrize(("plain", "awaited", "name"), METHODS)
def test_both_take_the_same_arguments(plain: type[Any], awaited: type[Any], name: str) -> None:
    def taken(kind: type[Any]) -> list[tuple[object, ...]]:
        _, *parameters = inspect.signature(getattr(kind, name)).parameters.values()
        annotations = [None if name in COMPILED else p.annotation for p in parameters]
        names = [(p.name, p.kind, p.default is p.empty) for p in parameters]
        return list(zip(names, annotations, strict=True))

    def defaults(kind: type[Any]) -> list[object]:
        given = [p.default for p in inspect.signature(getattr(kind, name)).parameters.values()]
        # A marker for "not given" is an object of the module that checks it.
        return [default for default in given if type(default) is not object]

    assert taken(awaited) == taken(plain)
    assert defaults(awaited) == defaults(plain)


@pytest.mark.parametrize(("plain", "awaited", "name"), METHODS)
def test_what_returns_at_once_is_awaited_and_what_is_walked_is_walked(
    plain: type[Any], awaited: type[Any], name: str
) -> None:
    there = str(inspect.signature(getattr(plain, name)).return_annotation)
    here = str(inspect.signature(getattr(awaited, name)).return_annotation)
    is_walk = there.startswith("Iterator[")
    is_coroutine = inspect.iscoroutinefunction(getattr(awaited, name))
    assert is_coroutine == (not is_walk and name not in AWAITED_OR_ENTERED)
    if is_walk:
        assert here == f"Async{there}"
    elif name in AWAITED_OR_ENTERED:
        assert here == f"Beginning[{there}]"
    elif name in COMPILED:
        assert there == str(inspect.Signature.empty) != here
    elif name == "on_expire":
        assert here == "Callable[[], Awaitable[None]]"
    else:
        assert here == re.sub(r"\bplain\.", "", there)


@pytest.mark.parametrize(("plain", "awaited", "name"), METHODS)
def test_every_coroutine_says_what_it_does_in_the_words_of_the_plain_method(
    plain: type[Any], awaited: type[Any], name: str
) -> None:
    there, here = (inspect.getdoc(getattr(kind, name)) or "" for kind in (plain, awaited))
    first = re.split(r"[.;:]", " ".join(there.split()))[0]
    assert " ".join(here.split()).startswith(first)
