"""Only core/clock.py and core/_clock.pyx read a clock; no test sleeps."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.source import ROOT, files, name_of, tree_of

CLOCK_MODULES = {"src/ephemera/core/clock.py", "src/ephemera/core/_clock.pyx"}

READINGS = {
    "time": {
        "clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "monotonic",
        "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns",
        "strftime", "thread_time", "thread_time_ns", "time", "time_ns",
    },
    "datetime": {"now", "today", "utcnow"},
    "date": {"today"},
}  # fmt: skip

COMPILED_READINGS = re.compile(
    r"clock_gettime|gettimeofday|mach_absolute_time|timespec_get|\b(?:time|clock)\s*\((?:NULL|&|0|\))"
    r"|posix\.time|libc\.time|__rdtsc"
)

SLEEPS = re.compile(r"\btime\.sleep\b|from time import .*\bsleep\b")
MAY_SLEEP: dict[str, str] = {}  # test file -> why nothing but real time will do


@pytest.mark.parametrize("path", files(".py"), ids=name_of)
def test_python_code_reads_no_clock(path: Path) -> None:
    if name_of(path) not in CLOCK_MODULES:
        found = clock_readings(tree_of(path))
        assert not found, f"{name_of(path)} reads a clock: {', '.join(found)}"


@pytest.mark.parametrize("path", files(".pyx", ".pxd", ".h"), ids=name_of)
def test_compiled_code_reads_no_clock(path: Path) -> None:
    if name_of(path) not in CLOCK_MODULES:
        assert COMPILED_READINGS.findall(path.read_text()) == []


@pytest.mark.parametrize("path", files(".py", under=ROOT / "tests"), ids=name_of)
def test_tests_do_not_sleep(path: Path) -> None:
    sleeps = bool(SLEEPS.search(path.read_text(encoding="utf-8")))
    assert sleeps == (name_of(path) in MAY_SLEEP), (
        f"{name_of(path)}: advance a ManualClock or wait for an event; MAY_SLEEP lists exceptions"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic()",
        "from time import perf_counter as tick\ntick()",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime as dt\ndt.utcnow()",
        "import time\nread = time.time_ns",
    ],
)
def test_the_ban_recognises_a_reading(code: str) -> None:
    assert clock_readings(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    ["from datetime import datetime\ndatetime.fromtimestamp(0)", "clock.now_ms()", "self.time()"],
)
def test_the_ban_lets_other_code_be(code: str) -> None:
    assert not clock_readings(ast.parse(code))


def clock_readings(tree: ast.Module) -> list[str]:
    """Every mention of a function that reads a clock, under whatever name it was imported."""
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    real_names = {
        alias.asname or alias.name: alias.name for node in imports for alias in node.names
    }
    found = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [alias.name for alias in node.names if alias.name in READINGS["time"]]
        elif isinstance(node, ast.Attribute):
            owner = owner_name(node, real_names)
            if node.attr in READINGS.get(owner, set()):
                found.append(f"{owner}.{node.attr} in line {node.lineno}")
    return found


def owner_name(node: ast.Attribute, real_names: dict[str, str]) -> str:
    """What stands before the last dot, by the name it has in its own module."""
    if isinstance(node.value, ast.Attribute):
        return node.value.attr
    return real_names.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
