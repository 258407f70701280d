"""Commands about connections: HELLO, AUTH, SELECT, RESET, and CLIENT."""

from __future__ import annotations

import re

import pytest

from ephemera import InvalidArgument, ManualClock
from ephemera.server.server import Server
from ephemera.server.session import Session
from ephemera.server.settings import REDIS_VERSION, Settings
from tests.server.clients import Client, wire


def described(client: Client, *command: str) -> list[dict[str, str]]:
    """What CLIENT LIST or CLIENT INFO says, by field."""
    text = client(*(command or ("CLIENT", "LIST"))).decode()
    return [dict(field.split("=", 1) for field in line.split()) for line in text.splitlines()]


# --- PING, ECHO, SELECT, QUIT, RESET --------------------------------------------------------------


def test_ping_answers_pong_or_what_it_was_given(client: Client) -> None:
    assert client("PING") == b"PONG"
    assert client("PING", "hi") == b"hi"
    assert client.error("PING", "a", "b") == "ERR wrong number of arguments for 'ping' command"


def test_echo_answers_what_it_was_given(client: Client) -> None:
    assert client("ECHO", "hi") == b"hi"
    assert client.error("ECHO") == "ERR wrong number of arguments for 'echo' command"


def test_databases_are_apart(client: Client) -> None:
    client("SET", "key", "in 0")
    assert client("SELECT", 15) == b"OK"
    assert client("GET", "key") is None
    assert client("SELECT", 0) == b"OK"
    assert client("GET", "key") == b"in 0"


@pytest.mark.parametrize("number", ["16", "-1"])
def test_select_refuses_a_database_that_there_is_not(client: Client, number: str) -> None:
    assert client.error("SELECT", number) == "ERR DB index is out of range"
    assert client("CLIENT", "INFO").find(b" db=0 ") > 0


def test_select_takes_numbers_alone(client: Client) -> None:
    assert client.error("SELECT", "one") == "ERR value is not an integer or out of range"


def test_quit_answers_and_closes(client: Client) -> None:
    assert client("QUIT") == b"OK"
    assert client.session.is_closing


def test_reset_makes_the_connection_as_new(client: Client) -> None:
    for command in (
        ["HELLO", "3", "SETNAME", "ada"],
        ["SELECT", "3"],
        ["CLIENT", "NO-EVICT", "ON"],
        ["MULTI"],
    ):
        client(*command)
    assert client("RESET") == b"RESET"
    (info,) = described(client, "CLIENT", "INFO")
    assert (info["name"], info["db"], info["flags"], info["resp"]) == ("", "0", "N", "2")


def test_client_list_shows_what_each_client_holds(server: Server, client: Client) -> None:
    other = Client(server)
    other("SET", "key", "v" * 5000)
    other("GET", "key")
    other("MULTI")
    other("SET", "key", "value")
    other.session.feed(b"*2\r\n$3\r\nGET\r\n$100\r\nunfini")
    other.session.count_unsent = lambda: 700
    mine, others = described(client)
    assert mine["argv-mem"] == str(len("CLIENT") + len("LIST"))
    assert (mine["oll"], mine["omem"], mine["events"]) == ("0", "0", "r")
    assert others["qbuf"] == str(other.session.unread) != "0"
    assert others["multi-mem"] == str(len("SET") + len("key") + len("value"))
    assert (others["argv-mem"], others["oll"], others["omem"]) == ("0", "1", "700")
    assert others["events"] == "rw"
    assert int(others["rbp"]) > 5000
    held = ("qbuf", "argv-mem", "multi-mem", "rbs", "omem")
    assert int(others["tot-mem"]) == sum(int(others[name]) for name in held)


# --- HELLO and AUTH -------------------------------------------------------------------------------


def test_hello_agrees_on_the_protocol(client: Client) -> None:
    assert client("HELLO", 3) == {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": 3,
        b"id": 1,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }
    assert client("HELLO")[b"proto"] == 3
    assert client("HELLO", 2)[:2] == [b"server", b"redis"]


def test_hello_refuses_what_it_does_not_know(client: Client) -> None:
    assert client.error("HELLO", 4) == "NOPROTO unsupported protocol version"
    assert client.error("HELLO", "x") == "ERR Protocol version is not an integer or out of range"
    assert client.error("HELLO", 3, "NAME") == "ERR Syntax error in HELLO option 'NAME'"
    assert client.error("HELLO", 3, "SETNAME", "a b").startswith("ERR Client names cannot")


@pytest.fixture
def guarded(server: Server) -> Server:
    server.settings.requirepass = b"open sesame"
    return server


def test_without_the_password_nothing_is_done(guarded: Server) -> None:
    client = Client(guarded)
    assert client.error("GET", "key") == "NOAUTH Authentication required."
    assert client.error("HELLO", 3).startswith("NOAUTH HELLO must be called with the client")
    wrong = "WRONGPASS invalid username-password pair or user is disabled."
    assert client.error("AUTH", "sesame") == wrong
    assert client.error("AUTH", "ada", "open sesame") == wrong
    assert client.error("AUTH", "a", "b", "c") == "ERR syntax error"


@pytest.mark.parametrize(
    "command",
    [
        ["AUTH", "open sesame"],
        ["AUTH", "default", "open sesame"],
        ["HELLO", "2", "AUTH", "default", "open sesame", "SETNAME", "ada"],
    ],
)
def test_with_the_password_everything_is(guarded: Server, command: list[str]) -> None:
    client = Client(guarded)
    client(*command)
    assert client("SET", "key", "value") == b"OK"


def test_a_password_where_none_is_wanted_is_an_error(client: Client) -> None:
    assert client.error("AUTH", "x").startswith("ERR AUTH <password> called without any password")
    assert client("AUTH", "default", "whatever") == b"OK"


# --- names and descriptions -----------------------------------------------------------------------


def test_a_client_has_an_id_and_a_name(server: Server) -> None:
    first, second = Client(server), Client(server)
    assert (first("CLIENT", "ID"), second("CLIENT", "ID")) == (1, 2)
    assert first("CLIENT", "GETNAME") is None
    assert first("CLIENT", "SETNAME", "ada") == b"OK"
    assert first("CLIENT", "GETNAME") == b"ada"
    first("CLIENT", "SETNAME", "")
    assert first("CLIENT", "GETNAME") is None
    assert first.error("CLIENT", "SETNAME", "a\nb") == (
        "ERR Client names cannot contain spaces, newlines or special characters."
    )


def test_a_client_says_which_library_it_is(client: Client) -> None:
    assert client("CLIENT", "SETINFO", "LIB-NAME", "redis-py") == b"OK"
    assert client("CLIENT", "SETINFO", "lib-ver", "5.0.1") == b"OK"
    (info,) = described(client, "CLIENT", "INFO")
    assert (info["lib-name"], info["lib-ver"]) == ("redis-py", "5.0.1")
    assert client.error("CLIENT", "SETINFO", "lib", "x") == "ERR Unrecognized option 'lib'"
    assert client.error("CLIENT", "SETINFO", "lib-name", "a b").startswith("ERR lib-name cannot")


def test_client_info_tells_age_and_idleness(clock: ManualClock, client: Client) -> None:
    clock.advance(60)
    client("PING")
    clock.advance(5)
    other = Client(client.session.server)
    (info, own) = described(other)
    assert (info["age"], info["idle"], info["cmd"]) == ("65", "5", "ping")
    assert (own["age"], own["idle"], own["cmd"]) == ("0", "0", "client|list")


def test_client_list_names_a_client_that_said_nothing_yet(server: Server, client: Client) -> None:
    Client(server)
    assert described(client)[1]["cmd"] == "NULL"


def test_client_list_chooses_by_type_and_id(server: Server, client: Client) -> None:
    subscriber = Client(server)
    subscriber("SUBSCRIBE", "news")
    subscriber("PSUBSCRIBE", "n*")
    (found,) = described(client, "CLIENT", "LIST", "TYPE", "pubsub")
    assert (found["id"], found["sub"], found["psub"], found["flags"]) == ("2", "1", "1", "P")
    (found,) = described(client, "CLIENT", "LIST", "TYPE", "NORMAL")
    assert found["id"] == "1"
    assert described(client, "CLIENT", "LIST", "TYPE", "replica") == []
    assert [each["id"] for each in described(client, "CLIENT", "LIST", "ID", "2", "7")] == ["2"]


def test_client_list_shows_a_transaction(server: Server, client: Client) -> None:
    busy = Client(server)
    busy("MULTI")
    busy("PING")
    assert [(each["flags"], each["multi"]) for each in described(client)] == [
        ("N", "-1"),
        ("x", "1"),
    ]


def test_client_info_inside_a_transaction_shows_it_while_it_runs(client: Client) -> None:
    client("MULTI")
    client("CLIENT", "INFO")
    client("PING")
    fields = dict(field.split("=") for field in client("EXEC")[0].decode().split())
    assert (fields["flags"], fields["multi"], fields["cmd"]) == ("x", "2", "exec")
    (own,) = described(client, "CLIENT", "INFO")
    assert (own["flags"], own["multi"], own["cmd"]) == ("N", "-1", "client|info")


def test_the_letters_of_client_list_come_in_rediss_order(server: Server, client: Client) -> None:
    other = Client(server)
    other("HELLO", 3)
    for command in (["SUBSCRIBE", "a"], ["CLIENT", "NO-EVICT", "ON"], ["CLIENT", "NO-TOUCH", "ON"],
                    ["MONITOR"], ["WATCH", "key"], ["MULTI"]):  # fmt: skip
        other(*command)
    client("SET", "key", 1)
    assert described(client)[1]["flags"] == "OPxdeT"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("CLIENT LIST TYPE foo", "ERR Unknown client type 'foo'"),
        ("CLIENT LIST TYPE", "ERR syntax error"),
        ("CLIENT LIST ID", "ERR syntax error"),
        ("CLIENT LIST ID x", "ERR Invalid client ID"),
        ("CLIENT LIST foo", "ERR syntax error"),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT KILL", "ERR wrong number of arguments for 'client|kill' command"),
        ("CLIENT KILL 127.0.0.1:9", "ERR No such client"),
        ("CLIENT KILL ID 0", "ERR client-id should be greater than 0"),
        ("CLIENT KILL ID x", "ERR client-id should be greater than 0"),
        ("CLIENT KILL TYPE foo", "ERR Unknown client type 'foo'"),
        ("CLIENT KILL USER nobody", "ERR No such user 'nobody'"),
        ("CLIENT KILL MAXAGE x", "ERR maxage is not an integer or out of range"),
        ("CLIENT KILL MAXAGE 0", "ERR maxage should be greater than 0"),
        ("CLIENT KILL SKIPME maybe", "ERR syntax error"),
        ("CLIENT KILL foo bar", "ERR syntax error"),
        ("CLIENT KILL ID 1 ADDR", "ERR syntax error"),
        ("CLIENT REPLY maybe", "ERR syntax error"),
        ("CLIENT REPLY", "ERR wrong number of arguments for 'client|reply' command"),
        ("CLIENT PAUSE x", "ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "ERR timeout is negative"),
        ("CLIENT PAUSE 9223372036854775807", "ERR timeout is out of range"),
        ("CLIENT PAUSE 1 SOME", "ERR CLIENT PAUSE mode must be WRITE or ALL"),
        ("CLIENT NO-EVICT maybe", "ERR syntax error"),
        ("CLIENT NO-TOUCH maybe", "ERR syntax error"),
    ],
)
def test_client_refuses_in_the_words_of_redis(client: Client, command: str, error: str) -> None:
    assert client.error(*command.split()) == error


def test_client_help_names_every_subcommand(client: Client) -> None:
    lines = client("CLIENT", "HELP")
    assert lines[0] == b"CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert {b"KILL", b"REPLY", b"PAUSE", b"NO-TOUCH"} <= set(lines)


def test_marks_are_shown(client: Client) -> None:
    assert client("CLIENT", "NO-EVICT", "ON") == client("CLIENT", "NO-TOUCH", "on") == b"OK"
    assert described(client)[0]["flags"] == "eT"
    client("CLIENT", "NO-EVICT", "OFF")
    assert described(client)[0]["flags"] == "T"


# --- CLIENT KILL ----------------------------------------------------------------------------------


@pytest.fixture
def others(server: Server) -> list[Session]:
    """Clients 1 to 3, from different addresses."""
    return [
        Session(server, address=f"10.0.0.{number}:5", local_address=f"10.0.0.9:{number}")
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("filters", "killed"),
    [
        ("ID 2", [2]),
        ("ADDR 10.0.0.3:5", [3]),
        ("LADDR 10.0.0.9:1", [1]),
        ("USER default", [1, 2, 3]),
        ("TYPE normal SKIPME yes", [1, 2, 3]),
        ("ID 2 ADDR 10.0.0.3:5", []),
        ("TYPE pubsub", []),
    ],
)
def test_kill_closes_what_all_filters_fit(
    server: Server, others: list[Session], filters: str, killed: list[int]
) -> None:
    client = Client(server)
    closed: list[int] = []
    for session in others:
        session.transmit = lambda _, number=session.id: closed.append(number)  # type: ignore[misc]  # mypy wants no defaults here
    assert client("CLIENT", "KILL", *filters.split()) == len(killed)
    assert [session.id for session in others if session.is_closing] == killed
    assert closed == killed
    assert not client.session.is_closing


def test_kill_by_address_alone(server: Server, others: list[Session]) -> None:
    assert Client(server)("CLIENT", "KILL", "10.0.0.2:5") == b"OK"
    assert [session.is_closing for session in others] == [False, True, False]


def test_kill_closes_what_is_connected_for_so_long(
    server: Server, others: list[Session], clock: ManualClock
) -> None:
    clock.advance(5)
    young = Session(server)
    clock.advance(4.9)
    assert Client(server)("CLIENT", "KILL", "MAXAGE", 5) == 3
    assert all(session.is_closing for session in others)
    assert not young.is_closing


def test_a_client_that_kills_itself_still_gets_its_reply(client: Client) -> None:
    assert client("CLIENT", "KILL", "ID", 1, "SKIPME", "no") == 1
    assert client.session.is_closing
    assert client.pushed == []


# --- CLIENT REPLY ---------------------------------------------------------------------------------


def test_reply_off_keeps_everything_back_until_on(client: Client) -> None:
    feed = client.session.feed
    assert feed(wire("CLIENT", "REPLY", "OFF") + wire("SET", "key", "1") + wire("NOSUCH")) == b""
    assert feed(wire("CLIENT", "REPLY", "SKIP")) == b""
    assert feed(wire("CLIENT", "REPLY", "ON")) == b"+OK\r\n"
    assert feed(wire("GET", "key")) == b"$1\r\n1\r\n"


def test_reply_skip_keeps_the_next_one_back(client: Client) -> None:
    feed = client.session.feed
    assert feed(wire("CLIENT", "REPLY", "SKIP") + wire("PING") + wire("PING")) == b"+PONG\r\n"
    skip = wire("CLIENT", "REPLY", "SKIP")
    assert feed(skip + skip + wire("PING") + wire("ECHO", "x")) == b"$1\r\nx\r\n"
    assert feed(skip + wire("CLIENT", "REPLY", "ON")) == b"+OK\r\n"


@pytest.mark.parametrize("mode", ["SKIP", "OFF"])
def test_a_client_without_replies_is_closed_for_wrong_bytes_without_a_word(
    client: Client, mode: str
) -> None:
    assert client.session.feed(wire("CLIENT", "REPLY", mode) + b"*x\r\n") == b""
    assert client.session.is_closing


# --- CLIENT PAUSE ---------------------------------------------------------------------------------


def test_a_pause_of_all_lets_everything_wait(clock: ManualClock, server: Server) -> None:
    client, other = Client(server), Client(server)
    assert client("CLIENT", "PAUSE", 1000) == b"OK"
    assert other.session.feed(wire("SET", "key", "1") + wire("GET", "key")) == b""
    assert client.session.feed(wire("CLIENT", "UNPAUSE")) == b""
    assert other.session.feed(wire("PING")) == other.session.go_on() == b""
    clock.advance(1)
    assert other.session.go_on() == b"+OK\r\n$1\r\n1\r\n+PONG\r\n"
    assert client.session.go_on() == b"+OK\r\n"
    assert other("PING") == b"PONG"


def test_a_pause_of_writes_lets_reads_through(server: Server) -> None:
    client, other = Client(server), Client(server)
    woken: list[bool] = []
    client("SET", "key", "1")
    assert client("CLIENT", "PAUSE", 1000, "WRITE") == b"OK"
    other.session.wake = lambda: woken.append(True)
    assert other("GET", "key") == b"1"
    assert other.session.feed(wire("INCR", "key")) == b""
    assert client("GET", "key") == b"1"
    assert client("CLIENT", "UNPAUSE") == b"OK"
    assert woken == [True]
    assert other.session.go_on() == b":2\r\n"


def test_a_second_pause_weakens_no_pause_of_all(clock: ManualClock, client: Client) -> None:
    client("MULTI")
    client("CLIENT", "PAUSE", 1000, "ALL")
    client("CLIENT", "PAUSE", 500, "WRITE")
    assert client("EXEC") == [b"OK", b"OK"]
    assert client("PING") is False
    clock.advance(1)
    assert client.go_on() == b"PONG"
    assert client("CLIENT", "PAUSE", 1000, "WRITE") == b"OK"
    assert client("PING") == b"PONG"


def test_a_pause_of_writes_holds_a_transaction_that_writes(server: Server) -> None:
    client, reader, writer = Client(server), Client(server), Client(server)
    reader("MULTI")
    reader("GET", "key")
    writer("MULTI")
    writer("SET", "key", "1")
    client("CLIENT", "PAUSE", 1000, "WRITE")
    assert reader("EXEC") == [None]
    assert writer.session.feed(wire("EXEC")) == b""
    client("CLIENT", "UNPAUSE")
    assert writer.session.go_on() == b"*1\r\n+OK\r\n"


def test_a_pause_of_writes_holds_scripts_that_may_write(server: Server) -> None:
    client, reader, writer = Client(server), Client(server), Client(server)
    client("CLIENT", "PAUSE", 1000, "WRITE")
    assert reader("EVAL_RO", "return 1", 0) == 1
    assert writer.session.feed(wire("EVAL", "return 1", 0)) == b""
    client("CLIENT", "UNPAUSE")
    assert writer.session.go_on() == b":1\r\n"


def test_what_follows_a_password_is_read_after_it_in_a_pause_too(
    clock: ManualClock, server: Server
) -> None:
    guarded = Server(server.store, Settings(requirepass=b"open sesame"))
    client, other = Client(guarded), Client(guarded)
    assert other("AUTH", "open sesame") == b"OK"
    assert other("CLIENT", "PAUSE", 1000) == b"OK"
    # More arguments, and longer ones, than a client may send that has not said the password.
    more = wire("MSET", *"abcdefghijkl") + wire("SET", "key", b"x" * 20_000)
    for piece in (wire("AUTH", "open sesame") + more[:100], more[100:], wire("STRLEN", "key")):
        assert client.session.feed(piece) == b""
    clock.advance(1)
    assert client.session.go_on() == 3 * b"+OK\r\n" + b":20000\r\n"


def test_a_key_that_dies_in_a_pause_is_dead_after_it(clock: ManualClock, client: Client) -> None:
    client("SET", "key", "1", "PX", 500)
    client("CLIENT", "PAUSE", 1000)
    assert client.session.feed(wire("GET", "key")) == b""
    clock.advance(1)
    assert client.session.go_on() == b"$-1\r\n"


def test_what_is_wrong_is_said_in_a_pause_too(client: Client) -> None:
    client("CLIENT", "PAUSE", 1000)
    assert client.error("NOSUCH").startswith("ERR unknown command")


def test_settings_decide_the_name_of_a_command(server: Server) -> None:
    renamed = Server(server.store, Settings(renamed={"flushall": "", "config": "conf-42"}))
    client = Client(renamed)
    assert client.error("FLUSHALL").startswith("ERR unknown command 'FLUSHALL'")
    assert client.error("CONFIG", "GET", "hz").startswith("ERR unknown command 'CONFIG'")
    assert client("CONF-42", "GET", "hz") == [b"hz", b"10"]


@pytest.mark.parametrize(
    ("renamed", "reason"),
    [
        ({"nosuch": ""}, "there is no command 'nosuch' to rename"),
        ({"config|get": "x"}, "there is no command 'config|get' to rename"),
        ({"FLUSHALL": "GET"}, "two commands cannot both be 'get'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    server: Server, renamed: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(reason)):
        Server(server.store, Settings(renamed=renamed))
