"""The server's benchmark, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import load, stalls
from bench.server import PARTS
from bench.server_targets import CPU_AT_MOST, RATIOS_AT_LEAST

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
    assert [case for case, _ in verdicts] == list(RATIOS_AT_LEAST)
    assert all(float(ratio) > 0 for _, ratio in verdicts)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("pass", "FAIL"))]
    assert sum(", processor time ≤ " in line for line in lines) == len(CPU_AT_MOST)
    for told in ("resident memory", "GET p99.9 ≤", "GET p99.9, told ≤", "`expired` events, p99"):
        assert sum(told in line for line in lines) == 1
    assert done.returncode == any(line.startswith("FAIL") for line in lines)
    kept = json.loads(out.read_text())
    assert list(kept) == list(PARTS)
    assert all({"date", "commit", "machine"} == set(part["made"]) for part in kept.values())
    ping = kept["rates"]["found"]["PING -P 16"]
    assert set(ping) == {"ephemera", "redis", "redis (in memory)"}
    assert all(ping["ephemera"][0][f"{rank}_ms"] > 0 for rank in ("p50", "p95", "p99", "max"))
    assert kept["memcached"]["found"]["SET -P 16"]["memcached"][0]["rate"] > 0


def test_keys_die_beside_the_reads_and_checkpoints_make_the_difference(tmp_path: Path) -> None:
    found = stalls.compare(tmp_path, rounds=1, seconds=1.5)
    for case in stalls.CASES:
        checked, unchecked = (found[case][name][0] for name in (stalls.CHECKED, stalls.UNCHECKED))
        assert checked["dead"] > 0
        assert unchecked["dead"] > 0
        assert unchecked["checkpoints"] == 0


def test_a_load_of_a_run_has_early_and_late_deaths() -> None:
    ttls = [load.ttl_ms(number) for number in range(10_000)]
    assert ttls.count(load.STAY_MS) == 5_000
    for first, last in (load.EARLY_MS, load.LATE_MS):
        assert sum(first <= ttl < last for ttl in ttls) == 2_500


def test_reads_beside_writes_end_before_writers_wait(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="s at most, not 60"):
        stalls.compare(tmp_path, rounds=1, seconds=60)
