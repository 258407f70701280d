"""Replies to bytes, for RESP2 and RESP3. One table each says how a kind of reply is rendered.

The session renders the commonest kinds (OK, bulk strings, integers) in place; what it writes there
is what these tables would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isinf, isnan
from typing import Any

from ephemera.resp.replies import (
    BigNumber,
    Push,
    Pushes,
    Refused,
    Reply,
    Simple,
    Special,
    Unordered,
    Verbatim,
)

LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")

Render = Callable[[Any, int], bytes]  # Any: the kind of reply that the table names


def encode(reply: Reply, protocol: int) -> bytes:
    """The reply's bytes for a client that speaks this version of the protocol.

    >>> encode({b"ttl": 60}, 2), encode({b"ttl": 60}, 3)
    (b'*2\\r\\n$3\\r\\nttl\\r\\n:60\\r\\n', b'%1\\r\\n$3\\r\\nttl\\r\\n:60\\r\\n')
    """
    render = (RESP3 if protocol == 3 else RESP2)[type(reply)]
    return render(reply, protocol)


def bulk(data: bytes, _: int = 2) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def error(refused: Refused, _: int = 2) -> bytes:
    return b"-%b\r\n" % refused.text.translate(LINE_BREAKS)


def double(number: float) -> bytes:
    """As Redis writes it: whole numbers without a fraction, others as short as they stay exact."""
    if isnan(number):
        return b"nan"
    if isinf(number):
        return b"inf" if number > 0 else b"-inf"
    if number.is_integer() and abs(number) < 1e17:
        return b"%d" % number
    return repr(number).encode()


def _simple(word: Simple, _: int) -> bytes:
    return b"+%b\r\n" % word


def _integer(number: int, _: int) -> bytes:
    return b":%d\r\n" % number


def _array(members: Sequence[Any], protocol: int) -> bytes:  # Any: replies
    return b"*%d\r\n%b" % (len(members), _all(members, protocol))


def _all(members: Sequence[Any], protocol: int) -> bytes:  # Any: replies
    return b"".join([encode(member, protocol) for member in members])


def _flat(pairs: Mapping[Any, Any], protocol: int) -> bytes:  # Any: replies
    return _array([member for pair in pairs.items() for member in pair], protocol)


def _map(pairs: Mapping[Any, Any], protocol: int) -> bytes:  # Any: replies
    members = [member for pair in pairs.items() for member in pair]
    return b"%%%d\r\n%b" % (len(pairs), _all(members, protocol))


def _set(members: Unordered, protocol: int) -> bytes:
    return b"~%d\r\n%b" % (len(members), _all(members, protocol))


def _push(members: Push, protocol: int) -> bytes:
    return b">%d\r\n%b" % (len(members), _all(members, protocol))


def _verbatim(text: Verbatim, _: int) -> bytes:
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)


def _special2(special: Special, _: int) -> bytes:
    return b"*-1\r\n" if special is Special.NO_ARRAY else b""


def _special3(special: Special, _: int) -> bytes:
    return b"_\r\n" if special is Special.NO_ARRAY else b""


RESP2: dict[type, Render] = {
    bytes: bulk,
    Simple: _simple,
    int: _integer,
    type(None): lambda _, __: b"$-1\r\n",
    list: _array,
    tuple: _array,
    Refused: error,
    bool: _integer,
    float: lambda number, _: bulk(double(number)),
    dict: _flat,
    Unordered: _array,
    Push: _array,
    Pushes: _all,
    Verbatim: bulk,
    BigNumber: bulk,
    Special: _special2,
}
RESP3: dict[type, Render] = RESP2 | {
    type(None): lambda _, __: b"_\r\n",
    bool: lambda is_true, _: b"#t\r\n" if is_true else b"#f\r\n",
    float: lambda number, _: b",%b\r\n" % double(number),
    dict: _map,
    Unordered: _set,
    Push: _push,
    Verbatim: _verbatim,
    BigNumber: lambda digits, _: b"(%b\r\n" % digits.translate(LINE_BREAKS),
    Special: _special3,
}
