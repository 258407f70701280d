"""What the house rules look at: the files of the repository, and the imports in them."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "ephemera"
GENERATED = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist"}


@cache
def tracked() -> list[Path]:
    """Every file that git keeps or would keep; without git, every file that nothing generates."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if not _is_generated(path.relative_to(ROOT))]
    return sorted(path for path in paths if path.is_file())


def _is_generated(path: Path) -> bool:
    parts = set(path.parts)
    return bool(
        parts & GENERATED
        or "__pycache__" in parts
        or path.parts[0].startswith(".venv")
        or any(part.endswith(".egg-info") for part in parts)
        or path.suffix == ".so"
    )


def files(*suffixes: str, under: Path = PACKAGE) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes and path.is_relative_to(under)]


def name_of(path: Path) -> str:
    """A path as messages show it."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def own_imports(path: Path) -> set[str]:
    """The modules of ours that this file imports, wherever in the file it does."""
    if path.suffix in (".pyx", ".pxd"):
        found = re.findall(
            r"^\s*(?:from|cimport|import)\s+(ephemera[\w.]*)", path.read_text(), re.MULTILINE
        )
        return set(found)
    return {name for name in _imports(tree_of(path)) if name.split(".")[0] == "ephemera"}


def _imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.update(_imported_from(node.module, alias.name) for alias in node.names)
    return found


def _imported_from(module: str, name: str) -> str:
    """`from package import module` means the module, `from module import name` the module too."""
    inner = SRC.joinpath(*module.split("."), name)
    is_module = inner.is_dir() or any(inner.with_suffix(s).exists() for s in (".py", ".pyx"))
    return f"{module}.{name}" if is_module else module
