"""The server's benchmark, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from bench.server import COMMANDS
from bench.server_report import RATIOS_AT_LEAST

ROOT = Path(__file__).parents[2]


def test_every_figure_is_told_and_kept(tmp_path: Path) -> None:
    tiny = {
        "rounds": 1,
        "requests": 500,
        "waiting": 10,
        "expiring": 5,
        "seconds": 0.1,
        "reading": 0.2,
    }
    out = tmp_path / "kept.json"
    options = [text for name, value in tiny.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "bench.server", "--dir", str(tmp_path), "--out", str(out), *options],
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
    assert len(re.findall(r"× its processor time", done.stdout)) == len(ratios)
    assert re.search(r"memory of our own ÷ Redis's resident memory: \d+\.\d\d", done.stdout)
    assert re.search(r"p99\.9 with checkpoints ÷ without: \d+\.\d\d", done.stdout)
    kept = json.loads(out.read_text())
    assert kept.keys() >= {
        "date",
        "commit",
        "machine",
        "settings",
        "rates",
        "memory",
        "stalls",
        "delays",
    }
