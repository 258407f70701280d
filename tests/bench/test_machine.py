"""What is measured while the host takes the machine away does not count if it can be measured again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import machine


def test_the_least_disturbed_outcome_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = iter([(0, 0), (100, 30), (100, 30), (200, 50), (200, 50), (300, 51)])
    monkeypatch.setattr(machine, "_ticks", lambda: next(spans))
    outcomes = iter("abc")
    assert machine.undisturbed(lambda: next(outcomes)) == ("c", 0.01)


def test_after_some_tries_the_best_one_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [30, 20, 40, 50]
    spans = _spans(shares)
    monkeypatch.setattr(machine, "_ticks", lambda: next(spans))
    outcomes = iter(shares)
    assert machine.undisturbed(lambda: next(outcomes)) == (20, 0.20)
    assert next(outcomes, None) is None


def test_ticks_only_grow() -> None:
    total, stolen = machine._ticks()
    assert total > stolen >= 0
    assert machine._ticks() >= (total, stolen)


def _spans(shares: list[int]) -> Iterator[tuple[int, int]]:
    total = stolen = 0
    for share in shares:
        yield total, stolen
        total, stolen = total + 100, stolen + share
        yield total, stolen
