"""The guard on instructions per operation: it counts what it says, and names what grew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench import counted, guard
from bench.counted import WORK

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts")


def test_growth_beyond_the_tolerance_fails_and_names_its_workload() -> None:
    verdicts = guard.compare({"get": 100, "put": 100}, {"get": 105, "put": 106}, 0.05)
    assert [is_met for is_met, _ in verdicts] == [True, False]
    assert verdicts[1][1].startswith("FAIL  put ")
    assert "+6.0%" in verdicts[1][1]


def test_a_workload_that_got_cheaper_passes() -> None:
    assert guard.compare({"get": 100}, {"get": 10}, 0.05)[0][0]


def test_a_workload_that_nothing_is_kept_of_fails() -> None:
    assert not guard.compare({}, {"get": 100}, 0.05)[0][0]


def test_the_kept_counts_are_of_every_workload() -> None:
    kept = json.loads(guard.KEPT.read_text())
    assert list(kept["instructions"]) == list(WORK)
    assert all(counted > 0 for counted in kept["instructions"].values())


def test_a_build_names_the_compilers_of_its_modules() -> None:
    module = b"\0_cython_3_3_1.generator\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0"
    made = {"compiler": "GCC: (Debian 12.2.0-14+deb12u1) 12.2.0", "cython": "3.3.1"}
    assert guard.compilers(module) == made
    assert set(guard.compilers(b"").values()) == {"unknown"}
    assert set(made) <= set(guard.build())


@pytest.mark.parametrize("workload", WORK)
def test_the_work_that_is_counted_is_done(workload: str) -> None:
    counted.main(workload, "100")


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"unknown: shout; there are put, "):
        guard.main(["--workloads", "shout"])


@needs_valgrind
def test_counts_of_another_build_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "guard.json"
    build = guard.build() | {"python": "2.7"}
    kept.write_text(json.dumps({"build": build, "instructions": {"get": 1}}))
    assert guard.main(["--workloads", "get", "--file", str(kept)]) == 2
    assert "another build" in capsys.readouterr().out


@needs_valgrind
def test_instructions_are_counted_and_held_against_the_kept_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "guard.json"
    kept.write_text(json.dumps({"build": guard.build(), "instructions": {"put": 7, "get": 7}}))
    assert guard.main(["--workloads", "get", "--many", "1000", "--keep", "--file", str(kept)]) == 0
    assert str(kept) in capsys.readouterr().out
    counted = json.loads(kept.read_text())["instructions"]
    assert list(counted) == ["put", "get"], "what was kept of this build stays"
    assert 200 < counted["get"] < 20_000
    ((is_met, line),) = guard.compare(
        {"get": 0.8 * counted["get"]}, {"get": counted["get"]}, guard.TOLERANCE
    )
    assert not is_met
    assert line.startswith("FAIL  get ")
