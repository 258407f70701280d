"""A server on SlateDB: writes gathered by event-loop ticks, a follower that only reads, and a standby that takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

import ephemera
from ephemera import ManualClock, StoreFenced
from ephemera.core.keyvalue import FamilyRef, Range, Write
from ephemera.core.row import NEVER_MS, Row
from ephemera.server.gathering import Gathered, PendingTicks
from ephemera.server.server import open_store
from tests.engines.slatedb.buckets import file_url, s3_url
from tests.waiting import wait_until
from tests.wire.servers import Process, running, start_ephemera

NOW_MS = 1_700_000_000_000


# --- the engine between ---------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ephemera.Store]:
    with open_store(file_url(tmp_path), clock=ManualClock(NOW_MS)) as store:
        yield store


@pytest.fixture
def engine(store: ephemera.Store) -> Gathered:
    assert isinstance(store.engine, Gathered)
    return store.engine


@pytest.fixture
def family(engine: Gathered) -> FamilyRef:
    ref = engine.family("default", create=False)
    assert ref is not None
    return ref


def arrive(engine: Gathered) -> None:
    underway = engine.end_tick(durable=True)
    wait_until(underway.go_on, what="the writes arrive")
    engine.arrived()


def test_a_local_store_is_not_gathered(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "app.eph")) as store:
        assert not isinstance(store.engine, Gathered)


def test_what_a_turn_wrote_is_read_before_during_and_after_its_way(
    store: ephemera.Store, engine: Gathered, family: FamilyRef
) -> None:
    store.put("kept", "old")
    arrive(engine)
    store.put("new", "1", ttl=60)
    store.delete("kept")
    store.put("again", "1")
    for step in ("before", "during", "after"):
        assert store.get("new") == b"1", step
        assert store.ttl("new") == 60.0, step
        assert store.get("kept") is None, step
        assert store.incr("again") == {"before": 2, "during": 3, "after": 4}[step]
        if step == "before":
            underway = engine.end_tick(durable=False)
        elif step == "during":
            wait_until(underway.go_on, what="the first tick arrives")
            engine.arrived()
    arrive(engine)
    assert dict(store.scan()) == {b"new": b"1", b"again": b"4"}


def test_a_key_that_dies_while_it_is_gathered_is_dead(
    store: ephemera.Store, engine: Gathered, family: FamilyRef
) -> None:
    store.put("brief", "1", ttl=5)
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(5)
    assert store.get("brief") is None
    assert store.entry("brief") is None
    assert store.put_if_absent("brief", "2")
    assert store.get("brief") == b"2"


def test_a_delete_that_is_on_its_way_hides_what_an_earlier_turn_wrote(
    store: ephemera.Store, engine: Gathered
) -> None:
    store.delete("key")
    store.put("key", "1")
    first = engine.end_tick(durable=False)
    store.delete("key")
    engine.end_tick(durable=False)
    wait_until(first.go_on, what="the first tick arrives")
    engine.arrived()
    assert store.get("key") is None


def test_walks_counts_and_transactions_see_what_was_gathered(
    store: ephemera.Store, engine: Gathered, family: FamilyRef
) -> None:
    store.put_many({"a": "1", "b": "2"})
    assert store.count() == 2
    store.put("c", "3")
    assert list(store.scan()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    store.delete("a")
    with store.transaction() as transaction:
        assert transaction.count() == 2
        transaction.put("d", "4")
    store.put("e", "5")
    with store.snapshot() as snapshot:
        assert [key for key, _ in snapshot.scan()] == [b"b", b"c", b"d", b"e"]
    store.put("f", "6")
    store.clear()
    assert store.count() == 0
    assert store.get("f") is None
    arrive(engine)
    assert list(store.scan()) == []


steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 9)),
    st.tuples(st.just("put brief"), st.sampled_from("abc"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["delete", "incr", "pass"]), st.sampled_from("abc"), st.just(1)),
    st.tuples(st.sampled_from(["end", "arrive", "count", "transact"]), st.just("a"), st.just(1)),
)


@settings(max_examples=30)
@given(done=st.lists(steps, max_size=40))
def test_a_gathered_store_is_the_store_in_every_order_of_ticks(
    done: list[tuple[str, str, int]],
) -> None:
    clock = ManualClock(NOW_MS)
    with (
        TemporaryDirectory() as place,
        open_store(file_url(Path(place)), clock=clock) as store,
        ephemera.open("memory://", clock=clock, maintenance="manual") as model,
    ):
        engine = store.engine
        assert isinstance(engine, Gathered)
        underway = 0
        for name, key, number in done:
            if name == "end":
                engine.end_tick(durable=False).settle()
                underway += 1
            elif name == "arrive" and underway:
                engine.arrived()
                underway -= 1
            elif name == "pass":
                clock.advance(number)
            for each in (store, model):
                _do(each, name, key, number)
            assert [store.entry(key) for key in "abc"] == [model.entry(key) for key in "abc"]
        assert list(store.scan()) == list(model.scan())


def _do(store: ephemera.Store, name: str, key: str, number: int) -> None:
    if name == "put":
        store.put(key, str(number))
    elif name == "put brief":
        store.put(key, str(number), ttl=1)
    elif name == "delete":
        store.delete(key)
    elif name == "incr":
        store.incr(key, number)
    elif name == "count":
        store.count()
    elif name == "transact":
        with store.transaction() as transaction:
            transaction.incr(key, number)


def test_replies_go_out_in_the_order_of_their_ticks(engine: Gathered, family: FamilyRef) -> None:
    released: list[str] = []
    later: list[Callable[[], object]] = []
    ticks: PendingTicks[str] = PendingTicks(
        engine,
        durable=True,
        hand_over=later.append,
        release=released.append,
        fail=lambda error, held: pytest.fail(str(error)),
    )
    ticks.end("read before")
    assert released == ["read before"]
    for name in ("first", "second"):
        engine.write([Write(family, name.encode(), Row(b"", NOW_MS, NEVER_MS))], durable=None)
        ticks.end(name)
    ticks.end("read after")

    wait_until(lambda: _call_all(later) or not ticks, what="the ticks arrive")
    assert released == ["read before", "first", "second", "read after"]
    assert [key for key, _ in engine.scan(family, Range(), None)] == [b"first", b"second"]


def test_nothing_goes_out_once_another_writer_has_taken_over(tmp_path: Path) -> None:
    store = open_store(file_url(tmp_path))
    engine = store.engine
    assert isinstance(engine, Gathered)
    failures: list[tuple[str, list[str]]] = []
    later: list[Callable[[], object]] = []
    ticks: PendingTicks[str] = PendingTicks(
        engine,
        durable=True,
        hand_over=later.append,
        release=lambda held: pytest.fail(f"{held} went out"),
        fail=lambda error, held: failures.append((type(error).__name__, held)),
    )
    with ephemera.open(file_url(tmp_path)) as newer:
        store.put("lost", "1")
        ticks.end("reply")
        wait_until(lambda: _call_all(later) or failures, what="the older writer is fenced")
        assert failures == [("StoreFenced", ["reply"])]
        assert newer.count() == 0
    with suppress(StoreFenced):
        store.close()


def _call_all(later: list[Callable[[], object]]) -> None:
    """What a loop does with what other threads hand over to it."""
    while later:
        later.pop()()


# --- servers --------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[object]:
    with ExitStack() as stack:

        def start(url: str, *options: str) -> tuple[Process, redis.Redis]:
            process = stack.enter_context(running(start_ephemera(url, *options)))
            client = redis.Redis(port=process.port, socket_timeout=60)
            stack.callback(client.close)
            return process, client

        yield start


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_a_server_answers_from_object_storage(serve, durability: str) -> None:
    url = s3_url()
    process, client = serve(url, "--durability", durability)
    assert client.set("key", "value", ex=600)
    assert client.get("key") == b"value"
    assert 0 < client.ttl("key") <= 600
    with client.pipeline(transaction=True) as pipeline:
        pipeline.incr("count").incr("count").set("other", "1").delete("other")
        assert pipeline.execute() == [1, 2, True, 1]
    with client.pipeline(transaction=False) as pipeline:
        for number in range(200):
            pipeline.set(f"many:{number}", number)
            pipeline.get(f"many:{number}")
        replies = pipeline.execute()
    assert replies[1::2] == [b"%d" % number for number in range(200)]
    assert client.dbsize() == 202
    assert len(list(client.scan_iter("many:*"))) == 200
    assert client.info("ephemera")["store_engine"] == "slatedb"
    assert process.stop() == 0
    with ephemera.open(url, read_only=True) as store:
        assert store.count() == 202
        assert store.get("count") == b"2"


def test_what_a_server_acknowledged_with_commit_survives_kill_9(serve) -> None:
    url = s3_url()
    process, client = serve(url, "--durability", "commit")
    for number in range(20):
        assert client.set(f"key:{number}", number)
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("inside", "1").incr("count").execute()
    process.kill()
    with ephemera.open(url) as store:
        assert store.count() == 22
        assert store.get("inside") == b"1"


def test_a_second_server_follows_and_refuses_to_write(serve) -> None:
    url = s3_url(settings="flush_interval=0.02&poll_interval=0.1")
    _, writer = serve(url)
    writer.set("key", "1")
    _, reader = serve(url, "--read-only")
    wait_until(lambda: reader.get("key") == b"1", what="the follower starts with what is there")
    writer.set("key", "2")
    writer.flushdb()
    writer.set("new", "3")
    wait_until(lambda: reader.get("new") == b"3", what="the follower sees a write")
    assert reader.get("key") is None
    with pytest.raises(redis.exceptions.ReadOnlyError):
        reader.set("key", "4")
    assert reader.select(15)
    assert reader.dbsize() == 0


def test_a_standby_that_takes_over_ends_the_old_server(serve) -> None:
    url = s3_url(settings="flush_interval=0.02&poll_interval=0.1")
    old_process, old = serve(url)
    old.set("key", "1")
    wait_until(lambda: _is_durable(url), what="the first write is flushed")
    _, new = serve(url)
    assert new.get("key") == b"1"
    # Idle as it is, the old one finds out by itself.
    wait_until(lambda: not old_process.is_alive, what="the old server ends")
    assert old_process.wait() != 0
    assert "another writer has taken the store over" in "".join(old_process.said)
    assert new.set("key", "2")
    assert new.get("key") == b"2"


def _is_durable(url: str) -> bool:
    with ephemera.open(url, read_only=True) as store:
        return store.get("key") is not None
