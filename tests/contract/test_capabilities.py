"""What an engine says that it can do is what the documentation says, and what it cannot, it refuses in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ephemera import Capability, Store, UnsupportedOperation
from tests.house.source import ROOT

HEAD = "| capability |"


def transact(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put(b"a", b"1")
    assert store.get(b"a") == b"1"


def look(store: Store) -> None:
    with store.snapshot() as snapshot:
        assert snapshot.get(b"a") is None


USES: dict[Capability, Callable[[Store, Path], object]] = {
    Capability.ORDERED_SCAN: lambda store, _: list(store.scan(b"prefix:")),
    Capability.TRANSACTIONS: lambda store, _: transact(store),
    Capability.SNAPSHOTS: lambda store, _: look(store),
    Capability.EXPIRY_EVENTS: lambda store, _: store.on_expire(print),
    Capability.BACKUP: lambda store, place: store.backup(place / "backup"),
}


def documented() -> dict[str, set[str]]:
    """The names of the capabilities of each engine, by the table of the interface's page."""
    lines = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(HEAD))
    engines = [cell.strip(" `") for cell in lines[start].split("|")[2:-1]]
    found: dict[str, set[str]] = {engine: set() for engine in engines}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *answers = (cell.strip() for cell in line.strip("|").split("|"))
        for engine, answer in zip(engines, answers, strict=True):
            assert answer in ("yes", "no")
            if answer == "yes":
                found[engine].add(name.split("`")[1])
    return found


def test_the_documentation_says_what_the_engine_says(store: Store) -> None:
    told = {capability.name for capability in store.capabilities}
    assert documented()[store.engine.name] == told


@pytest.mark.parametrize("capability", Capability, ids=lambda each: each.name)
def test_what_is_there_works_and_what_is_not_is_refused_with_an_alternative(
    store: Store, capability: Capability, tmp_path: Path
) -> None:
    if capability in store.capabilities:
        USES[capability](store, tmp_path)
        return
    with pytest.raises(UnsupportedOperation) as refused:
        USES[capability](store, tmp_path)
    told, _, alternative = str(refused.value).partition(": ")
    assert told == f"the {store.engine.name} engine has no {capability.value}"
    assert len(alternative.split()) >= 3


def test_every_capability_has_a_use_and_a_row_in_the_documentation() -> None:
    assert set(USES) == set(Capability)
    assert documented()["local"] == {capability.name for capability in Capability}
