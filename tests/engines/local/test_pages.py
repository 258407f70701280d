"""Trees read from LMDB's pages: what LMDB would say, or nothing."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ephemera import Store
from ephemera.engines.local._lock_file import OpenFile
from ephemera.engines.local._mapping import Mapping
from ephemera.engines.local._pages import Tree, Walk
from tests.engines.local.stores import engine_of, open_local

SIZE_LIMIT = 64 * 1024**2
KEYS = {
    "short": [b"%d" % number for number in range(3_000)],
    "long": [b"x" * 1_800 + b"%03d" % number for number in range(400)],
    "of every length": [b"k" * size for size in range(1, 1_900, 7)],
}


class File:
    """An LMDB file with a tree `rows`, and what it should hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = lmdb.open(str(path), subdir=False, map_size=SIZE_LIMIT, max_dbs=2, lib_version=1)
        self.rows = self.env.open_db(b"rows")
        self.file = path.open("rb")
        self.mapping = Mapping(self.file.fileno(), SIZE_LIMIT, is_writable=False)
        self.expected: dict[bytes, bytes] = {}

    def change(self, changes: dict[bytes, bytes] | dict[bytes, bytes | None]) -> None:
        with self.env.begin(write=True, db=self.rows) as txn:
            for key, value in changes.items():
                if value is None:
                    txn.delete(key)
                    self.expected.pop(key, None)
                else:
                    txn.put(key, value)
                    self.expected[key] = value

    def tree(self) -> Tree:
        return Tree(self.env.begin(db=self.rows), self.mapping, self.path.stat().st_size, b"rows")

    def close(self) -> None:
        self.env.close()
        self.file.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    file = File(tmp_path / "one.mdb")
    yield file
    file.close()


def test_an_empty_tree_has_nothing(file: File) -> None:
    tree = file.tree()
    assert tree.is_sure
    assert tree.get(b"a") is None
    assert_walks(tree, b"a", {})


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_it_says_what_lmdb_says(file: File, keys: list[bytes]) -> None:
    chance = random.Random(len(keys))
    for _ in range(12):
        chosen = chance.sample(keys, len(keys) // 3)
        file.change(
            {
                key: None if chance.random() < 0.3 else chance.randbytes(chance.choice(SIZES))
                for key in chosen
            }
        )
        tree = file.tree()
        assert {key: tree.get(key) for key in keys} == {key: file.expected.get(key) for key in keys}
        assert tree.get(b"") is None
        assert tree.get(chance.choice(keys) + b"~") is None
        for bound in (b"", b"\xff", chance.choice(keys), chance.choice(keys) + b"~"):
            assert_walks(tree, bound, file.expected)


def assert_walks(tree: Tree, bound: bytes, expected: dict[bytes, bytes]) -> None:
    rows = sorted(expected.items())
    on, back = Walk(tree, bound, is_reverse=False), Walk(tree, bound, is_reverse=True)
    assert list(on) == [row for row in rows if row[0] >= bound]
    assert list(back) == [row for row in reversed(rows) if row[0] < bound]


SIZES = (0, 1, 3, 20, 100, 1_000, 2_037, 2_038, 5_000, 40_000)


def test_it_stays_as_it_was_while_others_write(file: File) -> None:
    keys = KEYS["short"]
    file.change(dict.fromkeys(keys, b"first"))
    tree = file.tree()
    for number in range(40):
        file.change(dict.fromkeys(keys[number::7], b"%d" % number * 30))
    assert {tree.get(key) for key in keys} == {b"first"}
    assert_walks(tree, b"2", dict.fromkeys(keys, b"first"))
    assert file.tree().get(keys[39]) == b"39" * 30


def test_a_state_that_two_commits_have_gone_over_is_not_sure(file: File) -> None:
    txn = file.env.begin(db=file.rows)
    for _ in range(2):
        file.change({b"a": b"1"})
    assert not Tree(txn, file.mapping, file.path.stat().st_size, b"rows").is_sure


def test_there_is_no_tree_of_another_name(file: File) -> None:
    txn = file.env.begin(db=file.rows)
    tree = Tree(txn, file.mapping, file.path.stat().st_size, b"row")
    assert not tree.is_sure
    with pytest.raises(ValueError, match="not what it should be"):
        tree.get(b"a")


# --- damage ---------------------------------------------------------------------------------------


class State:
    """A transaction of a file that LMDB does not know."""

    def __init__(self, number: int) -> None:
        self.number = number

    def id(self) -> int:
        return self.number

    def stat(self) -> dict[str, int]:
        return {"psize": 4_096}


@pytest.mark.parametrize("seed", range(4))
def test_hostile_pages_crash_nothing(file: File, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.sample(KEYS["short"], 300) + KEYS["long"][:30]
    file.change({key: chance.randbytes(chance.choice(SIZES)) for key in keys})
    image, state = file.path.read_bytes(), file.env.begin().id()
    pages = len(image) // 4_096
    damaged = tmp_path / "damaged.mdb"
    damaged.write_bytes(image)
    with damaged.open("r+b") as handle:
        mapping = Mapping(handle.fileno(), len(image))
        memory = memoryview(mapping)
        unsure = 0
        for _ in range(1_500):
            page = chance.randrange(pages) * 4_096
            # Headers and offsets lead somewhere; what is far behind them is mostly values.
            at = page + int(4_096 * chance.random() ** 3)
            memory[at] = chance.randrange(256)
            tree = Tree(State(state), mapping, len(image), b"rows")  # type: ignore[arg-type]  # not LMDB's
            for key in chance.sample(keys, 10):
                try:
                    tree.get(key)
                except ValueError:
                    unsure += 1
            unsure += walk_until_unsure(tree, chance.choice(keys), is_reverse=False)
            unsure += walk_until_unsure(tree, chance.choice(keys), is_reverse=True)
            memory[at] = image[at]
        assert unsure > 0
        tree = Tree(State(state), mapping, len(image), b"rows")  # type: ignore[arg-type]  # not LMDB's
        assert {key: tree.get(key) for key in keys} == file.expected


def walk_until_unsure(tree: Tree, bound: bytes, *, is_reverse: bool) -> bool:
    """Whether a walk comes to where only LMDB can say. As a scan, it ends where keys are in disorder."""
    last = None
    try:
        for key, _ in Walk(tree, bound, is_reverse=is_reverse):
            if last is not None and (key >= last if is_reverse else key <= last):
                return True
            last = key
    except ValueError:
        return True
    return False


def test_a_file_that_is_shorter_than_its_pages_say_is_not_read_past_its_end(file: File) -> None:
    file.change(dict.fromkeys(KEYS["short"], b"x" * 500))
    for size in range(0, file.path.stat().st_size, 4_096):
        tree = Tree(file.env.begin(db=file.rows), file.mapping, size, b"rows")
        for key in KEYS["short"][::100]:
            try:
                assert tree.get(key) == b"x" * 500
            except ValueError:
                continue
        walk_until_unsure(tree, b"", is_reverse=False)
        walk_until_unsure(tree, b"\xff", is_reverse=True)


def test_a_tree_that_came_late_serves_nobody_else(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put_many({"deleted": "1", "changed": "old"})
    store.checkpoint()
    laggards: list[Tree] = []

    def late(*given: Any) -> Tree:
        tree = Tree(*given)
        if not laggards:
            laggards.append(tree)
            store.delete("deleted")
            store.put_many({"changed": "new", "fresh": "1"})
            store.checkpoint()
        return tree

    monkeypatch.setattr("ephemera.engines.local.base_tier.Tree", late)
    assert store.get("deleted") in (b"1", None)
    assert laggards
    assert [store.get(key) for key in ("deleted", "changed", "fresh")] == [None, b"new", b"1"]


def test_a_tree_that_was_left_to_the_parent_says_nothing(file: File) -> None:
    file.change({b"a": b"1"})
    tree = file.tree()
    walk = Walk(tree, b"", is_reverse=False)
    tree.abandon()
    assert not tree.is_sure
    with pytest.raises(ValueError, match="not what it should be"):
        tree.get(b"a")
    with pytest.raises(ValueError, match="not what it should be"):
        next(walk)


def test_lmdb_is_never_asked_about_sound_pages(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("ephemera.engines.local.base_tier.BaseFile.ask", refuse)
    store = open_store()
    for round_ in range(30):
        store.put_many({b"%d" % n: b"x" * (n % 5_000) for n in range(round_, 1_000, 7)}, ttl=60)
        store.delete_many([b"%d" % n for n in range(round_, 1_000, 13)])
        store.compact() if round_ % 5 == 4 else store.checkpoint()
        for n in range(1_000):
            assert store.get(b"%d" % n) in (None, b"x" * (n % 5_000))


def test_lmdb_is_asked_where_the_file_cannot_be_mapped_twice(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no room for addresses")

    monkeypatch.setattr("ephemera.engines.local.base_tier.Mapping", refuse)
    store = open_store()
    store.put("a", "1")
    store.checkpoint()
    assert (store.get("a"), store.get("b")) == (b"1", None)


def test_lmdb_is_asked_where_the_size_of_the_file_is_unknown(path: Path) -> None:
    with open_local(path) as store:
        store.put("a", "1")
        store.checkpoint()
        file = engine_of(store)._base.file
        closed = OpenFile(lambda: os.open(path, os.O_RDONLY))
        closed.close()
        opened, file._file = file._file, closed
        try:
            assert (store.get("a"), store.get("b")) == (b"1", None)
        finally:
            file._file = opened


def test_lmdb_is_asked_where_pages_do_not_say(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(txn: lmdb.Transaction[bytes], mapping: Mapping, _: int, *more: Any) -> Tree:
        return Tree(txn, mapping, 0, *more)

    monkeypatch.setattr("ephemera.engines.local.base_tier.Tree", unsure)
    store = open_store()
    store.put("a", "1")
    store.checkpoint()
    assert (store.get("a"), store.get("b")) == (b"1", None)
