"""What a source has and an import leaves behind: how many keys for each reason, and the first of them by name."""

from __future__ import annotations

from collections import Counter

KEYS_NAMED_MAX = 1_000


class Omissions(Counter[str]):
    """Counts by their reason; `keys_named` has the first KEYS_NAMED_MAX keys, each with its reason."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_named: dict[bytes, str] = {}

    def add(self, reason: str, key: bytes | None = None) -> None:
        """Count one, whose key is named if it is known.

        >>> omitted = Omissions()
        >>> omitted.add("list", b"queue")
        >>> omitted, omitted.keys_named
        (Omissions({'list': 1}), {b'queue': 'list'})
        """
        self[reason] += 1
        if key is not None and len(self.keys_named) < KEYS_NAMED_MAX:
            self.keys_named.setdefault(key, reason)

    def merge(self, other: Omissions) -> None:
        """Add what another has counted."""
        self.update(other)
        for key, reason in other.keys_named.items():
            if len(self.keys_named) < KEYS_NAMED_MAX:
                self.keys_named.setdefault(key, reason)

    def clear(self) -> None:
        super().clear()
        self.keys_named.clear()
