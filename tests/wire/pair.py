"""Two servers and how their replies are compared."""

from __future__ import annotations

from collections.abc import Sequence

from tests.wire.resp import Argument, Reply, Wire

DRIFTS = {"~": 3, "~~": 3_000}
"""How far numbers may be apart for the time that passes between two servers: seconds, milliseconds."""


class Pair:
    """A client of ours and the same client of Redis."""

    def __init__(self, ours: Wire, theirs: Wire) -> None:
        self.ours = ours
        self.theirs = theirs

    def __call__(self, *args: Argument) -> tuple[Reply, Reply]:
        """What ours replied, and what Redis did."""
        return self.ours(*args), self.theirs(*args)

    def pipeline(self, requests: Sequence[Sequence[Argument]]) -> list[tuple[Reply, Reply]]:
        ours, theirs = self.ours.pipeline(requests), self.theirs.pipeline(requests)
        return list(zip(ours, theirs, strict=True))

    def read(self) -> tuple[Reply, Reply]:
        return self.ours.read(), self.theirs.read()

    def clear(self, protocol: int) -> None:
        """Both servers empty, both clients as if new."""
        for wire in (self.ours, self.theirs):
            wire("RESET")
            wire("HELLO", protocol)
            wire("FLUSHALL")
            wire("CONFIG", "SET", "notify-keyspace-events", "")


def is_same(ours: Reply, theirs: Reply, mark: str) -> bool:
    """Whether two replies agree as far as a mark of `cases.txt` asks."""
    if mark in DRIFTS:
        return _is_near(ours, theirs, DRIFTS[mark])
    if mark == "%":
        return _sorted(ours) == _sorted(theirs)
    if mark == "?":
        return ours.kind == theirs.kind
    return ours == theirs


def _is_near(ours: Reply, theirs: Reply, drift: int) -> bool:
    if isinstance(ours.value, tuple) and isinstance(theirs.value, tuple):
        is_as_long = ours.kind == theirs.kind and len(ours.value) == len(theirs.value)
        members = zip(ours.value, theirs.value, strict=False)
        return is_as_long and all(_is_near(mine, other, drift) for mine, other in members)
    if ours.kind == theirs.kind == ":" and ours.number >= 0 and theirs.number >= 0:
        return abs(ours.number - theirs.number) <= drift
    return ours == theirs


def _sorted(reply: Reply) -> Reply:
    if not isinstance(reply.value, tuple):
        return reply
    return Reply(reply.kind, tuple(sorted(reply.value, key=repr)))
