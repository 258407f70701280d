"""What readers of old states cost: idle processes release theirs, and stats and the log show the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ephemera import ManualClock, Store, StoreClosed
from ephemera.engines.local import engine
from tests.engines.local.stores import THOUSAND, engine_of, in_a_thread, start_python
from tests.waiting import wait_until

READ_AND_IDLE = """
    import sys
    import ephemera
    from ephemera.engines.local import engine
    engine.RELEASE_SECONDS = 0.05
    options = eval(sys.argv[2])
    store = ephemera.open(sys.argv[1], **options)
    assert store.get("0") is not None
    print("read", flush=True)
    input()
    assert store.get("0") is not None
    print("read", flush=True)
    input()
    """


@pytest.mark.parametrize(
    "options",
    [
        {"read_only": True},
        {"maintenance": "manual", "durability": "none"},
        {"maintenance": "manual", "durability": "commit"},
        {"maintenance": "manual", "durability": "interval"},
        {"durability": "none"},
    ],
    ids=str,
)
def test_an_idle_process_pins_no_state_of_the_base_tier(
    open_store: Callable[..., Store], path: Path, options: dict[str, object]
) -> None:
    store = open_store()
    rewrite(store)
    with start_python(READ_AND_IDLE, path, options) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        for _ in range(2):
            assert other.stdout.readline() == "read\n"
            rewrite(store)
            wait_until(lambda: store.stats()["oldest_reader_pid"] is None)
            before = store.stats()["base_bytes"]
            for _ in range(10):
                rewrite(store)
            assert store.stats()["base_bytes"] < 3 * before
            other.stdin.write("\n")
            other.stdin.flush()
        assert other.wait(30) == 0


def rewrite(store: Store) -> None:
    store.put_many({b"%d" % number: THOUSAND for number in range(100)})
    store.checkpoint()


def test_one_read_after_another_still_shares_a_transaction(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(durability="none")
    rewrite(store)
    pins = []
    monkeypatch.setattr(engine_of(store)._base, "on_pin", lambda: pins.append(1))
    for number in range(100):
        assert store.get(b"%d" % number) == THOUSAND
    assert len(pins) == 1


@pytest.mark.parametrize("kind", ["snapshot", "scan", "transaction"])
def test_stats_show_who_keeps_an_old_state_for_how_long_and_at_what_cost(
    open_store: Callable[..., Store], clock: ManualClock, kind: str
) -> None:
    store = open_store()
    rewrite(store)
    begin: dict[str, Callable[[], Any]] = {  # Any: what these three have in common is what they pin
        "snapshot": store.snapshot,
        "scan": lambda: iter(store.scan()),
        "transaction": lambda: store.transaction().__enter__(),
    }
    view = begin[kind]()
    if kind == "scan":
        next(view)
    assert store.stats()["oldest_reader_pid"] is None
    assert store.stats()["views"] == 1
    clock.advance(5)
    if kind == "transaction":
        assert store.stats()["oldest_view_age_ms"] == 5_000
        view.rollback()
    else:
        rewrite(store)
        clock.advance(2)
        stats = store.stats()
        assert (stats["views"], stats["oldest_view_age_ms"]) == (1, 7_000)
        assert (stats["oldest_reader_pid"], stats["oldest_reader_age_ms"]) == (os.getpid(), 2_000)
        assert stats["oldest_reader_commits"] >= 1
        assert stats["oldest_reader_bytes"] > 100 * 1_000
        view.close()
    stats = store.stats()
    assert (stats["views"], stats["oldest_view_age_ms"]) == (0, 0)
    assert (stats["oldest_reader_pid"], stats["oldest_reader_age_ms"]) == (None, 0)
    assert (stats["oldest_reader_commits"], stats["oldest_reader_bytes"]) == (0, 0)


def test_the_log_warns_once_of_a_reader_that_stays(
    open_store: Callable[..., Store], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    rewrite(store)
    with caplog.at_level(logging.WARNING, "ephemera"), store.snapshot():
        rewrite(store)
        clock.advance(engine.OLD_READER_MS / 1000 - 1)
        rewrite(store)
        assert caplog.messages == []
        clock.advance(1)
        rewrite(store)
        rewrite(store)
    assert len(caplog.messages) == 1
    assert f"process {os.getpid()} has read an old state" in caplog.messages[0]


def test_a_snapshot_ends_when_it_is_too_old(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(snapshot_max_age=10)
    rewrite(store)
    snapshot = store.snapshot()
    clock.advance(9.999)
    assert snapshot.get("0") == THOUSAND
    clock.advance(0.001)
    for read in (lambda: snapshot.get("0"), lambda: list(snapshot.scan()), snapshot.count):
        with pytest.raises(StoreClosed, match="snapshot_max_age"):
            read()
    assert store.stats()["views"] == 0
    snapshot.close()
    with store.snapshot() as again:
        assert again.get("0") == THOUSAND


@pytest.mark.parametrize("maintenance", ["manual", "background"])
def test_a_snapshot_that_nobody_reads_any_more_is_released_too(
    open_store: Callable[..., Store], clock: ManualClock, maintenance: str
) -> None:
    store = open_store(snapshot_max_age=10, maintenance=maintenance)
    rewrite(store)
    old = store.snapshot()
    clock.advance(5)
    young = store.snapshot()
    rewrite(store)
    clock.advance(5)
    wait_until(lambda: store.stats()["views"] == 1)
    assert young.get("0") == THOUSAND
    young.close()
    wait_until(lambda: store.stats()["oldest_reader_pid"] is None)
    assert [type(error) for error in in_a_thread(lambda: old.get("0"))] == [StoreClosed]
    old.close()


def test_transactions_are_not_ended_by_the_age_of_snapshots(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(snapshot_max_age=10)
    with store.transaction() as txn:
        clock.advance(20)
        txn.put("key", "value")
    assert store.get("key") == b"value"


READ_UNTIL_KILLED = """
    import sys
    import ephemera
    snapshot = ephemera.open(sys.argv[1], read_only=True).snapshot()
    assert snapshot.get("0") is not None
    print("read", flush=True)
    input()
    """


def test_a_manual_checkpoint_frees_what_a_killed_reader_had_pinned(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store(maintenance="manual")
    rewrite(store)
    with start_python(READ_UNTIL_KILLED, path) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        rewrite(store)
        assert store.stats()["oldest_reader_pid"] == reader.pid
        reader.kill()
        reader.wait()
    store.put("0", "again")
    store.checkpoint()
    assert store.stats()["oldest_reader_pid"] is None


# --- a reader that the system holds up as its transaction begins --------------------------------

HOLD_UP = """
    import ctypes
    import sys
    import ephemera

    PROT_NONE, PROT_READ, SIGSEGV = 0, 1, 11
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

    store = ephemera.open(sys.argv[1], read_only=True)
    store.get("0")
    maps = [line for line in open("/proc/self/maps") if line.rstrip().endswith(".mdb")]
    starts = [int(line.split("-")[0], 16) for line in maps]

    def protect(protection):
        for start in starts:
            assert libc.mprotect(start, 8192, protection) == 0

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def hold_up(signal):
        print("held up", flush=True)
        input()
        protect(PROT_READ)

    libc.signal(SIGSEGV, hold_up)
    protect(PROT_NONE)
    print(store.stats()["base_rows"], flush=True)
    """
"""The meta pages cannot be read: the first access is interrupted, and lasts as long as the test wants."""


def test_commits_while_a_read_transaction_begins_are_no_damage(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    rewrite(store)
    with start_python(HOLD_UP, path) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held up\n"
        for _ in range(4):
            rewrite(store)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "100\n"
        assert other.wait(30) == 0
