"""The straight way and the long one do the same: default lifetimes, transactions, every engine.

Where nobody listens and the store is a local one, the commonest commands are answered in place; with a
listener, or in memory, by their handlers. The same requests must get the same bytes, leave the same
keys, and count the same.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ephemera
from ephemera.server.server import Server
from ephemera.server.session import Session
from ephemera.server.settings import Settings
from tests.resp.streams import broken, requests
from tests.server.clients import Argument, Client, count_handled, wire

READ_BYTES = 4096
KEY_BYTES_MAX = 1900
SOAK_EXAMPLES = 5_000


@pytest.fixture(params=["memory", "local"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ephemera.ManualClock
) -> Iterator[ephemera.Store]:
    place = "memory://" if request.param == "memory" else tmp_path / "direct.eph"
    with ephemera.open(place, clock=clock, maintenance="manual", durability="none") as store:
        yield store


@pytest.fixture
def client(store: ephemera.Store) -> Client:
    return Client(Server(store))


def test_counters_keep_their_deadline_wherever_they_lie(
    client: Client, store: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    client("SET", "n", "41", "PX", 60_000)
    clock.advance(10)
    assert client("INCR", "n") == 42
    if store.engine.name == "local":
        store.checkpoint()
    assert client("DECRBY", "n", 2) == 40
    assert (client("GET", "n"), client("PTTL", "n")) == (b"40", 50_000)
    clock.advance(50)
    assert client("INCR", "n") == 1
    assert client("TTL", "n") == -1


def test_a_deleted_counter_begins_anew(client: Client) -> None:
    client("SET", "n", "41", "EX", 60)
    client("DEL", "n")
    assert client("INCRBY", "n", -7) == -7
    assert client("TTL", "n") == -1


def test_what_is_no_counter_stays_as_it_is(client: Client) -> None:
    for value in ("007", "-0", "9223372036854775807", "x", ""):
        client("SET", "n", value, "EX", 60)
        client.error("INCR", "n")
        assert (client("GET", "n"), client("TTL", "n")) == (value.encode(), 60)


def test_counting_inside_a_transaction_is_the_same(
    client: Client, clock: ephemera.ManualClock
) -> None:
    client("SET", "n", "41", "EX", 60)
    client("MULTI")
    client("INCR", "n")
    client("INCR", "new")
    assert client("EXEC") == [42, 1]
    assert (client("TTL", "n"), client("TTL", "new")) == (60, -1)


def test_a_default_lifetime_is_given_to_what_has_none(clock: ephemera.ManualClock) -> None:
    with ephemera.open("memory://", clock=clock, default_ttl=30, maintenance="manual") as store:
        client = Client(Server(store))
        client("SET", "a", "1")
        client("INCR", "n")
        client("SET", "own", "1", "EX", 5)
        assert [client("TTL", key) for key in ("a", "n", "own")] == [30, 30, 5]


def test_a_default_lifetime_counts_from_when_it_is_set(
    client: Client, store: ephemera.Store
) -> None:
    client("SET", "before", "1")
    store.family("default", default_ttl=30)
    client("SET", "after", "1")
    client("INCR", "n")
    assert [client("TTL", key) for key in ("before", "after", "n")] == [-1, 30, 30]


@pytest.mark.parametrize("key", [b"", b"k" * (KEY_BYTES_MAX + 1)])
def test_a_key_that_no_store_takes_is_refused_by_all(client: Client, key: bytes) -> None:
    refused = f"ERR a key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(key)}"
    assert client.error("GET", key) == refused
    assert client.error("SET", key, "v") == refused
    assert client.error("INCR", key) == refused


def test_a_new_counter_is_told_as_new(client: Client) -> None:
    client("CONFIG", "SET", "notify-keyspace-events", "En$")
    listener = Client(client.session.server)
    listener("SUBSCRIBE", "__keyevent@0__:new", "__keyevent@0__:incrby")
    client("INCR", "n")
    client("INCR", "n")
    channels = [message[1] for message in listener.pushed if message[0] == b"message"]
    assert channels == [b"__keyevent@0__:new", *[b"__keyevent@0__:incrby"] * 2]


def test_plain_and_exact_reading_take_turns_within_one_stream(client: Client) -> None:
    session = Session(client.session.server)
    stream = (
        wire("SET", "a", "1") + b"INCR a\r\n" + wire("INCR", "a") * 3 + b"*0\r\n" + wire("PING")
    )
    replies = b"+OK\r\n:2\r\n:3\r\n:4\r\n:5\r\n+PONG\r\n"
    half = len(stream) // 2
    assert session.feed(stream[:half]) + session.feed(stream[half:]) == replies


def test_many_large_and_small_replies_keep_their_order(client: Client) -> None:
    client("SET", "large", b"x" * 5000)
    out = client.session.feed((wire("GET", "large") + wire("STRLEN", "large")) * 20)
    assert out == (b"$5000\r\n" + b"x" * 5000 + b"\r\n:5000\r\n") * 20


# --- in place and by handlers ---------------------------------------------------------------------

KEYS = (b"n", b"text", b"dies", b"absent", b"", b"k" * KEY_BYTES_MAX, b"k" * (KEY_BYTES_MAX + 1))
NUMBERS = (b"1", b"-1", b"0", b"007", b"-0", b"+1", b" 1", b"1 ", b"x", b"", b"60", b"9" * 19, b"9" * 20,
           b"9223372036854775807", b"-9223372036854775808", b"253402300799", b"253402300799999",
           str(2**50).encode(), str(2**50 - 1).encode(), str(2**63 // 1000 + 1).encode())  # fmt: skip
VALUES = (b"", b"v", b"41", b"9223372036854775807", b"\r\n\0", b"x" * 5000)
SET_OPTIONS = ((), (b"EX", b"60"), (b"ex", b"0"), (b"px", b"1500"), (b"PX", b"-1"), (b"pX", b"x"), (b"PX",),
               (b"EXAT", b"1"), (b"NX",), (b"XX",), (b"GET",), (b"KEEPTTL",), (b"e\x18", b"60"),
               (b"EX", b"60", b"NX"), (b"EX", b"60", b"PX", b"60"), (b"XX", b"60"))  # fmt: skip


def every_request() -> Iterator[tuple[bytes, ...]]:
    """Each command that may be answered in place, with arguments of every kind and number."""
    for name, key in itertools.product((b"GET", b"TTL", b"PTTL", b"INCR", b"DECR", b"DEL", b"UNLINK",
                                        b"EXISTS", b"MGET", b"PING"), KEYS):  # fmt: skip
        yield from ((name, key), (name.lower(), key), (name, key, b"n"), (name, key, key, b"text"))
        yield (name,)
    for name, key, number in itertools.product(
        (b"INCRBY", b"DECRBY", b"EXPIRE", b"PEXPIRE"), KEYS, NUMBERS
    ):
        yield from (
            (name, key, number),
            (name, key),
            (name, key, number, b"NX"),
            (name, key, number, b"no"),
        )
    for name, key, number in itertools.product((b"SETEX", b"PSETEX", b"sEtEx"), KEYS, NUMBERS):
        yield from ((name, key, number, b"v"), (name, key, number), (name, key, number, b"v", b"w"))
    for key, value, options in itertools.product(KEYS, VALUES, SET_OPTIONS):
        yield (b"SET", key, value, *options)
    for first, second, value in itertools.product(KEYS, KEYS, VALUES[:3]):
        yield from ((b"MSET", first, value, second, b"w"), (b"MSET", first, value, second))
    for name, count in itertools.product(
        (b"MSET", b"MGET", b"EXISTS", b"DEL"), (100, 256, 257, 512, 513, 1500)
    ):
        numbers = [b"%d" % n for n in range(count)]
        yield from ((name, *numbers), (name, *numbers, b"7"), (name, *numbers, b"7", b"8"))


def in_batches(
    requests: Iterator[tuple[bytes, ...]], size: int
) -> Iterator[list[tuple[bytes, ...]]]:
    while batch := list(itertools.islice(requests, size)):
        yield batch


class Rivals:
    """Servers that get the same requests: one answers in place, one has a listener, one no segments."""

    def __init__(self, protocol: int = 2) -> None:
        self.clock = ephemera.ManualClock()
        self.protocol = protocol
        self._open = ExitStack()
        place = Path(self._open.enter_context(TemporaryDirectory(prefix="rivals-")))
        self.stores = [
            self._open.enter_context(
                ephemera.open(
                    url,
                    clock=self.clock,
                    maintenance="manual",
                    durability="none",
                    exclusive=exclusive,
                )
            )
            for url, exclusive in (
                (place / "in-place.eph", True),
                (place / "heard.eph", False),
                ("memory://", False),
            )
        ]
        self.servers = [Server(store) for store in self.stores]
        self.servers[1].listeners.append(lambda number, key, event: None)
        self.servers[1].tells_misses = True
        self.sessions = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _connect(self) -> list[Session]:
        sessions = [Session(server) for server in self.servers]
        for session in sessions:
            session.feed(wire("HELLO", self.protocol))
        return sessions

    def ask(self, data: bytes) -> bytes:
        """The reply that all of them give; whom it closes comes again."""
        replies = [(session.feed(data), session.is_closing) for session in self.sessions]
        assert replies[0] == replies[1] == replies[2], data[:200]
        reply, is_closing = replies[0]
        if is_closing:
            self.sessions = self._connect()
        return reply

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def checkpoint(self) -> None:
        for store in self.stores[:2]:
            store.checkpoint()

    def compare(self) -> None:
        """All hold the same keys until the same instants, and have counted the same."""
        for server in self.servers[1:]:
            first = self.servers[0]
            assert list(server.database(0).all_stored()) == list(first.database(0).all_stored())
            assert (server.changes, server.hits, server.misses, server.errors) == (
                first.changes, first.hits, first.misses, first.errors,
            )  # fmt: skip
            assert (server.input_bytes, server.output_bytes) == (
                first.input_bytes,
                first.output_bytes,
            )
            for name, command in server.commands.all.items():
                other = first.commands.all[name]
                assert (command.calls, command.failed, command.rejected) == (
                    other.calls, other.failed, other.rejected,
                ), name  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("at_once", [1, 23])
def test_every_command_is_answered_the_same_in_place_and_by_its_handler(
    protocol: int, at_once: int
) -> None:
    prepared = (("SET", "n", "41"), ("SET", "text", "x"), ("SET", "dies", "7", "PX", 900))
    with Rivals(protocol) as rivals:
        for turn, requests in enumerate(in_batches(every_request(), at_once)):
            if turn % 7 == 0:
                rivals.ask(b"".join(wire(*request) for request in prepared))
                rivals.advance(0.3)
            if turn % 1000 == 999:
                rivals.checkpoint()
            rivals.ask(b"".join(wire(*request) for request in requests))
            rivals.advance(0.0005 if turn % 3 else 0.4)
        rivals.compare()


Step = list[bytes] | float | str
steps = st.lists(
    st.one_of(
        st.lists(requests, min_size=1, max_size=40).map(
            lambda some: [b"".join(wire(*request) for request in some)]
        ),
        broken(),
        st.sampled_from([0.001, 0.9, 200.0]),
        st.just("checkpoint"),
    ),
    max_size=12,
)


def check_all_answer_the_same(steps: list[Step]) -> None:
    with Rivals() as rivals:
        for step in steps:
            if isinstance(step, list):
                for data in step:
                    rivals.ask(data)
            elif isinstance(step, float):
                rivals.advance(step)
            else:
                rivals.checkpoint()
        rivals.compare()


@given(steps=steps)
@settings(deadline=None, max_examples=40)
def test_any_requests_in_any_order_are_answered_the_same(steps: list[Step]) -> None:
    check_all_answer_the_same(steps)


@pytest.mark.soak
@given(steps=steps)
@settings(deadline=None, max_examples=SOAK_EXAMPLES)
def test_thousands_of_sequences_are_answered_the_same(steps: list[Step]) -> None:
    check_all_answer_the_same(steps)


@pytest.fixture
def local(tmp_path: Path, clock: ephemera.ManualClock) -> Iterator[ephemera.Store]:
    place = tmp_path / "local.eph"
    with ephemera.open(place, clock=clock, maintenance="manual", durability="none") as store:
        yield store


def test_what_is_answered_in_place_is_logged_when_it_is_slow(local: ephemera.Store) -> None:
    client = Client(Server(local))
    client("CONFIG", "SET", "slowlog-log-slower-than", 0)
    client("SLOWLOG", "RESET")
    client("SET", "name", "ada")
    entries = client("SLOWLOG", "GET")
    assert [b"SET", b"name", b"ada"] in [entry[3] for entry in entries]


def test_what_is_answered_in_place_is_timed_and_is_the_clients_last_command(
    local: ephemera.Store,
) -> None:
    server = Server(local)
    client = Client(server)
    client("GET", "name")
    assert server.commands.all["get"].latency.calls == 1
    assert server.commands.all["get"].spent_ns > 0
    assert client.session.call.command.name == "get"


def test_a_command_is_answered_in_place_under_its_new_name_alone(local: ephemera.Store) -> None:
    settings = Settings()
    settings.renamed = {"GET": "FETCH", "SET": "", "DEL": "a-name-of-more-than-eight-bytes"}
    client = Client(Server(local, settings))
    assert client.error("GET", "a").startswith("ERR unknown command 'GET'")
    assert client.error("set", "a", "1").startswith("ERR unknown command 'set'")
    assert client("fetch", "a") is None
    assert client("INCR", "a") == 1
    assert client("a-name-of-more-than-eight-bytes", "a") == 1


@pytest.mark.parametrize(
    "request_", [("GET", "k"), ("MGET", "k", "l"), ("SET", "k", "v"), ("INCR", "k"), ("DEL", "k"),
                 ("EXPIRE", "k", 5), ("MSET", "k", "v")]
)  # fmt: skip
def test_what_the_store_refuses_in_place_is_an_error_and_the_rest_goes_on(
    local: ephemera.Store, request_: tuple[Argument, ...]
) -> None:
    server = Server(local)
    session = Session(server)
    session.feed(wire("SELECT", 3))
    local.drop_family("db3")
    out = session.feed(wire(*request_) + wire("PING"))
    error, *rest = out.split(b"\r\n")
    assert error.startswith(b"-ERR ")
    assert rest == [b"+PONG", b""]
    command = server.commands.all[str(request_[0]).lower()]
    assert (command.calls, command.failed) == (1, 1)


def test_monitors_and_pauses_see_what_would_be_answered_in_place(local: ephemera.Store) -> None:
    server = Server(local)
    monitor, client = Client(server), Client(server)
    monitor("MONITOR")
    client("GET", "name")
    assert any(b'"GET" "name"' in line for line in monitor.pushed)
    client("CLIENT", "PAUSE", 1000, "WRITE")
    assert client.session.feed(wire("SET", "a", "1")) == b""
    assert client.session.has_waiting


def test_a_key_that_dies_between_two_requests_of_a_buffer_is_not_served(
    local: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    client = Client(Server(local))
    client("CONFIG", "SET", "slowlog-log-slower-than", -1)
    client("SET", "dies", "1", "PX", 10)
    session = client.session
    session.server.commands.all["echo"].handler = lambda call: clock.advance(0.01)
    out = session.feed(wire("GET", "dies") + wire("ECHO", "x") + wire("GET", "dies"))
    assert out == b"$1\r\n1\r\n" + b"$-1\r\n" * 2


def test_no_handler_is_called_for_what_is_answered_in_place(local: ephemera.Store) -> None:
    server = Server(local)
    client = Client(server)
    plain: list[tuple[Argument, ...]] = [
        ("PING",), ("SET", "a", 1), ("SET", "a", 1, "EX", 9), ("SETEX", "a", 9, 1), ("PSETEX", "a", 9, 1),
        ("GET", "a"), ("MGET", "a", "b"), ("EXISTS", "a", "b"), ("INCR", "a"), ("DECR", "a"), ("INCRBY", "a", 2),
        ("DECRBY", "a", 2), ("EXPIRE", "a", 9), ("PEXPIRE", "a", 9), ("TTL", "a"), ("PTTL", "a"), ("DEL", "a"),
        ("UNLINK", "a"), ("MSET", "a", 1, "b", 2),
        ("MGET", *range(1000)), ("EXISTS", *range(1000)), ("MSET", *range(500)),
        ("DEL", "a", "b", "c"), ("DEL", "a", "b", "a"), ("UNLINK", *range(200)),
        # More than are found together, or come with one read.
        ("MGET", *range(20_000)), ("EXISTS", *range(20_000)), ("MSET", *range(20_000)), ("DEL", *range(20_000)),
    ]  # fmt: skip
    handled = count_handled(server)
    for request in plain:
        client(*request)
        data = wire(*request)
        for at in range(0, len(data), READ_BYTES):
            client.session.feed(data[at : at + READ_BYTES])
    assert handled == {}
    server.listeners.append(lambda number, key, event: None)
    server.tells_misses = True
    for request in plain[1:]:
        client(*request)
    assert handled.total() == len(plain) - 1


def test_reads_stay_in_place_while_somebody_listens_to_writes(local: ephemera.Store) -> None:
    server = Server(local)
    client, watcher = Client(server), Client(server)
    watcher("WATCH", "key")
    handled = count_handled(server)
    reads: list[tuple[Argument, ...]] = [
        ("GET", "key"), ("MGET", "key", "b"), ("EXISTS", "key"), ("TTL", "key"), ("PTTL", "key"),
    ]  # fmt: skip
    for request in reads:
        client(*request)
    assert handled == {}
    client("SET", "key", 1)
    assert handled == {"set": 1}
    watcher("MULTI")
    assert watcher("EXEC") is None


def test_who_wants_to_hear_of_misses_hears_of_them(local: ephemera.Store) -> None:
    client, listener = Client(server := Server(local)), Client(server)
    client("CONFIG", "SET", "notify-keyspace-events", "Em")
    listener("SUBSCRIBE", "__keyevent@0__:keymiss")
    for request in (("GET", "a"), ("MGET", "b", "c"), ("EXISTS", "d"), ("TTL", "e")):
        client(*request)
    assert [message[2] for message in listener.pushed] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("classes", ["Ex", "KEx", "Exe"])
def test_all_stays_in_place_while_deaths_alone_are_listened_to(
    local: ephemera.Store, clock: ephemera.ManualClock, classes: str
) -> None:
    server = Server(local)
    client, listener = Client(server), Client(server)
    client("CONFIG", "SET", "notify-keyspace-events", classes)
    listener("PSUBSCRIBE", "__keyevent@0__:*")
    handled = count_handled(server)
    requests: list[tuple[Argument, ...]] = [
        ("SET", "a", 1, "PX", 10), ("GET", "a"), ("INCR", "a"), ("EXPIRE", "b", 9), ("DEL", "c"),
    ]  # fmt: skip
    for request in requests:
        client(*request)
    assert handled == {}
    clock.advance(0.01)
    local.purge_expired()
    assert [message[2:] for message in listener.pushed] == [[b"__keyevent@0__:expired", b"a"]]
    client("CONFIG", "SET", "notify-keyspace-events", "")
    assert server.expirations.listeners == server.listeners == []


def test_what_is_stored_too_late_is_told_to_who_listens_to_deaths_alone(
    local: ephemera.Store,
) -> None:
    client, listener = Client(server := Server(local)), Client(server)
    client("CONFIG", "SET", "notify-keyspace-events", "Ex")
    listener("PSUBSCRIBE", "__keyevent@0__:*")
    client("SET", "a", 1, "PXAT", 1)
    assert [message[2:] for message in listener.pushed] == [[b"__keyevent@0__:expired", b"a"]]


def test_keys_that_are_deleted_in_place_go_together(local: ephemera.Store, tmp_path: Path) -> None:
    client = Client(Server(local))
    names = ("first", "second", "third")
    client("MSET", "first", 1, "second", 1, "third", 1)
    assert client("DEL", "absent", *names) == 3
    assert client("EXISTS", *names) == 0
    # A store of which the last record was never written.
    copy = tmp_path / "copy.eph"
    shutil.copytree(tmp_path / "local.eph", copy)
    [segment] = [path for path in copy.rglob("*.seg") if b"third" in path.read_bytes()]
    data = segment.read_bytes()
    at = data.rindex(b"third")
    segment.write_bytes(data[:at] + bytes(len(data) - at))
    with ephemera.open(copy, maintenance="manual") as store:
        assert [store.get(name) for name in names] == [b"1"] * 3
