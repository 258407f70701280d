"""shell, top, watch and tables in a real terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

import ephemera
from tests.cli.terminal import Terminal


@pytest.fixture
def filled(path: Path) -> Path:
    with ephemera.open(path) as store:
        store.put("user:1", "ada", ttl=3590)
        store.put("user:2", "bob")
        store.put("a b", "in quotes")
    return path


def test_the_shell_answers_and_shows_times_as_people_say_them(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", filled) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type("GET user:1", "Enter")
        terminal.wait_for('"ada"')
        terminal.type("TTL user:1", "Enter")
        terminal.wait_for("  59m ")
        terminal.type("NOSUCH", "Enter")
        terminal.wait_for("(error) ERR unknown command")
        terminal.type("C-d")
        terminal.wait_for("ended with 0")


def test_the_shell_completes_commands_and_keys(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", filled) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type("STRL", "Tab")
        terminal.wait_for("s.eph> STRLEN")
        terminal.type(" user", "Tab")
        terminal.wait_for("STRLEN user:")
        terminal.type("2", "Enter")
        terminal.wait_for("(integer) 3")
        terminal.type("GET a", "Tab")
        terminal.wait_for('GET "a b"')
        terminal.type("Enter")
        terminal.wait_for('"in quotes"')
        terminal.type("OBJECT ENC", "Tab")
        terminal.wait_for("OBJECT ENCODING")


def test_the_shell_hints_at_arguments(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", filled) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type("SETEX ")
        terminal.wait_for("SETEX key seconds value")
        terminal.type("C-c")
        terminal.type("HELP PERSIST", "Enter")
        terminal.wait_for("PERSIST key")


def test_a_value_goes_on_over_lines_until_its_quote_is_closed(path: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", path) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type('SET poem "two', "Enter")
        terminal.wait_for("\n...")
        terminal.type('lines"', "Enter")
        terminal.wait_for("OK")
        terminal.type("GET poem", "Enter")
        terminal.wait_for(r'"two\nlines"')


def test_the_shell_remembers_commands_and_forgets_passwords(path: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", path) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type("AUTH hunter2", "Enter")
        terminal.wait_for("(error)")
        terminal.type("SET kept 1", "Enter")
        terminal.wait_for("OK")
        terminal.type("exit", "Enter")
        terminal.wait_for("ended with 0")
    history = tmp_path / "state" / "ephemera" / "history"
    assert "SET kept 1" in history.read_text()
    assert "hunter2" not in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def die_again(store: ephemera.Store, key: str, value: str) -> None:
    """Let a key die soon, if none of this name is about to: written again before its deadline it never would."""
    store.put_if_absent(key, value, ttl=0.01)


def test_the_shell_shows_a_transaction_and_messages(path: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "shell", path) as terminal:
        terminal.wait_for("s.eph>")
        terminal.type("CONFIG SET notify-keyspace-events Ex", "Enter")
        terminal.wait_for("OK")
        terminal.type("MULTI", "Enter")
        terminal.wait_for("s.eph(TX)>")
        terminal.type("SET code 1", "Enter")
        terminal.wait_for("QUEUED")
        terminal.type("EXEC", "Enter")
        terminal.wait_for("1) OK")
        terminal.type("PSUBSCRIBE __keyevent*", "Enter")
        with ephemera.open(path) as store:
            while '"__keyevent@0__:expired"' not in terminal.screen():
                die_again(store, "lease", "worker-4")
        terminal.type("C-c")
        terminal.type("PING", "Enter")
        terminal.wait_for("PONG")


def test_watch_shows_keys_as_they_die(path: Path, tmp_path: Path) -> None:
    with ephemera.open(path) as store, Terminal(tmp_path, "watch", path) as terminal:
        screen = ""
        while "lease" not in screen:
            die_again(store, "lease", "worker-4")
            screen = terminal.screen()
        terminal.wait_for("default  lease  worker-4")
        terminal.type("C-c")
        terminal.wait_for("ended with 0")


def test_top_draws_one_picture_that_changes(filled: Path, tmp_path: Path) -> None:
    with ephemera.open(filled) as store, Terminal(tmp_path, "top", filled) as terminal:
        terminal.wait_for("base tier")
        screen = ""
        while " so far" not in screen or " 0 so far" in screen:
            die_again(store, "mayfly", "v")
            screen = terminal.screen()
        assert screen.count("expiry lag") == 1
        terminal.type("C-c")
        terminal.wait_for("ended with 0")


def test_a_table_has_a_head_on_a_terminal(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "scan", filled) as terminal:
        lines = terminal.wait_for("ended with 0").splitlines()
    assert lines[0].split() == ["key", "value", "ttl"]
    assert lines[1].split() == ["a", "b", "in", "quotes", "never"]


def test_a_histogram_has_bars_on_a_terminal(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "deadlines", filled) as terminal:
        screen = terminal.wait_for("ended with 0")
    assert "never" in screen
    assert "████" in screen


def test_long_work_shows_a_bar(filled: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, "backup", filled, tmp_path / "copy") as terminal:
        screen = terminal.wait_for("ended with 0")
    assert "copying" in screen
    assert "100%" in screen
