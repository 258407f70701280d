"""What a store can be told when it is opened."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from ephemera.core.clock import ManualClock
from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import Ttl
from ephemera.core.options import Options


def test_nothing_has_to_be_said() -> None:
    options = Options()
    assert (options.durability, options.maintenance) == ("interval", "background")
    assert not options.read_only
    assert options.default_ttl_ms is None


@pytest.mark.parametrize(
    ("default_ttl", "ms"),
    [
        (None, None),
        (Ttl.NEVER, None),
        (Ttl.DEFAULT, None),
        (1.5, 1_500),
        (timedelta(hours=1), 3_600_000),
    ],
)
def test_a_default_ttl_is_kept_in_milliseconds(default_ttl: Any, ms: int | None) -> None:
    assert Options(default_ttl=default_ttl).default_ttl_ms == ms


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("default_ttl", 0), ("default_ttl", True), ("default_ttl", "60"), ("default_ttl", 10**12),
        ("durability", "always"), ("durability", None), ("maintenance", "never"),
        ("read_only", 1), ("read_only", None), ("exclusive", "yes"),
        ("clock", object()), ("clock", 1_700_000_000),
        ("size_limit", 1024), ("size_limit", 1.5e9), ("size_limit", True),
        ("segment_bytes", 1), ("segment_bytes", "32M"),
        ("mode", "600"), ("mode", 0o400), ("mode", 0o755), ("mode", True), ("mode", -1),
        ("lock_timeout", 0), ("lock_timeout", -1), ("lock_timeout", float("nan")),
        ("lock_timeout", float("inf")), ("lock_timeout", True),
        ("snapshot_max_age", 0), ("snapshot_max_age", "60"), ("snapshot_max_age", True),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Options(**{name: given})


def test_any_object_that_tells_the_time_is_a_clock() -> None:
    clock = ManualClock()
    assert Options(clock=clock).clock is clock


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().read_only = True  # type: ignore[misc]  # wrong on purpose
