"""The model is held against its own words, so that it cannot agree with a store by being wrong."""

from __future__ import annotations

import pytest

from tests.model.model import Model


class Time:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def model(time: Time) -> Model:
    return Model(time)


def test_an_item_is_dead_at_its_deadline_and_alive_before(model: Model, time: Time) -> None:
    family = model.family("default")
    family.put(b"a", b"1", ttl=1)
    time.now_ms = 1_999
    assert family.scan() == [(b"a", b"1")]
    time.now_ms = 2_000
    assert family.scan() == []
    assert model.dead() == [(2_000, "default", b"a", b"1")]


def test_a_touch_renews_idleness_up_to_the_hard_cap(model: Model, time: Time) -> None:
    family = model.family("default")
    family.put(b"a", b"1", idle=2, ttl=3)
    assert family.ttl(b"a") == 2.0
    time.now_ms = 2_500
    assert family.touch(b"a")
    assert family.ttl(b"a") == 1.5


def test_a_frozen_copy_neither_ages_nor_shares(model: Model, time: Time) -> None:
    model.family("default").put(b"a", b"1", ttl=1)
    copy = model.frozen()
    time.now_ms = 5_000
    copy.family("default").put(b"b", b"2")
    assert copy.family("default").scan() == [(b"a", b"1"), (b"b", b"2")]
    assert model.family("default").scan() == []
    model.adopt(copy)
    assert model.family("default").scan() == [(b"b", b"2")]
    assert model.dead() == [(2_000, "default", b"a", b"1")]
