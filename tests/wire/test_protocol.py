"""Bytes that are no proper requests, and those that only look wrong: both servers say the same of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wire.pair import Pair
from tests.wire.resp import Wire, request
from tests.wire.servers import running, start_ephemera, start_redis

LAST = request("ECHO", "this was the last request")
LAST_REPLY = b"$25\r\nthis was the last request\r\n"
LINE_BYTES_MAX = 64 * 1024
PASSWORD = "open sesame"

# Read whole by the servers, so that none closes with bytes unread and drops its last words.
TOO_LONG = [
    b"x" * (LINE_BYTES_MAX + 4),
    b"*" + b"1" * (LINE_BYTES_MAX + 3),
    b"*1\r\n$" + b"1" * (LINE_BYTES_MAX + 3),
]

BYTES = [
    b"PING\r\n",
    b"PING\n",
    b"\r\n",
    b"\n\n\r\n",
    b"   PING    hello   \r\n",
    b"ping\thello\r\n",
    b'SET k "a b"\r\nGET k\r\n',
    b'SET k "\\x41\\n\\"\\\\"\r\nGET k\r\n',
    b"SET k 'it\\'s \\n'\r\nGET k\r\n",
    b'SET k ""\r\nGET k\r\n',
    b'GET "unbalanced\r\n',
    b"GET 'unbalanced\r\n",
    b"GET 'a'b\r\n",
    b'GET a"b"\r\n',
    b"*0\r\n",
    b"*-1\r\n",
    b"*-10\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"*x\r\n",
    b"*\r\n",
    b"*1 \r\n",
    b"*+1\r\n",
    b"*01\r\n",
    b"*1.0\r\n",
    b"*2147483648\r\n",
    b"*9223372036854775808\r\n",
    b"*1\r\nPING\r\n",
    b"*1\r\n\r\n",
    b"*2\r\n*1\r\n$4\r\nPING\r\n",
    b"*1\r\n$x\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$-5\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$99999999999999999999\r\n",
    b"*1\r\n$4\r\nPINGxx",
    b"*1\r\n$0\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\na\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*1\n$4\nPING\n",
    b"$4\r\nPING\r\n",
    b":1\r\n",
    b"+OK\r\n",
    b"\xff\xfe\r\n",
    b"POST / HTTP/1.1\r\n",
    b"QUIT\r\nPING\r\n",
    b"QUIT x y\r\n",
    b"PING\r\n*x\r\nPING\r\n",
    b"SET k v\r\n*1\r\n$-1\r\n",
    b"CLIENT REPLY OFF\r\nSET k v\r\nGET k\r\nCLIENT REPLY ON\r\nGET k\r\n",
    b"CLIENT REPLY SKIP\r\nSET k v\r\nGET k\r\n",
    b"CLIENT REPLY OFF\r\nBOGUS\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\n",
    b"CLIENT REPLY SKIP\r\nSUBSCRIBE a b\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\nRESET\r\n",
    b"SUBSCRIBE a\r\nRESET\r\nCLIENT REPLY SKIP\r\nUNSUBSCRIBE\r\nPING\r\n",
    b"MULTI\r\nSUBSCRIBE a b\r\nUNSUBSCRIBE b a\r\nEXEC\r\nPING\r\n",
    b"CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nUNSUBSCRIBE a\r\nPING\r\nCLIENT REPLY ON\r\n",
    b"CLIENT REPLY OFF\r\nPSUBSCRIBE a b\r\nPUNSUBSCRIBE a\r\nPUNSUBSCRIBE\r\nCLIENT REPLY ON\r\n",
    b"CLIENT REPLY OFF\r\nSSUBSCRIBE a\r\nSUNSUBSCRIBE\r\nSUBSCRIBE\r\nCLIENT REPLY ON\r\n",
    b"CLIENT REPLY SKIP\r\nHELLO 3\r\nCLIENT REPLY SKIP\r\nSUBSCRIBE a\r\nPING\r\n",
    b"PING\r\nCLIENT REPLY SKIP\r\n*x\r\n",
    b"CLIENT REPLY SKIP\r\nPING\r\n*x\r\n",
    b"PING\r\nCLIENT REPLY OFF\r\nPING\r\n*1\r\n$x\r\n",
    b"CLIENT REPLY SKIP\r\nRESET\r\nPING\r\n",
    b"CLIENT REPLY OFF\r\nRESET\r\nPING\r\n",
    b"MULTI\r\nQUIT\r\nPING\r\n",
    b"MULTI\r\nSET k v\r\nRESET\r\nEXEC\r\n",
    b"SUBSCRIBE a\r\nQUIT\r\nPING\r\n",
    b"SUBSCRIBE a\r\nRESET\r\nGET k\r\n",
    b"SUBSCRIBE a\r\nHELLO 3\r\nRESET\r\n",
    b"HELLO x\r\nSUBSCRIBE a\r\nSUBSCRIBE\r\nRESET\r\n",
    b"CLIENT KILL SKIPME maybe\r\nCLIENT KILL LADDR 1.2.3.4:5\r\n",
    b"CLIENT KILL ID 0\r\nCLIENT KILL TYPE bogus\r\nCLIENT KILL USER nobody\r\n",
    b"CLIENT PAUSE 1 ALL\r\nCLIENT UNPAUSE\r\nCLIENT PAUSE -1\r\n",
    b"SELECT 3\r\nSET k v\r\nMOVE k 4\r\nRESET\r\nEXISTS k\r\n",
    b'EVAL \'return redis.call("GET", "k")\' 0\r\nSCRIPT EXISTS\r\n',
    request("bogus", "x" * 200, "y" * 200),
    request("b" * 300),
    request(b"bog\x00us", b"a\x00b"),
    request("bogus", b"\r\n\x01\xff'\""),
    request("get", *["x"] * 50),
    request("client", b"\x00\xff"),
    request("client", "x" * 300),
    request("object", b"a\r\nb", "c"),
]


def everything(wire: Wire, data: bytes) -> bytes:
    """All that a server says to these bytes, up to its last reply or the end of the connection."""
    wire.send(data)
    said = b""
    try:
        while not said.endswith(LAST_REPLY) and (piece := wire.socket.recv(65536)):
            said += piece
    except ConnectionResetError:
        pass
    return said


def say(pair: Pair, data: bytes) -> tuple[bytes, bytes]:
    return everything(pair.ours, data), everything(pair.theirs, data)


@pytest.mark.parametrize("data", BYTES, ids=lambda data: repr(data)[:40])
def test_both_servers_say_the_same_of_strange_bytes(pair: Pair, data: bytes) -> None:
    ours, theirs = say(pair, data + LAST)
    assert ours == theirs


def test_what_was_answered_before_a_browser_gave_itself_away_goes_out(pair: Pair) -> None:
    """The difference "last-words"."""
    ours, theirs = say(pair, b"PING\r\nHost: example\r\n" + LAST)
    assert (ours, theirs) == (b"+PONG\r\n", b"")


@pytest.mark.parametrize("data", TOO_LONG, ids=lambda data: repr(data)[:12])
def test_both_servers_say_the_same_of_lines_without_an_end(pair: Pair, data: bytes) -> None:
    ours, theirs = say(pair, data)
    assert ours == theirs
    assert b"Protocol error" in ours


def test_a_request_may_come_byte_by_byte(pair: Pair) -> None:
    for wire in (pair.ours, pair.theirs):
        for byte in request("SET", "k", b"a\r\nb") + b"GET k\r\n":
            wire.send(bytes([byte]))
        assert [wire.read().value, wire.read().value] == [b"OK", b"a\r\nb"]


# --- with a password ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(place: Path) -> Iterator[Callable[[], Pair]]:
    """Makes pairs of clients of servers that ask for a password."""
    with (
        running(start_ephemera("memory://", "--requirepass", PASSWORD)) as ours,
        running(start_redis(place, "--requirepass", PASSWORD)) as theirs,
    ):
        yield lambda: Pair(Wire(ours), Wire(theirs))


@pytest.mark.parametrize(
    "data",
    [
        b"GET k\r\n",
        b"PING\r\n",
        b"BOGUS\r\n",
        b"GET\r\n",
        b"AUTH wrong\r\nGET k\r\n",
        b"AUTH default wrong\r\n",
        b'AUTH nobody "open sesame"\r\n',
        b"AUTH\r\nAUTH a b c\r\n",
        b'AUTH "open sesame"\r\nGET k\r\n',
        b'AUTH default "open sesame"\r\nGET k\r\nAUTH wrong\r\nGET k\r\n',
        b'AUTH "open sesame"\r\nRESET\r\nGET k\r\n',
        b"HELLO 3 AUTH default wrong\r\nGET k\r\n",
        b'HELLO 3 AUTH default "open sesame" SETNAME "a b"\r\nGET k\r\n',
        b"MULTI\r\nEXEC\r\n",
        b"RESET\r\nQUIT\r\nPING\r\n",
        b"*11\r\n" + b"$1\r\nx\r\n" * 11,
        b"*2\r\n$3\r\nGET\r\n$16385\r\n",
        b"*2\r\n$3\r\nGET\r\n$16384\r\n" + b"x" * 16384 + b"\r\n",
        b"CLIENT SETNAME x\r\n",
        b"COMMAND\r\n",
    ],
    ids=lambda data: repr(data)[:40],
)
def test_both_servers_say_the_same_before_the_password(
    guarded: Callable[[], Pair], data: bytes
) -> None:
    pair = guarded()
    with pair.ours, pair.theirs:
        ours, theirs = say(pair, data + LAST + request("QUIT"))
        assert without_ids(ours) == without_ids(theirs)


def test_hello_before_the_password_is_refused(guarded: Callable[[], Pair]) -> None:
    """The difference "seven-two-hello"."""
    pair = guarded()
    with pair.ours, pair.theirs:
        ours, theirs = pair("HELLO", 3)
        assert ours.data.replace(b"HELLO <proto> AUTH", b"HELLO AUTH") == theirs.data


def without_ids(said: bytes) -> bytes:
    return re.sub(rb"\$2\r\nid\r\n:\d+", b"", re.sub(rb"\$\d+\r\n7\.\d\.\d+", b"", said))
