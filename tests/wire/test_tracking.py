"""Client-side caching: both servers send the same invalidation messages, in the same place among replies."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1

import pytest

from ephemera.server.table import Declaration, KeyCount, declarations
from tests.wire.pair import Pair
from tests.wire.resp import Argument, Reply, Wire, request

Request = tuple[Argument, ...]
Connect = Callable[[], Pair]

CACHED = ("key", "mortal", "other", "absent", "b")
LATE = 9_999_999_999

WRITES: list[Request] = [
    ("SET", "key", 1),
    ("SET", "key", 1, "EX", 9),
    ("SET", "key", 1, "EXAT", LATE),
    ("SET", "key", 1, "PXAT", 1),
    ("SET", "key", 1, "KEEPTTL"),
    ("SET", "key", 1, "GET"),
    ("SET", "key", 1, "NX"),
    ("SET", "absent", 1, "XX"),
    ("SETNX", "absent", 1),
    ("SETNX", "key", 1),
    ("SETEX", "key", 9, 1),
    ("PSETEX", "key", 9_000, 1),
    ("GETSET", "key", 1),
    ("GETDEL", "key"),
    ("GETDEL", "absent"),
    ("GETEX", "key"),
    ("GETEX", "key", "EX", 9),
    ("GETEX", "key", "PERSIST"),
    ("GETEX", "mortal", "PERSIST"),
    ("MSET", "key", 1, "b", 2),
    ("MSETNX", "b", 1, "absent", 2),
    ("MSETNX", "b", 1, "key", 2),
    ("APPEND", "key", "x"),
    ("APPEND", "key", ""),
    ("SETRANGE", "key", 1, "x"),
    ("SETRANGE", "key", 1, ""),
    ("SETBIT", "key", 1, 1),
    ("BITFIELD", "key", "SET", "u8", 0, 1),
    ("BITFIELD", "key", "GET", "u8", 0),
    ("BITFIELD_RO", "key", "GET", "u8", 0),
    ("BITOP", "NOT", "b", "key"),
    ("BITOP", "AND", "key", "absent"),
    ("BITOP", "AND", "b", "absent"),
    ("INCR", "key"),
    ("DECR", "key"),
    ("INCRBY", "absent", 2),
    ("DECRBY", "key", 2),
    ("INCRBY", "key", "word"),
    ("INCRBYFLOAT", "key", "1.5"),
    ("DEL", "key", "absent", "mortal"),
    ("DEL", "absent"),
    ("UNLINK", "key"),
    ("EXPIRE", "key", 9),
    ("PEXPIRE", "mortal", 9_000, "LT"),
    ("PEXPIRE", "mortal", 9_000, "GT"),
    ("PEXPIREAT", "key", LATE * 1000),
    ("EXPIRE", "key", -1),
    ("EXPIRE", "absent", 9),
    ("PERSIST", "mortal"),
    ("PERSIST", "key"),
    ("RENAME", "key", "b"),
    ("RENAME", "key", "other"),
    ("RENAME", "key", "key"),
    ("RENAMENX", "key", "b"),
    ("RENAMENX", "key", "other"),
    ("COPY", "key", "b"),
    ("COPY", "key", "other"),
    ("COPY", "key", "other", "REPLACE"),
    ("COPY", "key", "b", "DB", 1),
    ("MOVE", "key", 1),
    ("MOVE", "absent", 1),
    ("FLUSHDB",),
    ("FLUSHALL",),
    ("TOUCH", "key"),
    ("GET", "key"),
    ("PUBLISH", "key", "other"),
]


def heard(wire: Wire) -> list[Reply]:
    """The messages that have come since the last reply."""
    wire.send(request("ECHO", "no more"))
    messages = []
    while (reply := wire.read()) != Reply("$", b"no more"):
        messages.append(reply)
    return messages


def prepare(reader: Wire, writer: Wire, *options: Argument) -> None:
    """Let the reader have cached some keys, of which it is told in RESP3."""
    writer("FLUSHALL")
    writer("MSET", "key", 1, "other", 2)
    writer("SET", "mortal", 1, "EX", 1000)
    reader("HELLO", 3)
    assert reader("CLIENT", "TRACKING", "ON", *options).value == b"OK"
    for key in CACHED:
        reader("GET", key)


def by_another(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    writer(*command)
    return heard(reader)


def by_another_in_another_database(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    """Keys count in all databases alike."""
    prepare(reader, writer)
    writer("SELECT", 2)
    writer("MSET", "key", 1, "mortal", 1)
    heard(reader)
    reader("MGET", *CACHED)
    writer(*command)
    writer("SELECT", 0)
    return heard(reader)


def by_itself(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    return [reader(*command), *heard(reader)]


def by_itself_in_a_pipeline(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    reader.send(b"".join(request(*each) for each in (command, ("GET", "key"), command)))
    return heard(reader)


def by_itself_without_loop(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer, "NOLOOP")
    return [reader(*command), *heard(reader)]


def in_a_transaction(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    for each in (("MULTI",), command, ("SET", "other", 3), command):
        writer(*each)
    writer("EXEC")
    return heard(reader)


def in_its_own_transaction(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    """A key that is read after it is written stays tracked."""
    prepare(reader, writer)
    for each in (("MULTI",), ("GET", "other"), command, ("MGET", *CACHED)):
        reader(*each)
    replies = [reader("EXEC"), *heard(reader)]
    writer("MSET", *(word for key in CACHED for word in (key, 9)))
    return replies + heard(reader)


def in_a_script(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    writer("EVAL", "return redis.pcall(unpack(ARGV))", 0, *command)
    return heard(reader)


def in_its_own_script(reader: Wire, writer: Wire, command: Request) -> list[Reply]:
    prepare(reader, writer)
    script = "redis.pcall(unpack(ARGV)) redis.call('GET', KEYS[1]) return 1"
    replies = [reader("EVAL", script, 1, "key", *command), *heard(reader)]
    writer("SET", "key", 9)
    return replies + heard(reader)


WAYS = [
    by_another,
    by_another_in_another_database,
    by_itself,
    by_itself_in_a_pipeline,
    by_itself_without_loop,
    in_a_transaction,
    in_its_own_transaction,
    in_a_script,
    in_its_own_script,
]


@pytest.mark.parametrize("command", WRITES, ids=lambda command: " ".join(map(str, command)))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_write_invalidates_the_same_keys(
    connect: Connect, way: Callable[[Wire, Wire, Request], list[Reply]], command: Request
) -> None:
    reader, writer = connect(), connect()
    ours = way(reader.ours, writer.ours, command)
    assert ours == way(reader.theirs, writer.theirs, command)


# --- which reads are tracked ----------------------------------------------------------------------

READS = [
    declared
    for declared in declarations().values()
    if "readonly" in declared.flags and declared.keys
]


SCRIPT = "return redis.call('GET', KEYS[1])"


def asked(declared: Declaration) -> Request:
    """A request with as few arguments as the command takes, of which the first key is `key`."""
    words: list[Argument] = [*declared.name.split("|")]
    if isinstance(declared.keys[0], KeyCount):
        is_by_hash = declared.name == "evalsha_ro"
        return (*words, sha1(SCRIPT.encode()).hexdigest() if is_by_hash else SCRIPT, 1, "key")
    return (*words, "key", *([0] * (abs(declared.arity) - len(words) - 1)))


@pytest.mark.parametrize("declared", READS, ids=lambda declared: declared.name)
def test_the_same_reads_are_tracked(connect: Connect, declared: Declaration) -> None:
    def read_and_write(reader: Wire, writer: Wire) -> list[Reply]:
        writer("FLUSHALL")
        reader("HELLO", 3)
        reader("SCRIPT", "LOAD", SCRIPT)
        reader("CLIENT", "TRACKING", "ON")
        reader(*asked(declared))
        writer("MSET", "key", 1, "0", 1)
        return heard(reader)

    reader, writer = connect(), connect()
    ours = read_and_write(reader.ours, writer.ours)
    assert ours == read_and_write(reader.theirs, writer.theirs)
    assert ours


# --- OPTIN, OPTOUT, RESET -------------------------------------------------------------------------

SEQUENCES: dict[str, list[Request]] = {
    "opt in for one command": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"),
        ("GET", "a"), ("CLIENT", "CACHING", "YES"), ("GET", "b"), ("GET", "c"),
    ],
    "opt in for a transaction": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"), ("CLIENT", "CACHING", "YES"),
        ("MULTI",), ("GET", "a"), ("GET", "b"), ("EXEC",), ("GET", "c"),
    ],
    "opt in inside a transaction": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"),
        ("MULTI",), ("GET", "a"), ("CLIENT", "CACHING", "YES"), ("GET", "b"), ("EXEC",), ("GET", "c"),
    ],
    "opt in for a script": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"), ("CLIENT", "CACHING", "YES"),
        ("EVAL", "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}", 2, "a", "b"),
        ("GET", "c"),
    ],
    "opt in and ask about the client first": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"), ("CLIENT", "CACHING", "YES"), ("CLIENT", "GETNAME"),
        ("CLIENT", "TRACKINGINFO"), ("GET", "a"), ("CLIENT", "TRACKINGINFO"), ("GET", "b"),
    ],
    "opt in and be refused": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"), ("CLIENT", "CACHING", "YES"), ("BOGUS",), ("GET", "a"),
    ],
    "opt in twice": [
        ("CLIENT", "TRACKING", "ON", "OPTIN"), ("CLIENT", "CACHING", "YES"),
        ("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"), ("GET", "a"), ("GET", "b"),
    ],
    "opt out of one command": [
        ("CLIENT", "TRACKING", "ON", "OPTOUT"),
        ("GET", "a"), ("CLIENT", "CACHING", "NO"), ("CLIENT", "TRACKINGINFO"), ("GET", "b"), ("GET", "c"),
    ],
    "opt out of a transaction": [
        ("CLIENT", "TRACKING", "ON", "OPTOUT"), ("CLIENT", "CACHING", "NO"),
        ("MULTI",), ("GET", "a"), ("GET", "b"), ("EXEC",), ("GET", "c"),
    ],
    "read before": [("GET", "a"), ("CLIENT", "TRACKING", "ON"), ("GET", "b")],
    "off": [("CLIENT", "TRACKING", "ON"), ("GET", "a"), ("CLIENT", "TRACKING", "OFF")],
    "off before it was on": [("CLIENT", "TRACKING", "OFF"), ("CLIENT", "TRACKINGINFO"), ("GET", "a")],
    "reset": [("CLIENT", "TRACKING", "ON"), ("GET", "a"), ("RESET",), ("HELLO", 3)],
    "back to RESP2": [
        ("CLIENT", "TRACKING", "ON"), ("GET", "a"), ("HELLO", 2), ("GET", "b"), ("CLIENT", "TRACKINGINFO"),
    ],
    "no replies": [
        ("CLIENT", "TRACKING", "ON"), ("GET", "a"), ("MULTI",), ("CLIENT", "REPLY", "SKIP"), ("DISCARD",),
    ],
}  # fmt: skip


@pytest.mark.parametrize("title", SEQUENCES)
def test_a_client_decides_what_is_tracked(connect: Connect, title: str) -> None:
    def follow(reader: Wire, writer: Wire) -> list[Reply]:
        writer("FLUSHALL")
        reader("HELLO", 3)
        replies = [
            Reply("%", ()) if each[0] == "HELLO" else reply
            for each in SEQUENCES[title]
            if (reply := reader(*each))
        ]
        for key in "abc":
            writer("SET", key, 1)
        return replies + heard(reader)

    reader, writer = connect(), connect()
    assert follow(reader.ours, writer.ours) == follow(reader.theirs, writer.theirs)


# --- BCAST ----------------------------------------------------------------------------------------

LAST = "zzz"
"""A key that comes after all others, and so do messages about its prefix."""


def broadcast(wire: Wire, other: Wire) -> list[Reply]:
    """The keys of all messages up to the one about the key LAST, which is set here.

    How many messages they come in, and how often one is named, depends on how soon writes follow each other.
    """
    other("SET", LAST, 1)
    keys: list[Reply] = []
    while not keys or keys[-1].value != LAST.encode():
        message = wire.read()
        assert message.members[0].value == b"invalidate", message
        value = message.members[1]
        keys += value.members if isinstance(value.value, tuple) else [value]
    return sorted(set(keys), key=repr)


PREFIXES: list[Request] = [
    (),
    ("PREFIX", ""),
    ("PREFIX", "k", "PREFIX", LAST),
    ("PREFIX", "ke", "PREFIX", "other", "PREFIX", "z"),
    ("PREFIX", "key-that-is-longer", "PREFIX", LAST),
    ("NOLOOP",),
    ("NOLOOP", "PREFIX", "k", "PREFIX", LAST),
]


@pytest.mark.parametrize("options", PREFIXES, ids=lambda options: " ".join(options) or "all keys")
def test_a_broadcast_names_the_same_keys(connect: Connect, options: Request) -> None:
    def write(reader: Wire, writer: Wire) -> list[Reply]:
        writer("FLUSHALL")
        reader("HELLO", 3)
        assert reader("CLIENT", "TRACKING", "ON", "BCAST", *options).value == b"OK"
        writer("MSET", "other", 1, "key", 2, "key-that-is-longer", 3, "absent", 4)
        writer("DEL", "other", "nothing")
        writer("RENAME", "key", "key2")
        writer("INCRBY", "key-that-is-longer", "no number")
        return broadcast(reader, writer)

    reader, writer = connect(), connect()
    assert write(reader.ours, writer.ours) == write(reader.theirs, writer.theirs)


@pytest.mark.parametrize("options", [(), ("NOLOOP",)], ids=["loop", "no loop"])
def test_a_broadcast_of_its_own_writes_follows_the_replies(
    connect: Connect, options: Request
) -> None:
    def write(reader: Wire, writer: Wire) -> list[Reply]:
        writer("FLUSHALL")
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "BCAST", *options)
        replies = reader.pipeline([("MULTI",), ("SET", "b", 1), ("SET", "a", 1), ("EXEC",)])
        return replies + broadcast(reader, writer)

    reader, writer = connect(), connect()
    ours = write(reader.ours, writer.ours)
    assert ours == write(reader.theirs, writer.theirs)
    assert len(ours) == (5 if options else 7)


def test_a_script_of_a_client_without_loop_is_not_broadcast_to_it(connect: Connect) -> None:
    """The difference "noloop-scripts": in the default mode Redis does the same as here."""

    def write(reader: Wire, writer: Wire) -> list[Reply]:
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "BCAST", "NOLOOP")
        reader("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key")
        return heard(reader)

    reader, writer = connect(), connect()
    assert write(reader.ours, writer.ours) == []
    assert write(reader.theirs, writer.theirs) == [
        Reply(">", (Reply("$", b"invalidate"), Reply("*", (Reply("$", b"key"),))))
    ]


def test_a_broadcast_comes_before_the_reply_to_a_later_request(connect: Connect) -> None:
    """A client that asks after a writer has its reply is told first, and of each request by itself."""

    def write(reader: Wire, writer: Wire) -> list[Reply]:
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "BCAST")
        replies: list[Reply] = []
        for key in "ab" * 50:
            writer("SET", key, 1)
            replies += heard(reader)
            writer("MSET", "d", 1, "c", 1)
            replies += heard(reader)
        return replies

    reader, writer = connect(), connect()
    ours = write(reader.ours, writer.ours)
    assert ours == write(reader.theirs, writer.theirs)
    assert len(ours) == 200


def test_a_pipeline_is_one_broadcast(connect: Connect) -> None:
    def write(reader: Wire, writer: Wire) -> list[Reply]:
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "BCAST")
        writer.pipeline([("SET", key, 1) for key in ("b", "a", "c", "a")])
        return heard(reader)

    reader, writer = connect(), connect()
    ours = write(reader.ours, writer.ours)
    assert ours == write(reader.theirs, writer.theirs)
    assert len(ours) == 1


def test_a_script_reads_keys_that_it_does_not_declare(connect: Connect) -> None:
    """The difference "seven-two-script-reads": they are tracked, too."""

    def read(reader: Wire, writer: Wire) -> list[Reply]:
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON")
        reader("EVAL", "return redis.call('GET', 'key')", 0)
        writer("SET", "key", 1)
        return heard(reader)

    reader, writer = connect(), connect()
    ours = read(reader.ours, writer.ours)
    assert ours == [Reply(">", (Reply("$", b"invalidate"), Reply("*", (Reply("$", b"key"),))))]
    assert read(reader.theirs, writer.theirs) == []


def test_emptying_a_database_is_broadcast_as_null(connect: Connect) -> None:
    def flush(reader: Wire, writer: Wire) -> list[Reply]:
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", LAST)
        for command in ("FLUSHDB", "FLUSHALL"):
            writer(command)
        return broadcast(reader, writer)

    reader, writer = connect(), connect()
    assert flush(reader.ours, writer.ours) == flush(reader.theirs, writer.theirs)


def test_swapping_databases_invalidates_everything(connect: Connect) -> None:
    """The difference "swapdb-invalidates": a cache would keep values of the other database."""

    def swap(reader: Wire, writer: Wire) -> list[Reply]:
        prepare(reader, writer)
        writer("SWAPDB", 0, 1)
        return heard(reader)

    reader, writer = connect(), connect()
    assert swap(reader.ours, writer.ours) == [
        Reply(">", (Reply("$", b"invalidate"), Reply("_", None)))
    ]
    assert swap(reader.theirs, writer.theirs) == []


# --- REDIRECT -------------------------------------------------------------------------------------


def redirected(
    connect: Connect, follow: Callable[[Wire, Wire, Wire], list[Reply]]
) -> tuple[list[Reply], list[Reply]]:
    """What both servers say to three clients: one reads, one gets its messages, one writes."""
    reader, receiver, writer = connect(), connect(), connect()
    return (
        follow(reader.ours, receiver.ours, writer.ours),
        follow(reader.theirs, receiver.theirs, writer.theirs),
    )


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("options", [(), ("NOLOOP",), ("BCAST", "PREFIX", LAST)], ids=str)
def test_a_subscriber_gets_the_messages_of_another(
    connect: Connect, protocol: int, options: Request
) -> None:
    def follow(reader: Wire, receiver: Wire, writer: Wire) -> list[Reply]:
        writer("FLUSHALL")
        number = receiver("CLIENT", "ID").number
        receiver("SUBSCRIBE", "__redis__:invalidate")
        reader("HELLO", protocol)
        replies = [reader("CLIENT", "TRACKING", "ON", "REDIRECT", number, *options)]
        reader("GET", LAST)
        writer("SET", LAST, 1)
        replies.append(receiver.read())
        assert reader("CLIENT", "GETREDIR").number == number
        return replies + heard(reader)

    ours, theirs = redirected(connect, follow)
    assert ours == theirs


def test_a_subscriber_is_told_that_a_database_was_emptied(connect: Connect) -> None:
    def follow(reader: Wire, receiver: Wire, writer: Wire) -> list[Reply]:
        number = receiver("CLIENT", "ID").number
        receiver("SUBSCRIBE", "anything")
        reader("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        writer("FLUSHALL")
        return [receiver.read()]

    ours, theirs = redirected(connect, follow)
    assert ours == theirs


def test_a_client_of_resp3_gets_the_messages_of_another_as_its_own(connect: Connect) -> None:
    def follow(reader: Wire, receiver: Wire, writer: Wire) -> list[Reply]:
        number = receiver("CLIENT", "ID").number
        receiver("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        reader("GET", "key")
        writer("SET", "key", 1)
        return heard(receiver) + heard(reader)

    ours, theirs = redirected(connect, follow)
    assert ours == theirs
    assert len(ours) == 1


def test_without_a_place_for_messages_nothing_is_sent(connect: Connect) -> None:
    """Neither in RESP2, nor to a client in RESP2 that has subscribed to nothing."""

    def follow(reader: Wire, receiver: Wire, writer: Wire) -> list[Reply]:
        number = receiver("CLIENT", "ID").number
        receiver("CLIENT", "TRACKING", "ON")
        reader("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        for each in (reader, receiver):
            each("GET", "key")
        writer("SET", "key", 1)
        return heard(receiver) + heard(reader)

    assert redirected(connect, follow) == ([], [])


@pytest.mark.parametrize("ending", [("QUIT",), ("CLIENT", "KILL", "ID")], ids=" ".join)
def test_a_redirection_that_breaks_is_reported(connect: Connect, ending: Request) -> None:
    def follow(reader: Wire, receiver: Wire, writer: Wire) -> list[Reply]:
        number = receiver("CLIENT", "ID").number
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        reader("GET", "key")
        if ending == ("QUIT",):
            receiver(*ending)
        else:
            writer(*ending, number)
        assert receiver.is_closed()
        while writer("CLIENT", "LIST", "ID", number).data:
            pass
        replies = heard(reader)
        for _ in range(2):
            reader("GET", "key")
            writer("SET", "key", 1)
            messages = heard(reader)
            replies += [message.members[0] for message in messages]
            assert [message.members[1].number for message in messages] == [number]
        flags = dict(zip(*[iter(reader("CLIENT", "TRACKINGINFO").members)] * 2, strict=True))
        replies.append(flags[Reply("$", b"flags")])
        replies.append(Reply("$", fields(reader)["flags"]))
        replies.append(reader("CLIENT", "TRACKING", "ON"))
        replies.append(Reply("$", fields(reader)["flags"]))
        return replies

    ours, theirs = redirected(connect, follow)
    assert ours == theirs
    assert ours[0] == Reply("$", b"tracking-redir-broken")


# --- what is shown --------------------------------------------------------------------------------


def fields(wire: Wire) -> dict[str, bytes]:
    pairs = (field.partition(b"=") for field in wire("CLIENT", "INFO").data.split())
    return {name.decode(): value for name, _, value in pairs}


@pytest.mark.parametrize(
    "command",
    [("OFF",), ("ON",), ("ON", "NOLOOP"), ("ON", "OPTIN"), ("ON", "BCAST", "PREFIX", "a")],
    ids=" ".join,
)
def test_client_info_shows_tracking(pair: Pair, command: Request) -> None:
    pair("CLIENT", "TRACKING", *command)
    ours, theirs = fields(pair.ours), fields(pair.theirs)
    assert (ours["flags"], ours["redir"]) == (theirs["flags"], theirs["redir"])


def test_info_counts_clients_keys_and_prefixes(connect: Connect) -> None:
    def counts(one: Wire, two: Wire, three: Wire) -> list[Reply]:
        one("FLUSHALL")
        for each in (one, two):
            each("CLIENT", "TRACKING", "ON")
            each("MGET", "a", "b")
        two("GET", "c")
        three("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "x", "PREFIX", "y")
        lines = three("INFO").data.split()
        return [Reply("$", line) for line in lines if line.startswith(b"tracking_")]

    ours, theirs = redirected(connect, counts)
    assert ours == theirs
    assert [reply.value for reply in ours][1:] == [
        b"tracking_total_keys:3",
        b"tracking_total_items:5",
        b"tracking_total_prefixes:2",
    ]


# --- keys that go by themselves -------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("BCAST", "PREFIX", "code")], ids=str)
def test_a_key_that_expires_is_invalidated(connect: Connect, options: Request) -> None:
    def expire(reader: Wire, writer: Wire) -> list[Reply]:
        writer("SET", "code", 1)
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON", *options)
        writer("SET", "code", 1, "PX", 300)
        replies = [reader.read()] if options else []
        replies.append(reader("GET", "code"))
        return [*replies, reader.read()]

    reader, writer = connect(), connect()
    assert expire(reader.ours, writer.ours) == expire(reader.theirs, writer.theirs)


def test_a_full_table_invalidates_other_keys(connect: Connect) -> None:
    def fill(reader: Wire, writer: Wire) -> int:
        writer("FLUSHALL")  # the table, too
        reader("HELLO", 3)
        reader("CLIENT", "TRACKING", "ON")
        writer("CONFIG", "SET", "tracking-table-max-keys", 2)
        for number in range(5):
            reader.send(request("GET", f"key{number}"))
        try:
            return sum(reply.kind == ">" for reply in heard(reader))
        finally:
            writer("CONFIG", "SET", "tracking-table-max-keys", 1_000_000)

    reader, writer = connect(), connect()
    assert fill(reader.ours, writer.ours) == fill(reader.theirs, writer.theirs) == 3
