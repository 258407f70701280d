"""Messages: who gets them, in which form, and what a subscriber may do."""

from __future__ import annotations

import pytest

from ephemera.server.server import Server
from tests.server.clients import Argument, Client, wire

KINDS = [("", "message", "PUBLISH"), ("S", "smessage", "SPUBLISH")]


@pytest.fixture
def listener(server: Server) -> Client:
    return Client(server)


def feed(client: Client, *args: Argument) -> bytes:
    return client.session.feed(wire(*args))


# --- subscribing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "message", "publish"), KINDS)
def test_a_message_goes_to_who_subscribed(
    kind: str, message: str, publish: str, client: Client, listener: Client, server: Server
) -> None:
    second = Client(server)
    assert listener(f"{kind}SUBSCRIBE", "news") == [f"{kind}subscribe".lower().encode(), b"news", 1]
    second(f"{kind}SUBSCRIBE", "news")
    assert client(publish, "news", "hello") == 2
    assert client(publish, "other", "hello") == 0
    assert listener.pushed == second.pushed == [[message.encode(), b"news", b"hello"]]


def test_channels_and_shard_channels_are_apart(client: Client, listener: Client) -> None:
    listener("SUBSCRIBE", "news")
    listener("SSUBSCRIBE", "shard")
    listener("PSUBSCRIBE", "s*")
    assert client("SPUBLISH", "news", "x") == 0
    assert client("SPUBLISH", "shard", "x") == 1
    assert listener.pushed == [[b"smessage", b"shard", b"x"]]


def test_a_pattern_gets_what_it_matches(client: Client, listener: Client) -> None:
    assert listener("PSUBSCRIBE", "news.*") == [b"psubscribe", b"news.*", 1]
    assert client("PUBLISH", "news.art", "x") == 1
    assert client("PUBLISH", "news", "x") == 0
    assert listener.pushed == [[b"pmessage", b"news.*", b"news.art", b"x"]]


def test_who_matches_twice_gets_it_twice_the_channel_first(
    client: Client, listener: Client
) -> None:
    listener("PSUBSCRIBE", "n?ws", "*")
    listener("SUBSCRIBE", "news")
    assert client("PUBLISH", "news", b"\x00\r\n") == 3
    assert listener.pushed == [
        [b"message", b"news", b"\x00\r\n"],
        [b"pmessage", b"n?ws", b"news", b"\x00\r\n"],
        [b"pmessage", b"*", b"news", b"\x00\r\n"],
    ]


def test_each_name_is_answered_for_itself(client: Client) -> None:
    assert feed(client, "SUBSCRIBE", "a", "b") == (
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n"
    )
    assert feed(client, "PSUBSCRIBE", "c") == b"*3\r\n$10\r\npsubscribe\r\n$1\r\nc\r\n:3\r\n"
    assert feed(client, "SSUBSCRIBE", "d") == b"*3\r\n$10\r\nssubscribe\r\n$1\r\nd\r\n:1\r\n"
    assert feed(client, "UNSUBSCRIBE", "a", "x") == (
        b"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:2\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:2\r\n"
    )


def test_a_second_subscription_to_the_same_is_none(client: Client, listener: Client) -> None:
    assert listener("SUBSCRIBE", "a") == listener("SUBSCRIBE", "a") == [b"subscribe", b"a", 1]
    assert client("PUBLISH", "a", "x") == 1


@pytest.mark.parametrize("kind", ["", "P", "S"])
def test_unsubscribing_without_a_name_ends_all_of_a_kind(kind: str, client: Client) -> None:
    verb = f"{kind}unsubscribe".lower().encode()
    client(f"{kind}SUBSCRIBE", "a")
    client(f"{kind}SUBSCRIBE", "b")
    assert feed(client, f"{kind}UNSUBSCRIBE") == (
        b"*3\r\n$%d\r\n%b\r\n$1\r\na\r\n:1\r\n*3\r\n$%d\r\n%b\r\n$1\r\nb\r\n:0\r\n"
        % (len(verb), verb, len(verb), verb)
    )
    assert client(f"{kind}UNSUBSCRIBE") == [verb, None, 0]
    assert client("GET", "a") is None, "an ordinary client again"


def test_who_unsubscribed_gets_nothing_more(client: Client, listener: Client) -> None:
    listener("SUBSCRIBE", "a", "b")
    listener("PSUBSCRIBE", "*")
    listener("UNSUBSCRIBE", "a")
    listener("PUNSUBSCRIBE")
    assert client("PUBLISH", "a", "x") == 0
    assert client("PUBLISH", "b", "x") == 1


@pytest.mark.parametrize("name", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
def test_subscribing_needs_a_name(name: str, client: Client) -> None:
    assert client.error(name) == f"ERR wrong number of arguments for '{name.lower()}' command"


@pytest.mark.parametrize("name", ["PUBLISH", "SPUBLISH"])
def test_publishing_needs_channel_and_message(name: str, client: Client) -> None:
    refused = f"ERR wrong number of arguments for '{name.lower()}' command"
    assert client.error(name, "a") == client.error(name, "a", "b", "c") == refused


# --- what a subscriber may do ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "P", "S"])
def test_with_resp2_a_subscriber_may_do_little(kind: str, client: Client) -> None:
    client(f"{kind}SUBSCRIBE", "a")
    assert client.error("GET", "a") == (
        "ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
        "allowed in this context"
    )
    assert client("PING") == [b"pong", b""]
    assert client("PING", "x") == [b"pong", b"x"]


def test_with_resp3_a_subscriber_may_do_everything(client: Client) -> None:
    client("HELLO", 3)
    assert feed(client, "SUBSCRIBE", "a") == b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
    assert client("SET", "a", 1) == b"OK"
    assert client("PING") == b"PONG"


def test_each_protocol_gets_its_own_bytes(client: Client, listener: Client, server: Server) -> None:
    got: list[bytes] = []
    listener.session.transmit = got.append
    listener("HELLO", 3)
    listener("SUBSCRIBE", "a")
    second = Client(server)
    second.session.transmit = got.append
    second("SUBSCRIBE", "a")
    client("PUBLISH", "a", "x")
    body = b"3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"
    assert got == [b">" + body, b"*" + body]


def test_ones_own_message_follows_the_reply(client: Client) -> None:
    client("HELLO", 3)
    client("SUBSCRIBE", "a")
    message = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"
    assert feed(client, "PUBLISH", "a", "x") == b":1\r\n" + message
    pipeline = wire("PUBLISH", "a", "x") + wire("PING") + wire("PUBLISH", "a", "x") + wire("PING")
    replies = b":1\r\n" + message + b"+PONG\r\n"
    assert client.session.feed(pipeline) == replies + replies
    assert client.pushed == []


def test_ones_own_messages_follow_the_reply_to_exec(client: Client) -> None:
    client("HELLO", 3)
    client("SUBSCRIBE", "a")
    client("MULTI")
    client("PUBLISH", "a", "x")
    client("PUBLISH", "a", "y")
    message = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n%b\r\n"
    assert feed(client, "EXEC") == b"*2\r\n:1\r\n:1\r\n" + message % b"x" + message % b"y"


def test_reset_ends_all_subscriptions(client: Client, listener: Client) -> None:
    listener("SUBSCRIBE", "a")
    listener("PSUBSCRIBE", "*")
    listener("SSUBSCRIBE", "a")
    assert listener("RESET") == b"RESET"
    assert client("PUBLISH", "a", "x") == client("SPUBLISH", "a", "x") == 0
    assert listener("GET", "a") is None


def test_who_is_gone_gets_nothing(client: Client, listener: Client) -> None:
    listener("SUBSCRIBE", "a")
    listener("PSUBSCRIBE", "*")
    listener.session.close()
    assert client("PUBLISH", "a", "x") == 0
    assert client("PUBSUB", "CHANNELS") == []
    assert client("PUBSUB", "NUMPAT") == 0


def test_a_message_from_a_script_is_sent_once_the_script_is_done(
    client: Client, listener: Client
) -> None:
    listener("SUBSCRIBE", "a")
    assert client("EVAL", "return redis.call('publish', 'a', 'x')", 0) == 1
    assert listener.pushed == [[b"message", b"a", b"x"]]


# --- PUBSUB ---------------------------------------------------------------------------------------


def test_pubsub_tells_who_listens(client: Client, listener: Client, server: Server) -> None:
    listener("SUBSCRIBE", "a", "ab", "b")
    Client(server)("SUBSCRIBE", "a")
    listener("PSUBSCRIBE", "x*", "y*")
    Client(server)("PSUBSCRIBE", "x*")
    listener("SSUBSCRIBE", "s", "t")
    assert client("PUBSUB", "CHANNELS") == [b"a", b"ab", b"b"]
    assert client("PUBSUB", "CHANNELS", "a*") == [b"a", b"ab"]
    assert client("PUBSUB", "NUMSUB", "a", "b", "x") == [b"a", 2, b"b", 1, b"x", 0]
    assert client("PUBSUB", "NUMSUB") == []
    assert client("PUBSUB", "NUMPAT") == 2
    assert client("PUBSUB", "SHARDCHANNELS") == [b"s", b"t"]
    assert client("PUBSUB", "SHARDCHANNELS", "t") == [b"t"]
    assert client("PUBSUB", "SHARDNUMSUB", "s", "a") == [b"s", 1, b"a", 0]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("NOPE",), "ERR unknown subcommand 'NOPE'. Try PUBSUB HELP."),
        (("NUMPAT", "x"), "ERR wrong number of arguments for 'pubsub|numpat' command"),
        (
            ("CHANNELS", "a", "b"),
            "ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.",
        ),
        ((), "ERR wrong number of arguments for 'pubsub' command"),
    ],
)
def test_pubsub_refuses_in_rediss_words(args: tuple[str, ...], text: str, client: Client) -> None:
    assert client.error("PUBSUB", *args) == text


def test_pubsub_help_names_its_subcommands(client: Client) -> None:
    assert {b"CHANNELS", b"NUMSUB", b"NUMPAT"} <= set(client("PUBSUB", "HELP"))
