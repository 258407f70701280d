"""Replies to bytes: each kind in both versions of the protocol."""

from __future__ import annotations

import hiredis
import pytest

from ephemera.resp.encoder import encode
from ephemera.resp.replies import (
    NO_ARRAY,
    NO_REPLY,
    OK,
    BigNumber,
    Push,
    Refused,
    Reply,
    Unordered,
    Verbatim,
)

KINDS: list[tuple[Reply, bytes, bytes]] = [
    (OK, b"+OK\r\n", b"+OK\r\n"),
    (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
    (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
    (-7, b":-7\r\n", b":-7\r\n"),
    (None, b"$-1\r\n", b"_\r\n"),
    (NO_ARRAY, b"*-1\r\n", b"_\r\n"),
    (NO_REPLY, b"", b""),
    (True, b":1\r\n", b"#t\r\n"),
    (False, b":0\r\n", b"#f\r\n"),
    (2.5, b"$3\r\n2.5\r\n", b",2.5\r\n"),
    (3.0, b"$1\r\n3\r\n", b",3\r\n"),
    (float("-inf"), b"$4\r\n-inf\r\n", b",-inf\r\n"),
    (float("nan"), b"$3\r\nnan\r\n", b",nan\r\n"),
    ([1, [b"a", None]], b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n", b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n"),
    ((), b"*0\r\n", b"*0\r\n"),
    ({b"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
    (Unordered([OK]), b"*1\r\n+OK\r\n", b"~1\r\n+OK\r\n"),
    (Push([b"message"]), b"*1\r\n$7\r\nmessage\r\n", b">1\r\n$7\r\nmessage\r\n"),
    (Verbatim(b"text"), b"$4\r\ntext\r\n", b"=8\r\ntxt:text\r\n"),
    (BigNumber(b"%d" % 2**70), b"$22\r\n%d\r\n" % 2**70, b"(%d\r\n" % 2**70),
    (Refused("ERR no\r\nway"), b"-ERR no  way\r\n", b"-ERR no  way\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "resp2", "resp3"), KINDS, ids=lambda kind: repr(kind)[:30])
def test_a_reply_is_rendered_for_either_protocol(reply: Reply, resp2: bytes, resp3: bytes) -> None:
    assert (encode(reply, 2), encode(reply, 3)) == (resp2, resp3)


def test_an_independent_reader_agrees() -> None:
    reply = [{b"a": [1, None]}, Unordered([b"x"]), True, 1.5, OK, [], Verbatim(b"text")]
    reader = hiredis.Reader()
    reader.feed(encode(reply, 3))
    assert reader.gets() == [{b"a": [1, None]}, [b"x"], True, 1.5, b"OK", [], b"text"]
