"""Data flows one way, and so do imports: DESIGN, "The house"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.source import PACKAGE, files, module_of, name_of, own_imports

PUBLIC = "ephemera"
STORE_LAYER = "the store layer"

# What each part of the package may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "engines": {"core"},
    "resp": {"core"},
    "formats": {"core"},
    STORE_LAYER: {"core"},
    "aio": {"core", STORE_LAYER, PUBLIC},
    "server": {"core", "resp", "formats", PUBLIC},
    "patterns": {PUBLIC},
    "integrations": {PUBLIC},
}
COMPOSES = {"cli", "__main__"}

MODULES = files(".py", ".pyi", ".pyx", ".pxd")


def part_of(module: str) -> str:
    """The part of the house that a module belongs to."""
    parts = module.split(".")
    if len(parts) == 1:
        return PUBLIC
    is_lone_module = not (PACKAGE / parts[1]).is_dir()
    if is_lone_module and parts[1] not in COMPOSES:
        return STORE_LAYER
    return parts[1]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    part = part_of(module_of(path))
    if part in COMPOSES:
        return
    wrong = {name for name in own_imports(path) if part_of(name) not in _reach(part, name_of(path))}
    assert not wrong, f"{name_of(path)} belongs to {part} and imports {sorted(wrong)}"


def _reach(part: str, name: str) -> set[str]:
    if part == PUBLIC:
        return {"core", STORE_LAYER}
    assert part in ALLOWED, f"{name}: say in ALLOWED what {part} may import"
    engines = {"engines"} if part == STORE_LAYER else set()  # held to one place below
    return ALLOWED[part] | engines | {part}


def test_engines_are_picked_in_one_place() -> None:
    pickers = {
        name_of(path)
        for path in MODULES
        if part_of(module_of(path)) == STORE_LAYER
        and any(part_of(name) == "engines" for name in own_imports(path))
    }
    assert len(pickers) <= 1, f"engines are imported by {sorted(pickers)}"


def test_every_part_of_the_house_is_known() -> None:
    parts = {part_of(module_of(path)) for path in MODULES}
    assert parts <= ALLOWED.keys() | COMPOSES | {PUBLIC}
