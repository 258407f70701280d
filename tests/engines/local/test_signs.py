"""Signs lead where the branches of a tree lead, whatever its keys are like."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import lmdb
import pytest

from ephemera.engines.local._mapping import Mapping
from ephemera.engines.local._pages import Tree

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
