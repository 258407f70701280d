"""The control page: the words and the locks that threads and processes share."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ephemera.core.errors import CorruptStore, InvalidArgument, StoreBusy
from ephemera.engines.local._control import CONTROL_BYTES, LOCKS, Control, LockGuard
from tests.engines.local.stores import in_a_thread, start_python
from tests.waiting import PATIENCE_S


class Pair:
    """Two Control objects over the same file, mapped twice, as two processes would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(CONTROL_BYTES))
        self.fds: list[int] = []
        self.first = self._control(is_first=True)
        self.second = self._control(is_first=False)

    def _control(self, *, is_first: bool) -> Control:
        return Control(
            mmap.mmap(self._fd(self.path), CONTROL_BYTES),
            is_first=is_first,
            lock_fds={name: self._fd(self.path.with_suffix(f".{name}")) for name, _ in LOCKS},
            hash_seed=99,
        )

    def _fd(self, path: Path) -> int:
        self.fds.append(os.open(path, os.O_RDWR | os.O_CREAT))
        return self.fds[-1]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path / "control")
    yield pair
    pair.close()


@pytest.mark.parametrize("word", ["newest", "active", "applied", "base", "families"])
def test_a_word_set_by_one_is_seen_by_the_other(pair: Pair, word: str) -> None:
    for value in (0, 1, 2**63, 2**64 - 1):
        setattr(pair.first, word, value)
        assert getattr(pair.second, word) == value


def test_epoch_synced_failed_and_seed_are_shared(pair: Pair) -> None:
    before = pair.second.epoch
    pair.first.publish()
    assert pair.second.epoch == before + 1
    pair.second.synced = (3, 4096)
    assert pair.first.synced == (3, 4096)
    assert not pair.first.failed
    pair.second.fail()
    assert pair.first.failed
    assert pair.first.hash_seed == pair.second.hash_seed == 99


def test_words_do_not_overlap(pair: Pair) -> None:
    words = ["newest", "active", "applied", "base", "families"]
    for number, word in enumerate(words, 1):
        setattr(pair.first, word, number)
    pair.first.synced = (6, 8)
    pair.first.publish()
    pair.first.fail()
    assert [getattr(pair.second, word) for word in words] == [1, 2, 3, 4, 5]
    assert (pair.second.synced, pair.second.hash_seed, pair.second.epoch) == ((6, 8), 99, 1)


def test_the_first_one_trusts_nothing_that_was_there(tmp_path: Path) -> None:
    memory = bytearray(b"\xff" * CONTROL_BYTES)
    fd = os.open(tmp_path / "writer", os.O_RDWR | os.O_CREAT)
    control = Control(memory, is_first=True, lock_fds={"writer": fd}, hash_seed=1)
    assert (control.newest, control.applied, control.failed, control.epoch) == (0, 0, False, 0)
    assert not control.writer.is_inconsistent
    control.writer.take(1).leave()
    assert not control.writer.is_inconsistent
    os.close(fd)


@pytest.mark.parametrize("memory", [bytearray(CONTROL_BYTES), bytearray(b"\xff" * CONTROL_BYTES)])
def test_a_page_that_is_none_is_refused(memory: bytearray) -> None:
    with pytest.raises(CorruptStore):
        Control(memory, is_first=False)


def test_a_page_that_is_too_small_is_refused() -> None:
    with pytest.raises(CorruptStore):
        Control(bytearray(CONTROL_BYTES - 1), is_first=True)


@pytest.mark.parametrize("name", ["writer", "syncer"])
def test_only_one_thread_is_inside(pair: Pair, name: str) -> None:
    inside = 0
    most = 0
    rounds = 300

    def work(control: Control) -> None:
        nonlocal inside, most
        lock = getattr(control, name)
        for _ in range(rounds):
            with lock.take(PATIENCE_S):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [
        threading.Thread(target=work, args=(control,))
        for control in (pair.first, pair.second, pair.first, pair.second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (most, inside) == (1, 0)


def test_the_two_locks_are_independent(pair: Pair) -> None:
    with pair.first.writer.take(1):
        assert in_a_thread(lambda: pair.second.syncer.take(1).leave()) == []


def test_waiting_lets_other_threads_run(pair: Pair) -> None:
    guard = pair.first.writer.take(1)
    waits, came = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        with pair.second.writer.take(PATIENCE_S):
            came.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE_S)
    # This thread goes on although the other one waits; if that held the GIL, nobody would.
    assert sum(range(200_000)) > 0
    assert not came.is_set()
    guard.leave()
    assert came.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_waiting_ends_with_store_busy(pair: Pair, timeout: float) -> None:
    with pair.first.writer.take(1):
        (error,) = in_a_thread(lambda: pair.second.writer.take(timeout))
        assert isinstance(error, StoreBusy)
        assert "lock_timeout" in str(error)
    with pair.second.writer.take(timeout):
        assert not pair.second.writer.is_inconsistent


@pytest.mark.parametrize("name", [name for name, _ in LOCKS])
def test_a_wait_that_failed_names_the_lock_and_the_process_that_holds_it(
    pair: Pair, name: str
) -> None:
    code = HOLD.replace("control.writer.take", f"control.locks[{name!r}].take")
    with start_python(code, pair.path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        with pytest.raises(StoreBusy, match=rf"the {name} lock is held by process {holder.pid},"):
            pair.first.locks[name].take(0)
        assert not pair.first.locks[name].is_free()
        holder.communicate("\n")
    assert pair.first.locks[name].is_free()
    with pair.first.locks[name].take(0):
        (error,) = in_a_thread(lambda: pair.second.locks[name].take(0))
        assert "another thread of this process" in str(error)


def test_a_thread_knows_whether_it_holds_a_lock(pair: Pair) -> None:
    assert not pair.first.writer.is_held_here()
    with pair.first.writer.take(0):
        assert pair.first.writer.is_held_here()
        elsewhere: list[bool] = []
        in_a_thread(lambda: elsewhere.append(pair.first.writer.is_held_here()))
        assert elsewhere == [False]
    assert pair.first.writer.is_free()


def test_patience_ends_a_wait_that_is_under_way(pair: Pair) -> None:
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        pair.second.writer.take(PATIENCE_S)

    with pair.first.writer.take(1):
        raised: list[BaseException] = []
        thread = threading.Thread(target=lambda: raised.extend(in_a_thread(wait)))
        thread.start()
        assert waits.wait(PATIENCE_S)
        pair.second.limit_waits(0.0)
        thread.join(PATIENCE_S / 2)
        assert [type(error) for error in raised] == [StoreBusy]


def test_a_second_take_of_the_same_thread_is_refused_and_the_first_still_holds(pair: Pair) -> None:
    with pair.first.writer.take(1):
        with pytest.raises(InvalidArgument, match="transaction"):
            pair.first.writer.take(5)
        (error,) = in_a_thread(lambda: pair.second.writer.take(0))
        assert isinstance(error, StoreBusy)
    assert in_a_thread(lambda: pair.second.writer.take(0).leave()) == []


def test_a_turn_goes_with_the_object_that_holds_it(pair: Pair) -> None:
    guard = pair.first.writer.take(1)
    (error,) = in_a_thread(lambda: pair.second.writer.take(0))
    assert isinstance(error, StoreBusy)
    del guard
    assert in_a_thread(lambda: pair.second.writer.take(0).leave()) == []


def test_only_the_thread_that_took_a_turn_gives_it_back(pair: Pair) -> None:
    guard = pair.first.writer.take(1)
    assert in_a_thread(guard.leave) == []
    assert guard.is_held
    (error,) = in_a_thread(lambda: pair.second.writer.take(0))
    assert isinstance(error, StoreBusy)
    guard.leave()
    assert not guard.is_held


HOLD = """
    import mmap, os, sys
    from ephemera.engines.local._control import CONTROL_BYTES, LOCKS, Control
    fd = os.open(sys.argv[1], os.O_RDWR)
    control = Control(
        mmap.mmap(fd, CONTROL_BYTES),
        is_first=False,
        lock_fds={name: os.open(f"{sys.argv[1]}.{name}", os.O_RDWR) for name, _ in LOCKS},
    )
    guard = control.writer.take(5)
    print("inside", flush=True)
    sys.stdin.readline()
"""


def test_the_next_holder_learns_that_the_one_before_was_killed_inside(pair: Pair) -> None:
    with start_python(HOLD, pair.path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        with pytest.raises(StoreBusy):
            pair.first.writer.take(0)
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE_S)
    with pair.first.writer.take(PATIENCE_S):
        assert pair.first.writer.is_inconsistent
    assert pair.second.writer.is_inconsistent, "nobody has recovered what it left"


def kill_holder(pair: Pair, lock: str = "writer") -> None:
    """Let another process acquire a lock, and kill it inside."""
    with start_python(HOLD.replace("writer.take", f"{lock}.take"), pair.path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        holder.kill()
        holder.wait(PATIENCE_S)


def test_closing_the_page_does_not_hide_the_death_of_a_holder(pair: Pair) -> None:
    kill_holder(pair)
    assert pair.second.retire() == []
    with pair.first.writer.take(PATIENCE_S):
        assert pair.first.writer.is_inconsistent


def test_a_lock_that_a_thread_holds_is_not_retired(pair: Pair) -> None:
    with pair.first.writer.take(PATIENCE_S):
        assert pair.first.retire() == ["writer"]
        (error,) = in_a_thread(lambda: pair.second.writer.take(0))
        assert isinstance(error, StoreBusy)
    pair.second.writer.take(0).leave()


def test_a_second_death_before_anybody_recovered_does_not_hide_the_first(pair: Pair) -> None:
    for _ in range(3):
        kill_holder(pair)
    assert pair.second.retire() == []
    with pair.first.writer.take(PATIENCE_S):
        assert pair.first.writer.is_inconsistent


def test_a_death_inside_one_lock_says_nothing_of_the_other(pair: Pair) -> None:
    kill_holder(pair, "syncer")
    with pair.first.writer.take(PATIENCE_S), pair.first.syncer.take(PATIENCE_S):
        assert not pair.first.writer.is_inconsistent
        assert pair.first.syncer.is_inconsistent


def test_one_that_waits_for_a_process_that_is_killed_gets_its_turn(pair: Pair) -> None:
    with start_python(HOLD, pair.path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        results: list[bool] = []

        def wait() -> None:
            with pair.second.writer.take(PATIENCE_S):
                results.append(pair.second.writer.is_inconsistent)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        holder.kill()
        holder.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
    assert results == [True]


def test_a_thread_that_ended_inside_counts_as_dead(pair: Pair) -> None:
    guards: list[LockGuard] = []
    assert in_a_thread(lambda: guards.append(pair.first.writer.take(1))) == []
    with pair.second.writer.take(PATIENCE_S):
        assert pair.second.writer.is_inconsistent


def test_ctrl_c_ends_the_wait(pair: Pair) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with pair.first.writer.take(1):
            inside.set()
            leave.wait(PATIENCE_S)

    def interrupt() -> None:
        threading.Event().wait(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert inside.wait(PATIENCE_S)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            pair.second.writer.take(PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)
        leave.set()
        holder.join(PATIENCE_S)
    with pair.second.writer.take(PATIENCE_S):
        assert not pair.second.writer.is_inconsistent
