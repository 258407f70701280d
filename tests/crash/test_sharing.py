"""One store in many processes: each sees at once what another was told is kept, and nothing else."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import ephemera
from ephemera import StoreBusy, StoreClosed, StoreLocked
from tests.crash.processes import TINY_SEGMENT_BYTES, Peer, Seat, peers
from tests.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.eph"


@pytest.fixture
def pair(path: Path) -> Iterator[list[Peer]]:
    with peers(2, path, segment_bytes=TINY_SEGMENT_BYTES) as crew:
        yield crew


# --- seeing each other -------------------------------------------------------------------------


def test_each_sees_in_its_next_operation_what_another_was_told_is_kept(pair: list[Peer]) -> None:
    for number in range(300):
        writer, reader = pair[number % 2], pair[1 - number % 2]
        value = b"%d" % number + b" " * random.randrange(2_000)
        writer.do("put", b"ball", value, ttl=3600)
        assert reader.do("get", b"ball") == value
    pair[0].do("delete", b"ball")
    assert pair[1].do("get", b"ball") is None
    assert pair[1].run(scan) == {}


def scan(seat: Seat) -> dict[bytes, bytes]:
    return dict(seat.store.scan())


def test_every_kind_of_write_is_seen_by_the_others(pair: list[Peer]) -> None:
    one, other = pair
    one.do("put_many", {b"a": b"1", b"b": b"2"}, ttl=100)
    assert other.do("get_many", [b"a", b"b"]) == {b"a": b"1", b"b": b"2"}
    other.do("persist", b"a")
    assert one.do("ttl", b"a") is None
    one.do("touch", b"b", ttl=50)
    assert 0 < other.do("ttl", b"b") <= 50
    assert other.do("incr", b"a", 5) == 6
    assert one.do("compare_and_set", b"a", b"6", b"7")
    assert not one.do("put_if_absent", b"a", b"8")
    assert other.do("pop", b"a") == b"7"
    assert one.do("count") == other.do("count") == 1


def test_what_moved_to_the_base_tier_is_seen_by_the_others(pair: list[Peer]) -> None:
    one, other = pair
    for number in range(10):
        one.do("put", b"moving", b"%d" % number)
        other.do("checkpoint")
        assert one.do("get", b"moving") == other.do("get", b"moving") == b"%d" % number
        one.do("delete", b"moving")
        assert other.do("get", b"moving") is None
        one.do("checkpoint")
        assert other.do("get", b"moving") is None


def test_families_are_shared(pair: list[Peer]) -> None:
    one, other = pair
    one.run(in_family, "put", b"a", b"1")
    assert other.do("families") == ["default", "guests"]
    assert other.run(in_family, "get", b"a") == b"1"
    other.run(in_family, "clear")
    assert one.run(in_family, "get", b"a") is None
    one.run(in_family, "put", b"a", b"2")
    assert other.run(in_family, "get", b"a") == b"2"
    assert other.do("drop_family", "guests")
    assert one.do("families") == ["default"]
    assert one.run(in_family, "get", b"a") is None
    one.run(in_family, "put", b"a", b"3")
    one.do("checkpoint")
    assert other.run(in_family, "get", b"a") == b"3"


def in_family(seat: Seat, method: str, *args: Any) -> Any:
    return getattr(seat.store.family("guests"), method)(*args)


def test_a_family_handle_stays_good_when_another_process_clears_the_family(path: Path) -> None:
    with ephemera.open(path) as store, Peer(path) as peer:
        guests = store.family("guests")
        for number in range(20):
            guests.put(b"a", b"%d" % number)
            peer.run(in_family, "clear")
            assert guests.get(b"a") is None
            guests.put(b"b", b"%d" % number)
            assert peer.run(in_family, "get", b"b") == b"%d" % number
        store.checkpoint()
        assert peer.run(in_family, "get", b"b") == b"19"


def test_families_created_by_many_at_once_exist_once(path: Path) -> None:
    with peers(3, path) as crew:
        for peer in crew:
            peer.tell(create_families, 10)
        for peer in crew:
            peer.answer()
        expected = {b"%d" % number: b"3" for number in range(10)}
        assert [peer.run(read_families, 10) for peer in crew] == [expected] * 3
        assert crew[0].do("check").problems == ()


def create_families(seat: Seat, count: int) -> None:
    for number in range(count):
        seat.store.family(f"family-{number}").incr(b"processes")


def read_families(seat: Seat, count: int) -> dict[bytes, bytes | None]:
    families = [seat.store.family(f"family-{number}") for number in range(count)]
    return {b"%d" % n: family.get(b"processes") for n, family in enumerate(families)}


def test_a_snapshot_is_not_disturbed_by_other_processes(path: Path) -> None:
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store, Peer(path) as peer:
        before = {b"%03d" % number: b"x" * 500 for number in range(100)}
        store.put_many(before)
        with store.snapshot() as snap:
            peer.run(turn_over)
            assert dict(snap.scan()) == before
            assert snap.get_many(before) == before
            peer.do("compact")
            assert dict(snap.scan()) == before
        assert dict(store.scan()) == {b"001": b"other"}


def turn_over(seat: Seat) -> None:
    seat.store.delete_many([b"%03d" % number for number in range(0, 100, 2)])
    seat.store.checkpoint()
    seat.store.clear()
    seat.store.put(b"001", b"other")
    seat.store.checkpoint()
    seat.store.purge_expired()


# --- upkeep by one while the others work -------------------------------------------------------


def churn(seat: Seat, worker: int, rounds: int) -> int:
    """Write and read one's own keys; every read must give what was written last."""
    last: dict[bytes, bytes] = {}
    chance = random.Random(worker)
    for number in range(rounds):
        key = b"%d:%02d" % (worker, chance.randrange(40))
        last[key] = b"%d" % number + b" " * chance.randrange(1_500)
        seat.store.put(key, last[key], ttl=3600)
        probe = chance.choice(list(last))
        assert seat.store.get(probe) == last[probe], probe
        if number % 100 == 0:
            assert dict(seat.store.scan(b"%d:" % worker)) == last
    return rounds


def upkeep(seat: Seat, method: str, times: int) -> None:
    for number in range(times):
        if method == "backup":
            seat.store.backup(f"{seat.store.stats()['path']}-{number}")
        else:
            getattr(seat.store, method)()


@pytest.mark.parametrize("method", ["checkpoint", "compact", "backup", "check", "purge_expired"])
def test_upkeep_in_one_process_while_others_read_and_write(path: Path, method: str) -> None:
    with peers(3, path, segment_bytes=TINY_SEGMENT_BYTES) as (keeper, *workers):
        for number, worker in enumerate(workers):
            worker.tell(churn, number, 600)
        keeper.run(upkeep, method, 6)
        for worker in workers:
            assert worker.answer() == 600
        assert keeper.do("check").problems == ()
        if method == "backup":
            with ephemera.open(f"{path}-3") as copy:
                assert copy.check().problems == ()


STUCK_SECONDS = 10


def open_again_and_again(seat: Seat, path: Path, times: int) -> None:
    """Open a store that this process has open already, and look whether all of it is there."""
    for _ in range(times):
        with ephemera.open(path, maintenance="manual") as other:
            assert other.families() == ["default", "guests"]
            assert other.get(b"a") == other.family("guests").get(b"a") == b"1"


def test_opening_and_closing_while_another_compacts(path: Path) -> None:
    """Whoever opens finds the generation of the base tier that counts, whatever happens meanwhile."""
    with peers(2, path, segment_bytes=TINY_SEGMENT_BYTES) as (opener, keeper):
        opener.run(in_family, "put", b"a", b"1")
        opener.do("put", b"a", b"1")
        opener.do("checkpoint")
        keeper.tell(upkeep, "compact", 60)
        opener.tell(open_again_and_again, path, 60)
        opener.answer(STUCK_SECONDS)
        keeper.answer(STUCK_SECONDS)
        assert keeper.do("check").problems == ()


def open_beside_a_commit(seat: Seat, path: Path) -> None:
    """Open the store a second time while a thread of this process writes to the base tier.

    lmdb's `open_db` begins a transaction with the GIL held: beside a thread that has the base tier's
    writer lock and needs the GIL, it would stop both for ever.
    """
    engine = cast(Any, seat.store)._engine  # Any: what is private is nobody's type
    is_opened = threading.Event()

    def open_again() -> None:
        with ephemera.open(path):
            is_opened.set()

    with engine._base.write():
        thread = threading.Thread(target=open_again)
        thread.start()
        is_opened.wait(1)
    thread.join()
    assert is_opened.is_set()


def test_opening_a_second_time_during_a_checkpoint_of_the_same_process(path: Path) -> None:
    with Peer(path) as peer:
        peer.tell(open_beside_a_commit, path)
        peer.answer(STUCK_SECONDS)


# --- transactions ------------------------------------------------------------------------------

ACCOUNTS = 6
BALANCE = 1_000


def transfer(seat: Seat, seed: int, times: int) -> None:
    """Move money about; the sum that a transaction or snapshot sees is always the same."""
    chance = random.Random(seed)
    for _ in range(times):
        source, target = chance.sample(range(ACCOUNTS), 2)
        with seat.store.transaction() as txn:
            balance = int(txn[b"%d" % source])
            amount = chance.randint(0, balance)
            txn.put(b"%d" % source, b"%d" % (balance - amount), ttl=3600)
            txn.incr(b"%d" % target, amount)
        with seat.store.snapshot() as snap:
            assert sum(map(int, snap.values())) == ACCOUNTS * BALANCE


def test_transfers_of_several_processes_neither_make_nor_lose_money(path: Path) -> None:
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store:
        store.put_many({b"%d" % n: b"%d" % BALANCE for n in range(ACCOUNTS)})
        with peers(3, path, segment_bytes=TINY_SEGMENT_BYTES) as crew:
            for seed, peer in enumerate(crew):
                peer.tell(transfer, seed, 300)
            while not all(peer.has_answered() for peer in crew):
                assert sum(int(value) for _, value in store.scan()) == ACCOUNTS * BALANCE
            for peer in crew:
                peer.answer()


def go_off_call(seat: Seat, doctor: bytes) -> bool:
    """Leave only if another stays: with snapshots instead of turns, both would leave."""
    with seat.store.transaction() as txn:
        is_allowed = sum(1 for value in txn.values() if value == b"on call") > 1
        if is_allowed:
            txn.put(doctor, b"off")
    return is_allowed


def test_there_is_no_write_skew(path: Path) -> None:
    with ephemera.open(path) as store, peers(2, path) as crew:
        for _ in range(30):
            store.put_many({b"ada": b"on call", b"bob": b"on call"})
            for peer, doctor in zip(crew, (b"ada", b"bob"), strict=True):
                peer.tell(go_off_call, doctor)
            assert sorted(peer.answer() for peer in crew) == [False, True]


def hold_turn(seat: Seat) -> None:
    with seat.store.transaction() as txn:
        txn.put(b"a", b"held")
        seat.say("inside")
        seat.hear()


def test_a_writer_gives_up_after_lock_timeout_and_readers_never_wait(path: Path) -> None:
    with Peer(path) as holder, ephemera.open(path, lock_timeout=0.1) as store:
        store.put(b"a", b"before")
        holder.tell(hold_turn)
        assert holder.answer() == "inside"
        for write in (
            lambda: store.put(b"a", b"1"),
            lambda: store.delete(b"a"),
            lambda: store.incr(b"n"),
            lambda: store.transaction(),
            lambda: store.clear(),
        ):
            with pytest.raises(StoreBusy, match="lock_timeout"):
                write()
        assert store.get(b"a") == b"before"
        assert dict(store.scan()) == {b"a": b"before"}
        with store.snapshot() as snap:
            assert snap.get(b"a") == b"before"
        holder.say("go on")
        holder.answer()
        assert store.get(b"a") == b"held"
        store.put(b"a", b"after")
        assert holder.do("get", b"a") == b"after"


def test_a_waiting_writer_gets_its_turn_when_the_transaction_ends(path: Path) -> None:
    with peers(2, path) as (holder, waiter):
        holder.tell(hold_turn)
        assert holder.answer() == "inside"
        waiter.tell(hold_turn)
        assert not waiter.has_answered()
        holder.say("go on")
        assert waiter.answer() == "inside"
        waiter.say("go on")
        holder.answer()
        waiter.answer()


def abandon(seat: Seat) -> None:
    seat.store.transaction().put(b"a", b"never committed")


def test_a_transaction_that_was_abandoned_gives_back_the_turn(path: Path) -> None:
    with Peer(path) as careless, ephemera.open(path, lock_timeout=0.5) as store:
        careless.run(abandon)
        store.put(b"a", b"1")
        assert careless.do("get", b"a") == b"1"


def test_a_thread_that_ends_inside_a_transaction_gives_back_the_turn(path: Path) -> None:
    with ephemera.open(path, lock_timeout=2) as store:
        held = []
        thread = threading.Thread(target=lambda: held.append(store.transaction()))
        thread.start()
        thread.join()
        store.put(b"a", b"1")
        assert store.get(b"a") == b"1"
        held.clear()
        store.put(b"a", b"2")
        assert store.check().problems == ()


# --- opening and closing -----------------------------------------------------------------------


def test_an_exclusive_store_keeps_others_out_until_it_is_closed(path: Path) -> None:
    with ephemera.open(path, exclusive=True) as store:
        store.put(b"a", b"1")
        with pytest.raises(StoreLocked, match="exclusive"):
            Peer(path)
        with pytest.raises(StoreLocked, match="exclusive"):
            ephemera.open(path)
    with Peer(path) as peer:
        assert peer.do("get", b"a") == b"1"
        with pytest.raises(StoreLocked, match="open in another place"):
            ephemera.open(path, exclusive=True)
        assert peer.do("incr", b"n") == 1


def test_the_death_of_an_exclusive_owner_frees_the_store(path: Path) -> None:
    with Peer(path, exclusive=True) as owner:
        owner.do("put", b"a", b"1")
        owner.kill()
        with ephemera.open(path, exclusive=True) as store:
            assert store.get(b"a") == b"1"


def test_opening_and_closing_disturbs_nobody(path: Path) -> None:
    with peers(2, path, segment_bytes=TINY_SEGMENT_BYTES) as workers:
        for number, worker in enumerate(workers):
            worker.tell(churn, number, 1_000)
        openings = 0
        while not all(worker.has_answered() for worker in workers) or openings < 5:
            with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store:
                store.incr(b"openings")
                openings += 1
        for worker in workers:
            assert worker.answer() == 1_000
        assert workers[0].do("get", b"openings") == b"%d" % openings
        assert workers[0].do("check").problems == ()


def test_closing_one_store_leaves_the_others_working(path: Path) -> None:
    with peers(3, path) as crew:
        crew[0].do("put", b"a", b"1")
        crew[0].do("close")
        with pytest.raises(StoreClosed):
            crew[0].do("get", b"a")
        assert crew[1].do("get", b"a") == b"1"
        crew[1].close()
        assert crew[2].do("incr", b"a") == 2
        assert crew[2].do("check").problems == ()


def test_two_stores_of_one_process_share_like_two_processes(path: Path) -> None:
    with ephemera.open(path) as one, ephemera.open(path) as other:
        one.put(b"a", b"1")
        assert other.get(b"a") == b"1"
        other.checkpoint()
        one.compact()
        assert other.incr(b"a") == 2
        one.close()
        assert other.get(b"a") == b"2"


def open_and_count(seat: Seat, target: str, times: int) -> None:
    """Open stores that several processes create at the same moment."""
    for number in range(times):
        seat.say("ready")
        seat.hear()
        with ephemera.open(f"{target}-{number}", segment_bytes=TINY_SEGMENT_BYTES) as store:
            store.incr(b"creators")


def test_a_creation_inside_another_creation_harms_neither(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        ephemera.open(path).close()
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    with ephemera.open(path) as store:
        store.put(b"a", b"1")
        assert store.get(b"a") == b"1"


def test_a_store_may_be_created_by_several_processes_at_once(path: Path, tmp_path: Path) -> None:
    with peers(3, path) as crew:
        for peer in crew:
            peer.tell(open_and_count, str(tmp_path / "new"), 20)
        for _ in range(20):
            for peer in crew:
                assert peer.answer() == "ready"
            for peer in crew:
                peer.say("go")
        for peer in crew:
            peer.answer()
    for number in range(20):
        with ephemera.open(tmp_path / f"new-{number}") as store:
            assert store.get(b"creators") == b"3"


# --- expiry ------------------------------------------------------------------------------------


def watch(seat: Seat, key: bytes, deadline_ms: int) -> tuple[int, int]:
    """Read until the key is dead: the latest time at which it was surely alive, the earliest at which
    it was surely dead."""
    now_ms = seat.store.clock.now_ms
    alive_ms = 0
    while True:
        before_ms = now_ms()
        is_there = seat.store.get(key) is not None
        after_ms = now_ms()
        if not is_there:
            return alive_ms, after_ms
        assert before_ms < deadline_ms
        alive_ms = before_ms


def test_a_key_is_dead_at_the_same_instant_for_all_processes(path: Path) -> None:
    with ephemera.open(path) as store, peers(2, path) as crew:
        for _ in range(3):
            deadline_ms = store.clock.now_ms() + 60
            store.put(b"brief", b"1", at=deadline_ms / 1000)
            for peer in crew:
                peer.tell(watch, b"brief", deadline_ms)
            for peer in crew:
                alive_ms, dead_ms = peer.answer()
                assert alive_ms < deadline_ms <= dead_ms
            assert store.get(b"brief") is None


def test_what_one_process_purges_is_gone_for_all(path: Path) -> None:
    options: dict[str, Any] = {"maintenance": "manual"}
    with ephemera.open(path, **options) as store, peers(2, path, **options) as (one, other):
        store.put(b"lasting", b"1", ttl=3600)
        one.do("put_many", {b"%03d" % number: b"x" for number in range(100)}, ttl=0.1)
        one.do("checkpoint")
        assert store.stats()["deadline_entries"] == 101
        dead_ms = store.clock.now_ms() + 101
        wait_until(lambda: store.clock.now_ms() >= dead_ms)
        assert one.do("count") == other.do("count") == store.count() == 1
        assert other.do("purge_expired") == 100
        assert one.do("purge_expired") == store.purge_expired() == 0
        assert store.stats()["deadline_entries"] == 1
        assert one.do("check").problems == ()


def test_a_key_that_died_in_a_segment_is_purged_once_by_whoever_comes_first(path: Path) -> None:
    options: dict[str, Any] = {"maintenance": "manual"}
    with ephemera.open(path, **options) as store, Peer(path, **options) as peer:
        store.put_many({b"a": b"1", b"b": b"2"}, ttl=0.001)
        dead_ms = store.clock.now_ms() + 2
        wait_until(lambda: store.clock.now_ms() >= dead_ms)
        assert store.purge_expired() == 2
        assert peer.do("purge_expired") == 0


def hear_of_deaths(seat: Seat, count: int) -> list[bytes]:
    """Listen until so many keys died."""
    heard: list[bytes] = []
    is_done = threading.Event()

    def callback(expired: ephemera.Expired) -> None:
        heard.append(expired.key)
        if len(heard) == count:
            is_done.set()

    unsubscribe = seat.store.on_expire(callback)
    seat.say("listening")
    assert is_done.wait(20)
    unsubscribe()
    return sorted(heard)


def test_a_listener_hears_of_the_keys_that_other_processes_wrote(path: Path) -> None:
    with ephemera.open(path) as store, peers(2, path) as (listener, writer):
        listener.tell(hear_of_deaths, 40)
        assert listener.answer() == "listening"
        keys = [b"%02d" % number for number in range(40)]
        store.put_many(dict.fromkeys(keys[:20], b"x"), ttl=0.02)
        writer.do("put_many", dict.fromkeys(keys[20:], b"x"), ttl=0.02)
        assert listener.answer() == keys


def lags_of_deaths(seat: Seat, count: int) -> list[int]:
    """How many milliseconds after its deadline each of so many keys was told of."""
    lags: list[int] = []
    told = threading.Semaphore(0)

    def callback(expired: ephemera.Expired) -> None:
        lags.append(seat.store.clock.now_ms() - expired.deadline_ms)
        told.release()

    seat.store.on_expire(callback)
    for _ in range(count):
        seat.say("listening")
        assert told.acquire(timeout=20)
    return lags


def test_events_of_keys_that_another_process_wrote_are_on_time(path: Path) -> None:
    with ephemera.open(path) as store, Peer(path) as listener:
        listener.tell(lags_of_deaths, 3)
        for number in range(3):
            assert listener.answer() == "listening"
            store.put(b"%d" % number, b"x", ttl=0.02)
        assert max(listener.answer()) < 300
