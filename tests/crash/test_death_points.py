"""Wherever in its work a process is killed, the others go on and nothing acknowledged is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ephemera
from tests.crash.death_points import die_in, die_opening, open_quietly

POINTS = 6
"""How many lines of an action a short run tries; the soak tries them all."""

KEPT = {b"%03d" % number: b"x" * 200 for number in range(100)}


def rotate(store: ephemera.Store) -> None:
    for number in range(40):
        store.put(b"pending:%d" % number, b"y" * 4_000)


def checkpoint(store: ephemera.Store) -> None:
    store.put(b"pending:0", b"y")
    store.checkpoint()


def compact(store: ephemera.Store) -> None:
    store.compact()


def create(store: ephemera.Store) -> None:
    store.family("fresh", default_ttl=60).put(b"pending:0", b"y")


def clear(store: ephemera.Store) -> None:
    store.family("doomed").clear()


def drop(store: ephemera.Store) -> None:
    store.drop_family("doomed")


def purge(store: ephemera.Store) -> None:
    store.purge_expired()


def transact(store: ephemera.Store) -> None:
    with store.transaction() as txn:
        txn.put(b"pending:a", b"y" * 40_000)
        txn.put(b"pending:b", b"y" * 40_000)
        txn.family("other").put(b"pending:c", b"y")


def close(store: ephemera.Store) -> None:
    store.put(b"pending:0", b"y")
    store.close()


def back_up(store: ephemera.Store) -> None:
    store.backup(f"{store.stats()['path']}.copy")


ACTIONS = [rotate, checkpoint, compact, create, clear, drop, purge, transact, close, back_up]


def prepare(path: Path) -> None:
    """A store with rows in the base tier and in segments, some of them dead."""
    with open_quietly(path) as store:
        half = len(KEPT) // 2
        store.put_many(dict(list(KEPT.items())[:half]), ttl=3600)
        doomed = store.family("doomed")
        doomed.put_many({b"a": b"1", b"b": b"2"})
        store.put_many({b"brief:%d" % n: b"z" for n in range(20)}, ttl=0.001)
        store.family("other").put(b"a", b"1")
        store.checkpoint()
        store.put_many(dict(list(KEPT.items())[half:]))
        doomed.put(b"c", b"3", ttl=3600)


def must_hold(store: ephemera.Store) -> None:
    """What is true whatever died half way."""
    found = dict(store.scan())
    assert {key: found[key] for key in found if key[:1].isdigit()} == KEPT
    assert store.get_many(KEPT) == KEPT
    assert store.family("other").get(b"a") == b"1"
    whole = [b"pending:a" in found, b"pending:b" in found, b"pending:c" in store.family("other")]
    assert len(set(whole)) == 1
    if "doomed" in store.families():
        doomed = dict(store.family("doomed").scan())
        assert doomed in ({}, {b"a": b"1", b"b": b"2", b"c": b"3"})
    assert store.check().problems == ()


def go_on(store: ephemera.Store, family: str, survivor: bytes) -> None:
    """Work as those do who did not die; all of this is acknowledged."""
    store.put(b"late:" + survivor, b"1", ttl=3600)
    store.family(family).put(b"late:" + survivor, b"2")
    store.checkpoint()
    store.put(b"later:" + survivor, b"3")


def must_have(store: ephemera.Store, family: str, survivor: bytes) -> None:
    assert store.get(b"late:" + survivor) == b"1"
    assert store.family(family).get(b"late:" + survivor) == b"2"
    assert store.get(b"later:" + survivor) == b"3"


Action = Callable[[ephemera.Store], None]


def points(lines: int, count: int | None) -> list[int]:
    everywhere = range(1, lines + 1)
    return list(everywhere) if count is None else sorted(random.sample(everywhere, count))


def try_attached(action: Action, tmp_path: Path, count: int | None) -> None:
    """Others have the store open all the while, and then open it anew."""
    prepare(tmp_path / "counted")
    lines = die_in(action, tmp_path / "counted", 0)
    assert lines is not None
    for fatal in points(lines, count):
        path = tmp_path / f"{fatal}"
        prepare(path)
        print(f"death at line {fatal} of {lines}")  # noqa: T201  (shown when the test fails)
        family = "doomed" if action in (clear, drop) else "other"
        with open_quietly(path) as store:
            old = store.family("doomed")
            die_in(action, path, fatal)
            must_hold(store)
            go_on(store, family, b"beside")
            must_have(store, family, b"beside")
            with open_quietly(path) as fresh:
                must_have(fresh, family, b"beside")
                fresh.family(family).delete(b"late:beside")
                fresh.family(family).put(b"late:beside", b"2")
                must_have(store, family, b"beside")
            if family == "doomed":
                # A handle of a family that was dropped, and made again since, is refused.
                with suppress(*[ephemera.InvalidArgument] if action is drop else []):
                    old.clear()
        with open_quietly(path) as store:
            if family == "other":
                must_hold(store)
                must_have(store, family, b"beside")
            assert store.get_many(KEPT) == KEPT
            assert store.check().problems == ()


def try_alone(action: Action, tmp_path: Path, count: int | None) -> None:
    """Nobody else has the store open; the next one recovers."""
    prepare(tmp_path / "counted")
    lines = die_in(action, tmp_path / "counted", 0)
    assert lines is not None
    for fatal in points(lines, count):
        path = tmp_path / f"{fatal}"
        prepare(path)
        die_in(action, path, fatal)
        with open_quietly(path) as store:
            must_hold(store)
            go_on(store, "other", b"after")
        with open_quietly(path) as store:
            must_hold(store)
            must_have(store, "other", b"after")


@pytest.mark.parametrize("action", ACTIONS)
def test_a_death_beside_others(action: Action, tmp_path: Path) -> None:
    try_attached(action, tmp_path, POINTS)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_death_alone(action: Action, tmp_path: Path) -> None:
    try_alone(action, tmp_path, POINTS)


@pytest.mark.soak
@pytest.mark.parametrize("action", ACTIONS)
def test_a_death_at_every_line_beside_others(action: Action, tmp_path: Path) -> None:
    try_attached(action, tmp_path, None)


@pytest.mark.soak
@pytest.mark.parametrize("action", ACTIONS)
def test_a_death_at_every_line_alone(action: Action, tmp_path: Path) -> None:
    try_alone(action, tmp_path, None)


def try_opening(tmp_path: Path, count: int | None, *, is_new: bool, is_shared: bool) -> None:
    def made(name: str) -> Path:
        if not is_new:
            prepare(tmp_path / name)
        return tmp_path / name

    path = made("counted")
    lines = die_opening(path, 0)
    assert lines is not None
    for fatal in points(lines, count):
        path = made(f"{fatal}")
        if is_shared:
            with open_quietly(path) as store:
                die_opening(path, fatal)
                go_on(store, "other", b"beside")
        else:
            die_opening(path, fatal)
        with open_quietly(path) as store:
            if is_shared:
                must_have(store, "other", b"beside")
            if not is_new:
                must_hold(store)
            go_on(store, "other", b"after")
            must_have(store, "other", b"after")


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "alone"])
def test_a_death_while_opening_or_closing(tmp_path: Path, is_new: bool, is_shared: bool) -> None:
    try_opening(tmp_path, POINTS, is_new=is_new, is_shared=is_shared)


@pytest.mark.soak
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "alone"])
def test_a_death_at_every_line_of_opening_or_closing(
    tmp_path: Path, is_new: bool, is_shared: bool
) -> None:
    try_opening(tmp_path, None, is_new=is_new, is_shared=is_shared)
