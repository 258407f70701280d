"""The full benchmark's runner, tiny: it keeps working, and keeps telling what it must tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import page, targets
from bench.__main__ import main

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
    assert list(results["made"]) == list(results["workloads"])
    grown = [cell["made"] for cells in results["growth"].values() for cell in cells.values()]
    for made in (*results["made"].values(), *grown):
        assert {"cpu", "cores", "kernel", "python"} <= set(made["machine"])
        assert made["commit"]
        assert made["date"]
    assert results["packages"]["ephemera"]
    assert all((made["keys"], made["rounds"]) == (1_000, 1) for made in results["made"].values())
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


def test_the_processor_time_of_a_purge_is_told(tiny: Tiny) -> None:
    done, results = tiny
    assert results["medians"]["purge"]["ephemera"]["detail"]["cpu_us"] > 0
    processor = done.stdout.partition("## Processor time")[2].partition("##")[0]
    assert "| purge " in processor


def test_a_run_can_be_kept_and_makes_the_page(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = tmp_path / "former.json"
    former.write_text(json.dumps(tiny[1]))
    for name in ("RESULTS", "DOCS"):
        monkeypatch.setattr(page, name, tmp_path)
    assert main(["--read", str(former), "--keep"]) == 0
    kept = json.loads((tmp_path / page.KEPT).read_text())
    assert kept["medians"] == tiny[1]["medians"]
    assert kept["growth"] == tiny[1]["growth"]
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "| dict " in text
    assert "of 1 round, 1,000 keys" in text
    assert (tmp_path / "benchmarks/growth-get.svg").exists()


def test_a_tiny_run_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--tiny", "--keep"])
    assert "worth nothing" in capsys.readouterr().err


def test_the_growth_can_be_measured_alone(tmp_path: Path) -> None:
    out = tmp_path / "grown.json"
    asked = ["--tiny", "--parts", "growth", "--growth", "100", "--peers", "ephemera,lmdb"]
    assert main([*asked, "--dir", str(tmp_path), "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["medians"] == {}
    assert set(results["growth"]["100"]) == {"ephemera", "lmdb"}


def test_the_first_reads_of_a_grown_store_are_in_the_verdict_too() -> None:
    cells = {
        str(keys): {"ephemera": {"state": "measured", "made": made, "detail": detail}}
        for keys, made, detail in (
            (100_000, {"date": "monday"}, {"first get": 4.0, "get": 8.0, "put": 1.0}),
            (10_000_000, {"date": "tuesday"}, {"first get": 1.0, "get": 6.0, "put": 1.0}),
        )
    }
    lines = [line for _, line in targets.check({"medians": {}, "growth": cells})]
    (line,) = (line for line in lines if line.startswith("pass  get at 10,000,000"))
    assert "0.75×: 6 against 8 ops/s; the first reads 0.25×: 1 against 4 ops/s" in line
    assert line.endswith("of two runs")
