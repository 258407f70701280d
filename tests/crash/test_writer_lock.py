"""A writer dies while it holds the writer lock: whatever acquires the lock next, no record is lost."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ephemera
from tests.crash.processes import Peer, Seat, in_fork
from tests.crash.single_step import compile_stepper, step
from tests.engines.local.stores import engine_of

FEW = {b"kept:%03d" % number: b"old:%d" % number for number in range(40)}
"""So few that single-stepping watches all their records."""
MANY = {b"kept:%03d" % number: b"old:%d" % number for number in range(900)}
"""So many that nearly every slot of the segment leads to a chain: a record that is linked in front of one
and then overwritten cuts it off, also where its key is new."""
PENDING = b"kept:007"
"""The key that the victim writes when it dies."""
LATER_PREFIX = b"later:"
LATER_COUNT = 60
"""How many records are written afterwards: enough to overwrite what the victim left behind the head."""
QUIET: dict[str, Any] = {"maintenance": "manual", "segment_bytes": 64 * 1024}


# --- what the victim does ------------------------------------------------------------------------


def put(store: ephemera.Store) -> None:
    store.put(PENDING, b"new")


def put_new(store: ephemera.Store) -> None:
    store.put(b"fresh", b"new")


def incr(store: ephemera.Store) -> None:
    store.incr(b"count")


def touch(store: ephemera.Store) -> None:
    store.touch(PENDING, ttl=3600)


def delete(store: ephemera.Store) -> None:
    store.delete(PENDING)


def delete_many(store: ephemera.Store) -> None:
    store.delete_many([PENDING, b"kept:008"])


def put_many(store: ephemera.Store) -> None:
    store.put_many({PENDING: b"new", b"fresh": b"new"})


def transact(store: ephemera.Store) -> None:
    with store.transaction() as txn:
        txn.put(PENDING, b"new")
        txn.delete(b"kept:008")


def rotate(store: ephemera.Store) -> None:
    store.put(PENDING, b"x" * 60_000)  # more than the segment has room for


def apply(store: ephemera.Store) -> None:
    if store.stats()["engine"] == "local":
        store.checkpoint()


Operation = Callable[[ephemera.Store], None]
COMPILED: list[Operation] = [put, put_new, incr, delete]
"""Those that acquire and release the lock in compiled code, in a few hundred instructions."""
WRITES: list[Operation] = [*COMPILED, touch, delete_many, put_many, transact]


# --- what acquires the lock next -----------------------------------------------------------------


def close_elsewhere(_: ephemera.Store, other: Peer) -> None:
    other.close()


def close_a_reader(store: ephemera.Store, _: Peer) -> None:
    ephemera.open(store.stats()["path"], read_only=True).close()


def write_in_a_child(store: ephemera.Store, _: Peer) -> None:
    in_fork(lambda: store.put(b"later:child", b"1")).result()


def close_in_a_child(store: ephemera.Store, _: Peer) -> None:
    in_fork(store.close).result()


def use_and_close_in_a_child(store: ephemera.Store, _: Peer) -> None:
    in_fork(lambda: (store.get(b"count"), store.close())[0]).result()


def write(store: ephemera.Store, _: Peer) -> None:
    store.put(b"later:next", b"1")


def increment(store: ephemera.Store, _: Peer) -> None:
    store.incr(b"later:next")


def remove(store: ephemera.Store, _: Peer) -> None:
    store.put(b"later:next", b"1")
    store.delete(b"later:next")


def begin(store: ephemera.Store, _: Peer) -> None:
    with store.transaction():
        pass


def checkpoint(store: ephemera.Store, _: Peer) -> None:
    store.checkpoint()


def compact(store: ephemera.Store, _: Peer) -> None:
    store.compact()


def make_a_family(store: ephemera.Store, _: Peer) -> None:
    store.family("fresh")


def clear_a_family(store: ephemera.Store, _: Peer) -> None:
    store.family("other").clear()


def drop_a_family(store: ephemera.Store, _: Peer) -> None:
    store.drop_family("other")


def purge(store: ephemera.Store, _: Peer) -> None:
    store.purge_expired()


def write_elsewhere(_: ephemera.Store, other: Peer) -> None:
    other.do("put", b"later:next", b"1")


Next = Callable[[ephemera.Store, Peer], None]
CLOSES: list[Next] = [
    close_elsewhere,
    close_a_reader,
    close_in_a_child,
    use_and_close_in_a_child,
]
OTHERS: list[Next] = [
    write_in_a_child,
    write,
    increment,
    remove,
    begin,
    checkpoint,
    compact,
    make_a_family,
    clear_a_family,
    drop_a_family,
    purge,
    write_elsewhere,
]


# --- a death at the store that publishes ---------------------------------------------------------


def die_publishing(seat: Seat, operation: Operation) -> None:
    """Make the segment's header read-only: storing the published head is fatal, in the lock."""
    faulthandler.disable()
    segments = engine_of(seat.store)._segments
    seat.store.get(PENDING)
    memory = segments._mapped[segments.control.active][1].memory
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ) == 0
    operation(seat.store)


def fill(url: str, kept: dict[bytes, bytes]) -> ephemera.Store:
    store = ephemera.open(url, **({} if url == "memory://" else QUIET))
    store.put_many(kept)
    store.incr(b"count")
    store.family("other").put(b"a", b"1")
    return store


def outcomes(operation: Operation, kept: dict[bytes, bytes]) -> list[dict[bytes, bytes]]:
    """What the store may hold after a death: all of the operation, or nothing of it."""
    with fill("memory://", kept) as store:
        before = dict(store.scan())
        operation(store)
        return [before, dict(store.scan())]


def verify(store: ephemera.Store, allowed: list[dict[bytes, bytes]]) -> None:
    """Compare the store with all that was acknowledged, on every path that finds a key."""
    assert store.check().problems == ()
    scanned = {key: value for key, value in store.scan() if not key.startswith(LATER_PREFIX)}
    assert scanned in allowed
    known = {key for outcome in allowed for key in outcome}
    assert store.get_many(known) == scanned
    for key in scanned:
        assert not store.put_if_absent(key, b"absent"), key


def survive(store: ephemera.Store, act: Next, other: Peer) -> None:
    """Acquire the lock, and then write what would overwrite all that lies behind the published head."""
    act(store, other)
    later = {LATER_PREFIX + b"%02d" % n: b"%d" % n * (n % 7 + 1) for n in range(LATER_COUNT)}
    for key, value in later.items():
        store.put(key, value)
    assert store.get_many(later) == later


def try_death_at_publish(path: Path, operation: Operation, act: Next) -> None:
    allowed = outcomes(operation, MANY)
    with (
        fill(str(path), MANY) as store,
        Peer(path, **QUIET) as victim,
        Peer(path, **QUIET) as other,
    ):
        victim.tell(die_publishing, operation)
        victim.join(-signal.SIGSEGV)
        survive(store, act, other)
        verify(store, allowed)
    with ephemera.open(path) as store:
        verify(store, allowed)


@pytest.mark.parametrize("operation", WRITES)
def test_closing_after_a_death_before_the_publish_loses_nothing(
    tmp_path: Path, operation: Operation
) -> None:
    for number, act in enumerate(CLOSES):
        try_death_at_publish(tmp_path / f"{number}", operation, act)


@pytest.mark.parametrize("act", OTHERS)
def test_going_on_after_a_death_before_the_publish_loses_nothing(tmp_path: Path, act: Next) -> None:
    for number, operation in enumerate((put, put_many)):
        try_death_at_publish(tmp_path / f"{number}", operation, act)


# --- a death at every instruction that leaves a trace ---------------------------------------------


@pytest.fixture(scope="module")
def stepper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stepper(tmp_path_factory.mktemp("stepper"))


def try_death_at(path: Path, stepper: Path, operation: Operation, fatal: int, act: Next) -> bool:
    """Kill the victim at this change. Returns False when the operation has fewer, and it lives."""
    allowed = outcomes(operation, FEW)
    with (
        fill(str(path), FEW) as store,
        Peer(path, **QUIET) as victim,
        Peer(path, **QUIET) as other,
    ):
        victim.tell(step, str(stepper), operation, fatal)
        is_dead = victim.dies()
        survive(store, act, other)
        verify(store, allowed)
    with ephemera.open(path) as store:
        verify(store, allowed)
    return is_dead


def try_every_death(place: Path, stepper: Path, operation: Operation, acts: list[Next]) -> int:
    """Kill at each change in turn, followed by these acts in turn; returns how many were killed."""
    fatal = 1
    while try_death_at(place / f"{fatal}", stepper, operation, fatal, acts[fatal % len(acts)]):
        shutil.rmtree(place / f"{fatal}")
        fatal += 1
    return fatal - 1


@pytest.mark.parametrize("operation", COMPILED)
def test_closing_after_a_death_at_any_change_inside_the_lock_loses_nothing(
    tmp_path: Path, stepper: Path, operation: Operation
) -> None:
    assert try_every_death(tmp_path, stepper, operation, [close_elsewhere]) > 10


@pytest.mark.soak
@pytest.mark.parametrize("act", [*CLOSES, *OTHERS])
@pytest.mark.parametrize("operation", [*WRITES, rotate, apply])
def test_whatever_follows_a_death_at_any_change_inside_the_lock_loses_nothing(
    tmp_path: Path, stepper: Path, operation: Operation, act: Next
) -> None:
    assert try_every_death(tmp_path, stepper, operation, [act]) > 10
