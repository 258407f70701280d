"""The one shape of a peer.

The timed loops live here, once: a list built beforehand, a bound method in a local name, and no
wrapper between the loop and the library unless the library needs one. A peer names its own methods
in `open`, and overrides a loop only where its call is spelled differently.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

TTL_S = 3600.0

Mode = Literal["default", "still", "purge"]
"""`default`: as a user opens it. `still`: nothing moves in the background, so that what was just
written stays where recent writes are. `purge`: dead keys stay until `purge` is called."""

Pairs = Iterable[tuple[bytes, bytes]]
Operations = Sequence[tuple[bytes, bool]]
"""Keys in the order of their use, each with whether it is written (else read)."""

Native = Callable[..., Any]  # Any: the libraries return what they like, and nobody looks


class NotOffered(Exception):
    """The peer cannot do what the workload asks; the table shows a dash."""


def _not_offered(*_: object) -> Any:  # Any: stands in for any method, and never returns
    raise NotOffered


class Peer:
    """A key-value store under measurement, kept in `directory`."""

    name: ClassVar[str]
    package: ClassVar[str]
    killed: ClassVar[str]
    """What `kill -9` can lose, in words."""
    unpowered: ClassVar[str]
    """What a power loss can lose, in words."""
    has_ttl: ClassVar[bool] = True
    has_tiers: ClassVar[bool] = False
    is_persistent: ClassVar[bool] = True
    workloads: ClassVar[frozenset[str] | None] = None
    """The only workloads worth measuring for a variant of another peer; None for all."""
    puts_share: ClassVar[float] = 1.0
    """The share of the keys that is enough for a rate; likewise for reads and for a purge."""
    gets_share: ClassVar[float] = 1.0
    purges_share: ClassVar[float] = 1.0

    get: Native = staticmethod(_not_offered)
    put: Native = staticmethod(_not_offered)
    put_ttl: Native = staticmethod(_not_offered)
    """`put_ttl(key, value, ttl_s)`"""
    touch: Native = staticmethod(_not_offered)
    """`touch(key, ttl_s)`"""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def is_installed(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    def open(self, mode: Mode = "default") -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        """Write the pairs in the fastest way the library has; never timed."""
        raise NotImplementedError

    def move_to_base(self) -> None:
        """Move recent writes to where old ones live, if the library tells them apart."""

    def pass_time(self, seconds: float) -> None:
        """Let deadlines pass."""
        time.sleep(seconds)

    def purge(self) -> int:
        """Remove what is dead; how many keys that were."""
        raise NotOffered

    def scan(self) -> Iterable[object]:
        """All live pairs in key order."""
        raise NotOffered

    def on_expire(self, callback: Callable[[int], object]) -> None:
        """Tell `callback` the deadline (UTC milliseconds) of each key when it expires."""
        raise NotOffered

    def put_all(self, keys: Sequence[bytes], value: bytes) -> None:
        put = self.put
        for key in keys:
            put(key, value)

    def put_ttl_all(self, keys: Sequence[bytes], value: bytes) -> None:
        put, ttl_s = self.put_ttl, TTL_S
        for key in keys:
            put(key, value, ttl_s)

    def get_all(self, keys: Sequence[bytes]) -> None:
        get = self.get
        for key in keys:
            get(key)

    def touch_all(self, keys: Sequence[bytes]) -> None:
        touch, ttl_s = self.touch, TTL_S
        for key in keys:
            touch(key, ttl_s)

    def mix_all(self, operations: Operations, value: bytes) -> None:
        get, put, ttl_s = self.get, self.put_ttl, TTL_S
        for key, is_written in operations:
            if is_written:
                put(key, value, ttl_s)
            else:
                get(key)

    def scan_all(self) -> int:
        count = 0
        for _ in self.scan():
            count += 1
        return count


class PeerWithoutTtl(Peer):
    """A peer whose keys live for ever: workloads with a TTL use its plain operations."""

    has_ttl = False

    def put_ttl_all(self, keys: Sequence[bytes], value: bytes) -> None:
        self.put_all(keys, value)

    def mix_all(self, operations: Operations, value: bytes) -> None:
        get, put = self.get, self.put
        for key, is_written in operations:
            if is_written:
                put(key, value)
            else:
                get(key)
