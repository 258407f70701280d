"""copy: what it prints, how it ends, and that nothing is lost on the way."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ephemera
from ephemera.formats.copying import NOTE_FAMILY
from tests.cli.typing_it import ok, refused, run

YEAR_3000_S = 32_503_680_000.0


@pytest.fixture
def filled(path: Path) -> Path:
    """A closed store with keys of every kind."""
    with ephemera.open(path) as store:
        store.put("permanent", "1")
        store.put("mortal", "2", at=YEAR_3000_S)
        store.family("codes", default_ttl=3600).put("idle", "3", at=YEAR_3000_S, idle=86_400)
    return path


def test_a_copy_says_what_it_did(filled: Path, tmp_path: Path) -> None:
    done = ok("copy", filled, tmp_path / "two", "--verify")
    assert done.text.splitlines() == [
        "copied\t3\t", "dead\t0\t", "caught up\t0\t", "removed\t0\t", "left\t0\t", "different\t0\t",
    ]  # fmt: skip
    with ephemera.open(tmp_path / "two") as two, ephemera.open(filled) as one:
        assert two.entry("mortal") is not None
        assert one.engine.families() == two.engine.families()
        for name in ("default", "codes"):
            theirs = {k: e._replace(ttl=None) for k, e in one.family(name).entries()}
            ours = {k: e._replace(ttl=None) for k, e in two.family(name).entries()}
            assert ours == theirs
        assert two.family("codes").default_ttl == 3600


def test_a_copy_reports_as_json(filled: Path, tmp_path: Path) -> None:
    assert ok("copy", filled, tmp_path / "two", "--json").json == {
        "resumed": False, "copied": 3, "dead": 0, "caught_up": 0, "removed": 0, "left": 0,
        "settled": True, "differences": None,
    }  # fmt: skip


def test_a_second_copy_carries_what_differs(filled: Path, tmp_path: Path) -> None:
    ok("copy", filled, tmp_path / "two")
    ok("put", filled, "new", "4")
    ok("del", filled, "permanent")
    done = ok("copy", filled, tmp_path / "two", "--json").json
    assert (done["copied"], done["caught_up"], done["left"]) == (0, 1, 1)
    done = ok("copy", filled, tmp_path / "two", "--delete", "--verify", "--json").json
    assert (done["removed"], done["differences"]) == (1, 0)


def test_verify_tells_every_difference_and_ends_with_1(filled: Path, tmp_path: Path) -> None:
    ok("copy", filled, tmp_path / "two")
    with ephemera.open(tmp_path / "two") as two:
        two.put("own", "5")
        two.put(b"\xff", "6")
    done = run("copy", filled, tmp_path / "two", "--verify")
    assert done.code == 1
    assert done.text.splitlines()[:2] == ["default own: only in DST", "default \\xff: only in DST"]
    assert "--delete removes" in done.text
    lines = run("copy", filled, tmp_path / "two", "--verify", "--json").lines
    assert lines[0] == {"family": "default", "key": "own", "differs": "only in DST"}
    assert "key_base64" in lines[1]


@pytest.mark.parametrize("given", ["same", "missing source", "plain target", "plain source"])
def test_what_cannot_be_copied_is_refused(filled: Path, tmp_path: Path, given: str) -> None:
    source, target, says = {
        "same": (filled, f"{filled.parent}/./{filled.name}", "the same store"),
        "missing source": (tmp_path / "none", tmp_path / "two", "no store"),
        "plain target": (filled, "redis://u:secret@nowhere/0?values=plain", "a URL without it"),
        "plain source": ("redis://nowhere?values=plain", filled, "ephemera import --from redis"),
    }[given]
    message = refused("copy", source, target)
    assert says in message
    assert "secret" not in message


def test_ctrl_c_and_the_same_command_again(tmp_path: Path) -> None:
    """The real program, interrupted as soon as it has taken its first note."""
    with ephemera.open(tmp_path / "one", durability="none") as store:
        store.put_many({b"%06d" % n: b"v" * 50 for n in range(20_000)}, at=YEAR_3000_S)
    program = (
        "import sys, signal, os\n"
        "from ephemera.formats import transfer\n"
        "from ephemera.cli.main import main\n"
        "transfer.SYNC_RECORDS = 2_000\n"
        "from ephemera.formats.copying import _StoreSource\n"
        "landed = _StoreSource.landed\n"
        "def interrupt(rows):\n"
        "    landed(rows)\n"
        "    if rows.progress()[0] >= 6_000: signal.raise_signal(signal.SIGINT)\n"
        "_StoreSource.landed = interrupt\n"
        "main()\n"
    )
    command = ["copy", str(tmp_path / "one"), str(tmp_path / "two"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "ephemera: interrupted\n")
    with ephemera.open(tmp_path / "two", read_only=True) as two:
        assert NOTE_FAMILY in two.engine.families()
        assert 6_000 <= two.count() < 20_000
    again = ok(*command, "--verify").json
    assert again["resumed"]
    assert (again["copied"], again["differences"]) == (14_000, 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
