"""families, deadlines, info, watch, top: what is there and what happens."""

from __future__ import annotations

import json
import select
import signal
from pathlib import Path
from typing import IO

import pytest

import ephemera
from tests.cli.typing_it import ok, process, refused

DAY = 86_400


@pytest.fixture
def filled(path: Path) -> Path:
    with ephemera.open(path) as store:
        for name, ttl in (("minute", 50), ("hour", 3_000), ("day", 80_000), ("week", 5 * DAY),
                          ("later", 30 * DAY)):  # fmt: skip
            store.put(name, "v", ttl=ttl)
        store.put("never", "v")
        store.family("sessions", default_ttl=1800).put_many({"a": "1", "b": "2"})
    return path


def test_families_with_their_keys_and_defaults(filled: Path) -> None:
    assert ok("families", filled).text == "default\t6\tnever\nsessions\t2\t30m\n"
    assert ok("families", filled, "--json").lines[1] == {
        "family": "sessions", "keys": 2, "default_ttl": 1800.0,
    }  # fmt: skip


def test_each_key_dies_in_one_of_the_spans(filled: Path) -> None:
    assert ok("deadlines", filled, "--json").json == {
        "next_minute": 1, "next_hour": 3, "next_day": 1, "next_week": 1, "later": 1, "never": 1,
    }  # fmt: skip
    assert ok("deadlines", filled, "-f", "sessions").text.splitlines()[1] == "next hour\t2"


def test_the_keys_that_die_next(filled: Path) -> None:
    found = ok("deadlines", filled, "--next", 2, "--json").lines
    assert [each["key"] for each in found] == ["minute", "a"]
    assert [each["family"] for each in found] == ["default", "sessions"]
    assert ok("deadlines", filled, "--next", 1).text.startswith("default\tminute\t")


def test_info_has_sizes_counts_durability_backlog_and_lag(filled: Path) -> None:
    numbers = ok("info", filled, "--json").json
    assert numbers["keys"] == {"default": 6, "sessions": 2}
    assert numbers["base_rows"] == 8
    assert numbers["disk_bytes"] >= numbers["base_bytes"] > 0
    assert numbers["durability"] == "interval"
    assert 0 < numbers["next_deadline_seconds"] <= 50
    assert numbers["backlog_seconds"] == numbers["expiry_lag_ms"] == 0
    assert "keys\t8 (default 6, sessions 2)" in ok("info", filled).text


def test_info_tells_how_long_dead_rows_wait(path: Path) -> None:
    with ephemera.open(path, clock=ephemera.ManualClock(1_000)) as store:
        store.put("old", "v", ttl=60)
        store.checkpoint()
    assert ok("info", path, "--json").json["backlog_seconds"] > 10 * DAY


def test_info_of_a_store_in_memory_has_what_that_has() -> None:
    assert ok("info", "memory://").text.startswith("engine\tmemory\n")


def test_watch_prints_keys_as_they_die(path: Path) -> None:
    with ephemera.open(path) as store:
        store.family("codes")
        with process("watch", path, "--count", 2, "--family", "codes", "--json") as watching:
            assert watching.stdout is not None
            lines: list[bytes] = []
            # Those that die before it listens are not told: a few more, until it has seen two.
            while watching.poll() is None and len(lines) < 2:
                store.put("other", "v", ttl=0.01)
                store.family("codes").put("ada", "492817", ttl=0.01)
                lines += [watching.stdout.readline()] if has_input(watching.stdout) else []
            told = json.loads(lines[0])
    assert (told["family"], told["key"], told["value"]) == ("codes", "ada", "492817")
    assert 0 <= told["lag_ms"] < 60_000


def test_watch_wants_a_family_that_is_there(filled: Path) -> None:
    assert "there is no family 'other'" in refused("watch", filled, "-f", "other")


def test_ctrl_c_ends_watch_and_top_well(filled: Path) -> None:
    with process("top", filled, "--interval", "0.1", "--json") as looking:
        assert looking.stdout is not None
        first = json.loads(looking.stdout.readline())
        looking.send_signal(signal.SIGINT)
        assert looking.wait(30) == 0
        assert looking.stderr is not None
        assert looking.stderr.read() == b""
    assert first["base_rows"] == 8


def test_top_counts_bytes_written_and_keys_that_die(path: Path) -> None:
    with (
        ephemera.open(path) as store,
        process("top", path, "--interval", "0.1", "--json") as looking,
    ):
        assert looking.stdout is not None
        seen: set[str] = set()
        while seen != {"written", "dying"}:
            store.put_many({f"k{number}": "v" * 100 for number in range(100)}, ttl=0.05)
            numbers = json.loads(looking.stdout.readline())
            seen |= {"written"} if numbers["written_bytes_per_second"] > 0 else set()
            seen |= {"dying"} if numbers["deaths_per_second"] > 0 else set()


def test_top_off_a_terminal_is_a_line_for_each_look(filled: Path) -> None:
    lines = ok("top", filled, "--count", 2, "--interval", "0.1").text.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("written 0 B/s\t")


def has_input(stream: IO[bytes]) -> bool:
    """Whether something can be read, or will be within a moment."""
    return bool(select.select([stream], [], [], 0.1)[0])
