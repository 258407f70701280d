"""A file of a live store that somebody cuts off ends its processes, and no write that is elsewhere is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import ephemera
from tests.engines.local.stores import run_python

TRUNCATES = """
    import os, sys
    from pathlib import Path
    import ephemera

    root, name = Path(sys.argv[1]), sys.argv[2]
    store = ephemera.open(root, maintenance="manual", durability="none")
    store.put("kept", "in the base tier")
    store.checkpoint()
    store.put("cut", "in a segment")
    store.get("kept")
    os.truncate(next(root.glob(name)), 0)
    try:
        store.get("kept")
        store.get("cut")
    except BaseException as error:
        print("it was caught:", error)
"""


@pytest.mark.parametrize("name", ["control", "segments/*.seg", "base/*.mdb"])
def test_truncating_a_file_of_a_live_store_ends_the_process(tmp_path: Path, name: str) -> None:
    run = run_python(TRUNCATES, tmp_path / "s.eph", name)
    assert (run.returncode, run.stdout) == (-signal.SIGBUS, ""), run.stderr


def test_a_truncated_control_page_costs_nothing_but_the_process(tmp_path: Path) -> None:
    run_python(TRUNCATES, tmp_path / "s.eph", "control")
    with ephemera.open(tmp_path / "s.eph") as store:
        assert dict(store.scan()) == {b"kept": b"in the base tier", b"cut": b"in a segment"}
