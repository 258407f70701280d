"""Where a workload runs: one peer, one directory, and the same keys for everybody."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.peers import Mode, Peer

Unit = Literal["ops/s", "ms", "µs", "MB", "B/key", "×"]

SEED = 20
VALUE = random.Random(SEED).randbytes(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything; the shares are those of the full run."""

    keys: int = 200_000

    @property
    def dead(self) -> int:
        """Dead keys of a purge, and live ones beside them."""
        return self.keys // 2

    @property
    def growth_live(self) -> int:
        """Live keys of a purge, to grow tenfold."""
        return self.keys // 2

    @property
    def growth_dead(self) -> int:
        """Dead keys among them: so many that a purge of them takes milliseconds."""
        return self.keys // 10

    @property
    def growth_dead_base(self) -> int:
        """The same in a tree: so few that hardly two share a page of it. With more, tenfold live keys
        spread them over more pages, and the growth of that would hide what is asked."""
        return self.keys // 100

    @property
    def latencies(self) -> int:
        """Operations that are timed one by one, of each kind."""
        return min(self.keys, 50_000)

    @property
    def grown_reads(self) -> int:
        """Reads in a store of `keys` keys: many for each page of a large one."""
        return min(500_000, 100 * self.keys)

    @property
    def grown_writes(self) -> int:
        return min(100_000, 100 * self.keys)

    @property
    def lag_keys(self) -> int:
        return max(20, self.keys // 200)

    @property
    def lag_seconds(self) -> float:
        """The time over which those keys die."""
        return 10.0 if self.keys >= 100_000 else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What one run of a workload gave. `n` is how many keys the figure rests on."""

    value: float
    unit: Unit
    n: int
    detail: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    peer: type[Peer]
    directory: Path
    scale: Scale

    @contextmanager
    def open(self, mode: Mode = "default", *, place: str = "store") -> Iterator[Peer]:
        """The peer, open in its own place below the directory; reopens what is there."""
        directory = self.directory / place
        directory.mkdir(exist_ok=True)
        peer = self.peer(directory)
        peer.open(mode)
        try:
            yield peer
        finally:
            peer.close()

    def keys(self) -> list[bytes]:
        return make_keys(self.scale.keys)

    def shuffled(self, keys: Sequence[bytes]) -> list[bytes]:
        """The same keys in the same random order for every peer."""
        return random.Random(SEED).sample(keys, len(keys))

    def sample(self, keys: Sequence[bytes], share: float) -> Sequence[bytes]:
        """The first of the keys, as many as a slow peer's rate needs; at least one."""
        return keys[: max(1, round(len(keys) * share))]


def make_keys(count: int) -> list[bytes]:
    return [b"key:%014d" % number for number in range(count)]


def make_pairs(keys: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The keys, each with a value of its own: a peer that keeps objects must not keep one for all."""
    return ((key, bytes(memoryview(VALUE))) for key in keys)
