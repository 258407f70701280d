"""Recovery: after any death, what was published; after damage, an error that names it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ephemera import CorruptStore, InvalidArgument, ManualClock, Store
from ephemera.core.row import Row
from ephemera.engines.local.files import temporary_name
from tests.engines.local.stores import (
    contents,
    crash_copy,
    engine_of,
    run_python,
    segment_files,
    start_python,
)

FAMILIES = ["default", "one", "two"]
Contents = dict[str, dict[bytes, bytes]]


# --- time -----------------------------------------------------------------------------------------


def test_a_write_time_from_elsewhere_is_not_taken_for_the_time(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "before")
    store.put("session", "alive", ttl=3600)
    engine = engine_of(store)
    ahead_ms = clock.now_ms() + 50 * 365 * 86_400_000
    family = engine.family("default", create=False)
    engine.write([(family, b"copied", Row(b"from a machine that is ahead", ahead_ms))])
    again = open_store(crash_copy(tmp_path / "before", tmp_path / "after"))
    assert again.clock.now_ms() < ahead_ms
    assert again.get("session") == b"alive"
    copied = again.entry("copied")
    assert copied is not None
    assert copied.written_at.timestamp() * 1000 == ahead_ms


# --- deaths ---------------------------------------------------------------------------------------


def everything(store: Store) -> Contents:
    return {name: contents(store.family(name)) for name in store.families()}


def step(store: Store, clock: ManualClock, chance: random.Random) -> None:
    """One random thing that may happen to a store."""
    family = store.family(chance.choice(FAMILIES))
    key = b"%d" % chance.randrange(12)
    size = chance.choice([0, 10, 1_000, 70_000])
    match chance.randrange(12):
        case 0 | 1 | 2 | 3:
            family.put(key, chance.randbytes(size), ttl=chance.choice([None, 1, 5]))
        case 4 | 5:
            family.put_many({b"%d" % n: chance.randbytes(9) for n in range(8)})
        case 6:
            family.delete(key)
        case 7:
            clock.advance(chance.random() * 2)
        case 8:
            store.checkpoint()
        case 9:
            store.purge_expired()
        case 10:
            chance.choice([store.compact, store.sync])()
        case _:
            family.clear()


def play_crashes(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path, seed: int, steps: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / f"{seed}"
    store = open_store(path)
    for number in range(steps):
        step(store, clock, chance)
        if chance.random() < 0.15:
            expected = everything(store)
            copy = crash_copy(path, tmp_path / f"{seed}-{number}")
            store.close()
            store, path = open_store(copy), copy
            assert everything(store) == expected
            assert store.check().is_clean
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_at_any_moment_loses_nothing(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    play_crashes(open_store, clock, tmp_path, seed, 120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_a_crash_at_any_moment_loses_nothing_for_long(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    play_crashes(open_store, clock, tmp_path, seed, 1_000)


WRITE_AND_TELL = """
    import itertools, sys
    import ephemera
    store = ephemera.open(sys.argv[1], segment_bytes=65536, maintenance=sys.argv[2])
    for number in itertools.count():
        if number % 5 == 0:
            with store.transaction() as transaction:
                transaction.put("left", str(number))
                transaction.put("right", str(number))
        store.put(f"{number % 300:04d}", f"{number} " + "x" * (number % 700))
        print(number, flush=True)
"""


@pytest.mark.parametrize("maintenance", ["background", "manual"])
def test_all_that_a_killed_writer_told_of_is_there(
    open_store: Callable[..., Store], path: Path, maintenance: str
) -> None:
    last = 0
    for round_ in range(3):
        with start_python(WRITE_AND_TELL, path, maintenance) as writer:
            assert writer.stdout is not None
            for _ in range(400 + 333 * round_):
                last = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = [line for line in writer.stdout.read().split("\n")[:-1] if line]
            last = int(rest[-1]) if rest else last
            writer.wait(30)
        store = open_store(clock=None)
        assert store.check().is_clean
        assert store.get("left") == store.get("right")
        for number in range(max(0, last - 298), last + 1):
            value = store.get(f"{number % 300:04d}")
            assert value is not None
            assert int(value.split()[0]) in (number, number + 300)
        store.close()


def test_a_writer_killed_inside_its_turn_leaves_the_store_to_the_others(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store(clock=None)
    store.put("before", "1")
    code = """
        import sys
        import ephemera
        store = ephemera.open(sys.argv[1], segment_bytes=65536, maintenance="manual")
        transaction = store.transaction()
        transaction.put("never", "committed")
        print("inside", flush=True)
        sys.stdin.readline()
    """
    with start_python(code, path) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "inside\n"
        assert store.get("before") == b"1"
        writer.kill()
        writer.wait(30)
    store.put("after", "2")
    assert contents(store) == {b"before": b"1", b"after": b"2"}
    assert store.check().is_clean


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise SystemError", "del store", "os._exit(0)"])
def test_a_store_that_was_never_closed_loses_nothing(
    open_store: Callable[..., Store], path: Path, ending: str
) -> None:
    run_python(
        f"""
        import os, sys
        import ephemera
        store = ephemera.open(sys.argv[1], segment_bytes=65536)
        for number in range(500):
            store.put(str(number), "x" * 500, ttl=3600)
        {ending}
        """,
        path,
    )
    store = open_store(clock=None)
    assert store.count() == 500
    assert store.check().is_clean


def test_time_does_not_go_back_over_a_crash(
    open_store: Callable[..., Store], clock: ManualClock, path: Path, tmp_path: Path
) -> None:
    store = open_store()
    store.put("key", "1", ttl=60)
    clock.advance(100)
    store.put("later", "2")
    copy = crash_copy(path, tmp_path / "copy")
    behind = open_store(copy, clock=ManualClock(clock.now_ms() - 90_000))
    assert behind.get("key") is None
    assert behind.clock.now_ms() >= clock.now_ms()


# --- damage ---------------------------------------------------------------------------------------


def three_segments(open_store: Callable[..., Store], path: Path) -> list[Path]:
    """The segments of a store with three of them that nobody closed."""
    store = open_store(durability="none")
    number = 0
    while store.stats()["segments"] < 3:
        store.put(b"%04d" % number, b"%04d" % number * 100)
        number += 1
    store.put("last", "one")
    copy = crash_copy(path, path.with_name("crashed"))
    store.close()
    return segment_files(copy)


def numbers_in(store: Store) -> list[bytes]:
    return [key for key, value in store.scan() if value == key * 100]


def test_a_segment_missing_in_the_middle_is_named(
    open_store: Callable[..., Store], path: Path
) -> None:
    _, middle, _ = three_segments(open_store, path)
    middle.unlink()
    with pytest.raises(CorruptStore, match=middle.name) as caught:
        open_store(middle.parents[1])
    assert caught.value.path == str(middle)


def test_a_segment_under_another_number_is_refused(
    open_store: Callable[..., Store], path: Path
) -> None:
    first, middle, last = three_segments(open_store, path)
    middle.write_bytes(first.read_bytes())
    with pytest.raises(CorruptStore, match=middle.name):
        open_store(last.parents[1])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_unsynced_tear_leaves_a_prefix_of_everything_after(
    open_store: Callable[..., Store], path: Path, which: int
) -> None:
    """A tear in an older segment takes the younger ones with it: they were written later."""
    files = three_segments(open_store, path)
    store = open_store(files[0].parents[1])
    whole = [*numbers_in(store), b"last"]
    store.close()
    for file in files:
        content = bytearray(file.read_bytes())
        # As if nothing had ever been synced.
        content[192:212] = bytes(20)
        if file == files[which]:
            end = len(content.rstrip(b"\0"))
            content[end - 3 :] = bytes(len(content) - end + 3)
        file.write_bytes(content)
    store = open_store(files[0].parents[1])
    kept = [key for key, _ in store.scan()]
    assert kept == whole[: len(kept)]
    assert len(kept) < len(whole)
    assert b"last" not in kept
    assert store.check().is_clean
    store.put("on", "we go")
    store.checkpoint()
    assert store.get("on") == b"we go"


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_to_what_was_synced_is_refused_with_its_place(
    open_store: Callable[..., Store], path: Path, how: str
) -> None:
    store = open_store()
    for number in range(20):
        store.put(b"%d" % number, b"value %d" % number)
    store.sync()
    store.close()
    (file,) = segment_files(path)
    content = bytearray(file.read_bytes())
    at = content.index(b"value 11")
    if how == "flip":
        content[at] ^= 1
    else:
        del content[at:]
    file.write_bytes(content)
    with pytest.raises(CorruptStore, match=file.name) as caught:
        open_store()
    assert caught.value.offset is not None
    assert at - 64 < caught.value.offset <= at
    # It stays refused: an error must not be gone the second time.
    with pytest.raises(CorruptStore, match=file.name):
        open_store()


def test_what_follows_a_tear_and_was_synced_makes_it_damage(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store(durability="none")
    store.put("first", b"x" * 60_000)
    store.put("second", b"x" * 60_000)
    store.sync()
    store.close()
    first, second = segment_files(path)
    content = bytearray(first.read_bytes())
    content[192:212] = bytes(20)
    content[30_000] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptStore, match=first.name):
        open_store()
    assert second.exists()


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 5000])
def test_a_segment_cut_to_less_than_its_index_is_refused(
    open_store: Callable[..., Store], path: Path, size: int
) -> None:
    store = open_store()
    store.put("key", "value")
    store.close()
    (file,) = segment_files(path)
    os.truncate(file, size)
    with pytest.raises(CorruptStore, match=file.name):
        open_store()


def test_an_emptied_segment_is_refused(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store()
    store.put("key", "value")
    store.close()
    (file,) = segment_files(path)
    os.truncate(file, 0)
    with pytest.raises(CorruptStore, match=file.name):
        open_store()


def test_a_record_damaged_while_the_store_is_open_is_never_served(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("good", "untouched")
    store.put("bad", "precious")
    (file,) = segment_files(path)
    at = file.read_bytes().index(b"precious")
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(b"P")
    for read in (lambda: store.get("bad"), lambda: store.entry("bad"), lambda: dict(store.scan())):
        with pytest.raises(CorruptStore, match=file.name):
            read()
    assert store.get("good") == b"untouched"
    assert any(file.name in problem for problem in store.check().problems)
    with pytest.raises(CorruptStore, match=file.name):
        store.checkpoint()
    assert store.get("good") == b"untouched"


@pytest.mark.parametrize("content", [b"", b"ephemera store, format 0\n", b"\xff" * 100])
def test_a_damaged_format_file_is_refused(
    open_store: Callable[..., Store], path: Path, content: bytes
) -> None:
    open_store().close()
    (path / "format").write_bytes(content)
    with pytest.raises(CorruptStore, match="format"):
        open_store()


def test_a_foreign_directory_or_file_is_left_alone(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("important")
    file = tmp_path / "file"
    file.write_text("important")
    for place in (foreign, file):
        with pytest.raises(InvalidArgument, match=place.name):
            open_store(place)
    assert [entry.name for entry in foreign.iterdir()] == ["thesis.txt"]
    assert file.read_text() == "important"


def test_a_damaged_control_page_does_not_matter_to_the_first_opener(
    open_store: Callable[..., Store], path: Path
) -> None:
    for content in (b"", b"\xff" * 4096, b"\0" * 100_000):
        store = open_store()
        store.put("key", content[:10])
        store.close()
        (path / "control").write_bytes(content)
        store = open_store()
        assert store.get("key") == content[:10]
        store.close()


def test_what_a_death_at_the_end_of_a_compaction_left_never_counts_again(
    open_store: Callable[..., Store], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put("key", "former")
    with monkeypatch.context() as patched:
        patched.setattr("ephemera.engines.local.base_tier.remove_generation", lambda *_: None)
        store.compact()
    left = path / "base" / "00000001.mdb"
    former = left.read_bytes()
    store.put("key", "value")
    store.compact()
    assert not left.exists()
    store.close()
    left.write_bytes(former)
    store = open_store()
    assert store.get("key") == b"value"
    store.put("another", "value")
    store.checkpoint()
    assert store.check().is_clean


def test_leftovers_of_a_creation_are_cleared_away(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("key", "value")
    store.close()
    leftovers = [
        temporary_name(path / "segments" / "00000002.seg"),
        temporary_name(path / "base" / "00000002.mdb"),
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"half a file")
    store = open_store()
    assert store.get("key") == b"value"
    assert not any(leftover.exists() for leftover in leftovers)
