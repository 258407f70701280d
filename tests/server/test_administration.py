"""Commands about the server: TIME, saving, SHUTDOWN, and trifles."""

from __future__ import annotations

from pathlib import Path

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.server.server import Server
from tests.server.clients import Client

START_MS = ManualClock().now_ms()


def test_time_is_that_of_the_store(clock: ManualClock, client: Client) -> None:
    clock.advance(1.234)
    assert client("TIME") == [b"%d" % (START_MS // 1000 + 1), b"234000"]


def test_save_answers_when_all_is_in_the_base_tier(tmp_path: Path, clock: ManualClock) -> None:
    with ephemera.open(tmp_path / "s.eph", clock=clock, maintenance="manual") as store:
        client = Client(Server(store))
        client("SET", "key", "1", "EX", 60)
        assert "rdb_changes_since_last_save:1\r\n" in client("INFO", "persistence").decode()
        clock.advance(10)
        assert client("SAVE") == b"OK"
        assert client("LASTSAVE") == START_MS // 1000 + 10
        assert store.stats()["base_rows"] == 1
        persistence = client("INFO", "persistence").decode()
        assert "rdb_changes_since_last_save:0\r\n" in persistence
        assert "rdb_saves:1\r\n" in persistence


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (["BGSAVE"], b"Background saving started"),
        (["BGSAVE", "SCHEDULE"], b"Background saving started"),
        (["BGREWRITEAOF"], b"Background append only file rewriting started"),
    ],
)
def test_saving_in_the_background(
    tmp_path: Path, clock: ManualClock, command: list[str], reply: bytes
) -> None:
    with ephemera.open(tmp_path / "s.eph", clock=clock, maintenance="manual") as store:
        server = Server(store)
        client = Client(server)
        client("SET", "key", "1")
        assert client(*command) == reply
        server.saving.wait()
        assert store.stats()["base_rows"] == 1
        assert server.saving.count == 1


def test_one_save_at_a_time(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(server.saving), "is_running", True)
    busy = "ERR Background save already in progress"
    assert client.error("SAVE") == client.error("BGSAVE") == busy
    assert client.error("BGREWRITEAOF") == (
        "ERR Background append only file rewriting already in progress"
    )


def test_a_save_that_fails_is_reported(server: Server, client: Client) -> None:
    server.store.close()
    assert client.error("SAVE") == "ERR the store was closed"
    assert client("BGSAVE") == b"Background saving started"
    server.saving.wait()
    assert "rdb_last_bgsave_status:err\r\n" in client("INFO", "persistence").decode()


def test_bgsave_knows_one_option(client: Client) -> None:
    assert client.error("BGSAVE", "NOW") == "ERR syntax error"


@pytest.mark.parametrize("options", [[], ["NOSAVE"], ["SAVE"], ["NOW", "FORCE", "SAVE"]])
def test_shutdown_stops_the_server_without_a_word(
    server: Server, client: Client, options: list[str]
) -> None:
    stopped: list[bool] = []
    server.stop = lambda: stopped.append(True)
    assert client("SHUTDOWN", *options) is False
    assert stopped == [True]
    assert client.session.is_closing


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["ABORT"], "ERR No shutdown in progress."),
        (["ABORT", "NOW"], "ERR syntax error"),
        (["SAVE", "NOSAVE"], "ERR syntax error"),
        (["LATER"], "ERR syntax error"),
    ],
)
def test_shutdown_that_does_not(client: Client, options: list[str], error: str) -> None:
    assert client.error("SHUTDOWN", *options) == error
    assert not client.session.is_closing


def test_there_are_no_modules(client: Client) -> None:
    assert client("MODULE", "LIST") == []
    assert (
        client.error("MODULE", "LOAD", "x.so") == "ERR unknown subcommand 'LOAD'. Try MODULE HELP."
    )


def test_lolwut_ends_with_the_version(client: Client) -> None:
    picture = f"\nEphemera ver. {ephemera.__version__}\n".encode()
    assert client("LOLWUT").endswith(picture)
    assert client("LOLWUT", "VERSION", "5").endswith(picture)
