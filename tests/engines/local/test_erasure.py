"""What stays in the files of a store after a key is deleted, replaced or dead, and what erases it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ephemera import CorruptStore, ManualClock, Store
from ephemera.engines.local import base_tier
from tests.engines.local.stores import contents, open_local, run_python

SECRET = b"SECRET"
KEYS = 2_000
"""So many that the rows have several leaf pages, and branch pages above them."""
ERASED = range(0, KEYS, 7)


def name_of(number: int) -> str:
    return f"key:{number:05}:{SECRET.decode()}" if number in ERASED else f"key:{number:05}"


def fill(store: Store, value_bytes: int) -> None:
    """Rows with and without the secret, in key and in value, that alternate in the base tier's pages."""
    for number in range(KEYS):
        value = SECRET if number in ERASED else b"public"
        store.put(name_of(number), value.ljust(value_bytes, b"."), ttl=60)
    store.checkpoint()


def files_with_secret(root: Path) -> set[str]:
    """The directories of the files in which the secret is found."""
    found = (each for each in root.rglob("*") if each.is_file() and SECRET in each.read_bytes())
    return {each.parent.name for each in found}


def delete(store: Store, clock: ManualClock) -> None:
    store.delete_many([name_of(number) for number in ERASED])


def expire(store: Store, clock: ManualClock) -> None:
    store.put_many({name_of(n): b"renewed" for n in range(KEYS) if n not in ERASED})
    clock.advance(60)
    store.purge_expired()


def drop(store: Store, clock: ManualClock) -> None:
    store.clear()


@pytest.mark.parametrize("value_bytes", [10, 1_000, 3_000])
@pytest.mark.parametrize("remove", [delete, expire, drop])
def test_compacting_erases_what_was_removed(
    store: Store,
    clock: ManualClock,
    path: Path,
    value_bytes: int,
    remove: Callable[[Store, ManualClock], None],
) -> None:
    fill(store, value_bytes)
    remove(store, clock)
    store.checkpoint()
    assert files_with_secret(path) == {"base"}, "pages that came free keep their bytes"
    store.compact()
    assert files_with_secret(path) == set()
    assert store.check().problems == ()
    store.backup(path.with_name("copy.eph"))
    assert files_with_secret(path.with_name("copy.eph")) == set()


@pytest.mark.parametrize("limit", ["REWRITE_BATCH_ROWS", "REWRITE_BATCH_BYTES"])
def test_compacting_in_many_batches_keeps_every_row(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(base_tier, limit, 100)
    fill(store, 10)
    before = contents(store)
    store.compact()
    assert contents(store) == before
    assert store.check().problems == ()


def test_compacting_rows_that_are_out_of_order_changes_nothing(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 10)
    before = contents(store)
    batch = base_tier._batch
    monkeypatch.setattr(base_tier, "_batch", lambda pairs: batch(pairs)[::-1])
    with pytest.raises(CorruptStore, match="out of order"):
        store.compact()
    assert contents(store) == before
    assert [each.name for each in sorted((path / "base").glob("*.mdb*"))] == [
        "00000001.mdb",
        "00000001.mdb-lock",
    ]


def test_compacting_erases_a_value_that_was_replaced(store: Store, path: Path) -> None:
    store.put("a", SECRET)
    store.checkpoint()
    store.put("a", "public")
    store.compact()
    assert files_with_secret(path) == set()
    assert store.get("a") == b"public"


def test_a_deleted_value_stays_in_its_segment_until_a_checkpoint(store: Store, path: Path) -> None:
    store.put("a", SECRET)
    store.delete("a")
    assert files_with_secret(path) == {"segments"}
    store.checkpoint()
    assert files_with_secret(path) == set()


def test_with_manual_maintenance_a_dead_value_stays_until_a_purge(
    store: Store, clock: ManualClock, path: Path
) -> None:
    store.put("a", SECRET, ttl=60)
    clock.advance(60)
    store.compact()
    assert files_with_secret(path) == {"base"}, "whoever listens to expiry has not been told"
    store.purge_expired()
    store.compact()
    assert files_with_secret(path) == set()


def test_a_snapshot_keeps_what_was_erased_readable_and_no_file_of_the_store_has_it(
    store: Store, clock: ManualClock, path: Path
) -> None:
    fill(store, 10)
    with store.snapshot() as snapshot:
        delete(store, clock)
        store.compact()
        assert files_with_secret(path) == set()
        assert snapshot.get(name_of(0)) is not None


HELD_BY_READER = """
    import os, sys
    import ephemera

    def removed_but_held() -> bool:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return any(".mdb (deleted)" in os.readlink(link) for link in links if os.path.islink(link))

    reader = ephemera.open(sys.argv[1], read_only=True)
    reader.get("a")
    with ephemera.open(sys.argv[1], maintenance="manual") as writer:
        writer.compact()
    # Two stores of one process; the second is closed: whatever is held now, the reader holds.
    print(removed_but_held())
    reader.get("a")
    print(removed_but_held())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are seen in /proc")
def test_another_opener_holds_the_removed_file_until_it_uses_the_store(
    store: Store, path: Path
) -> None:
    store.put("a", SECRET)
    store.close()
    run = run_python(HELD_BY_READER, path)
    assert run.stdout.split() == ["True", "False"], run.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are seen in /proc")
def test_an_exclusive_opener_holds_applied_segments_until_it_closes(path: Path) -> None:
    with open_local(path, exclusive=True) as store:
        store.put("a", SECRET)
        store.checkpoint()
        assert files_with_secret(path) == {"base"}
        assert has_removed_segments(path)
    assert not has_removed_segments(path)


def has_removed_segments(path: Path) -> bool:
    """Whether this process has segments mapped that are removed."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return any(str(path) in line and line.endswith(".seg (deleted)") for line in lines)
