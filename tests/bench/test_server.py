"""The server's benchmark, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.server import COMMANDS, RATIOS_AT_LEAST

ROOT = Path(__file__).parents[2]


def test_every_ratio_and_both_delays_are_told(tmp_path: Path) -> None:
    tiny = {"rounds": 1, "requests": 500, "waiting": 10, "expiring": 5, "seconds": 0.1}
    options = [text for name, value in tiny.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "bench.server", "--dir", str(tmp_path), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    ratios = re.findall(r"^(\w+) +-P (\d+) +(\d+\.\d+) × Redis", done.stdout, re.MULTILINE)
    assert [(command, int(pipelined)) for command, pipelined, _ in ratios] == [
        (command, pipelined) for pipelined in RATIOS_AT_LEAST for command in COMMANDS
    ]
    assert all(float(ratio) > 0 for *_, ratio in ratios)
    assert re.findall(r"^(\w+) .*p99 \d+\.\d ms", done.stdout, re.MULTILINE) == [
        "ephemera",
        "redis",
    ]
