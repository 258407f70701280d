"""The shell off a terminal: commands from standard input, on a store and on a server."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera.cli.link import ServerLink, StoreLink
from ephemera.cli.rendering import for_person, for_script
from ephemera.cli.syntax import SYNTAX, arguments_of
from ephemera.resp.replies import Refused, Reply, Simple
from ephemera.server.table import declarations
from tests.cli.typing_it import ok, process, refused, run


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A server's."""
    with process(
        "serve", tmp_path / "served.eph", "--port", 0, "--requirepass", "secret"
    ) as server:
        assert server.stdout is not None
        found = re.search(rb"redis://127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert found is not None
        yield int(found[1])


def shell(path: Path, *commands: str) -> list[str]:
    return ok("shell", path, given="\n".join(commands).encode()).text.splitlines()


def test_commands_of_the_server_run_without_one(path: Path) -> None:
    assert shell(path, "SET name ada EX 100", "get name", "TTL name", "", "INCR n", "KEYS *") == [
        "OK", "ada", "100", "1", "n", "name",
    ]  # fmt: skip
    with ephemera.open(path) as store:
        assert store.get("name") == b"ada"


def test_a_long_script_runs_to_its_end(path: Path) -> None:
    assert shell(
        path,
        "CONFIG SET busy-reply-threshold 1",
        "EVAL \"for i = 1, 300000 do end return redis.call('incr', 'n')\" 0",
        "GET n",
    ) == ["OK", "1", "1"]


def test_words_are_quoted_as_redis_has_it(path: Path) -> None:
    assert shell(path, r'SET "a b" "\x00\n"', 'GET "a b"') == ["OK", r"\x00\n"]


def test_replies_as_json(path: Path) -> None:
    given = rb"""MSET a 1 b "\xff"
MGET a b c
CONFIG GET maxmemory
NOSUCH"""
    done = run("shell", path, "--json", given=given)
    assert done.code == 2
    assert done.lines[:3] == ["OK", ["1", {"base64": "/w=="}, None], {"maxmemory": "0"}]
    assert done.lines[3]["error"].startswith("ERR unknown command 'NOSUCH'")


def test_a_command_that_is_refused_ends_with_2_and_the_rest_still_runs(path: Path) -> None:
    done = run("shell", path, given=b'SET a\nGET "a\nSET a 1\nGET a\nSUBSCRIBE x\n')
    assert done.code == 2
    lines = done.text.splitlines()
    assert lines[0].startswith("(error) ERR wrong number of arguments")
    assert lines[1] == "(error) ERR unbalanced quotes"
    assert lines[2:4] == ["OK", "1"]
    assert "need a terminal" in lines[4]


def test_nothing_follows_quit(path: Path) -> None:
    assert shell(path, "SET a 1", "QUIT", "SET a 2") == ["OK"]
    assert shell(path, "SHUTDOWN", "SET a 2") == []
    assert ok("get", path, "a").text == "1\n"


def test_a_family_is_the_only_database_and_no_other_is_made(path: Path) -> None:
    ok("put", path, "k", "v", "-f", "codes")
    done = run("shell", path, "-f", "codes", given=b"GET k\nSELECT 1\nGET k\nFLUSHALL\nDBSIZE\n")
    assert done.text.splitlines() == ["v", "(error) ERR DB index is out of range", "v", "OK", "0"]
    assert [each["family"] for each in ok("families", path, "--json").lines] == ["codes", "default"]


def test_transactions_run_as_one(path: Path) -> None:
    assert shell(path, "MULTI", "SET a 1", "INCR a", "EXEC", "GET a") == [
        "OK", "QUEUED", "QUEUED", "OK", "2", "2",
    ]  # fmt: skip


def test_a_command_that_writes_holds_the_writers_turn(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("list", "a")
        link = StoreLink(str(path), "default")
        reached: list[bytes | None] = []

        def note(*_: object) -> None:
            reached.append(store.get("list"))

        link._server.listeners.append(note)
        assert link.ask([b"APPEND", b"list", b"b"]) == [2]
        store.put("list", "c")
        assert link.ask([b"APPEND", b"list", b"d"]) == [2]
        link.close()
        assert reached == [b"ab", b"cd"]


def test_watch_that_would_miss_others_is_refused(path: Path) -> None:
    assert "shell --port" in run("shell", path, given=b"WATCH a\n").text


def test_the_shell_talks_to_a_server(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPHEMERA_PASSWORD", "secret")
    given = b"SET k v EX 100\nGET k\nTTL k\nWATCH k\nMULTI\nINCR n\nEXEC\nQUIT\nGET k\n"
    done = ok("shell", "--port", port, given=given)
    assert done.text.splitlines() == ["OK", "v", "100", "OK", "OK", "QUEUED", "1"]
    other = ok("shell", "--port", port, "-f", "db3", given=b"DBSIZE\nSET other v\n").text
    assert other == "0\nOK\n"


def test_a_password_may_lie_in_a_file(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("secret\n")
    assert ok("shell", "--port", port, "--password-file", file, given=b"PING\n").text == "PONG\n"
    monkeypatch.setenv("EPHEMERA_PASSWORD_FILE", str(file))
    assert ok("shell", "--port", port, given=b"PING\n").text == "PONG\n"
    assert "twice" in refused("shell", "--port", port, "--password", "secret")
    assert "nowhere" in refused("shell", "--port", port, "--password-file", tmp_path / "nowhere")


def test_what_hangs_up_is_no_server() -> None:
    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.recv(1024)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        line = refused("shell", "--port", listener.getsockname()[1])
        thread.join()
    assert line.endswith("does not answer as a Redis server does")


def test_a_server_that_cannot_be_asked_is_one_line(port: int) -> None:
    assert "the server refused: " in refused("shell", "--port", port, "--password", "wrong")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = nobody.getsockname()[1]
    assert "refused" in refused("shell", "--port", free)
    assert "db1 to db15" in refused("shell", "--port", port, "-f", "codes")
    assert "give a store, or --port" in refused("shell")


def test_a_lost_connection_is_told_and_made_again(port: int) -> None:
    link = ServerLink("127.0.0.1", port, "secret", "default")
    (number,) = link.ask([b"CLIENT", b"ID"])
    assert isinstance(number, int)
    assert link.ask([b"CLIENT", b"KILL", b"ID", b"%d" % number, b"SKIPME", b"no"]) == [1]
    (lost,) = link.ask([b"PING"])
    assert "connects again" in str(lost)
    assert link.ask([b"PING"]) == [b"PONG"]
    link.close()


def test_keys_are_offered_by_their_prefix(path: Path, port: int) -> None:
    server = ServerLink("127.0.0.1", port, "secret", "default")
    store = StoreLink(str(path), "default")
    for link in (server, store):
        link.ask([b"MSET", b"user:1", b"x", b"user:2", b"x", b"us*r", b"x", b"other", b"x"])
        assert link.keys(b"user:", 10) == [b"user:1", b"user:2"]
        assert link.keys(b"us*", 10) == [b"us*r"]
        assert len(link.keys(b"", 2)) == 2
        link.close()


@pytest.mark.parametrize(
    ("command", "reply", "shown"),
    [
        ("GET k", b'say "hi"', r'"say \"hi\""'),
        ("GET k", None, "(nil)"),
        ("SET k v", Simple(b"OK"), "OK"),
        ("TTL k", 3552, "(integer) 3552  59m 12s"),
        ("TTL k", -1, "(integer) -1  no deadline"),
        ("PTTL k", -2, "(integer) -2  no such key"),
        ("PTTL k", 1500, "(integer) 1500  1s"),
        ("EXPIRETIME k", 0, "(integer) 0  1970-01-01T00:00:00.000Z"),
        ("DEL k", 3552, "(integer) 3552"),
        ("KEYS *", [], "(empty array)"),
        ("SCAN 0", [b"0", [b"a", b"b"]], '1) "0"\n2) 1) "a"\n   2) "b"'),
        ("GET", Refused("ERR no"), "(error) ERR no"),
    ],
)
def test_replies_as_a_person_reads_them(command: str, reply: Reply, shown: str) -> None:
    assert for_person(command.encode().split(), reply) == shown


def test_every_kind_of_reply_has_its_json() -> None:
    replies: list[Reply] = [1, 1.5, True, None, b"x", Simple(b"OK"), [1, [b"x"]], Refused("ERR no")]
    assert json.loads(for_script(replies)) == [
        1, 1.5, True, None, "x", "OK", [1, ["x"]], {"error": "ERR no"},
    ]  # fmt: skip


def test_every_hint_is_about_a_command() -> None:
    assert SYNTAX.keys() <= declarations().keys()


def test_a_command_without_names_for_its_arguments_is_hinted_at_by_the_table() -> None:
    assert arguments_of(declarations()["client|no-evict"]) == "argument"
    assert arguments_of(declarations()["lolwut"]) == "[argument ...]"
    assert arguments_of(declarations()["dbsize"]) == ""
