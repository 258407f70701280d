"""Whatever threads do to each other's snapshots, scans, transactions and stores, they get errors, and no crash.

Each attack runs in a process of its own, so that a crash is that of the process and not of the tests.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import ephemera
import ephemera.aio
from ephemera import EphemeraError, Snapshot, Store, StoreClosed, Transaction
from ephemera.core.clock import elapsed_ns
from ephemera.keyspace import Keyspace
from tests.crash.moments import Moments
from tests.crash.processes import TINY_SEGMENT_BYTES, in_fork
from tests.engines.local.stores import engine_of
from tests.engines.slatedb import buckets

T = TypeVar("T")

THREADS = 6
KEYS = 300


class Playground:
    """A store and what hangs on it, in the hands of several threads at once."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._seed = seed
        self._open()
        self.unexpected: list[str] = []
        self.snapshot: Snapshot = self.store.snapshot()
        self.scan: Iterator[Any] = self.store.scan()  # Any: pairs of bytes
        self.transaction: Transaction | None = None

    def _open(self) -> None:
        self.store: Store = ephemera.open(
            self._url, segment_bytes=TINY_SEGMENT_BYTES, lock_timeout=0.02
        )

    def attack(self, seconds: float) -> list[str]:
        """Misuse everything from several threads; what was raised that should not have been."""
        until_ns = elapsed_ns() + int(seconds * 1e9)
        threads = [
            threading.Thread(target=self._misuse, args=(random.Random(self._seed + i), until_ns))
            for i in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.store.close()
        return self.unexpected

    def _misuse(self, dice: random.Random, until_ns: int) -> None:
        weighted = [step for step, weight in STEPS for _ in range(weight)]
        while elapsed_ns() < until_ns:
            step = dice.choice(weighted)
            try:
                step(self, dice)
            except (EphemeraError, StopIteration):
                pass
            except ValueError as error:
                # What Python says of an iterator that two threads step at once.
                if str(error) != "generator already executing":
                    self.unexpected.append(f"{step.__name__}: {error!r}")
            except BaseException as error:
                self.unexpected.append(f"{step.__name__}: {error!r}")

    # -- what threads do

    def write(self, dice: random.Random) -> None:
        self.store.put(b"%d" % dice.randrange(KEYS), bytes(dice.randrange(900)))

    def read(self, dice: random.Random) -> None:
        self.store.get(b"%d" % dice.randrange(KEYS))

    def begin_snapshot(self, dice: random.Random) -> None:
        self.snapshot = self.store.snapshot()

    def read_snapshot(self, dice: random.Random) -> None:
        self.snapshot.get(b"%d" % dice.randrange(KEYS))

    def scan_snapshot(self, dice: random.Random) -> None:
        for _ in self.snapshot.scan(reverse=dice.random() < 0.5):
            pass

    def close_snapshot(self, dice: random.Random) -> None:
        self.snapshot.close()

    def begin_scan(self, dice: random.Random) -> None:
        source = self.snapshot if dice.random() < 0.5 else self.store
        self.scan = source.scan(reverse=dice.random() < 0.5)

    def step_scan(self, dice: random.Random) -> None:
        scan = self.scan
        for _ in range(20):
            next(scan)

    def close_scan(self, dice: random.Random) -> None:
        self.scan.close()  # type: ignore[attr-defined]  # what scans return has it

    def begin_transaction(self, dice: random.Random) -> None:
        self.transaction = self.store.transaction()

    def use_transaction(self, dice: random.Random) -> None:
        transaction = self.transaction
        if transaction is not None:
            transaction.put(b"%d" % dice.randrange(KEYS), b"in a transaction")
            transaction.get(b"%d" % dice.randrange(KEYS))
            for _ in transaction.scan(end=b"2"):
                pass

    def end_transaction(self, dice: random.Random) -> None:
        transaction = self.transaction
        if transaction is not None:
            (transaction.commit if dice.random() < 0.5 else transaction.rollback)()

    def forget_transaction(self, dice: random.Random) -> None:
        self.transaction = None

    def checkpoint(self, dice: random.Random) -> None:
        self.store.checkpoint()

    def compact(self, dice: random.Random) -> None:
        self.store.compact()

    def collect(self, dice: random.Random) -> None:
        gc.collect(0)

    def close(self, dice: random.Random) -> None:
        self.store.close()
        self._open()

    def forget(self, dice: random.Random) -> None:
        self._open()


STEPS: list[tuple[Callable[[Playground, random.Random], None], int]] = [
    (Playground.write, 40),
    (Playground.read, 10),
    (Playground.begin_snapshot, 10),
    (Playground.read_snapshot, 10),
    (Playground.scan_snapshot, 10),
    (Playground.close_snapshot, 5),
    (Playground.begin_scan, 10),
    (Playground.step_scan, 20),
    (Playground.close_scan, 3),
    (Playground.begin_transaction, 3),
    (Playground.use_transaction, 10),
    (Playground.end_transaction, 10),
    (Playground.forget_transaction, 1),
    (Playground.checkpoint, 3),
    (Playground.compact, 1),
    (Playground.collect, 1),
    (Playground.close, 1),
    (Playground.forget, 1),
]


def attack(url: str, seconds: float, seed: int = 0) -> object:
    return in_fork(lambda: Playground(url, seed).attack(seconds)).result()


def test_threads_that_misuse_each_other_s_objects_get_errors(tmp_path: Path) -> None:
    assert attack(str(tmp_path / "store"), 2) == []


def test_threads_that_misuse_each_other_s_objects_in_memory_get_errors() -> None:
    assert attack("memory://", 1) == []


class InterruptSafeContext(Moments):
    """Ends a snapshot or a transaction at one moment of a call of it, as another thread would."""

    def __init__(self, fatal: int, end: Callable[[], object]) -> None:
        super().__init__(fatal)
        self._end = end

    def _meet(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self.fatal:
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._end()


def end_at_every_moment(
    begin: Callable[[], T], end: Callable[[T], object], use: Callable[[T], object]
) -> int:
    """Use something new once for each moment of its use, and end it there; how many moments there were."""
    moments = InterruptSafeContext(0, lambda: None)
    while moments.count >= moments.fatal:
        used = begin()
        moments = InterruptSafeContext(moments.fatal + 1, partial(end, used))
        try:
            moments.interrupt(use, used)
        except StoreClosed:
            pass
        except Exception as error:
            raise AssertionError(f"ended at {moments.place}") from error
        with suppress(StoreClosed):
            end(used)
    return moments.count


def agreeing(use: Callable[[Keyspace], object], place: Keyspace) -> Callable[[Keyspace], object]:
    """The same use of other places, which must find there what it finds here."""
    expected = use(place)

    def check(place: Keyspace) -> None:
        found = use(place)
        assert found == expected, f"{found!r}, not {expected!r}"

    return check


READS: dict[str, Callable[[Keyspace], object]] = {
    "get": lambda place: place.get(b"a"),
    "get_many": lambda place: place.get_many([b"a", b"b"]),
    "entry": lambda place: place.entry(b"a"),
    "ttl": lambda place: place.ttl(b"a"),
    "scan": lambda place: list(place.scan()),
    "scan back": lambda place: list(place.scan(reverse=True)),
    "count": lambda place: place.count(),
}
WRITES: dict[str, Callable[[Keyspace], object]] = {
    "put": lambda place: place.put(b"c", b"2", ttl=60),
    "put_many": lambda place: place.put_many({b"a": b"2", b"c": b"2"}),
    "incr": lambda place: place.incr(b"a"),
    "delete": lambda place: place.delete(b"a"),
    "clear": lambda place: place.clear(),
}


@pytest.fixture(params=["memory", "local", "slatedb"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with rows of a family, on each engine that has snapshots."""
    urls = {"local": str(tmp_path / "s.eph"), "slatedb": buckets.file_url(tmp_path / "objects")}
    with ephemera.open(urls.get(request.param, "memory://"), maintenance="manual") as store:
        for place in (store, store.family("own")):
            place.put_many({b"a": b"1", b"b": b"1"})
        yield store


@pytest.mark.parametrize("use", READS.values(), ids=READS)
def test_a_snapshot_may_be_closed_at_any_moment_of_a_read(
    held: Store, use: Callable[[Keyspace], object]
) -> None:
    assert end_at_every_moment(held.snapshot, Snapshot.close, agreeing(use, held)) > 3


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.rollback])
@pytest.mark.parametrize("use", READS.values(), ids=READS)
def test_a_transaction_may_end_at_any_moment_of_a_read(
    held: Store, use: Callable[[Keyspace], object], end: Callable[[Transaction], None]
) -> None:
    assert end_at_every_moment(held.transaction, end, agreeing(use, held)) > 3


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.rollback])
@pytest.mark.parametrize("use", WRITES.values(), ids=WRITES)
def test_a_transaction_may_end_at_any_moment_of_a_write(
    held: Store, use: Callable[[Keyspace], object], end: Callable[[Transaction], None]
) -> None:
    assert end_at_every_moment(held.transaction, end, use) > 3
    held.put(b"a", b"after")  # nobody holds the writer lock


def read_family(used: Snapshot | Transaction) -> None:
    assert used.family("own").get(b"a") == b"1"


def test_a_snapshot_may_be_closed_as_a_family_of_it_is_found(held: Store) -> None:
    assert end_at_every_moment(held.snapshot, Snapshot.close, read_family) > 3


def test_a_transaction_may_end_as_a_family_of_it_is_found(held: Store) -> None:
    assert end_at_every_moment(held.transaction, Transaction.rollback, read_family) > 3


def test_a_transaction_may_be_written_to_wherever_its_scan_collects_garbage() -> None:
    with ephemera.open("memory://") as store, store.transaction() as transaction:
        transaction.put_many({b"%d" % number: b"1" for number in range(100)})
        numbers = count(100)

        def write_too(phase: str, _: object) -> None:
            if phase == "start":
                transaction.put(b"%d" % next(numbers), b"1")

        thresholds = gc.get_threshold()
        gc.callbacks.append(write_too)
        gc.set_threshold(1)
        try:
            found = list(transaction.scan())
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(write_too)
        assert len(found) >= 100
        assert next(numbers) > 101


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_threads_that_misuse_each_other_s_objects_for_long_get_errors(
    tmp_path: Path, seed: int
) -> None:
    assert attack(str(tmp_path / "store"), 30, seed) == []


def close_under_a_scan(path: Path, rounds: int) -> int:
    """Iterate snapshots in one thread, close them in another, with a writer beside them; how many were
    closed in the middle."""
    struck = 0
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store:
        store.put_many({b"%05d" % number: bytes(100) for number in range(3_000)})
        store.checkpoint()
        is_over = threading.Event()

        def write_on() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                store.put(b"%05d" % (number % 3_000), bytes(100))
                if number % 50 == 0:
                    store.checkpoint()

        def iterate(snapshot: Snapshot) -> None:
            nonlocal struck
            try:
                assert sum(1 for _ in snapshot.scan()) == 3_000
            except ephemera.StoreClosed:
                struck += 1

        writer = threading.Thread(target=write_on)
        writer.start()
        for number in range(rounds):
            snapshot = store.snapshot()
            reader = threading.Thread(target=iterate, args=(snapshot,))
            reader.start()
            reader.join(number % 20 / 10_000)
            snapshot.close()
            reader.join()
        is_over.set()
        writer.join()
    return struck


def test_a_snapshot_may_be_closed_while_another_thread_iterates_it(tmp_path: Path) -> None:
    struck = in_fork(lambda: close_under_a_scan(tmp_path / "store", 150)).result()
    assert struck > 0


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.rollback])
def test_a_transaction_that_another_thread_tried_to_end_goes_on(
    tmp_path: Path, end: Callable[[Transaction], None]
) -> None:
    refusals: list[BaseException] = []

    def end_it(transaction: Transaction) -> None:
        try:
            end(transaction)
        except ephemera.InvalidArgument as error:
            refusals.append(error)

    with ephemera.open(tmp_path / "store", lock_timeout=5) as store:
        with store.transaction() as transaction:
            transaction.put(b"a", b"1")
            thread = threading.Thread(target=end_it, args=(transaction,))
            thread.start()
            thread.join()
            transaction.put(b"b", b"2")
        assert len(refusals) == 1
        assert store.get_many([b"a", b"b"]) == {b"a": b"1", b"b": b"2"}
        assert store.incr(b"n") == 1


def lose_transactions(path: Path, rounds: int) -> int:
    """In one thread, begin transactions of stores whose files another lets go of in between."""
    begin, dropped = threading.Semaphore(0), threading.Semaphore(0)
    handed: list[Any] = []  # Any: what is let go

    def begin_many() -> None:
        for number in range(rounds):
            begin.acquire()
            store = ephemera.open(path / str(number), maintenance="manual")
            control = engine_of(store)._control
            handed.append((control.writer.take(1), store))
            del store, control
            dropped.release()

    path.mkdir()
    thread = threading.Thread(target=begin_many)
    thread.start()
    for _ in range(rounds):
        begin.release()
        dropped.acquire()
        turn, store = handed.pop()
        store.close()
        del turn, store  # so the page of the lock that the other thread holds is nobody's
        gc.collect()
    thread.join()
    return rounds


def test_a_writer_lock_that_another_thread_forgets_does_not_crash_its_holder(
    tmp_path: Path,
) -> None:
    assert in_fork(lambda: lose_transactions(tmp_path / "stores", 5)).result() == 5


def test_tasks_that_misuse_each_other_s_objects_get_errors(tmp_path: Path) -> None:
    async def misuse() -> list[str]:
        unexpected: list[str] = []
        async with ephemera.aio.open(tmp_path / "store", lock_timeout=0.05) as store:
            for number in range(KEYS):
                await store.put(b"%d" % number, bytes(100))
            await store.checkpoint()
            for number in range(30):
                snapshot = await store.snapshot()
                transaction = await store.transaction()
                calls = [
                    _count(snapshot.scan()),
                    _count(snapshot.scan()),
                    snapshot.get(b"%d" % number),
                    snapshot.close(),
                    transaction.put(b"a", b"1"),
                    _count(transaction.scan()),
                    transaction.commit() if number % 2 else transaction.rollback(),
                    transaction.rollback(),
                    store.put(b"b", b"2"),
                    store.checkpoint(),
                ]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                raised = [one for one in outcomes if isinstance(one, BaseException)]
                unexpected += [repr(one) for one in raised if not isinstance(one, EphemeraError)]
        return unexpected

    assert in_fork(lambda: asyncio.run(misuse())).result() == []


async def _count(rows: Any) -> int:  # Any: an asynchronous iterator of pairs
    return len([row async for row in rows])


def in_a_new_thread(work: Callable[[], object]) -> object:
    """Run something in a thread of its own, to its end, and return what it returned or raised."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except EphemeraError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def test_a_transaction_whose_thread_has_ended_commits_nothing_without_the_writer_lock(
    tmp_path: Path,
) -> None:
    with ephemera.open(tmp_path / "store", maintenance="manual") as store:
        store.put(b"x", b"0")
        idents: list[int] = []

        def begin() -> Transaction:
            idents.append(threading.get_ident())
            transaction = store.transaction()
            transaction.put(b"lost", b"1")
            return transaction

        transaction = in_a_new_thread(begin)
        assert isinstance(transaction, Transaction)

        def commit(transaction: Transaction = transaction) -> None:
            idents.append(threading.get_ident())
            transaction.commit()

        store.put(b"between", b"1")
        store.checkpoint()
        refused = in_a_new_thread(commit)
        assert isinstance(refused, ephemera.InvalidArgument)
        if idents[0] != idents[1]:
            pytest.skip("the system gave the second thread another id than the first had")
        assert dict(store.scan()) == {b"x": b"0", b"between": b"1"}


def test_a_transaction_that_another_thread_collects_keeps_its_own_thread_from_nothing(
    tmp_path: Path,
) -> None:
    with ephemera.open(tmp_path / "store", lock_timeout=0.05) as store:
        transaction = store.transaction()
        transaction.put(b"a", b"1")
        cycle: list[object] = [transaction]
        cycle.append(cycle)
        del transaction, cycle
        in_a_new_thread(gc.collect)
        store.put(b"b", b"2")
        assert in_a_new_thread(lambda: store.put(b"c", b"3")) is None
        with store.transaction() as transaction:
            transaction.put(b"d", b"4")
        assert dict(store.scan()) == {b"b": b"2", b"c": b"3", b"d": b"4"}
