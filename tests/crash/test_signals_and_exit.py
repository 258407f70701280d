"""However a program ends, what it was told is kept is kept; and one store serves many threads."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import Store
from tests.crash.processes import PATIENCE_SECONDS, TINY_SEGMENT_BYTES, Peer, Seat

OPENING = """
import os, signal, sys, threading
import ephemera
store = ephemera.open(sys.argv[1], segment_bytes=65536)
def write(count, start=0):
    for number in range(start, start + count):
        store.put(f"{number:06}", "x" * 200, ttl=3600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exit.eph"


def run_program(
    path: Path | str, text: str, timeout: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OPENING + text, str(path)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_program(path: Path, text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPENING + text, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


ENDINGS = {
    "falling off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an unhandled exception": ("raise RuntimeError('done for')", 1),
    "os._exit": ("os._exit(4)", 4),
    "abort": ("os.abort()", -signal.SIGABRT),
    "sys.exit in another thread's life": (
        "threading.Thread(target=lambda: write(500, 500)).start(); sys.exit(0)",
        0,
    ),
    "sys.exit inside a transaction": (
        "with store.transaction() as txn:\n    txn.put('half', 'x')\n    sys.exit(5)",
        5,
    ),
    "a forgotten snapshot and a scan half way": (
        "snap = store.snapshot(); rows = store.scan(); next(rows)",
        0,
    ),
    "a callback that is waiting": ("store.on_expire(print)", 0),
}


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_acknowledged_is_lost_by(name: str, path: Path, is_shared: bool) -> None:
    ending, status = ENDINGS[name]
    if is_shared:
        with ephemera.open(path, lock_timeout=5) as store:
            ended = run_program(path, "write(500)\n" + ending)
            must_be_whole(store)
            store.put(b"after", b"1")
    else:
        ended = run_program(path, "write(500)\n" + ending)
    assert ended.returncode == status, ended.stderr
    with ephemera.open(path) as store:
        must_be_whole(store)


def must_be_whole(store: Store) -> None:
    missing = [n for n in range(500) if store.get(b"%06d" % n) is None]
    assert missing == []
    assert b"half" not in store
    assert store.check().problems == ()


FORGOTTEN = "write(500)\ntxn = store.transaction(); txn.put('half', 'x')"


def test_a_transaction_that_is_open_at_exit_does_not_keep_the_turn(path: Path) -> None:
    with ephemera.open(path, lock_timeout=0.5) as store:
        store.put(b"before", b"1")
        assert run_program(path, "txn = store.transaction()").returncode == 0
        store.put(b"after", b"1")


def test_a_transaction_that_is_open_at_exit_does_not_delay_it(path: Path) -> None:
    program = start_program(path, FORGOTTEN)
    try:
        program.communicate(timeout=5)
    finally:
        program.kill()
        program.communicate()
    with ephemera.open(path) as store:
        must_be_whole(store)


def test_nothing_acknowledged_is_lost_by_a_kill_inside_a_transaction(path: Path) -> None:
    with ephemera.open(path, lock_timeout=5) as store:
        ended = run_program(path, FORGOTTEN + "; os.kill(os.getpid(), signal.SIGKILL)")
        assert ended.returncode == -signal.SIGKILL
        must_be_whole(store)
        store.put(b"after", b"1")


WRITE_ALOUD = """
number = 0
while True:
    store.put(f"{number:06}", "x" * 200, ttl=3600)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_nothing_acknowledged_is_lost_by_a_signal(path: Path, number: signal.Signals) -> None:
    program = start_program(path, WRITE_ALOUD)
    assert program.stdout is not None
    for _ in range(random.randrange(1, 300)):
        program.stdout.readline()
    program.send_signal(number)
    output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == -number, errors
    heard = [int(line) for line in output.splitlines() if line.isdigit()]
    with ephemera.open(path) as store:
        assert [n for n in heard if store.get(b"%06d" % n) is None] == []
        assert store.check().problems == ()


WAIT_FOR_TURN = """
try:
    print("waiting", flush=True)
    store.put("late", "1")
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
store.put("later", "1")
print("done", flush=True)
"""


def test_an_interrupt_ends_the_wait_for_the_turn(path: Path) -> None:
    with ephemera.open(path) as store:
        txn = store.transaction()
        program = start_program(path, WAIT_FOR_TURN)
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        txn.rollback()
        output, errors = program.communicate("\n", timeout=PATIENCE_SECONDS)
        assert output == "done\n", errors
        assert store.get(b"late") is None
        assert store.get(b"later") == b"1"


INTERRUPTED = """
def interrupt(*_):
    global is_armed
    if is_armed:
        is_armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
count = 0
is_armed = False
for delay in range(100):
    try:
        is_armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + delay * 0.00001)
        while is_armed:
            with store.transaction() as txn:
                txn.incr("a")
                txn.incr("b")
            count += 1
    except KeyboardInterrupt:
        pass
print(count, flush=True)
"""


def test_interrupts_at_any_moment_leave_the_turn_free_and_no_transaction_half_done(
    path: Path,
) -> None:
    with ephemera.open(path, lock_timeout=1) as store:
        store.put("first", "1")  # makes the segment, which takes longer than the interrupts wait
        ended = run_program(path, INTERRUPTED + "print(store.incr('free'))", timeout=10)
        assert ended.returncode == 0, ended.stderr
        acknowledged = int(ended.stdout.split()[0])
        # An interrupt may come between the commit and the counting of it.
        assert acknowledged <= int(store[b"a"]) <= acknowledged + 100
        assert store.get(b"a") == store.get(b"b")
        assert store.get(b"free") == b"1"
        assert store.check().problems == ()


INTERRUPTED_ANYWHERE = """
def fail_after(seconds, work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "another thread waits for ever"

def use(number):
    store.put_many({"a": str(number), "b": str(number)}, ttl=60)
    with store.snapshot() as snap:
        assert snap.get("a") == snap.get("b")
    family = store.family("own")
    family.put("x", "1", ttl=0.001)
    store.purge_expired()
    list(store.scan())
    store.delete_many(["a", "b"])
    if number % 10 == 0:
        store.checkpoint()
    if number % 30 == 0:
        family.clear()
        store.drop_family("own")
    if number % 70 == 0:
        store.compact()

def interrupt(*_):
    global is_armed
    if is_armed:
        is_armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
number = 0
is_armed = False
use(1)  # so that the threads of the store are there: their start is Python's own
for delay in range(150):
    try:
        is_armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + delay * 0.00013)
        while is_armed:
            number += 1
            use(number)
    except KeyboardInterrupt:
        store.incr("after")
    fail_after(10, lambda: store.incr("elsewhere"))
store.checkpoint()
assert store.get("elsewhere") == b"150"
assert store.get("a") == store.get("b")
assert store.check().problems == ()
"""


@pytest.mark.parametrize("place", ["a path", "memory://"])
def test_interrupts_at_any_moment_of_anything_leave_no_lock_taken(path: Path, place: str) -> None:
    is_memory = place == "memory://"
    ended = run_program(place if is_memory else path, INTERRUPTED_ANYWHERE)
    assert ended.returncode == 0, ended.stderr


STOPPED_WITH_WORKERS = """
write(2000)
print("ready", flush=True)
input()
"""


def test_the_end_of_the_keeper_by_sigterm_leaves_the_work_to_others(path: Path) -> None:
    program = start_program(path, STOPPED_WITH_WORKERS)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    with Peer(path, segment_bytes=TINY_SEGMENT_BYTES) as peer:
        program.terminate()
        program.communicate(timeout=PATIENCE_SECONDS)
        assert peer.run(write_more, 2_000) == 4_000


def write_more(seat: Seat, start: int) -> int:
    for number in range(start, start + 2_000):
        seat.store.put(b"%06d" % number, b"x" * 200)
    return seat.store.count()


# --- threads -----------------------------------------------------------------------------------

THREADS = 8
ROUNDS = 150


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store:
        yield store


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(number)` in so many threads; raise what the first of them raised."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_eight_threads_do_mixed_operations_on_one_store(store: Store) -> None:
    def work(number: int) -> None:
        chance = random.Random(number)
        own: dict[bytes, bytes] = {}
        for turn in range(ROUNDS):
            key = b"%d:%d" % (number, chance.randrange(20))
            match chance.randrange(6):
                case 0:
                    store.delete(key)
                    own.pop(key, None)
                case 1:
                    assert store.pop(key, None) == own.pop(key, None)
                case 2:
                    store.incr(b"total")
                case 3:
                    with store.transaction() as txn:
                        assert txn.get(key) == own.get(key)
                        txn.put(key, b"%d" % turn, ttl=3600)
                        txn.incr(b"transactions")
                    own[key] = b"%d" % turn
                    store.incr(b"counted")
                case 4 if turn % 50 == 0:
                    store.checkpoint()
                case _:
                    own[key] = b"%d" % turn + b" " * chance.randrange(2_000)
                    store.put(key, own[key], ttl=3600)
            assert store.get(key) == own.get(key)
        assert dict(store.scan(b"%d:" % number)) == own

    in_threads(work)
    assert store.get(b"transactions") == store.get(b"counted")
    assert store.check().problems == ()


def test_eight_threads_count_exactly(store: Store) -> None:
    def work(_: int) -> None:
        for _ in range(ROUNDS):
            store.incr(b"n")

    in_threads(work)
    assert store.get(b"n") == b"%d" % (THREADS * ROUNDS)


def test_threads_see_whole_transactions_only(store: Store) -> None:
    store.put_many({b"a": b"0", b"b": b"0"})
    is_over = threading.Event()

    def work(number: int) -> None:
        if number < 2:
            for turn in range(ROUNDS):
                with store.transaction() as txn:
                    txn.put(b"a", b"%d:%d" % (number, turn))
                    txn.put(b"b", b"%d:%d" % (number, turn))
            is_over.set()
        while not is_over.is_set():
            with store.snapshot() as snap:
                assert snap.get(b"a") == snap.get(b"b")
            assert len({value for _, value in store.scan()}) == 1

    in_threads(work, 4)


def test_a_transaction_in_one_thread_makes_others_wait_not_fail(store: Store) -> None:
    order: list[str] = []
    is_inside = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            with store.transaction() as txn:
                is_inside.set()
                txn.put(b"a", b"first")
                assert store.get(b"a") is None
                order.append("first")
        else:
            assert is_inside.wait(10)
            store.put(b"a", b"second")
            order.append("second")

    in_threads(work, 3)
    assert order == ["first", "second", "second"]


def test_closing_in_one_thread_ends_the_work_of_others_cleanly(path: Path) -> None:
    store = ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES)
    has_begun = threading.Barrier(4, timeout=30)

    def work(number: int) -> None:
        has_begun.wait()
        if number == 0:
            store.close()
            return
        with pytest.raises(ephemera.StoreClosed):
            use_for_ever(store, b"%d" % number)

    in_threads(work, 4)
    with ephemera.open(path) as again:
        assert again.check().problems == ()


def use_for_ever(store: Store, key: bytes) -> None:
    while True:
        store.put(key, b"x" * 100, ttl=60)
        store.get(key)
        list(store.scan())
