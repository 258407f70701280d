"""Commands about the server: TIME, saving, SHUTDOWN, and trifles."""

from __future__ import annotations

import errno
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.core.row import NEVER_MS
from ephemera.formats.detect import open_source
from ephemera.formats.transfer import Contents
from ephemera.server.saving import SaveFile
from ephemera.server.server import Server
from tests.server.clients import Client

START_MS = ManualClock().now_ms()


def test_time_is_that_of_the_store(clock: ManualClock, client: Client) -> None:
    clock.advance(1.234)
    assert client("TIME") == [b"%d" % (START_MS // 1000 + 1), b"234000"]


@pytest.fixture
def on_disk(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    with ephemera.open(tmp_path / "s.eph", clock=clock, maintenance="manual") as store:
        yield Server(store)


def exports(server: Server) -> Path:
    return Path(server.store.stats()["path"]) / "exports"


def read(path: Path) -> set[tuple[str, bytes, bytes, int]]:
    """The records of a file: family, key, value and deadline."""
    return {
        (family, key, row.value, row.deadline_ms)
        for family, key, row in open_source(path, now_ms=START_MS, keep_going=False)
    }


def persistence(client: Client) -> dict[str, str]:
    lines = client("INFO", "persistence").decode().splitlines()[1:]
    return dict(line.split(":", 1) for line in lines)


class Gate:
    """Holds a save in the background up until it is opened."""

    def __init__(self, kind: SaveFile) -> None:
        self._opening = threading.Event()
        self._encode = kind.encode
        kind.encode = self._held_up

    def open(self) -> None:
        self._opening.set()

    def _held_up(self, contents: Contents) -> Iterator[bytes]:
        assert self._opening.wait(60)
        yield from self._encode(contents)


def test_save_writes_a_dump(on_disk: Server, clock: ManualClock) -> None:
    client = Client(on_disk)
    client("SET", "key", "1", "EX", 60)
    client("SELECT", 3)
    client("SET", "other", "2")
    assert persistence(client)["rdb_changes_since_last_save"] == "2"
    clock.advance(10)
    assert client("SAVE") == b"OK"
    assert client("LASTSAVE") == START_MS // 1000 + 10
    told = persistence(client)
    assert (told["rdb_changes_since_last_save"], told["rdb_saves"]) == ("0", "1")
    assert (told["rdb_last_bgsave_status"], told["rdb_current_bgsave_time_sec"]) == ("ok", "-1")
    assert [path.name for path in exports(on_disk).iterdir()] == ["dump.rdb"]
    assert stat.S_IMODE(exports(on_disk).stat().st_mode) == 0o700
    assert stat.S_IMODE((exports(on_disk) / "dump.rdb").stat().st_mode) == 0o600
    assert read(exports(on_disk) / "dump.rdb") == {
        ("default", b"key", b"1", START_MS + 60_000),
        ("db3", b"other", b"2", NEVER_MS),
    }


@pytest.mark.parametrize(
    ("command", "reply", "name"),
    [
        (["BGSAVE"], b"Background saving started", "dump.rdb"),
        (["BGSAVE", "SCHEDULE"], b"Background saving started", "dump.rdb"),
        (["BGREWRITEAOF"], b"Background append only file rewriting started", "appendonly.aof"),
    ],
)
def test_saving_in_the_background(
    on_disk: Server, command: list[str], reply: bytes, name: str
) -> None:
    client = Client(on_disk)
    client("SET", "key", "1")
    assert client(*command) == reply
    on_disk.saving.wait()
    assert read(exports(on_disk) / name) == {("default", b"key", b"1", NEVER_MS)}


def test_a_rewrite_of_the_log_is_no_save(on_disk: Server, clock: ManualClock) -> None:
    client = Client(on_disk)
    client("SET", "key", "1")
    clock.advance(10)
    client("BGREWRITEAOF")
    on_disk.saving.wait()
    told = persistence(client)
    assert (told["aof_rewrites"], told["rdb_saves"]) == ("1", "0")
    assert told["rdb_changes_since_last_save"] == "1"
    assert client("LASTSAVE") == START_MS // 1000


def test_commands_are_answered_while_a_dump_is_written(on_disk: Server) -> None:
    client = Client(on_disk)
    gate = Gate(on_disk.saving.rdb)
    assert client("BGSAVE") == b"Background saving started"
    try:
        busy = "ERR Background save already in progress"
        assert client.error("SAVE") == client.error("BGSAVE") == busy
        assert client.error("BGSAVE", "SCHEDULE") == busy
        assert persistence(client)["rdb_bgsave_in_progress"] == "1"
        scheduled = b"Background append only file rewriting scheduled"
        assert client("BGREWRITEAOF") == client("BGREWRITEAOF") == scheduled
        assert persistence(client)["aof_rewrite_scheduled"] == "1"
        assert client("SET", "key", "1") == b"OK"
    finally:
        gate.open()
        on_disk.saving.wait()
    told = persistence(client)
    assert (told["rdb_saves"], told["aof_rewrites"]) == ("1", "1")
    assert (told["rdb_bgsave_in_progress"], told["aof_rewrite_scheduled"]) == ("0", "0")


def test_a_dump_can_be_scheduled_while_the_log_is_rewritten(on_disk: Server) -> None:
    client = Client(on_disk)
    gate = Gate(on_disk.saving.aof)
    client("BGREWRITEAOF")
    try:
        busy = "ERR Background append only file rewriting already in progress"
        assert client.error("BGREWRITEAOF") == busy
        assert client.error("BGSAVE").startswith("ERR Another child process is active (AOF?)")
        assert client("BGSAVE", "SCHEDULE") == b"Background saving scheduled"
        assert persistence(client)["aof_rewrite_in_progress"] == "1"
        assert client("SAVE") == b"OK"
    finally:
        gate.open()
        on_disk.saving.wait()
    assert persistence(client)["rdb_saves"] == "2"


def test_a_dump_from_a_transaction_holds_what_it_wrote(on_disk: Server) -> None:
    client = Client(on_disk)
    client("MULTI")
    client("BGSAVE")
    client("SET", "key", "1")
    client("EXEC")
    on_disk.saving.wait()
    assert read(exports(on_disk) / "dump.rdb") == {("default", b"key", b"1", NEVER_MS)}


def test_a_save_clears_away_what_a_killed_one_left(on_disk: Server) -> None:
    exports(on_disk).mkdir()
    (exports(on_disk) / "dump.rdb.0123abcd.tmp").write_bytes(b"REDIS")
    assert Client(on_disk)("SAVE") == b"OK"
    assert [path.name for path in exports(on_disk).iterdir()] == ["dump.rdb"]


def test_a_save_that_fails_is_reported_and_keeps_the_former_dump(on_disk: Server) -> None:
    client = Client(on_disk)
    client("SAVE")
    former = (exports(on_disk) / "dump.rdb").read_bytes()

    def fail(contents: Contents) -> Iterator[bytes]:
        yield b"REDIS"
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/place")

    on_disk.saving.rdb.encode = fail
    assert client.error("SAVE") == "ERR saving failed: No space left on device"
    assert client("BGSAVE") == b"Background saving started"
    on_disk.saving.wait()
    assert persistence(client)["rdb_last_bgsave_status"] == "err"
    assert persistence(client)["aof_last_bgrewrite_status"] == "ok"
    assert [path.read_bytes() for path in exports(on_disk).iterdir()] == [former]


def test_a_store_that_is_closed_under_a_save_ends_it(on_disk: Server) -> None:
    client = Client(on_disk)
    client("SET", "key", "1")
    gate = Gate(on_disk.saving.rdb)
    client("BGSAVE")
    on_disk.store.close()
    gate.open()
    on_disk.saving.wait()
    assert on_disk.saving.rdb.has_failed
    assert client.error("SAVE") == "ERR saving failed: the store was closed"


@pytest.mark.parametrize("command", ["SAVE", "BGSAVE", "BGREWRITEAOF"])
def test_a_store_without_a_directory_saves_nothing(client: Client, command: str) -> None:
    assert client.error(command) == (
        "ERR this store has no directory to save to; one that is opened by a path has"
    )


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
