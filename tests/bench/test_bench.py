"""The full benchmark's runner, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import targets

ROOT = Path(__file__).parents[2]

Tiny = tuple["subprocess.CompletedProcess[str]", dict[str, Any]]  # Any: a JSON document


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    place = tmp_path_factory.mktemp("bench")
    out = place / "results.json"
    command = [sys.executable, "-m", "bench", "--tiny", "--dir", str(place), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done, json.loads(out.read_text())


def test_every_workload_gives_a_positive_figure_or_a_declared_dash_for_every_peer(
    tiny: Tiny,
) -> None:
    done, results = tiny
    assert done.returncode == 0, done.stderr
    assert len(results["workloads"]) >= 14
    for workload in results["workloads"]:
        assert set(results["medians"][workload]) == set(results["peers"])
        for peer, cell in results["medians"][workload].items():
            if cell["state"] == "measured":
                assert cell["value"] > 0, (workload, peer)
                assert cell["n"] > 0, (workload, peer)
            else:
                is_missing = not results["peers"][peer]["is_installed"]
                assert cell["state"] == ("missing" if is_missing else "not offered")


def test_our_store_offers_every_workload(tiny: Tiny) -> None:
    _, results = tiny
    states = {
        workload: cells["ephemera"]["state"] for workload, cells in results["medians"].items()
    }
    assert set(states.values()) == {"measured"}, states


def test_results_tell_the_machine_the_commit_and_every_round(tiny: Tiny) -> None:
    _, results = tiny
    assert {"cpu", "cores", "kernel", "python"} <= set(results["machine"])
    assert results["commit"]
    assert results["date"]
    assert results["packages"]["ephemera"]
    assert results["settings"] == {"keys": 1_000, "rounds": 1, "is_tiny": True}
    assert all(cell["round"] == 0 for cell in results["rounds"])


def test_each_peer_declares_what_a_crash_can_lose(tiny: Tiny) -> None:
    done, results = tiny
    for name, peer in results["peers"].items():
        assert peer["killed"]
        assert peer["unpowered"]
        assert f"| {name} " in done.stdout


def test_check_says_pass_or_fail_for_every_target_with_its_figure(
    tiny: Tiny, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(tiny[1]))
    command = [sys.executable, "-m", "bench", "--check", "--read", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    verdicts = [
        line for line in done.stdout.splitlines() if line.startswith(("pass ", "FAIL ", "---- "))
    ]
    assert len(verdicts) == len(targets.TARGETS)
    assert any("put_ttl ≥ 50 × snkv" in line for line in verdicts)
