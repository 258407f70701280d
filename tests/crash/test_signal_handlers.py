"""A signal handler may read the store, whatever its thread was doing; forgotten stores close without one another.

Signals come by luck; here a handler runs at every moment at which Python could run one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import lmdb
import pytest

import ephemera
from ephemera import Store
from ephemera.core._block import BoundedLock
from ephemera.engines.local import base_tier, files, maintenance
from ephemera.engines.local.base_tier import BaseFile
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import Files
from tests.crash.moments import Moments
from tests.crash.processes import TINY_SEGMENT_BYTES
from tests.engines.local.stores import engine_of

STUCK_SECONDS = 40


class Handler(Moments):
    """A trace function that calls a handler at every moment, as Python does with that of a signal."""

    def __init__(self, handle: Callable[[], None]) -> None:
        super().__init__(fatal=0)
        self._handle = handle
        self.refusals: list[str] = []

    def _meet(self, frame: FrameType) -> None:
        self.count += 1
        try:
            self._handle()
        except ephemera.StoreBusy as error:
            self.refusals.append(str(error))

    def run(self, act: Callable[[], object]) -> None:
        sys.settrace(self)
        try:
            act()
        finally:
            sys.settrace(None)


@pytest.fixture(autouse=True)
def deadlocks_raise() -> Iterator[None]:
    """Raise in a thread that waits for itself."""

    def give_up(*_: object) -> None:
        sys.settrace(None)
        raise AssertionError("a signal handler waits for its own thread")

    former = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, STUCK_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with ephemera.open(
        path, maintenance="manual", segment_bytes=TINY_SEGMENT_BYTES, lock_timeout=2
    ) as store:
        store.put_many({b"%d" % number: b"x" for number in range(20)})
        store.checkpoint()
        yield store


def use_a_snapshot(store: Store) -> None:
    with store.snapshot() as snapshot:
        snapshot.get(b"7")
        list(snapshot.scan())


def use_a_transaction(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.incr(b"n")


def open_and_close(store: Store) -> None:
    with ephemera.open(store._url, maintenance="manual") as other:
        other.get(b"7")


ACTS: list[Callable[[Store], object]] = [
    lambda store: store.get(b"7"),
    lambda store: list(store.scan()),
    lambda store: store.put(b"large", bytes(TINY_SEGMENT_BYTES)),
    lambda store: store.family("other").clear(),
    lambda store: store.purge_expired(),
    Store.checkpoint,
    Store.compact,
    Store.check,
    Store.stats,
    use_a_snapshot,
    use_a_transaction,
    open_and_close,
]


@pytest.mark.parametrize("act", ACTS)
def test_a_signal_handler_may_read_at_every_moment(
    store: Store, act: Callable[[Store], object]
) -> None:
    def read() -> None:
        assert store.get(b"7") == b"x"
        assert sum(1 for _ in store.scan()) >= 20

    store.put(b"fresh", b"y")
    handler = Handler(read)
    handler.run(lambda: act(store))
    assert handler.count > 0
    assert handler.refusals == []
    read()
    assert store.check().problems == ()


def test_a_signal_handler_may_read_while_another_generation_is_opened(path: Path) -> None:
    """It is refused only while its own thread is inside LMDB's opening of the very file that it needs."""
    with (
        ephemera.open(path, maintenance="manual") as store,
        ephemera.open(path, maintenance="manual") as other,
    ):
        store.put(b"7", b"x")
        for _ in range(2):
            store.compact()
            handler = Handler(lambda: assert_reads(other))
            handler.run(lambda: assert_reads(other))
            assert handler.count > len(handler.refusals)
            assert all("a signal arrived" in refusal for refusal in handler.refusals)
            assert_reads(other)


def assert_reads(store: Store) -> None:
    assert store.get(b"7") == b"x"


LOCKS: dict[str, Callable[[LocalEngine], BoundedLock]] = {
    "refreshing": lambda engine: engine._segments.refreshing,
    "making": lambda engine: engine._segments.making,
    "renewing": lambda engine: engine._base._renewing,
    "collecting": lambda engine: engine._expiry.collecting,
    "opening": lambda engine: base_tier._opening,
}


@pytest.fixture
def background(path: Path) -> Iterator[Store]:
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES, lock_timeout=0.5) as store:
        store.put(b"7", b"x")
        yield store


def handle_while_a_worker_waits(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    lock: BoundedLock,
    handle: Callable[[Store], None],
) -> None:
    """Call a handler in a thread that has a lock, for which the background waits in the middle of its work."""
    is_tending, may_go_on = threading.Event(), threading.Event()
    freeze_aged = LocalEngine._freeze_aged

    def tend(engine: LocalEngine) -> None:
        is_tending.set()
        assert may_go_on.wait(STUCK_SECONDS)
        with lock:
            freeze_aged(engine)

    monkeypatch.setattr(LocalEngine, "_freeze_aged", tend)
    assert is_tending.wait(STUCK_SECONDS)
    with lock:
        may_go_on.set()
        handle(store)


@pytest.mark.parametrize("name", LOCKS)
def test_a_signal_handler_may_close_the_store_while_a_worker_waits_for_its_thread(
    background: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lock = LOCKS[name](engine_of(background))
    handle_while_a_worker_waits(background, monkeypatch, lock, Store.close)
    monkeypatch.undo()
    with ephemera.open(background._url, exclusive=True) as again:
        assert again.get(b"7") == b"x"


@pytest.mark.parametrize("name", LOCKS)
def test_a_signal_handler_may_checkpoint_while_a_worker_waits_for_its_thread(
    background: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It may be refused, but not for ever."""

    def checkpoint(store: Store) -> None:
        with suppress(ephemera.StoreBusy):
            store.checkpoint()

    lock = LOCKS[name](engine_of(background))
    handle_while_a_worker_waits(background, monkeypatch, lock, checkpoint)
    monkeypatch.undo()
    background.checkpoint()
    assert background.get(b"7") == b"x"


def test_a_signal_handler_may_close_a_store_that_its_thread_compacts(
    background: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_tending = threading.Event()
    is_elsewhere = LocalEngine._is_maintained_elsewhere

    def tend(engine: LocalEngine) -> bool:
        is_tending.set()
        return is_elsewhere(engine)

    with engine_of(background)._tending:
        monkeypatch.setattr(LocalEngine, "_is_maintained_elsewhere", tend)
        assert is_tending.wait(STUCK_SECONDS)
        background.close()
    assert own_threads() == []


def handle_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, handle: Callable[[], None]
) -> None:
    """Have the next call of a method end with a handler."""
    act = getattr(owner, name)

    def act_and_handle(*given: object) -> object:
        monkeypatch.setattr(owner, name, act)
        result = act(*given)
        handle()
        return result

    monkeypatch.setattr(owner, name, act_and_handle)


WRITES: dict[str, tuple[int, Callable[[LocalEngine], tuple[object, str]]]] = {
    "before segments are shown": (1, lambda engine: (engine._segments, "on_refresh")),
    "before there is room": (TINY_SEGMENT_BYTES, lambda engine: (engine._segments, "on_refresh")),
    "before a segment is made": (TINY_SEGMENT_BYTES, lambda engine: (files, "temporary_name")),
    "before a segment is named": (TINY_SEGMENT_BYTES, lambda engine: (Files, "allocate_mapped")),
}
"""When the handler comes, by how much is written and what it follows."""


@pytest.mark.parametrize("moment", WRITES)
def test_a_write_ends_with_the_store_that_a_signal_handler_closed(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Nobody else may find what it does then: the store may be open in another process by now."""
    store.put(b"former", b"1")
    others = {b"other %d" % number: bytes(40_000) for number in range(2)}
    opened: list[Store] = []

    def close_and_open() -> None:
        store.close()
        opened.append(ephemera.open(path, maintenance="manual", segment_bytes=TINY_SEGMENT_BYTES))
        for key, value in others.items():
            opened[0].put(key, value)

    size, place = WRITES[moment]
    if size == 1:
        engine_of(store)._segments.forget()
    handle_once(monkeypatch, *place(engine_of(store)), close_and_open)
    with pytest.raises(ephemera.StoreClosed):
        store.put(b"late", bytes(size))
    opened[0].put(b"later", b"1")
    opened[0].close()
    with ephemera.open(path, exclusive=True) as again:
        assert {key: again.get(key) for key in others} == others
        assert (again.get(b"former"), again.get(b"later")) == (b"1", b"1")
        assert again.check().problems == ()


COMPACTIONS: dict[str, tuple[object, str]] = {
    "as the former file is closed": (base_tier, "_let_go"),
    "before the new file is made": (files, "temporary_name"),
    "before the new file is named": (BaseFile, "rewrite"),
}


@pytest.mark.parametrize("moment", COMPACTIONS)
def test_a_compaction_ends_with_the_store_that_a_signal_handler_closed(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def close_and_open() -> None:
        store.close()
        ephemera.open(path).close()

    handle_once(monkeypatch, *COMPACTIONS[moment], close_and_open)
    with suppress(ephemera.StoreClosed):  # it may be done by then
        store.compact()
    assert repr(store).endswith("closed>")
    with ephemera.open(path, exclusive=True) as again:
        assert again.count() == 20
        assert again.check().problems == ()


def test_a_write_that_a_signal_handler_closed_the_store_of_changes_no_other_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base tier's descriptor was closed, and its number is that of a file which the handler opened."""
    used_bytes = base_tier._used_bytes
    opened: list[int] = []

    def measure_and_handle(env: lmdb.Environment) -> int:
        monkeypatch.setattr(base_tier, "_used_bytes", used_bytes)
        used = used_bytes(env)
        store.close()
        opened.extend(os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(30))
        return used

    monkeypatch.setattr(base_tier, "_used_bytes", measure_and_handle)
    with suppress(ephemera.StoreClosed):
        engine_of(store).repair()
    sizes = [os.fstat(fd).st_size for fd in opened]
    for fd in opened:
        os.close(fd)
    assert sizes == [0] * 30


def test_closing_does_not_wait_for_ever_for_a_callback(
    background: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler may close the store while a callback waits for the thread that it runs in."""
    is_called, may_end = threading.Event(), threading.Event()
    background.on_expire(lambda expired: (is_called.set(), may_end.wait(STUCK_SECONDS)))
    background.put(b"brief", b"1", ttl=0.001)
    assert is_called.wait(STUCK_SECONDS)
    background.close()
    assert "ephemera-announce" in caplog.text
    may_end.set()


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ephemera-")]


def forget(paths: list[Path]) -> None:
    """Open stores, use them, and let them go without closing them."""
    stores = [ephemera.open(path) for path in paths]
    for store in stores:
        store.put(b"a", b"1")
        store.on_expire(lambda expired: None)
    manual = ephemera.open(paths[0].with_name("manual"), maintenance="manual", durability="commit")
    manual.put(b"a", b"1")


def collect_until_only(before: set[threading.Thread]) -> None:
    """Collect until no other threads of stores are left; one that is in a step keeps its store until then."""
    for _ in range(200):
        gc.collect()
        if set(own_threads()) <= before:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"threads of forgotten stores live on: {set(own_threads()) - before}")


def test_forgotten_stores_end_with_their_threads(tmp_path: Path) -> None:
    before = set(own_threads())
    forget([tmp_path / str(number) for number in range(6)])
    collect_until_only(before)
    maintenance.close_forgotten(20)
    assert not maintenance.forgotten


def test_threads_that_close_each_other_s_stores_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two threads comes to close the store that the other belongs to, at the same moment."""
    both = threading.Barrier(2)
    waited_in_vain: list[str] = []

    class Forgotten:
        """A store, whose closing joins its threads: the one that does not close it."""

        def close(self) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(3)
                    if thread.is_alive():
                        waited_in_vain.append(thread.name)

    monkeypatch.setattr(maintenance, "forgotten", deque([Forgotten(), Forgotten()]))
    threads = [threading.Thread(target=maintenance.close_forgotten) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert waited_in_vain == []
    assert not maintenance.forgotten
