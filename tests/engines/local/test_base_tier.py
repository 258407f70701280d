"""The base tier: rows and index entries that belong together, and a file that others damage."""

from __future__ import annotations

import random
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

import ephemera
from ephemera import CorruptStore, ManualClock, Store, StoreClosed, StoreFull
from ephemera.core.arguments import KEY_BYTES_MAX
from ephemera.engines.local.base_tier import BaseFile
from tests.engines.local.stores import (
    THOUSAND,
    base_file,
    contents,
    engine_of,
    run_python,
    write_until,
)


def sizes(store: Store) -> tuple[int, int]:
    stats = store.stats()
    return stats["base_rows"], stats["deadline_entries"]


# --- rows and their index entries -----------------------------------------------------------------


def test_a_key_that_dies_in_a_segment_never_reaches_the_base_tier(
    store: Store, clock: ManualClock
) -> None:
    store.put("short", "1", ttl=1)
    store.put("long", "2", ttl=100)
    clock.advance(1)
    store.checkpoint()
    assert sizes(store) == (1, 1)


@pytest.mark.parametrize("old_ttl", [None, 50])
def test_a_key_that_dies_in_a_segment_hides_and_removes_the_older_row(
    store: Store, clock: ManualClock, old_ttl: float | None
) -> None:
    store.put("key", "old", ttl=old_ttl)
    store.checkpoint()
    assert sizes(store) == (1, 0 if old_ttl is None else 1)
    store.put("key", "new", ttl=1)
    clock.advance(1)
    assert store.get("key") is None
    assert dict(store.scan()) == {}
    store.checkpoint()
    assert store.get("key") is None
    assert sizes(store) == (0, 0)


def test_a_family_that_never_saw_a_ttl_has_no_index_entry(store: Store) -> None:
    for round_ in range(3):
        store.put_many({b"%d" % n: b"%d" % round_ for n in range(100)})
        store.delete_many([b"%d" % n for n in range(round_ * 10)])
        store.checkpoint()
        assert sizes(store)[1] == 0
    with raw(store) as env, env.begin() as txn:
        assert txn.stat(env.open_db(b"deadlines", txn=txn, create=False))["depth"] == 0


def test_a_put_without_ttl_leaves_nothing_of_the_old_deadline(
    store: Store, clock: ManualClock
) -> None:
    store.put("key", "1", ttl=5)
    store.checkpoint()
    store.put("key", "2")
    store.checkpoint()
    assert sizes(store) == (1, 0)
    clock.advance(10)
    assert store.purge_expired() == 0
    assert store.get("key") == b"2"


@pytest.mark.parametrize("change", ["put", "touch", "persist", "delete"])
def test_a_changed_deadline_moves_its_entry(store: Store, clock: ManualClock, change: str) -> None:
    store.put("key", "1", ttl=5)
    store.checkpoint()
    {
        "put": lambda: store.put("key", "1", ttl=9),
        "touch": lambda: store.touch("key", ttl=9),
        "persist": lambda: store.persist("key"),
        "delete": lambda: store.delete("key"),
    }[change]()
    store.checkpoint()
    assert sizes(store) == {"persist": (1, 0), "delete": (0, 0)}.get(change, (1, 1))
    clock.advance(5)
    assert store.check().is_clean
    assert store.purge_expired() == 0
    clock.advance(4)
    assert store.purge_expired() == (1 if change in ("put", "touch") else 0)
    assert sizes(store) == ((1, 0) if change == "persist" else (0, 0))


def test_the_same_deadline_again_keeps_one_entry(store: Store) -> None:
    for value in ("1", "2", "3"):
        store.put("key", value, at=2_000_000_000)
        store.checkpoint()
    assert sizes(store) == (1, 1)


def test_the_longest_key_fits_rows_index_and_untold_tree(store: Store, clock: ManualClock) -> None:
    events: list[ephemera.Expired] = []
    store.on_expire(events.append)
    early, late = b"\xff" * KEY_BYTES_MAX, b"\xfe" * KEY_BYTES_MAX
    store.put(early, b"1", ttl=1)
    store.put(late, b"2", ttl=9)
    clock.advance(1)
    store.checkpoint()
    assert store.get(late) == b"2"
    assert sizes(store) == (1, 1)
    clock.advance(8)
    assert store.purge_expired() == 2
    assert [event.key for event in events] == [early, late]


def test_many_random_changes_keep_rows_and_index_in_step(store: Store, clock: ManualClock) -> None:
    chance = random.Random(5)
    for _ in range(30):
        for _ in range(40):
            key = b"%d" % chance.randrange(60)
            match chance.randrange(4):
                case 0:
                    store.put(key, chance.randbytes(20), ttl=chance.randrange(1, 20))
                case 1:
                    store.put(key, b"for ever")
                case 2:
                    store.delete(key)
                case _:
                    store.touch(key, ttl=chance.randrange(1, 20))
        clock.advance(chance.randrange(4))
        store.checkpoint()
        report = store.check()
        assert report.is_clean, report.problems
        if chance.random() < 0.3:
            store.purge_expired()


# --- reading while everything moves ---------------------------------------------------------------


def test_a_reader_never_misses_a_key_while_checkpoints_move_it(store: Store) -> None:
    keys = [b"%d" % n for n in range(50)]
    store.put_many(dict.fromkeys(keys, b"0"))
    is_over = threading.Event()
    missed: list[object] = []

    def read() -> None:
        while not is_over.is_set():
            found = {key: store.get(key) for key in keys}
            missed.extend(key for key, value in found.items() if value is None)
            if store.count() != len(keys):
                missed.append("count")

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for round_ in range(60):
        store.put_many(dict.fromkeys(keys, b"%d" % round_))
        store.checkpoint() if round_ % 7 else store.compact()
    is_over.set()
    for reader in readers:
        reader.join(30)
    assert missed == []


def test_readers_that_meet_the_close_of_their_store_are_told_so(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    for number in range(10):
        store = open_store(tmp_path / f"{number}")
        store.put("key", "value")
        store.checkpoint()
        reads = threading.Event()
        raised: list[BaseException] = []
        thread = threading.Thread(target=read_for_ever, args=(store, reads, raised), daemon=True)
        thread.start()
        assert reads.wait(30)
        store.close()
        thread.join(30)
        assert [type(error) for error in raised] == [ephemera.StoreClosed]


def read_for_ever(store: Store, reads: threading.Event, raised: list[BaseException]) -> None:
    try:
        while True:
            assert store.get("key") == b"value"
            assert store.count() == 1
            reads.set()
    except Exception as error:
        raised.append(error)


# --- no room --------------------------------------------------------------------------------------


def test_size_limit_is_store_full_until_it_is_raised_and_nothing_is_lost(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(size_limit=1024 * 1024)
    words, written = write_until(StoreFull, store)
    assert "size_limit" in words
    assert store.count() == written
    with pytest.raises(StoreFull):
        store.put("another", "one")
    store.checkpoint()
    assert all(store.get(b"%d" % number) == THOUSAND for number in range(written))
    store.close()
    store = open_store(size_limit=16 * 1024 * 1024)
    assert store.count() == written
    store.put("another", "one")
    store.checkpoint()
    assert store.check().is_clean
    assert store.count() == written + 1


def test_the_size_limit_of_the_first_opener_holds_for_all(open_store: Callable[..., Store]) -> None:
    store = open_store(size_limit=1024 * 1024)
    store.put("key", "value")
    store.checkpoint()
    write = """
        import sys
        import ephemera
        with ephemera.open(sys.argv[1], segment_bytes=65536, maintenance="manual") as store:
            try:
                store.put_many({b"%d" % n: b"x" * 1000 for n in range(3000)})
                store.checkpoint()
            except ephemera.StoreFull as error:
                print("size_limit" in str(error), store.count())
        """
    path = engine_of(store)._layout.root
    done = run_python(write, path)
    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr
    assert contents(store) == {b"key": b"value"}
    store.close()
    done = run_python(write, path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert open_store().count() == 3_001


def test_a_limit_below_what_is_there_leaves_all_of_it_readable_everywhere(
    open_store: Callable[..., Store],
) -> None:
    store = open_store()
    store.put_many({b"%d" % number: THOUSAND for number in range(3_000)})
    store.checkpoint()
    store.close()
    store = open_store(size_limit=1024 * 1024)
    done = run_python(
        """
        import sys
        import ephemera
        with ephemera.open(sys.argv[1], maintenance="manual") as store:
            assert store.count() == 3000
            try:
                store.put("more", "1")
            except ephemera.StoreFull:
                print("full")
        """,
        engine_of(store)._layout.root,
    )
    assert (done.returncode, done.stdout) == (0, "full\n"), done.stderr
    assert store.count() == 3_000


# --- damage ---------------------------------------------------------------------------------------


def raw(store: Store) -> lmdb.Environment:
    """The base tier of a store as LMDB sees it: a copy, for a file is not opened twice."""
    path = base_file(Path(engine_of(store)._layout.root))
    copy = path.with_name("raw")
    shutil.copy(path, copy)
    return lmdb.open(str(copy), subdir=False, max_dbs=8, lib_version=1)


def damaged(path: Path) -> lmdb.Environment:
    """The base tier of a closed store, to be changed from outside."""
    return lmdb.open(str(base_file(path)), subdir=False, max_dbs=8, lib_version=1)


def test_a_flipped_byte_of_a_row_is_refused_by_name_and_confined(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put_many({"good": "untouched", "bad": "precious value", "last": "also good"})
    store.checkpoint()
    store.close()
    file = base_file(path)
    content = bytearray(file.read_bytes())
    at = content.index(b"precious value")
    while at >= 0:
        content[at] ^= 0x20
        at = content.find(b"precious value")
    file.write_bytes(content)
    store = open_store()
    for read in (
        lambda: store.get("bad"),
        lambda: store.entry("bad"),
        lambda: dict(store.scan()),
        lambda: store.snapshot().get("bad"),
    ):
        with pytest.raises(CorruptStore, match="bad"):
            read()
    assert store.get("good") == b"untouched"
    assert list(store.scan(start="c")) == [(b"good", b"untouched"), (b"last", b"also good")]
    assert any("bad" in problem for problem in store.check().problems)
    store.put("bad", "mended")
    store.checkpoint()
    assert store.check().is_clean
    assert store.get("bad") == b"mended"


def test_check_reports_what_was_planted(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store()
    store.put("lost entry", "1", ttl=10)
    store.put("kept", "2", ttl=20)
    store.put("plain", "3")
    store.checkpoint()
    assert store.check()[:3] == (3, 2, 0)
    store.close()
    with damaged(path) as env, env.begin(write=True) as txn:
        deadlines, rows = (env.open_db(name, txn=txn) for name in (b"deadlines", b"rows"))
        (first, *_) = list(txn.cursor(deadlines).iternext(values=False))
        txn.delete(first, db=deadlines)
        txn.put(struct.pack(">q", 5) + b"\0\0\0\x01nobody", b"", db=deadlines)
        stored = txn.get(b"\0\0\0\x01plain", db=rows) or b""
        txn.put(b"\0\0\x27\x0fstranger", stored, db=rows)
    store = open_store()
    report = store.check()
    assert not report.is_clean
    problems = "\n".join(report.problems)
    assert "nobody" in problems
    assert "stranger" in problems
    assert len(report.problems) >= 3
    # A stale entry is only dropped, and harms no one.
    assert store.purge_expired() == 0
    assert "nobody" not in "\n".join(store.check().problems)


def test_check_names_a_row_whose_index_entry_is_gone(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("forgotten", "1", ttl=10)
    store.checkpoint()
    store.close()
    with damaged(path) as env, env.begin(write=True) as txn:
        deadlines = env.open_db(b"deadlines", txn=txn)
        (entry,) = list(txn.cursor(deadlines).iternext(values=False))
        txn.delete(entry, db=deadlines)
    assert "forgotten" in "\n".join(open_store().check().problems)


def test_a_missing_base_file_is_damage_and_not_an_empty_store(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("key", "value")
    store.checkpoint()
    store.close()
    base_file(path).unlink()
    with pytest.raises(CorruptStore, match="mdb"):
        open_store()


def test_an_emptied_base_file_is_damage_and_not_an_empty_store(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("key", "value")
    store.checkpoint()
    store.close()
    base_file(path).write_bytes(b"")
    with pytest.raises(CorruptStore, match="mdb"):
        open_store()


def test_a_base_file_that_is_none_is_refused(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store()
    store.put("key", "value")
    store.checkpoint()
    store.close()
    base_file(path).write_bytes(b"something else entirely" * 1_000)
    with pytest.raises(CorruptStore, match="mdb"):
        open_store()


def test_a_store_made_anew_where_one_was_removed_is_empty(
    open_store: Callable[..., Store], path: Path
) -> None:
    forgotten = open_store()
    forgotten.put("key", "of the old store")
    forgotten.checkpoint()
    shutil.rmtree(path)
    assert open_store().get("key") is None


# --- compaction -----------------------------------------------------------------------------------


def test_compaction_gives_space_back_and_others_follow(open_store: Callable[..., Store]) -> None:
    store, other = open_store(), open_store()
    store.put_many({b"%d" % n: b"x" * 500 for n in range(2_000)})
    store.checkpoint()
    assert other.count() == 2_000
    with other.snapshot() as snapshot:
        store.delete_many([b"%d" % n for n in range(10, 2_000)])
        store.checkpoint()
        before = store.stats()["base_bytes"]
        store.compact()
        assert store.stats()["base_bytes"] < before / 10
        assert (other.count(), snapshot.count()) == (10, 2_000)
    other.put("from the other", "1")
    other.checkpoint()
    assert store.get("from the other") == b"1"
    assert other.stats()["base_bytes"] == store.stats()["base_bytes"]
    assert store.check().is_clean


def test_a_process_that_slept_through_compactions_follows(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("key", "0")
    done = run_python(
        """
        import sys
        import ephemera
        with ephemera.open(sys.argv[1], segment_bytes=65536, maintenance="manual") as store:
            for round in range(4):
                store.put("key", str(round))
                store.compact()
        """,
        path,
    )
    assert done.returncode == 0, done.stderr
    assert store.get("key") == b"3"
    store.put("key", "mine")
    store.checkpoint()
    store.close()
    assert open_store().get("key") == b"mine"


def test_repair_verifies_pages_that_nobody_changes_meanwhile(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    is_locked = []

    def page_problems(_: BaseFile) -> list[str]:
        is_locked.append(engine_of(store)._control.lmdb.is_held_here())
        return []

    monkeypatch.setattr(BaseFile, "page_problems", page_problems)
    store.repair()
    assert is_locked == [True]


def test_a_commit_that_looks_like_damage_once_is_no_problem(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    seen = iter(
        [["page 7 is beyond EOF", "page 8 is damaged"], ["page 8 is damaged"], ["page 9"], []]
    )
    monkeypatch.setattr(BaseFile, "_verify", lambda _: next(seen))
    (problem,) = store.check().problems
    assert problem.endswith("page 8 is damaged")
    assert store.check().problems == ()


@pytest.mark.parametrize(
    "use",
    [BaseFile.oldest_reader, BaseFile.clear_dead_readers, BaseFile.unused_bytes, BaseFile.sizes],
)
def test_what_is_asked_of_a_file_that_another_thread_closed_says_so(
    open_store: Callable[..., Store], use: Callable[[BaseFile], object]
) -> None:
    store = open_store()
    file = engine_of(store)._base.file
    store.close()
    with pytest.raises(StoreClosed):
        use(file)
