"""The benchmark of the SlateDB engine, tiny: it runs, and says what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.slatedb import main


def test_it_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--keys", "500", "--rounds", "1", "--seconds", "0.2", "--requests", "2000"]
    assert main([*arguments, "--dir", str(tmp_path)]) in (0, 1)
    printed = capsys.readouterr().out
    assert [name in printed for name in ("put_many", "64 threads / 1", "SET/s")] == [True] * 3
