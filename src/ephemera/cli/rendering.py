"""Replies as the shell prints them: for a person, for a pipe, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ephemera.cli.reader import Pairs
from ephemera.cli.text import json_value, quote, show
from ephemera.cli.times import show_instant, show_seconds
from ephemera.core.expiry import to_datetime
from ephemera.resp.replies import BigNumber, Refused, Reply, Simple, Verbatim

ABSENT = -2
PERMANENT = -1
INDENT = 3


def for_person(args: list[bytes], reply: Reply) -> str:
    """The reply to a command with its kinds, and what a number of seconds means.

    >>> print(for_person([b"TTL", b"code"], 3552))
    (integer) 3552  59m 12s
    """
    meaning = TIMES.get(args[0].lower())
    text = _pretty(reply, 0)
    if meaning is None or type(reply) is not int:
        return text
    if reply < 0:
        return f"{text}  {'no such key' if reply == ABSENT else 'no deadline'}"
    return f"{text}  {meaning(reply)}"


def for_pipe(reply: Reply) -> str:
    """The reply without its kinds, each member on a line."""
    if isinstance(reply, Pairs):
        return "\n".join(f"{for_pipe(name)}\n{for_pipe(value)}" for name, value in reply)
    if isinstance(reply, list):
        return "\n".join(map(for_pipe, reply))
    if isinstance(reply, Simple | Verbatim) or not isinstance(reply, bytes):
        return _pretty(reply, 0).removeprefix("(integer) ").removeprefix("(double) ")
    return show(reply)


def for_script(reply: Reply) -> str:
    """The reply as one line of JSON."""
    return json.dumps(_plain(reply), ensure_ascii=False)


def _pretty(reply: Any, depth: int) -> str:  # Any: replies nest
    if isinstance(reply, Pairs):
        return _lines([f"{_pretty(name, depth)} => " for name, _ in reply],
                      [value for _, value in reply], depth, "#")  # fmt: skip
    if isinstance(reply, list):
        return _lines([""] * len(reply), reply, depth, ")")
    if isinstance(reply, Simple | Verbatim | BigNumber):
        return bytes(reply).decode(errors="backslashreplace")
    if isinstance(reply, bytes):
        return quote(reply)
    if isinstance(reply, Refused):
        return f"(error) {reply.text.decode(errors='backslashreplace')}"
    if reply is None:
        return "(nil)"
    if isinstance(reply, bool):
        return "(true)" if reply else "(false)"
    if isinstance(reply, float):
        return f"(double) {reply:g}"
    return f"(integer) {reply}"


def _lines(heads: list[str], members: list[Any], depth: int, mark: str) -> str:  # Any: as above
    if not members:
        return "(empty array)" if mark == ")" else "(empty hash)"
    width = len(str(len(members)))
    lines = []
    for number, (head, member) in enumerate(zip(heads, members, strict=True), 1):
        inner = _pretty(member, depth + width + INDENT - 1)
        lines.append(f"{number:>{width}}{mark} {head}{inner}")
    return ("\n" + " " * depth).join(lines)


def _plain(reply: Any) -> Any:  # Any: what JSON can hold
    if isinstance(reply, Pairs):
        return {_name(name): _plain(value) for name, value in reply}
    if isinstance(reply, list):
        return [_plain(member) for member in reply]
    if isinstance(reply, Refused):
        return {"error": reply.text.decode(errors="backslashreplace")}
    return json_value(bytes(reply)) if isinstance(reply, bytes) else reply


def _name(name: Any) -> str:  # Any: a reply
    return show(name) if isinstance(name, bytes) else str(_plain(name))


def _instant(at_ms: int) -> str:
    return str(show_instant(to_datetime(at_ms)))


TIMES: dict[bytes, Callable[[int], str]] = {
    b"ttl": show_seconds,
    b"pttl": lambda left_ms: show_seconds(left_ms / 1000),
    b"expiretime": lambda at: _instant(at * 1000),
    b"pexpiretime": _instant,
}
"""Commands whose number is a time, and how a person would say it."""
