"""Processes that are stopped (SIGSTOP, Ctrl-Z, a debugger, a frozen container) at a chosen point.

A stopped process is alive, so the system hands on none of its locks. Every wait of the others is bounded by
`lock_timeout`, can be interrupted, and names the process that they wait for; reads and writes that need
nothing of it go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import Store, StoreBusy
from ephemera.engines.local import checkpoint, maintenance
from ephemera.engines.local.base_tier import BaseFile
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import Files
from tests.crash.processes import CONTEXT, PATIENCE_SECONDS, TINY_SEGMENT_BYTES, Peer, Seat
from tests.engines.local.stores import in_a_thread, start_python
from tests.waiting import wait_until

LOCK_TIMEOUT = 0.3
SEGMENTS_MAX = 4
"""How many frozen segments wait before writers do."""
MANY = {f"key-{i:03}": b"x" * 1_000 for i in range(40)}
"""More than half a segment, so that two of them are more than one."""


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_before(owner: object, name: str) -> None:
    """Have this process stopped whenever it calls a function."""
    called = getattr(owner, name)

    def stop_and_call(*args: Any, **named: Any) -> Any:  # Any: as the function's own
        stop_this_process()
        return called(*args, **named)

    setattr(owner, name, stop_and_call)


def is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(peer: Peer, function: Callable[..., Any], *args: Any) -> Iterator[int]:
    """Have a peer call a function that stops it on its way; at the end it resumes and must succeed."""
    peer.tell(function, *args)
    wait_until(lambda: is_stopped(peer.pid))
    try:
        yield peer.pid
    finally:
        resume(peer.pid)
    peer.answer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as store:
        store.family("f").put("key", "value")
        store.put("key", "value")
        store.checkpoint()
        store.put("key", "later")
        yield store


def open_store(path: Path, **options: Any) -> Store:
    settled = {
        "maintenance": "manual",
        "durability": "none",
        "segment_bytes": TINY_SEGMENT_BYTES,
        "lock_timeout": LOCK_TIMEOUT,
    }
    return ephemera.open(path, **{**settled, **options})


def peer_of(path: Path, **options: Any) -> Peer:
    settled = {"maintenance": "manual", "durability": "none", "lock_timeout": LOCK_TIMEOUT}
    return Peer(path, **{**settled, **options})


def works(store: Store) -> None:
    """Reads and writes that need no other process."""
    store.put("other", "1")
    assert store.get("other") == b"1"
    assert store.get("key") == b"later"
    assert {b"key", b"other"} <= {key for key, _ in store.scan()}
    with store.transaction() as transaction:
        transaction.put("other", "2")
    assert store.family("f").get("key") == b"value"


# --- in a transaction of the base tier ------------------------------------------------------------


def stop_in_a_base_transaction(seat: Seat) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "_apply_batch", checkpoint._apply_batch)
        stop_before(checkpoint, "_apply_batch")
        seat.store.put("theirs", "1")
        seat.store.checkpoint()


CHANGES: dict[str, Callable[[Store], object]] = {
    "checkpoint": Store.checkpoint,
    "clear": lambda store: store.family("f").clear(),
    "compact": Store.compact,
    "default_ttl": lambda store: store.family("f", default_ttl=5),
    "drop_family": lambda store: store.drop_family("f"),
    "new family": lambda store: store.family("new"),
    "repair": Store.repair,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whoever_changes_the_base_tier_is_told_which_process_is_stopped_in_it(
    store: Store, path: Path, change: Callable[[Store], object]
) -> None:
    with peer_of(path) as peer:
        with stopped(peer, stop_in_a_base_transaction) as pid:
            with pytest.raises(StoreBusy, match=rf"held by process {pid}\b.*lock_timeout"):
                change(store)
            works(store)
        change(store)
        assert store.check().problems == ()


def test_opening_a_store_says_which_process_is_stopped_in_the_base_tier(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer, stopped(peer, stop_in_a_base_transaction) as pid:
        with pytest.raises(StoreBusy, match=rf"held by process {pid}\b"):
            peer_of(path)
        works(store)


def test_closing_does_not_wait_for_a_process_that_is_stopped_in_the_base_tier(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer:
        background = open_store(path, maintenance="background")
        with stopped(peer, stop_in_a_base_transaction):
            background.put("background", "1")
            assert in_a_thread(background.close) == []
            assert in_a_thread(store.close) == []
    with open_store(path) as again:
        assert again.get("background") == b"1"


def test_a_process_that_is_killed_after_it_was_stopped_holds_nobody_up(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer:
        peer.tell(stop_in_a_base_transaction)
        wait_until(lambda: is_stopped(peer.pid))
        peer.kill()
        for change in CHANGES.values():
            change(store)
    assert store.get("theirs") == b"1"
    assert store.check().problems == ()


# --- a program of its own, which ends or is interrupted -------------------------------------------

WAITER = """
    import sys, ephemera
    store = ephemera.open(sys.argv[1], lock_timeout=600, maintenance=sys.argv[2])
    print("open", flush=True)
    sys.stdin.readline()
    store.put("mine", "1")
    print("waits", flush=True)
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@contextmanager
def waiter(path: Path, maintenance: str, call: str) -> Iterator[subprocess.Popen[str]]:
    with start_python(WAITER.format(call=call), path, maintenance) as program:
        assert line_of(program) == "open"
        yield program


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().rstrip("\n")


def let_go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    print(file=program.stdin, flush=True)
    assert line_of(program) == "waits"


@pytest.mark.parametrize("maintenance", ["manual", "background"])
def test_a_program_ends_though_a_process_is_stopped_in_the_base_tier(
    store: Store, path: Path, maintenance: str
) -> None:
    with (
        peer_of(path) as peer,
        waiter(path, maintenance, "pass") as program,
        stopped(peer, stop_in_a_base_transaction),
    ):
        let_go_on(program)
        assert program.wait(PATIENCE_SECONDS) == 0
    assert store.get("mine") == b"1"


@pytest.mark.parametrize(
    "call",
    [
        "store.checkpoint()",
        "store.compact()",
        "store.family('new')",
        "store.family('f').clear()",
        "ephemera.open(sys.argv[1] + '/../s', lock_timeout=600).close()",
    ],
)
def test_ctrl_c_ends_the_wait_for_a_process_that_is_stopped_in_the_base_tier(
    store: Store, path: Path, call: str
) -> None:
    with (
        peer_of(path) as peer,
        waiter(path, "manual", call) as program,
        stopped(peer, stop_in_a_base_transaction),
    ):
        let_go_on(program)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(LOCK_TIMEOUT)
        program.send_signal(signal.SIGINT)
        assert line_of(program) == "interrupted"
        assert program.wait(PATIENCE_SECONDS) == 0


# --- nobody waits for the base tier with the writer lock ------------------------------------------


@pytest.mark.parametrize("name", ["clear", "default_ttl", "drop_family", "new family"])
def test_writers_go_on_while_a_change_of_families_waits_for_the_base_tier(
    store: Store, path: Path, name: str
) -> None:
    with (
        open_store(path, lock_timeout=0.001) as impatient,
        peer_of(path) as peer,
        stopped(peer, stop_in_a_base_transaction),
    ):
        errors: list[BaseException] = []
        changing = threading.Thread(
            target=lambda: errors.extend(in_a_thread(partial(CHANGES[name], store)))
        )
        changing.start()
        writes = 0
        while changing.is_alive():
            # It is refused if anybody else holds the writer lock for longer than a moment.
            impatient.put("key", "later")
            writes += 1
            changing.join(0.005)
        assert writes > 0
        assert [type(error) for error in errors] == [StoreBusy]


def stop_after_a_compaction(seat: Seat) -> None:
    seat.store.compact()
    stop_in_a_base_transaction(seat)


def test_writers_go_on_while_another_waits_to_open_the_compacted_base_tier(
    store: Store, path: Path
) -> None:
    with peer_of(path) as aware, peer_of(path) as peer:
        with stopped(peer, stop_after_a_compaction) as pid:
            # This process has not looked since the compaction, and the file is not open in it.
            with pytest.raises(StoreBusy, match=rf"the LMDB lock is held by process {pid}\b"):
                store.put("key", "unaware")
            aware.tell(put_without_waiting)
            with pytest.raises(StoreBusy, match=str(pid)):
                aware.answer()
        store.put("key", "aware")
        assert aware.do("get", "key") == b"aware"


def put_without_waiting(seat: Seat) -> None:
    seat.store.put("key", "aware")


# --- idle -----------------------------------------------------------------------------------------


def stop_after_maintenance(seat: Seat) -> None:
    """Stop this process between two steps of its background, of which it has done one."""
    engine = seat.store.engine
    assert isinstance(engine, LocalEngine)
    worker = engine._workers[-1]
    step = worker._step
    may_stop = threading.Event()

    def step_and_stop(engine: LocalEngine) -> float:
        pause = step(engine)
        if pause == maintenance.TEND_SECONDS:
            worker._step = step
            stop_this_process()
            may_stop.set()
        return pause

    worker._step = step_and_stop
    worker.kick()
    assert may_stop.wait(PATIENCE_SECONDS)


def test_a_stopped_idle_process_keeps_no_writer_from_a_checkpoint(path: Path) -> None:
    background = {"maintenance": "background", "lock_timeout": PATIENCE_SECONDS}
    with (
        Peer(path, **background) as peer,
        stopped(peer, stop_after_maintenance),
        open_store(path, **background) as store,
    ):
        for i in range(4 * SEGMENTS_MAX):
            store.put_many(MANY)
            store.put("last", str(i))
        assert store.count() == len(MANY) + 1


def test_another_process_maintains_the_store_while_the_one_that_did_is_stopped(path: Path) -> None:
    with (
        Peer(path, maintenance="background") as peer,
        stopped(peer, stop_after_maintenance),
        open_store(path, maintenance="background") as store,
    ):
        store.family("f").put("key", "value")
        store.checkpoint()
        store.drop_family("f")
        wait_until(lambda: store.stats()["base_rows"] == 0)


# --- in a compaction ------------------------------------------------------------------------------


def stop_in_a_compaction(seat: Seat) -> None:
    stop_before(BaseFile, "rewrite")
    seat.store.compact()


def test_a_long_compaction_delays_nothing_but_changes_of_the_base_tier(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer:
        with stopped(peer, stop_in_a_compaction) as pid:
            works(store)
            with peer_of(path) as another:
                assert another.do("get", "key") == b"later"
                another.do("put", "key", "later")
            with pytest.raises(StoreBusy, match=rf"base-tier lock is held by process {pid}\b"):
                store.family("new")
            with pytest.raises(StoreBusy, match=rf"base-tier lock is held by process {pid}\b"):
                fill(store)
            assert store.stats()["segments_waiting"] == SEGMENTS_MAX
            assert store.get("key") == b"later"
        store.family("new").put("key", "1")
        fill(store)
        assert store.get("key") == b"later"


def test_back_pressure_during_a_compaction_names_the_process_that_compacts(
    store: Store, path: Path
) -> None:
    with open_store(path, maintenance="background") as background, peer_of(path) as peer:
        with stopped(peer, stop_in_a_compaction) as pid:
            with pytest.raises(StoreBusy, match=rf"process {pid} holds the base-tier lock"):
                fill(background)
            assert background.get("key") == b"later"
        background.put("key", "last")


def fill(store: Store) -> None:
    for _ in range(2 * SEGMENTS_MAX):
        store.put_many(MANY)


# --- with the writer lock -------------------------------------------------------------------------


def stop_in_a_transaction(seat: Seat) -> None:
    with seat.store.transaction() as transaction:
        transaction.put("theirs", "1")
        stop_this_process()


def test_a_writer_is_told_which_process_is_stopped_with_the_writer_lock(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer:
        with stopped(peer, stop_in_a_transaction) as pid:
            for write in (
                lambda: store.put("mine", "1"),
                store.checkpoint,
                store.compact,
                lambda: store.family("new"),
                lambda: store.family("f").clear(),
            ):
                with pytest.raises(StoreBusy, match=rf"writer lock is held by process {pid}\b"):
                    write()
            assert store.get("key") == b"later"
            assert [key for key, _ in store.scan()] == [b"key"]
            assert store.family("f").count() == 1
        store.put("mine", "1")
        store.compact()
        assert store.get("theirs") == store.get("mine") == b"1"


@pytest.mark.parametrize("maintenance", ["manual", "background"])
def test_closing_and_the_end_of_a_program_do_not_wait_for_the_writer_lock(
    store: Store, path: Path, maintenance: str
) -> None:
    with peer_of(path) as peer, waiter(path, maintenance, "pass") as program:
        let_go_on(program)
        with stopped(peer, stop_in_a_transaction):
            assert program.wait(PATIENCE_SECONDS) == 0
            assert in_a_thread(store.close) == []


# --- while it opens the store ---------------------------------------------------------------------


def open_and_stop(path: str) -> None:
    stop_before(LocalEngine, "_open")
    ephemera.open(path).close()


@contextmanager
def stopped_opener(path: Path) -> Iterator[int]:
    process = CONTEXT.Process(target=open_and_stop, args=(str(path),), daemon=True)
    process.start()
    assert process.pid is not None
    wait_until(lambda: is_stopped(process.pid or 0))
    try:
        yield process.pid
    finally:
        resume(process.pid)
        process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


def test_whoever_opens_is_told_which_process_is_stopped_while_it_opens(
    store: Store, path: Path
) -> None:
    with stopped_opener(path) as pid:
        with pytest.raises(StoreBusy, match=rf"held by process {pid}\b.*lock_timeout"):
            peer_of(path)
        with pytest.raises(StoreBusy, match=rf"held by process {pid}\b.*lock_timeout"):
            open_store(path)
        works(store)
        assert in_a_thread(store.close) == []
    with open_store(path) as again:
        assert again.get("other") == b"2"


# --- while it syncs -------------------------------------------------------------------------------


def stop_in_a_sync(seat: Seat) -> None:
    stop_before(Files, "sync")
    seat.store.put("theirs", "1")
    seat.store.sync()


def test_a_durable_write_syncs_by_itself_when_the_process_that_syncs_is_stopped(
    store: Store, path: Path
) -> None:
    with peer_of(path) as peer, stopped(peer, stop_in_a_sync):
        store.put("mine", "1", durable=True)
        store.family("new").put("key", "1")
        store.checkpoint()
        assert store.get("mine") == store.get("theirs") == b"1"
        assert in_a_thread(store.close) == []
