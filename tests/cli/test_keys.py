"""get, put, del, ttl, touch, scan, count, as they are typed."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera.cli import output, text
from ephemera.cli._show import PIECE_BYTES, escaped_pieces
from ephemera.cli.scan import VALUE_WIDTH
from ephemera.cli.text import show
from tests.cli.typing_it import ok, refused, run


def test_a_value_comes_back(path: Path) -> None:
    assert ok("put", path, "name", "ada").out == b""
    assert ok("get", path, "name").text == "ada\n"


def test_an_absent_key_ends_with_1_and_says_nothing(path: Path) -> None:
    ok("put", path, "name", "ada")
    for command in ("get", "ttl", "touch"):
        assert run(command, path, "other") == (1, b"", "")


def test_a_value_and_its_times_in_json(path: Path) -> None:
    ok("put", path, "code", "492817", "--ttl", "1h30m")
    found = ok("get", path, "code", "--json").json
    assert (found["key"], found["value"]) == ("code", "492817")
    assert 5000 < found["ttl"] <= 5400
    assert found["deadline"] > found["written_at"]
    assert found["written_at"].endswith("Z")


def test_bytes_are_escaped_both_ways(path: Path) -> None:
    ok("put", path, r"k\x00\n", r"\xff\\ Zoë")
    with ephemera.open(path) as store:
        assert list(store.items()) == [(b"k\x00\n", b"\xff\\ Zo\xc3\xab")]
    printed = ok("scan", path).text
    assert printed == "k\\x00\\n\t\\xff\\\\ Zoë\tnever\n"
    assert ok("get", path, printed.split("\t")[0]).text == printed.split("\t")[1] + "\n"


def test_a_key_that_is_a_dash_is_printed_so_that_it_can_be_typed(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("-", "dash")
    printed = ok("scan", path, "--keys").text.strip()
    assert printed != "-"
    assert ok("get", path, printed).text == "dash\n"


def test_raw_is_for_pipes(path: Path) -> None:
    ok("put", path, r"a\n", "--raw", r"C:\new")
    assert ok("get", path, r"a\n", "--raw").out == rb"C:\new"
    assert ok("scan", path, "--raw").out == b"a\\n\tC:\\new\n"
    assert ok("get", path, r"a\\n").text == "C:\\\\new\n"


def test_a_dash_reads_standard_input(path: Path) -> None:
    ok("put", path, "file", "-", given=b"two\nlines\\n\n")
    assert ok("get", path, "file", "--raw").out == b"two\nlines\\n\n"
    assert ok("get", path, "-", "--raw", given=b"file\n").out == b"two\nlines\\n\n"
    assert "one key" in refused("get", path, "-", given=b"a\nb\n")


def test_what_scan_prints_del_reads(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put_many({b"a\n1": "x", b"a\xff": "y", b"b": "z"})
    listed = ok("scan", path, "a", "--keys").out
    assert ok("del", path, "-", given=listed).text == "2 keys deleted\n"
    assert ok("scan", path, "--keys").text == "b\n"


def test_del_says_how_many_and_ends_with_1_for_none(path: Path) -> None:
    ok("put", path, "a", "1")
    assert ok("del", path, "a", "b", "--json").json == {"deleted": 1}
    assert run("del", path, "a", "b") == (1, b"0 keys deleted\n", "")


def test_if_absent_stores_once(path: Path) -> None:
    assert ok("put", path, "lock", "me", "--if-absent", "--json").json == {"stored": True}
    assert run("put", path, "lock", "you", "--if-absent").code == 1
    assert ok("get", path, "lock").text == "me\n"


def test_lifetimes_are_typed_and_shown(path: Path) -> None:
    ok("put", path, "k", "v", "--ttl", "2d")
    assert ok("ttl", path, "k").text == "1d 23h\n"
    assert ok("touch", path, "k", "--ttl", "never").text == "never\n"
    assert ok("ttl", path, "k", "--json").json == {"ttl": None, "deadline": None}
    assert ok("touch", path, "k", "--at", "2100-01-01T00:00:00Z").code == 0
    assert ok("ttl", path, "k", "--json").json["deadline"] == "2100-01-01T00:00:00.000Z"
    ok("put", path, "s", "v", "--idle", "30m", "--ttl", "1d")
    assert ok("ttl", path, "s").text == "29m 59s\n"


def test_a_dead_key_is_absent(path: Path) -> None:
    clock = ephemera.ManualClock(1_000)
    with ephemera.open(path, clock=clock, maintenance="manual") as store:
        store.put("old", "1", ttl=1)
    assert run("get", path, "old").code == 1
    assert ok("count", path).text == "0\n"
    assert ok("scan", path).out == b""


def test_scan_goes_by_prefix_range_and_direction(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put_many({f"k{number}": str(number) for number in range(5)})

    def keys(*options: object) -> list[str]:
        return ok("scan", path, *options, "--keys").text.split()

    assert keys("k", "--limit", 2) == ["k0", "k1"]
    assert keys("--start", "k3") == ["k3", "k4"]
    assert keys("--end", "k1") == ["k0"]
    assert keys("--reverse", "--limit", 1) == ["k4"]
    assert keys("x") == []
    assert [each["value"] for each in ok("scan", path, "--json").lines] == list("01234")


def test_json_names_what_is_no_text(path: Path) -> None:
    ok("put", path, r"\xff", r"\xfe")
    (found,) = ok("scan", path, "--json").lines
    assert (found["key_base64"], found["value_base64"]) == ("/w==", "/g==")


def test_families_are_apart(path: Path) -> None:
    ok("put", path, "k", "default's")
    ok("put", path, "k", "other's", "--family", "other")
    assert ok("get", path, "k").text == "default's\n"
    assert ok("get", path, "k", "-f", "other").text == "other's\n"
    assert ok("count", path, "-f", "other", "--json").json == {"keys": 1}
    assert ok("del", path, "k", "-f", "other").code == 0
    assert ok("count", path, "k").text == "1\n"


@pytest.mark.parametrize("command", [["get", "k"], ["del", "k"], ["touch", "k"], ["scan"]])
def test_a_family_that_is_not_there_is_not_made(path: Path, command: list[str]) -> None:
    ok("put", path, "k", "v")
    name, *rest = command
    assert refused(name, path, *rest, "-f", "other").startswith("there is no family 'other'; there")
    assert ok("families", path).text == "default\t1\tnever\n"


@pytest.mark.parametrize(
    ("given", "deadline"),
    [
        ("2100-01-31", "2100-01-30T18:30:00.000Z"),
        ("21000131", "2100-01-30T18:30:00.000Z"),
        ("2100-01-31 12:00", "2100-01-31T06:30:00.000Z"),
        ("2100-01-31T12:00:00", "2100-01-31T06:30:00.000Z"),
        ("2100-01-31T12:00:00Z", "2100-01-31T12:00:00.000Z"),
        ("2100-01-31T12:00:00+02:00", "2100-01-31T10:00:00.000Z"),
        ("4105036800", "2100-01-31T00:00:00.000Z"),
    ],
)
def test_an_instant_without_a_zone_is_local_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, given: str, deadline: str
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        ok("put", path, "k", "v", "--at", given)
        assert ok("ttl", path, "k", "--json").json["deadline"] == deadline
        assert "(zone IST)" in refused("put", path, "k", "v", "--at", "soon")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("unit", [bytes(range(256)), "é\n".encode()])
def test_a_value_of_many_pieces_is_shown_whole(path: Path, unit: bytes) -> None:
    count = 3 * PIECE_BYTES // len(unit)
    with ephemera.open(path) as store:
        store.put("k", b"x" + unit * count)  # so characters of two bytes lie across pieces
    shown = b"x" + show(unit).encode() * count
    assert ok("scan", path).out == b"k\t" + shown + b"\tnever\n"
    assert ok("get", path, "k").out == shown + b"\n"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each write of a command to standard output was, which goes nowhere."""
    sizes: list[int] = []
    monkeypatch.setattr(output, "raw", lambda data: sizes.append(len(data)))
    return sizes


@pytest.mark.parametrize("command", [["scan"], ["get", "k"]])
def test_a_pipe_gets_a_large_value_without_a_copy_of_it(
    path: Path, written: list[int], command: list[str]
) -> None:
    size = 20_000_000
    with ephemera.open(path) as store:
        store.put("k", bytes(size))
    tracemalloc.start()
    try:
        ok(command[0], path, *command[1:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(written) >= 4 * size  # all of it, escaped
    assert max(written) <= 4 * PIECE_BYTES
    assert peak < 1.25 * size  # the value as it was read, and a piece of what is shown


def test_a_terminal_gets_the_beginning_of_a_large_value(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    escaped: list[int] = []

    def escape(data: bytes) -> Iterator[bytes]:
        escaped.append(len(data))
        return escaped_pieces(data)

    with ephemera.open(path) as store:
        store.put("k", bytes(20_000_000))
    monkeypatch.setattr(text, "escaped_pieces", escape)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert "…" in ok("scan", path).text
    assert sum(escaped) <= len("k") + 4 * VALUE_WIDTH
