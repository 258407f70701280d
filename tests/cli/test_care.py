"""purge, check, compact, backup, restore, import, export, bench: care for a store that is in use."""

from __future__ import annotations

import socket
from pathlib import Path

import lmdb
import pytest

import ephemera
from tests.cli.typing_it import ok, refused, run


@pytest.fixture
def used(path: Path):
    """A store that another opener holds, with one key in the base tier and one above it."""
    with ephemera.open(path, maintenance="manual") as store:
        store.put("base", "1", ttl=3600)
        store.checkpoint()
        store.put("recent", "2")
        yield path


def test_purge_counts_what_it_removes(path: Path) -> None:
    with ephemera.open(path, clock=ephemera.ManualClock(1_000), maintenance="manual") as store:
        store.put_many({"a": "1", "b": "2", "c": "3"}, ttl=1)
        store.checkpoint()
    assert ok("purge", path, "--limit", 2).text == "2 dead keys removed\n"
    assert ok("purge", path, "--json").json["removed"] <= 1


def test_a_sound_store_is_checked_while_it_is_used(used: Path) -> None:
    assert ok("check", used).text == "1 row, 1 index entry, 1 record checked\n"
    assert ok("check", used, "--json").json == {
        "rows": 1, "index_entries": 1, "records": 1, "problems": [], "repaired": 0,
    }  # fmt: skip


def spoil_index(path: Path) -> None:
    """Take the index entries of a closed store away, and leave one that speaks for nobody."""
    (file,) = (path / "base").glob("*.mdb")
    with lmdb.open(str(file), subdir=False, max_dbs=8) as env:
        index = env.open_db(b"deadlines", create=False)
        with env.begin(write=True, db=index) as txn:
            txn.drop(index, delete=False)
            txn.put((5).to_bytes(8, "big") + b"\0\0\0\1nobody", b"")


def test_an_index_that_disagrees_with_the_rows_is_mended(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put_many({"a": "1", "b": "2"}, ttl=3600)
    spoil_index(path)
    found = run("check", path, "--json")
    assert found.code == 2
    assert len(found.json["problems"]) == 3
    assert "check --repair" in found.err
    assert "3 index entries mended" in ok("check", path, "--repair").text
    assert ok("check", path, "--json").json["problems"] == []
    assert ok("deadlines", path, "--json").json["next_hour"] == 2


def test_damaged_rows_are_not_repaired(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("victim", "a value to find")
    (file,) = (path / "base").glob("*.mdb")
    file.write_bytes(file.read_bytes().replace(b"a value to find", b"a value to f1nd"))
    done = run("check", path, "--repair")
    assert done.code == 2
    assert "victim" in done.text
    assert "restore a backup" in done.err


def test_a_backup_is_taken_while_the_store_is_used_and_restored(used: Path, tmp_path: Path) -> None:
    backup, again = tmp_path / "backup", tmp_path / "again.eph"
    assert ok("backup", used, backup).text.endswith(f" in {backup}\n")
    ok("put", used, "later", "3")
    assert ok("restore", backup, again, "--json").json["rows"] == 1
    assert ok("scan", again, "--keys").text == "base\nrecent\n"
    assert ok("get", again, "base", "--json").json["deadline"] == ok(
        "get", used, "base", "--json"
    ).json["deadline"]  # fmt: skip


def test_a_backup_replaces_nothing(used: Path, tmp_path: Path) -> None:
    assert "exists" in refused("backup", used, tmp_path)
    assert ok("backup", used, tmp_path / "b", "--json").json["bytes"] > 0
    assert "restore replaces nothing: give the path of a new store" in refused(
        "restore", tmp_path / "b", used
    )


def test_a_damaged_backup_is_not_restored(path: Path, tmp_path: Path) -> None:
    with ephemera.open(path) as store:
        store.put("victim", "a value to find")
    ok("backup", path, tmp_path / "b")
    (file,) = (tmp_path / "b" / "base").glob("*.mdb")
    file.write_bytes(file.read_bytes().replace(b"a value to find", b"a value to f1nd"))
    assert "use another backup" in refused("restore", tmp_path / "b", tmp_path / "again.eph")
    assert not (tmp_path / "again.eph").exists()


def test_a_store_in_memory_has_no_backup(tmp_path: Path) -> None:
    assert "open a store at a path" in refused("backup", "memory://", tmp_path / "b")


def test_compacting_gives_space_back(path: Path) -> None:
    with ephemera.open(path) as store:
        store.put_many({f"k{number}": b"v" * 1000 for number in range(2_000)})
        store.checkpoint()
        store.clear()
    sizes = ok("compact", path, "--json").json
    assert sizes["bytes_after"] < sizes["bytes_before"]
    assert ok("compact", path).text.endswith(" now\n")


@pytest.mark.parametrize("suffix", ["rdb", "aof", "jsonl"])
def test_what_is_exported_can_be_imported(used: Path, tmp_path: Path, suffix: str) -> None:
    file, again = tmp_path / f"x.{suffix}", tmp_path / "again.eph"
    ok("put", used, r"\xff\x00", "bytes", "-f", "db1")
    assert ok("export", used, file, "--json").json["keys"] == 3
    assert ok("import", again, file, "--json").json == {
        "imported": 3, "dead": 0, "skipped": {}, "failed": {}, "damage": None, "unread_bytes": 0,
        "left_behind": [],
    }  # fmt: skip
    assert ok("scan", again, "--keys").text == "base\nrecent\n"
    assert ok("get", again, r"\xff\x00", "-f", "db1").text == "bytes\n"
    deadlines = [ok("ttl", each, "base", "--json").json["deadline"] for each in (used, again)]
    assert deadlines[0] == deadlines[1]


def test_an_export_to_a_pipe(used: Path) -> None:
    lines = ok("export", used, "-", "--jsonl", "--family", "default").lines
    assert [each["key"] for each in lines] == ["base", "recent"]


def test_an_export_needs_one_format(used: Path, tmp_path: Path) -> None:
    assert "--rdb, --aof or --jsonl" in refused("export", used, tmp_path / "x")
    assert "one format" in refused("export", used, tmp_path / "x", "--rdb", "--aof")
    assert "--aof" in refused("export", used, tmp_path / "x.rdb", "--relative")


def test_everything_can_be_imported_into_one_family(used: Path, tmp_path: Path) -> None:
    ok("export", used, tmp_path / "x.rdb")
    ok("import", used, tmp_path / "x.rdb", "--family", "copy")
    assert ok("count", used, "-f", "copy").text == "2\n"


def test_of_a_damaged_file_nothing_is_taken_unless_told(used: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.rdb"
    ok("export", used, file)
    file.write_bytes(file.read_bytes()[:-12])
    again = tmp_path / "again.eph"
    assert str(file) in refused("import", again, file)
    assert not again.exists()
    done = run("import", again, file, "--keep-going")
    assert done.code == 2
    assert done.text.startswith("imported\t1\t")
    assert f"first {file} at offset" in done.err
    assert "bytes from there on were not read" in done.err
    told = run("import", again, file, "--keep-going", "--json", "-f", "other")
    assert told.code == 2
    assert told.json["imported"] == 1
    assert str(file) in told.json["damage"]
    assert 0 < told.json["unread_bytes"] < len(file.read_bytes())
    assert told.err == done.err


def test_lines_that_are_lost_are_counted(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"key": "a", "value": "1"}\nnonsense\n{"key": "b", "value": "2"}\n{}\n')
    assert "at offset 27: no record" in refused("import", path, file)
    assert not path.exists()
    done = run("import", path, file, "--keep-going")
    assert done.code == 2
    assert "2 failed (lines that are no records: 2)" in done.err
    assert "at offset 27: no record" in done.err
    assert ok("scan", path, "--keys").text == "a\nb\n"


def test_a_log_without_its_end_is_taken_up_to_there(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.aof"
    whole = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"
    file.write_bytes(whole + whole[:-4])
    done = run("import", path, file)
    assert done.code == 2
    assert f"{file} at offset {len(whole)}: the last command is not whole" in done.err
    assert f"{len(whole) - 4} bytes from there on were not read" in done.err
    assert ok("get", path, "a").text == "1\n"


def test_keys_that_an_import_leaves_behind_are_named(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.aof"
    words = [["SET", "a", "1"], *(["RPUSH", f"list{number}", "x"] for number in range(12))]
    file.write_text(
        "".join(
            f"*{len(each)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in each)
            for each in words
        )
    )
    done = run("import", path, file)
    assert done.code == 2
    assert done.text.startswith("imported\t1\t")
    assert "12 skipped (RPUSH: 12)" in done.err
    assert "left behind: list0 (RPUSH), list1 (RPUSH)" in done.err
    assert "list9 (RPUSH) and 2 more, see --json" in done.err
    told = run("import", path, file, "--json")
    assert told.code == 2
    assert told.json["left_behind"] == [
        {"key": f"list{number}", "reason": "RPUSH"} for number in range(12)
    ]


def test_a_key_that_no_store_holds_is_left_behind(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    long = "k" * 3_000
    file.write_text(f'{{"key": "{long}", "value": "1"}}\n{{"key": "b", "value": "2"}}\n')
    done = run("import", path, file, "--json")
    assert done.code == 2
    assert [each["key"] for each in done.json["left_behind"]] == [long]
    assert ok("scan", path, "--keys").text == "b\n"


def test_a_redis_url_is_imported_without_saying_what_it_is(path: Path) -> None:
    said = refused("import", path, "redis://127.0.0.1:1")
    assert "is not there" not in said
    assert "127.0.0.1:1" in said
    assert not path.exists()


@pytest.mark.parametrize(
    "source",
    [["missing.rdb"], ["empty"], ["text"], ["."], ["missing", "--from", "diskcache"],
     ["redis://127.0.0.1:1", "--from", "redis"], ["redis://127.0.0.1:1"], ["good.jsonl", "--family", "__ephemera_x"]],
    ids=str,
)  # fmt: skip
def test_an_import_that_fails_leaves_no_store(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("text").write_text("hello")
    Path("good.jsonl").write_text('{"key": "a", "value": "1"}\n')
    refused("import", path, *source)
    assert not path.exists()


def test_a_source_that_cannot_be_read_is_explained(path: Path, tmp_path: Path) -> None:
    assert "is not there" in refused("import", path, tmp_path / "missing.rdb")
    assert "redis://HOST:PORT" in refused("import", path, tmp_path, "--resume", tmp_path / "c")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = nobody.getsockname()[1]
    assert refused("import", path, f"redis://127.0.0.1:{free}", "--from", "redis")


def test_bench_measures_a_store_of_its_own(tmp_path: Path) -> None:
    measured = ok("bench", "--keys", 500, "--at", tmp_path, "--json").json
    assert measured["per_second"]["put with a TTL"] > 0
    assert measured["event_lag_ms"] >= 0
    assert list(tmp_path.iterdir()) == []
