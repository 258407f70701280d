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
    assert set(done.stderr.splitlines()) == {f"kept in {out}"}
    verdicts = re.findall(
        r"^(?:pass|FAIL)  (\w+ -P \d+) ≥ .* (\d+\.\d+)× \(.* to ", done.stdout, re.MULTILINE
    )
    assert [case for case, _ in verdicts] == [
        f"{command} -P {pipelined}" for pipelined in RATIOS_AT_LEAST for command in COMMANDS
    ]
    assert all(float(ratio) > 0 for _, ratio in verdicts)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("pass", "FAIL"))]
    assert sum(", processor time ≤ " in line for line in lines) == len(COMMANDS)
    for told in ("resident memory", "GET p99.9", "`expired` events, p99"):
        assert sum(told in line for line in lines) == 1
    assert done.returncode == any(line.startswith("FAIL") for line in lines)
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
