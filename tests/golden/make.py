"""Makes the golden files: stores of this format version, and what they hold.

    python -m tests.golden.make

They were made once for each version and are kept as they are: a later release must read them. Each is a
`NAME.tar.xz` with the store's directory and a `NAME.json` with its contents.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ephemera import ManualClock, Store, Ttl
from ephemera.core.keyvalue import Range
from ephemera.core.row import NEVER_MS
from tests.engines.local.stores import engine_of, open_local

HERE = Path(__file__).parent
NOW_MS = 1_750_000_000_000
VERSION = 1
Contents = dict[str, Any]  # Any: what JSON has


def fill(store: Store, clock: ManualClock) -> None:
    """Rows of every kind: no deadline, a deadline, idleness with and without a hard end; odd keys and
    values; families with defaults; deletions and overwritten versions."""
    store.put("plain", "a value")
    store.put("empty", "")
    store.put(b"\x00\xff bytes", bytes(range(256)))
    store.put("k" * 1900, "the longest key")
    store.put("large", b"0123456789abcdef" * 1_000, ttl=90)
    store.put("minute", "1", ttl=60)
    store.put("last instant", "2", at=253_402_300_799)
    store.put("idle", "3", idle=300)
    store.put("idle and hard", "4", idle=300, ttl=400)
    clock.advance(10)
    store.touch("idle")
    store.put("replaced", "old", ttl=5)
    store.put("replaced", "new")
    store.put("deleted", "gone")
    store.delete("deleted")
    store.put("short", "dead soon", ttl=1)
    sessions = store.family("sessions", default_ttl=1_800)
    sessions.put_many({b"session %02d" % n: b"user %d" % n for n in range(30)})
    sessions.put("never", "5", ttl=Ttl.NEVER)
    store.family("naïve names ☃").put("key", "6", ttl=3_600)
    store.family("dropped").put("key", "unreachable")
    store.drop_family("dropped")
    store.family("cleared", default_ttl=Ttl.NEVER).put("key", "unreachable")
    store.family("cleared").clear()


def closed(path: Path, clock: ManualClock) -> None:
    """Closed in order, by the last one out: all of it is in the base tier."""
    with open_local(path, clock, maintenance="background") as store:
        fill(store, clock)
        write_contents(path, store)


def killed(path: Path, clock: ManualClock) -> None:
    """Killed inside a transaction: all of it is in a segment that nobody synced."""
    store = open_local(path, clock, durability="none")
    fill(store, clock)
    write_contents(path, store)
    transaction = store.transaction()
    transaction.put("plain", "never committed")
    os.kill(os.getpid(), signal.SIGKILL)


def layered(path: Path, clock: ManualClock) -> None:
    """Rows, dead and alive, in the second generation of the base tier; above them two frozen segments and
    an active one, which replace and delete some of them."""
    store = open_local(path, clock)
    fill(store, clock)
    store.put_many({b"base %02d" % n: b"%d" % n for n in range(40)}, ttl=20)
    store.checkpoint()
    store.compact()
    store.put("untold", "died in a segment", ttl=1)
    clock.advance(15)
    store.checkpoint()
    for layer in range(3):
        store.put(b"filler", b"x" * 40_000)
        store.put_many(
            {b"layer %d" % layer: b"above", b"base %02d" % layer: b"replaced"}, ttl=3_600
        )
        store.delete(b"base 3%d" % layer)
    store.delete("filler")
    clock.advance(10)
    store.put("after", "the base rows died")
    write_contents(path, store)
    os.kill(os.getpid(), signal.SIGKILL)


def contents(store: Store) -> Contents:
    """All that is alive, with its times, in words of JSON; keys and values as Latin-1."""
    engine = engine_of(store)
    families = {}
    for name in store.families():
        ref = engine.family(name, create=False)
        rows = engine.scan(ref, Range(), store.clock.now_ms())
        families[name] = {
            "default_ttl_ms": ref.default_ttl_ms,
            "rows": {key.decode("latin-1"): _times(row) for key, row in rows},
        }
    return {"now_ms": store.clock.now_ms(), "families": families}


def _times(row: Any) -> Contents:  # Any: a row, of which JSON takes what is set
    said = {"value": row.value.decode("latin-1"), "written_ms": row.written_ms}
    said |= {} if row.deadline_ms == NEVER_MS else {"deadline_ms": row.deadline_ms}
    if row.idle_ms:
        said |= {"idle_ms": row.idle_ms, "hard_ms": row.hard_ms}
    return said


def write_contents(path: Path, store: Store) -> None:
    text = json.dumps(contents(store), indent=1, ensure_ascii=True)
    path.with_suffix(".json").write_text(text + "\n", encoding="ascii")


def make(maker: Callable[[Path, ManualClock], None], place: Path) -> None:
    """Run a maker in a process of its own, which it may kill, and keep what it leaves."""
    path = place / f"{maker.__name__}-{VERSION}"
    process = multiprocessing.get_context("spawn").Process(
        target=maker, args=(path, ManualClock(NOW_MS))
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    with tarfile.open(HERE / f"{path.name}.tar.xz", "w:xz") as archive:
        for name in ("format", "base", "segments"):
            archive.add(path / name, name, filter=_nameless)
    shutil.copy(path.with_suffix(".json"), HERE)


def _nameless(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without whose it was and when; LMDB's lock file belongs to live processes."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return None if member.name.endswith("-lock") else member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for maker in (closed, killed, layered):
            make(maker, Path(directory))
