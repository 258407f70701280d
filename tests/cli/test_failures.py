"""What goes wrong is one line that says what to do, and an exit code; never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

import ephemera
from ephemera.cli.main import PANEL_OF
from tests.cli.typing_it import PROGRAM, ok, process, refused, run

NEEDS_A_STORE = sorted(set(PANEL_OF) - {"bench", "import", "put", "restore", "serve", "shell"})


@pytest.mark.parametrize("command", NEEDS_A_STORE)
def test_a_store_that_is_not_there_is_not_made(path: Path, command: str) -> None:
    more: dict[str, list[object]] = {
        "get": ["k"], "ttl": ["k"], "touch": ["k"], "del": ["k"], "backup": [path / "b"],
        "export": [path / "x.rdb"], "copy": [path / "c"],
    }  # fmt: skip
    assert "there is no store" in refused(command, path, *more.get(command, []))
    assert not path.exists()


@pytest.mark.parametrize("command", sorted(PANEL_OF))
def test_an_option_that_is_not_there_points_to_the_help(command: str) -> None:
    assert f"ephemera {command} --help" in refused(command, "--no-such-option")


def test_a_command_that_is_not_there_points_to_the_help() -> None:
    assert "see ephemera --help" in refused("gte", "s.eph")


def test_missing_arguments_are_named() -> None:
    assert "'STORE'" in refused("get")
    assert "'KEY'" in refused("get", "s.eph")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["k", "v", "--ttl", "soon"], "write 90, 1h30m or 2d"),
        (["k", "v", "--ttl", "0"], "must be a positive"),
        (["k", "v", "--at", "tomorrow"], "write 2030-01-31T12:00:00Z"),
        (["k", "v", "--at", "2100-01-01T00:00:00"], "time zone"),
        (["k", r"C:\games"], r"write \\ for a backslash"),
        (["", "v"], "a key has 1 to"),
        (["k", "v", "--family", "__ephemera_x"], "reserved"),
    ],
)
def test_bad_input_is_explained_and_changes_nothing(
    path: Path, given: list[str], told: str
) -> None:
    ok("put", path, "k", "kept")
    assert told in refused("put", path, *given)
    assert ok("scan", path).text == "k\tkept\tnever\n"


def test_what_is_no_store_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    assert "is a file; a store is a directory" in refused("get", file, "k")
    assert "is not empty and no store" in refused("put", tmp_path, "k", "v")
    assert "opened by" in refused("get", "ftp://host/x", "k")


def test_a_damaged_store_is_named(path: Path) -> None:
    ok("put", path, "k", "v")
    (path / "format").write_bytes(b"something else\n")
    assert str(path / "format") in refused("get", path, "k")


def test_a_store_that_a_server_keeps_points_to_the_server(path: Path) -> None:
    with ephemera.open(path, exclusive=True):
        told = refused("get", path, "k")
    assert str(os.getpid()) in told
    assert "shell --port" in told
    assert "redis-cli -p" in told


def test_a_file_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    ok("put", path, "k", "v")
    assert "nowhere" in refused("export", path, tmp_path / "nowhere" / "x.rdb")


def test_a_reader_that_leaves_early_is_no_error(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put_many({f"key{number}": "v" * 100 for number in range(20_000)})
    with process("scan", path) as scanning:
        assert scanning.stdout is not None
        assert scanning.stderr is not None
        assert scanning.stdout.readline().startswith(b"key0\t")
        scanning.stdout.close()
        assert scanning.wait(30) == 0
        assert scanning.stderr.read() == b""


def test_ctrl_c_is_one_line(path: Path) -> None:
    with process("put", path, "k", "-") as waiting:
        assert waiting.stdin is not None
        assert waiting.stderr is not None
        # Its standard input is read once all modules are loaded: a full pipe says so.
        waiting.stdin.write(b"x" * 1_000_000)
        waiting.stdin.flush()
        # A signal between two reads of Python's is noticed with the next one only.
        while waiting.poll() is None:
            waiting.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                waiting.wait(2)
        assert waiting.returncode == 130
        assert waiting.stderr.read() == b"ephemera: interrupted\n"


def test_a_bug_is_one_line_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of all things")

    ok("put", path, "k", "v")
    monkeypatch.setattr(ephemera.Store, "stats", fail)
    assert "this is a bug" in refused("info", path)


def test_without_arguments_the_commands_are_listed() -> None:
    done = run()
    assert done.code == 0
    assert all(f" {name} " in done.text for name in PANEL_OF)


def test_the_module_runs_as_a_program(path: Path) -> None:
    with process("put", path, "k", "v") as running:
        assert running.wait(30) == 0
    assert PROGRAM[-1] == "ephemera.cli.main"
    assert ok("get", path, "k").text == "v\n"
