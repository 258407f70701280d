"""The package index has a stranger's package called ephemera: nobody is told to install that one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.house.source import ROOT, name_of, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTION = "ephemera-kv"
INSTALL = re.compile(r"(?:pip|pipx|uv|poetry|pdm) +(?:pip +)?(?:install|add) +([^\n`#;]*)")
FOREIGN = re.compile(r"(?<![\w./-])ephemera(?![\w/-]|\.[a-z])", re.IGNORECASE)
WITH_EXTRAS = re.compile(r"(?<![\w.-])(ephemera[\w-]*)\\?\[([a-z, ]+)\\?\]")
TEXTS = [
    path
    for path in tracked()
    if path.suffix in {".md", ".py", ".pyx", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".sh", ""}
    and path != Path(__file__)
]


def install_lines(text: str) -> list[str]:
    """What a text says to install, as far as it concerns this project wrongly."""
    wrong = [found for found in INSTALL.findall(text) if FOREIGN.search(found)]
    return wrong + [found[0] for found in WITH_EXTRAS.finditer(text) if found[1] != DISTRIBUTION]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_install_line_names_the_distribution(path: Path) -> None:
    assert install_lines(path.read_text(encoding="utf-8", errors="replace")) == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_extra_that_is_named_exists(path: Path) -> None:
    found = WITH_EXTRAS.findall(path.read_text(encoding="utf-8", errors="replace"))
    named = {each.strip() for _, extras in found for each in extras.split(",")}
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("pip install ephemera", True),
        ("pip install ephemera gunicorn", True),
        ("pip install 'ephemera[server]'", True),
        ("uv add ephemera", True),
        ("It needs the extra `ephemera[redis]`.", True),
        ("pip install ephemera-kv gunicorn", False),
        ("pip install 'ephemera-kv[server]'", False),
        ("pip install .", False),
        ("pip install '.[server]'", False),
        ("python -m ephemera.cli.docs", False),
    ],
)
def test_a_wrong_install_line_is_found(line: str, is_wrong: bool) -> None:
    assert bool(install_lines(line)) == is_wrong


def test_the_distribution_has_its_name_and_no_other() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION)
    # In a process of its own: the tests' one has the working directory in its path.
    listed = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlib import metadata; print(metadata.version('ephemera'))",
        ],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PackageNotFoundError" in listed.stderr, f"also installed as ephemera {listed.stdout}"
