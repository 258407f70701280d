"""BranchCache lead where the branches of a tree lead, whatever its keys are like."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from ephemera import Store
from ephemera.engines.local._mapping import Mapping
from ephemera.engines.local._pages import Tree
from tests.engines.local.stores import engine_of
from tests.engines.local.test_pages import State

PAGE_BYTES = 4_096
FILLING = b"v" * 150
KEYS = {
    "told by eight bytes": [b"key:%014d" % number for number in range(0, 60_000, 3)],
    "that differ far behind": [b"%03d" % n + b"-" * 40 + b"%06d" % n for n in range(900)]
    + [b"one" + b"-" * 60 + b"%06d" % n for n in range(4_000)],
    "that end in zeros": [b"a" * n + b"\0" * zeros for n in range(1, 60) for zeros in range(40)],
    "that are each other's beginnings": [
        b"ab" * n + b"c" * k for n in range(60) for k in range(60)
    ],
    "of few bytes": [bytes(key) for key in itertools.product(b"\0\1\x7f\xff", repeat=6)],
    "at random": [random.Random(n).randbytes(n % 30 + 1) for n in range(5_000)],
}


def read(path: Path, pairs: dict[bytes, bytes], size: int = 64 * 1024**2) -> Tree:
    """The tree of such pairs, as LMDB writes it."""
    env = lmdb.open(str(path), subdir=False, map_size=size, max_dbs=1, lib_version=1, sync=False)
    with env.begin(write=True, db=env.open_db(b"rows")) as txn:
        for key, value in pairs.items():
            txn.put(key, value)
    with path.open("rb") as file:
        mapping = Mapping(file.fileno(), size, is_writable=False)
    return Tree(env.begin(), mapping, path.stat().st_size, b"rows")


def neighbours(key: bytes) -> set[bytes]:
    """Keys that a search for this one may be mistaken for."""
    return {
        key + b"\0",
        key + b"~",
        key[:-1],
        key[: len(key) // 2],
        key[:-1] + b"\xff",
        b"\0" + key,
    }


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_every_key_and_what_lies_beside_it_is_found_or_not(
    tmp_path: Path, keys: list[bytes]
) -> None:
    pairs = {key: b"%d" % number + FILLING for number, key in enumerate(keys) if key and number % 5}
    tree = read(tmp_path / "one.mdb", pairs)
    asked = [
        *keys,
        *itertools.chain.from_iterable(map(neighbours, random.Random(1).sample(keys, 500))),
    ]
    # What the first look learns, the second one follows.
    for _ in range(2):
        random.Random(2).shuffle(asked)
        for key in filter(None, asked):
            assert tree.get(key) == pairs.get(key)
    for key in (b"\0", b"\xff" * 1_900):
        assert tree.get(key) == pairs.get(key)


def test_a_tree_of_more_branches_than_there_is_room_for_is_read_from_its_pages(
    tmp_path: Path,
) -> None:
    # Few keys of such a length fit a branch, and each branch is kept with what they share.
    keys = [b"x" * 1_800 + b"%06d" % number for number in range(0, 40_000, 2)]
    tree = read(tmp_path / "one.mdb", dict.fromkeys(keys, b"1"), 512 * 1024**2)
    for _ in range(2):
        assert all(tree.get(key) == b"1" for key in keys)
        assert all(tree.get(key + b"0") is None for key in keys[::10])


def test_what_was_learned_serves_until_something_is_written(
    open_store: Callable[..., Store],
) -> None:
    store = open_store()
    store.put_many({f"{number:06}": "old" for number in range(2_000)})
    store.checkpoint()
    file = engine_of(store)._base.file
    first = file.pin()
    assert first is not None
    assert first.cache is not None
    again = file.pin()
    assert again is not None
    assert again.cache is first.cache
    store.put_many({f"{number:06}": "new" for number in range(0, 2_000, 2)})
    store.checkpoint()
    later = file.pin()
    assert later is not None
    assert later.cache is not first.cache
    assert {store.get(f"{number:06}") for number in range(0, 2_000, 2)} == {b"new"}


@pytest.mark.parametrize("root", [1 << 63 | 8, 1 << 63 | 1 << 40, (1 << 64) - 2, 1 << 62, 1 << 20])
def test_a_root_that_is_no_page_is_not_followed(tmp_path: Path, root: int) -> None:
    path = tmp_path / "one.mdb"
    read(path, dict.fromkeys(KEYS["at random"], FILLING))
    image = bytearray(path.read_bytes())
    state = max(struct.unpack_from("<Q", image, page + 152)[0] for page in (0, PAGE_BYTES))
    names = struct.unpack_from("<Q", image, (state & 1) * PAGE_BYTES + 136)[0] * PAGE_BYTES
    at = image.index(b"rows\0", names) + 46  # behind the name, filled up to an even size
    struct.pack_into("<Q", image, at, root)
    damaged = tmp_path / "damaged.mdb"
    damaged.write_bytes(image)
    with damaged.open("rb") as file:
        mapping = Mapping(file.fileno(), len(image), is_writable=False)
    tree = Tree(State(state), mapping, len(image), b"rows")  # type: ignore[arg-type]  # not LMDB's
    with pytest.raises(ValueError, match="not what it should be"):
        tree.get(KEYS["at random"][1])
