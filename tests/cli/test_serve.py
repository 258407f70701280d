"""`ephemera serve` as people start and stop it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ephemera
from ephemera.cli.serve import PORT, PORTS_TRIED
from tests.cli.typing_it import ok, refused, run
from tests.server.clients import wire

COMMAND = [sys.executable, "-m", "ephemera.cli.main", "serve"]


def start(*args: object) -> tuple[subprocess.Popen[str], int]:
    """A running server, and the port that it said."""
    server = subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    found = re.search(r"redis://127\.0\.0\.1:(\d+)", server.stdout.readline())
    assert found is not None
    assert server.stdout.readline().startswith("try: redis-cli ")
    return server, int(found[1])


def ask(port: int, *args: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(wire(*args))
        return connection.recv(1000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_everything_kept(tmp_path: Path, number: int) -> None:
    path = tmp_path / "data" / "s.eph"
    server, port = start(path, "--port", 0)
    assert ask(port, "SET", "a", "1", "EX", "1000") == b"+OK\r\n"
    server.send_signal(number)
    assert server.communicate(timeout=30) == ("", "")
    assert server.returncode == 0
    with ephemera.open(path) as store:
        assert store.get("a") == b"1"
        assert store.ttl("a") is not None


def test_its_password_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    (tmp_path / "secret").chmod(0o600)
    server, port = start(tmp_path / "s.eph", "--port", 0, "--requirepass-file", tmp_path / "secret")
    try:
        assert ask(port, "GET", "a").startswith(b"-NOAUTH")
        assert ask(port, "AUTH", "open sesame") == b"+OK\r\n"
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_a_password_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    line = refused("serve", tmp_path / "s.eph", "--requirepass-file", nowhere)
    assert str(nowhere) in line


def test_a_killed_server_has_kept_what_it_acknowledged(tmp_path: Path) -> None:
    server, port = start(tmp_path / "s.eph", "--port", 0)
    for number in range(100):
        assert ask(port, "SET", f"key{number}", "1") == b"+OK\r\n"
    server.kill()
    server.communicate(timeout=30)
    with ephemera.open(tmp_path / "s.eph") as store:
        assert store.count() == 100


def test_whoever_is_refused_a_served_store_learns_where_it_is_served(tmp_path: Path) -> None:
    path = tmp_path / "s.eph"
    server, port = start(path, "--port", 0)
    try:
        told = f"is served by process {server.pid} at redis://127.0.0.1:{port}"
        for command in (
            ["get", path, "k"],
            ["put", path, "k", "v"],
            ["serve", path],
            ["check", path],
        ):
            line = refused(*command)
            assert told in line
            assert f"`ephemera shell --port {port}` or `redis-cli -p {port}`" in line
            assert line.count("stop") == 1
        with pytest.raises(ephemera.StoreLocked, match=told):
            ephemera.open(path)
    finally:
        server.terminate()
        server.communicate(timeout=30)
    ok("put", path, "k", "v")


def test_a_program_that_is_refused_a_served_store_can_open_the_url_that_it_is_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.eph"
    server, port = start(path, "--port", 0)
    try:
        with pytest.raises(ephemera.StoreLocked, match="stop the server, or open") as refusal:
            ephemera.open(path)
        url = str(refusal.value).partition('ephemera.open("')[2].removesuffix('")')
        assert url == f"redis://127.0.0.1:{port}/0?values=plain"
        with ephemera.open(url) as store:
            store.put("a", "1")
            assert store.get("a") == b"1"
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_what_a_server_cannot_be_asked_for_is_told_with_another_way(tmp_path: Path) -> None:
    path, target = tmp_path / "s.eph", tmp_path / "target"
    server, port = start(path, "--port", 0)
    plain = f"redis://127.0.0.1:{port}/0?values=plain"
    try:
        ask(port, "SET", "a", "1")
        for command, way in (
            (["compact", path], "stop the server first"),
            (["backup", path, target], f"`ephemera export '{plain}' FILE.rdb`"),
            (["export", path, f"{target}.rdb"], f"give '{plain}' as STORE"),
            (["copy", path, target], f"`ephemera import DST redis://127.0.0.1:{port}`"),
        ):
            line = refused(*command)
            assert way in line
            assert "ask it with" not in line
        assert "BGSAVE" in refused("backup", path, target)
        assert ok("export", plain, f"{target}.rdb", "--json").json["keys"] == 1
        assert ok("import", target, f"redis://127.0.0.1:{port}", "--json").json["imported"] == 1
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "memory://", "--port", port], capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"ephemera: 127.0.0.1:{port} is in use: give another --port, or leave it out to take the next"
        " that is free\n"
    )
    assert "in use" in done.stderr


@pytest.mark.parametrize("option", ["--set", "--rename-command"])
@pytest.mark.parametrize("given", ["hz", "=10"])
def test_a_setting_without_a_name_or_value_shows_the_form(option: str, given: str) -> None:
    assert f"{option} takes NAME=VALUE, not {given!r}" in refused(
        "serve", "memory://", "--port", 0, option, given
    )


def test_a_bad_value_of_a_setting_is_named() -> None:
    told = refused("serve", "memory://", "--port", 0, "--set", "hz=often")
    assert "'hz'" in told
    assert "'often'" in told


def test_an_open_address_without_a_password_is_warned_of(tmp_path: Path) -> None:
    assert "no password" in warnings_of(tmp_path / "one.eph", "--host", "0.0.0.0")
    assert warnings_of(tmp_path / "two.eph", "--host", "0.0.0.0", "--requirepass", "x") == ""
    assert warnings_of(tmp_path / "three.eph") == ""


def warnings_of(*args: object) -> str:
    """What a server says on standard error until it is stopped."""
    server = subprocess.Popen(
        [*COMMAND, *map(str, args), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    server.stdout.readline()
    server.stdout.readline()
    server.terminate()
    return server.communicate(timeout=30)[1]


def test_a_read_only_server_suggests_a_command_that_it_takes(tmp_path: Path) -> None:
    with ephemera.open(tmp_path / "s.eph") as store:
        store.put("a", "1")
    reader = subprocess.Popen(
        [*COMMAND, str(tmp_path / "s.eph"), "--port", "0", "--read-only"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    hint = reader.stdout.readline()
    reader.terminate()
    reader.communicate(timeout=30)
    assert " set " not in hint
    assert " scan 0" in hint


def test_without_a_port_the_next_free_one_is_taken() -> None:
    first, first_port = start("memory://")
    second, second_port = start("memory://")
    try:
        assert first_port != second_port
        assert {first_port, second_port} <= set(range(PORT, PORT + PORTS_TRIED))
    finally:
        for server in (first, second):
            server.terminate()
            server.communicate(timeout=30)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--tls-key", "key.pem", "--tls-cert"),
        ("--maxclients", "0", "maxclients"),
        ("--timeout", "-1", "timeout"),
        ("--set", "port=1", "can't set immutable config"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused(option: str, value: str, reason: str) -> None:
    done = run("serve", "memory://", "--port", 0, option, value)
    assert done.code == 2
    assert reason in done.err


def test_a_store_that_another_process_keeps_is_refused(tmp_path: Path) -> None:
    server, _ = start(tmp_path / "s.eph", "--port", 0)
    done = subprocess.run(
        [*COMMAND, str(tmp_path / "s.eph"), "--port", "0"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    server.terminate()
    server.communicate(timeout=30)
    assert (done.returncode, server.returncode) == (2, 0)
    assert done.stderr.startswith("ephemera: ")


def test_without_typer_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert "pip install 'ephemera-kv[cli]'" in refused("get", "s.eph", "k")
