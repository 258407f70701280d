"""Visiting all keys: what count, scan, purge and check have in common.

Redis hands out names in no order, some twice, and in a cluster each server its own. So all names are gathered
first, which takes as much memory as they do; values are read as they are needed, some at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from redis.exceptions import ResponseError

from ephemera.core.errors import CorruptStore, UnsupportedOperation
from ephemera.core.expiry import is_dead
from ephemera.core.row import NEVER_MS, Row
from ephemera.engines.redis.layout import (
    HEAD_BYTES,
    KeyLayout,
    WholeRows,
    decode_head,
    head_of,
)
from ephemera.engines.redis.nodes import Lost, Node, Unreached
from ephemera.engines.redis.routing import Patience, Request, Router, read, swap_request
from ephemera.engines.redis.swap import DELETE, Swap, beginning_with

T = TypeVar("T")

SCAN_KEYS = 1_000
READ_KEYS = 100
"""How many rows are read at a time: their values may be large."""
HEAD_KEYS = 1_000


class KeyWalk:
    """The keys of a store, as they are found on all of its servers."""

    def __init__(self, router: Router, layout: KeyLayout) -> None:
        self._router = router
        self._layout = layout

    def names(self, family_id: int | None = None) -> set[bytes]:
        """The native keys of a family, or of the whole store: all that are there throughout."""
        patience = Patience(self._router)
        while True:
            try:
                pattern = self._layout.pattern(family_id)
                nodes = self._router.nodes()
                return {name for node in nodes for name in _scan(node, pattern)}
            except (Unreached, Lost) as error:
                # From the beginning: where the scan of a server stood means nothing to another.
                patience.after([error])

    def rows(self, names: Iterable[bytes], now_ms: int) -> Iterator[tuple[bytes, Row]]:
        """The live rows under these native keys, in their order, some at a time."""
        for some in _portions(names, READ_KEYS):
            requests = [Request(name, (c,)) for name in some for c in self._layout.reads(name)]
            replies = iter(self._router.run(requests))
            for name in some:
                told = tuple(next(replies)[0] for _ in self._layout.reads(name))
                row = self._layout.row(name, told, now_ms)
                if row is not None:
                    yield name, row

    def heads(self, names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """How the rows under these native keys begin; those that are gone are left out."""
        for some in _portions(names, HEAD_KEYS):
            last = b"%d" % (HEAD_BYTES - 1)
            replies = self._router.run([read(name, b"GETRANGE", name, b"0", last) for name in some])
            for name, (head,) in zip(some, replies, strict=True):
                if head:
                    yield name, head

    def unlink(self, names: Sequence[bytes]) -> None:
        """Take keys away that nobody can reach any more, or that were asked to go."""
        for some in _portions(names, HEAD_KEYS):
            self._router.run([Request(name, ((b"UNLINK", name),), True) for name in some])


def by_kind(names: Iterable[bytes], layout: WholeRows) -> tuple[list[bytes], list[bytes]]:
    """Native keys that say their key, and those that only have its digest."""
    told: list[bytes] = []
    digests: list[bytes] = []
    for name in names:
        parsed = layout.parse(name)
        if parsed is not None:
            (digests if parsed.is_digest else told).append(name)
    return told, digests


class Upkeep:
    """What is done about rows that are dead, or of families that are gone."""

    def __init__(self, router: Router, layout: WholeRows) -> None:
        self._router = router
        self._layout = layout
        self._walk = KeyWalk(router, layout)

    def by_family(self) -> dict[int, list[bytes]]:
        """The native keys of all rows, by the id of their family."""
        found: dict[int, list[bytes]] = defaultdict(list)
        for name in self._walk.names():
            parsed = self._layout.parse(name)
            if parsed is not None:
                found[parsed.family_id].append(name)
        return found

    def dead(self, names: Iterable[bytes], now_ms: int) -> list[tuple[int, bytes, bytes]]:
        """Deadline, native key and head of those that are dead."""
        found = []
        for name, head in self._walk.heads(names):
            row = decode_head(name, head)
            if row.deadline_ms != NEVER_MS and is_dead(row.deadline_ms, now_ms):
                found.append((row.deadline_ms, name, head_of(row)))
        return found

    def remove(self, dead: Sequence[tuple[int, bytes, bytes]], batch: int) -> int:
        """Take the dead away that are still as they were read; how many that is."""
        removed = 0
        for some in _portions(dead, batch):
            swaps = [Swap(name, beginning_with(head), DELETE) for _, name, head in some]
            replies = self._router.run([swap_request([swap]) for swap in swaps])
            removed += sum(reply for (reply,) in replies)
        return removed

    def unlink(self, names: Sequence[bytes]) -> None:
        self._walk.unlink(names)

    def damage(self, names: Iterable[bytes]) -> Iterator[str]:
        """What is wrong with these rows, in words."""
        for name, head in self._walk.heads(names):
            try:
                decode_head(name, head)
            except CorruptStore as error:
                yield str(error)


def _scan(node: Node, pattern: bytes) -> Iterator[bytes]:
    """The names on one server that match, some perhaps twice. Raises Unreached and Lost."""
    cursor = b"0"
    while True:
        count = b"%d" % SCAN_KEYS
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count, b"TYPE", b"string")
        reply = node.ask(command)
        if isinstance(reply, ResponseError):
            raise UnsupportedOperation(
                f"the server refused SCAN, which a store on Redis needs: {reply}"
            )
        if isinstance(reply, Exception):  # it is loading its data
            raise Unreached(str(reply))
        cursor, names = reply
        yield from names
        if cursor == b"0":
            return


def _portions(things: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while some := list(islice(rest, size)):
        yield some
