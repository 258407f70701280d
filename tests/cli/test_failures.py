"""What goes wrong is one line that says what to do, and an exit code; never a traceback."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ephemera
from ephemera.cli import stores
from ephemera.cli.main import PANEL_OF
from ephemera.formats import files
from tests.cli.typing_it import PROGRAM, ok, process, refused, run
from tests.crash.processes import Peer
from tests.waiting import wait_until

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
        (["k", "v", "--at", "tomorrow"], "write 2030-01-31 or 2030-01-31 12:00 in local time"),
        (["k", "v", "--at", "2030-13-01"], "2030-01-31T12:00:00Z, or seconds since 1970"),
        (["k", "v", "--at", "2001-01-01T00:00:00Z"], "2001-01-01 00:00:00+00:00 has passed"),
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


def test_a_store_that_another_process_keeps_to_itself_names_it(path: Path) -> None:
    ok("put", path, "k", "v")
    with Peer(path, exclusive=True) as owner:
        told = refused("get", path, "k")
    assert f"is open in process {owner.pid} with exclusive=True, which keeps others out" in told
    assert told.endswith("close it there, or end that process")


def test_a_file_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    ok("put", path, "k", "v")
    assert "nowhere" in refused("export", path, tmp_path / "nowhere" / "x.rdb")


def test_a_directory_that_may_not_be_written_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "internal.tmp")

    ok("put", path, "k", "v")
    monkeypatch.setattr(files, "_open_private", denied)
    told = refused("export", path, tmp_path / "x.rdb")
    assert f"{tmp_path / 'x.rdb'} cannot be written: Permission denied" in told
    assert f"the right to write in {tmp_path}, or choose another place" in told
    assert ".tmp" not in told


def test_a_copy_inside_the_store_is_refused(path: Path) -> None:
    ok("put", path, "k", "v")
    assert "lies inside the store" in refused("backup", path, path / "copy")
    assert "lies inside the store" in refused("restore", path, path / "segments" / "copy")
    assert not (path / "copy").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--tls-cert", "missing.pem"], "missing.pem"),
        (["--tls-cert", "text"], "text: no certificate with its key"),
        (["--host", "256.1.1.1"], "256.1.1.1"),
        (["--unixsocket", "nowhere/s.sock"], "nowhere/s.sock"),
        (["--unixsocket", "text"], ": text"),
        (["--unixsocket", "s" * 200], "too long"),
    ],
    ids=str,
)
def test_a_server_that_cannot_start_names_what_is_wrong(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("hello")
    assert told in refused("serve", path, "--port", 0, *args)


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert refused("shell", "--port", port) == (
        f"no server answers at 127.0.0.1:{port} (Connection refused): start one with"
        f" `ephemera serve STORE --port {port}`, or give the --port that it printed"
    )


def test_a_shell_on_a_store_and_on_a_server_at_once_is_refused(path: Path) -> None:
    told = refused("shell", path, "--port", 6379)
    assert told == f"both a store ({path}) and --port 6379 are given: leave one of them out"
    assert "give a store, or --port" in refused("shell")


@pytest.mark.parametrize("name", ["out.txt", "out"])
def test_an_export_names_the_ending_that_it_does_not_know(path: Path, name: str) -> None:
    ok("put", path, "k", "v")
    told = refused("export", path, name)
    assert repr(name) in told
    assert ".rdb, .aof or .jsonl" in told
    assert "--rdb, --aof or --jsonl" in told
    assert "not several" in refused("export", path, "out.rdb", "--rdb", "--aof")


@pytest.mark.parametrize(
    ("args", "given"),
    [
        (["serve", "memory://", "--port", "http"], "'http'"),
        (["serve", "memory://", "--port", "70000"], "70000"),
        (["serve", "memory://", "--durability", "always"], "'always'"),
        (["top", "s.eph", "--interval", "soon"], "'soon'"),
        (["scan", "s.eph", "--limit", "x"], "'x'"),
    ],
    ids=str,
)
def test_a_bad_value_of_an_option_is_shown(args: list[str], given: str) -> None:
    told = refused(*args)
    assert given in told
    assert args[2].split("=")[0] in told


@pytest.mark.parametrize(
    "command", [["get", "k"], ["ttl", "k"], ["touch", "k", "--ttl", "1h"]], ids=lambda each: each[0]
)
def test_what_is_absent_is_null_in_json(path: Path, command: list[str]) -> None:
    ok("put", path, "other", "v")
    done = run(command[0], path, *command[1:], "--json")
    assert (done.code, done.out, done.err) == (1, b"null\n", "")


def test_an_export_to_standard_output_leaves_no_room_for_json(path: Path) -> None:
    ok("put", path, "k", "v")
    assert "give a file" in refused("export", path, "-", "--jsonl", "--json")


def test_two_lifetimes_are_refused_in_the_words_they_were_typed_in(path: Path) -> None:
    told = refused("put", path, "k", "v", "--ttl", "1h", "--at", "2100-01-01T00:00:00Z")
    assert told == "give --ttl or --at, not both (1h and 2100-01-01T00:00:00Z)"
    assert not path.exists()


@pytest.mark.parametrize("interval", ["nan", "inf", "0", "-1"])
def test_top_takes_no_strange_interval(path: Path, interval: str) -> None:
    ok("put", path, "k", "v")
    refused("top", path, "--interval", interval, "--count", "1")


def test_top_takes_no_negative_count(path: Path) -> None:
    ok("put", path, "k", "v")
    refused("top", path, "--count", "-1")


def shell_run(line: str) -> subprocess.CompletedProcess[bytes]:
    """A command with redirections, as it is typed; $E is the program."""
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        timeout=60,
        env=os.environ | {"E": " ".join(PROGRAM)},
    )


@pytest.mark.parametrize(
    ("line", "code", "err"),
    [
        ("$E get s.eph k >&-", 0, ""),
        ("$E scan s.eph --json >&-", 0, ""),
        ("$E scan s.eph --raw >&-", 0, ""),
        ("$E get nosuch.eph k 2>&-", 2, ""),
        ("$E put s.eph k - <&-", 2, "ephemera: standard input is closed: give it something to read\n"),
        ("$E del s.eph - <&-", 2, "ephemera: standard input is closed: give it something to read\n"),
        ("$E shell s.eph <&-", 2, "ephemera: standard input is closed: give it something to read\n"),
        ("$E get s.eph k >/dev/full", 2, "ephemera: No space left on device\n"),
        ("$E del s.eph - </dev/zero", 2, "ephemera: a line of standard input has more than 7601 bytes: "
                                         "one key on each line\n"),
        ("PYTHONIOENCODING=ascii $E scan s.eph", 0, ""),
        ("PYTHONIOENCODING=latin-1 $E scan s.eph --json", 0, ""),
        ("set -o pipefail; $E --help | true", 0, ""),
    ],
)  # fmt: skip
def test_strange_standard_streams(
    path: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, err: str
) -> None:
    monkeypatch.chdir(path.parent)
    ok("put", path, "k", "häß→")
    done = shell_run(line)
    assert (done.returncode, done.stderr.decode()) == (code, err)
    if "ENCODING" in line:
        assert "häß→" in done.stdout.decode()
    assert ok("get", path, "k").text == "häß→\n", "nothing was changed"


def test_a_path_that_is_no_utf8_is_still_json(path: Path, tmp_path: Path) -> None:
    ok("put", path, "k", "v")
    target = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.rdb")
    assert ok("export", path, target, "--json").json["path"] == target


def test_a_value_from_standard_input_has_the_bound_of_a_value(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "VALUE_BYTES_MAX", 10)
    ok("put", path, "k", "-", given=b"x" * 1000)
    assert ok("get", path, "k", "--raw").out == b"x" * 11, (
        "no more is read than shows it is too much"
    )


def test_what_the_library_logs_is_not_printed_besides(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        logging.getLogger("ephemera").warning("closing: no room")
        raise ephemera.StoreFull("no room")

    ok("put", path, "k", "v")
    monkeypatch.setattr(ephemera.Store, "compact", fail)
    assert refused("compact", path) == "no room"


def test_ctrl_c_while_the_program_loads_is_one_line(path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from ephemera.cli import main\n"
        "def interrupted(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        "main.import_module = interrupted\n"
        f"sys.argv = ['ephemera', 'get', {str(path)!r}, 'k']\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"ephemera: interrupted\n")


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


def is_asleep(pid: int) -> bool:
    """Whether a process with one thread waits for something."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_ctrl_c_is_one_line(path: Path) -> None:
    with process("put", path, "k", "-") as waiting:
        assert waiting.stdin is not None
        assert waiting.stderr is not None
        # Its standard input is read once all modules are loaded: a full pipe says so.
        waiting.stdin.write(b"x" * 1_000_000)
        waiting.stdin.flush()
        wait_until(lambda: is_asleep(waiting.pid))
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


@pytest.mark.parametrize("module", ["ephemera", "ephemera.cli.main"])
def test_the_version_is_printed(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ephemera {ephemera.__version__}\n"
