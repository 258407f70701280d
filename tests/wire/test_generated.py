"""Generated sequences of requests: every reply, and what is left in the end, is what Redis has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire import sequences as make
from tests.wire.pair import Pair, is_same
from tests.wire.resp import Argument, Reply, Wire
from tests.wire.sequences import Request, sequences
from tests.wire.servers import Process

# Longer than Hypothesis takes to make a failing sequence short: its report is worth the wait.
pytestmark = pytest.mark.timeout(600)

EXAMPLES = 100
SOAK_EXAMPLES = 3_000

MARKS = {
    b"ttl": "~",
    b"expiretime": "~",
    b"pttl": "~~",
    b"pexpiretime": "~~",
    b"keys": "%",
    b"dump": "?",  # Redis compresses some of them
}
GROUPS = {
    "strings": sequences(make.STRINGS),
    "bits": sequences(make.BITS),
    "bitfields": sequences(make.BITFIELDS),
    "keys": sequences(make.KEYS),
    "expiry": sequences(make.EXPIRY),
    "scripts": sequences(make.SCRIPTS),
    "transactions": sequences(make.EVERYTHING, has_transactions=True),
}
STATE: list[Request] = [
    (b"DISCARD",),
    *(
        request
        for database in (0, 1)
        for request in [
            (b"SELECT", database),
            *((name, key) for key in (b"a", b"b", b"c") for name in (b"GET", b"PTTL")),
            (b"KEYS", b"*"),
        ]
    ),
]


@pytest.fixture(scope="module")
def lasting(ephemera_server: Process, redis_server: Process) -> Iterator[Pair]:
    """Hypothesis runs all examples of a test with the same fixtures: one pair serves them all."""
    with Wire(ephemera_server) as ours, Wire(redis_server) as theirs:
        yield Pair(ours, theirs)


@pytest.fixture(scope="module")
def lasting_in_memory(memory_server: Process, redis_server: Process) -> Iterator[Pair]:
    with Wire(memory_server) as ours, Wire(redis_server) as theirs:
        yield Pair(ours, theirs)


@pytest.mark.parametrize("group", GROUPS)
def test_a_sequence_of_requests_is_answered_as_redis_does(lasting: Pair, group: str) -> None:
    search(lasting, group, EXAMPLES)


def test_a_store_in_memory_answers_as_redis_does(lasting_in_memory: Pair) -> None:
    search(lasting_in_memory, "transactions", EXAMPLES)


@pytest.mark.soak
@pytest.mark.parametrize("group", GROUPS)
def test_thousands_of_sequences_are_answered_as_redis_does(lasting: Pair, group: str) -> None:
    search(lasting, group, SOAK_EXAMPLES)


def search(pair: Pair, group: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(requests=GROUPS[group], protocol=st.sampled_from([2, 3]))
    def compare(requests: list[Request], protocol: int) -> None:
        pair.clear(protocol)
        wrong = [*differences(pair, requests), *differences(pair, STATE)]
        assert not wrong, "\n".join([*map(repr, requests), *wrong])

    compare()


def differences(pair: Pair, requests: list[Request]) -> Iterator[str]:
    """Send all requests to both; what was answered in different ways."""
    queued: list[str] = []
    replies = pair.pipeline(requests)
    for request, (ours, theirs) in zip(requests, replies, strict=True):
        name = bytes(request[0]).lower() if isinstance(request[0], bytes) else b""
        mark = MARKS.get(name, "")
        if name in (b"exec", b"discard"):
            agrees = is_same_transaction(ours, theirs, queued)
            queued = []
        else:
            agrees = is_same(ours, theirs, "" if theirs.value == b"QUEUED" else mark)
        if theirs.value == b"QUEUED":
            queued.append(mark)
        if not agrees:
            yield f"{request}: ours {ours!r}, redis {theirs!r}"


def is_same_transaction(ours: Reply, theirs: Reply, marks: list[str]) -> bool:
    """Whether EXEC replied the same, each of its commands compared as it would be alone."""
    if not isinstance(ours.value, tuple) or not isinstance(theirs.value, tuple):
        return ours == theirs
    replies = zip(ours.value, theirs.value, marks, strict=True)
    return len(ours.value) == len(theirs.value) and all(is_same(*each) for each in replies)


# --- SCAN -----------------------------------------------------------------------------------------

names = st.lists(st.text("abc", min_size=1, max_size=4).map(str.encode), max_size=60, unique=True)


def scan(wire: Wire, *options: Argument, between: list[Request] | None = None) -> list[bytes]:
    """All that SCAN returns until its cursor is 0 again, with other requests between its steps."""
    found: list[bytes] = []
    cursor: bytes = b"0"
    others = iter(between or [])
    while True:
        cursor_reply, keys = wire("SCAN", cursor, *options).members
        cursor = cursor_reply.data
        found += [key.data for key in keys.members]
        if cursor == b"0":
            return found
        if (other := next(others, None)) is not None:
            wire(*other)


@settings(max_examples=EXAMPLES)
@given(
    present=names,
    pattern=st.sampled_from([b"*", b"a*", b"?", b"[ab]*c", b"none"]),
    count=st.integers(1, 20),
)
def test_scan_finds_what_redis_finds(
    lasting: Pair, present: list[bytes], pattern: bytes, count: int
) -> None:
    lasting.clear(2)
    found = []
    for wire in (lasting.ours, lasting.theirs):
        wire.pipeline([("SET", key, "v") for key in present] + [("PING",)])
        found.append(set(scan(wire, "MATCH", pattern, "COUNT", count, "TYPE", "string")))
    assert found[0] == found[1]


@settings(max_examples=EXAMPLES)
@given(
    stays=names,
    changes=st.lists(
        st.tuples(
            st.sampled_from([b"SET", b"DEL"]), st.text("de", min_size=1, max_size=3).map(str.encode)
        ),
        max_size=60,
    ),
    count=st.integers(1, 5),
)
def test_scan_finds_all_that_stays_while_others_come_and_go(
    lasting: Pair, stays: list[bytes], changes: list[tuple[bytes, bytes]], count: int
) -> None:
    lasting.clear(2)
    wire = lasting.ours
    between: list[Request] = [
        (verb, key, b"v") if verb == b"SET" else (verb, key) for verb, key in changes
    ]
    wire.pipeline([("SET", key, "v") for key in stays] + [("PING",)])
    found = scan(wire, "COUNT", count, between=between)
    assert set(stays) <= set(found)
    assert all(found.count(key) == 1 for key in stays)
