"""The shape of the source: names, docstrings, sizes, and what may not lie about in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.source import ROOT, files, name_of, tracked, tree_of

FUNCTION_LINES_MAX = 60
NAMELESS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<code>\[[\w, -]+\])?(?P<rest>.*)")

PYTHON = files(".py")
COMPILED = files(".pyx", ".pxd", ".h")
ALL_PYTHON = files(".py", ".pyi", under=ROOT)


@pytest.mark.parametrize("path", files(".py", ".pyx"), ids=name_of)
def test_a_module_opens_with_its_docstring(path: Path) -> None:
    if path.suffix == ".py":
        assert ast.get_docstring(tree_of(path))
    else:
        code = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
        assert code[0].startswith('"""')


@pytest.mark.parametrize("path", PYTHON + COMPILED, ids=name_of)
def test_a_module_has_a_name_that_says_something(path: Path) -> None:
    words = set(re.findall(r"[a-z]+", name_of(path)))
    assert not words & NAMELESS


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_functions_fit_a_screen(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    long = {node.name: lines_of(node) for node in functions if lines_of(node) > FUNCTION_LINES_MAX}
    assert not long


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How long a function is, its docstring aside."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("path", PYTHON + COMPILED, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert UNFINISHED.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", ALL_PYTHON, ids=name_of)
def test_an_ignored_type_error_carries_its_code_and_a_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = TYPE_IGNORE.search(line)
        if found is not None:
            assert found["code"], f"line {number}: which error? {line.strip()}"
            assert found["rest"].strip(" #()"), f"line {number}: why? {line.strip()}"


def test_decisions_are_numbered_one_after_the_other() -> None:
    names = [path.name for path in files(".md", under=ROOT / "docs" / "decisions")]
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in names), names
    assert sorted(int(name[:4]) for name in names) == list(range(1, len(names) + 1))


# Written so that this file does not name what it forbids.
MACHINE_PATH = re.compile(r"(?<![\w.~}*-])/(?:root|work|home/\w+|Users/\w+|opt/\w+)(?:/|\b)")
REGISTRY = re.compile(
    r"py[p]i\.org|python[h]osted\.org|--(?:extra-)?index[-]url|--find[-]links|--trusted[-]host"
)


@pytest.mark.parametrize("path", tracked(), ids=name_of)
def test_no_file_names_a_machine_or_a_registry(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    assert [found.group() for found in MACHINE_PATH.finditer(text)] == []
    assert [found.group() for found in REGISTRY.finditer(text)] == []
