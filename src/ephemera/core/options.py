"""What a store can be told when it is opened, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from ephemera.core.clock import Clock
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import Ttl, TtlLike, duration_ms

Durability = Literal["commit", "interval", "none"]
Maintenance = Literal["background", "manual"]

SIZE_LIMIT_DEFAULT = 64 * 1024**3
SIZE_LIMIT_MIN = 1024**2
SEGMENT_BYTES_DEFAULT = 32 * 1024**2
SEGMENT_BYTES_MIN = 64 * 1024
MODE_DEFAULT = 0o600
MODE_MAX = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of an open store; the docstring of `ephemera.open` says what each means."""

    default_ttl: TtlLike = None
    durability: Durability = "interval"
    read_only: bool = False
    exclusive: bool = False
    maintenance: Maintenance = "background"
    clock: Clock | None = None
    size_limit: int = SIZE_LIMIT_DEFAULT
    lock_timeout: float = 10.0
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    snapshot_max_age: float | timedelta | None = None
    mode: int | None = None

    def __post_init__(self) -> None:
        _one_of("durability", self.durability, get_args(Durability))
        _one_of("maintenance", self.maintenance, get_args(Maintenance))
        for name in ("read_only", "exclusive"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.clock is not None and not callable(getattr(self.clock, "now_ms", None)):
            raise InvalidArgument(f"clock must have a method now_ms(), {self.clock!r} has none")
        _at_least("size_limit", self.size_limit, SIZE_LIMIT_MIN)
        _at_least("segment_bytes", self.segment_bytes, SEGMENT_BYTES_MIN)
        duration_ms(self.lock_timeout, name="lock_timeout")
        _check_mode(self.mode, is_read_only=self.read_only)
        self.default_ttl_ms  # noqa: B018  (raises for a bad default_ttl)
        self.snapshot_max_age_ms  # noqa: B018  (raises for a bad snapshot_max_age)

    @property
    def default_ttl_ms(self) -> int | None:
        if self.default_ttl is None or isinstance(self.default_ttl, Ttl):
            return None
        return duration_ms(self.default_ttl, name="default_ttl")

    @property
    def snapshot_max_age_ms(self) -> int | None:
        if self.snapshot_max_age is None:
            return None
        return duration_ms(self.snapshot_max_age, name="snapshot_max_age")


def _one_of(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}, not {given!r}")


def _check_mode(mode: object, *, is_read_only: bool) -> None:
    if mode is None:
        return
    number = mode if isinstance(mode, int) and not isinstance(mode, bool) else -1
    if number | MODE_DEFAULT != number or number & ~MODE_MAX:
        given = repr(mode) if number < 0 else f"0o{number:o}"
        raise InvalidArgument(
            "mode is the permissions of files, 0o600 (the owner alone), 0o660 (the group too),"
            f" or any from 0o600 to 0o666 that lets the owner read and write, not {given}"
        )
    if is_read_only:
        raise InvalidArgument("mode changes permissions, and read_only=True changes nothing")


def _at_least(name: str, given: object, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InvalidArgument(
            f"{name} must be a whole number of at least {least} bytes, not {given!r}"
        )
