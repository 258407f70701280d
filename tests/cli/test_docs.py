"""The page of the command line is the one that the commands make, and they start quickly."""

from __future__ import annotations

import os
import subprocess
import sys

from ephemera.cli.docs import page
from ephemera.cli.main import COMPLETION_VARIABLE, PANEL_OF
from tests.cli.typing_it import PROGRAM
from tests.house.source import PACKAGE, ROOT

SHARED = {"__init__", "docs", "failures", "link", "main", "output", "passwords", "process", "program", "prompt", "reader", "redis_source",
          "rendering", "stores", "syntax", "text", "times", "usage"}  # fmt: skip


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(), (
        "python -m ephemera.cli.docs > docs/cli.md"
    )


def test_every_module_is_a_command_or_shared() -> None:
    modules = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    assert len(modules - SHARED) == len(PANEL_OF)


def test_the_shell_completes_commands() -> None:
    done = subprocess.run(
        PROGRAM,
        env={**os.environ, COMPLETION_VARIABLE: "complete_bash", "COMP_WORDS": "ephemera de",
             "COMP_CWORD": "1"},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.split() == ["del", "deadlines"]


def test_get_loads_neither_rich_nor_the_server_nor_formats() -> None:
    program = (
        "import sys; from ephemera.cli.main import main; sys.argv = ['ephemera', 'get', '/x', 'k']\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    loaded = set(done.stdout.split())
    assert "ephemera.cli.get" in loaded
    heavy = {"rich", "prompt_toolkit", "asyncio", "ephemera.server", "ephemera.formats"}
    assert not heavy & loaded
