"""The benchmark of the Redis engine, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_ratios_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.redis_engine", "--keys", "20", "--rounds", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    ratios = re.findall(r"^(\w+) +of 20 keys: .*ratio (\d+\.\d+)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in ratios] == ["put_many", "get_many"]
    assert all(float(ratio) > 0 for _, ratio in ratios)
