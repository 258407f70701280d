"""The place where keys are kept during a replay, held against a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.formats._scratch import Scratch

FAMILIES = st.sampled_from(["default", "db1", "db2"])
KEYS = st.binary(min_size=1, max_size=2)
VALUES = st.binary(max_size=30) | st.integers(0, 400_000).map(bytes)
STEPS = st.one_of(
    st.tuples(st.just("put"), FAMILIES, KEYS, VALUES, st.integers(0, 2**63 - 1)),
    st.tuples(st.just("delete"), FAMILIES, KEYS),
    st.tuples(st.just("clear"), FAMILIES),
    st.tuples(st.just("clear_all")),
    st.tuples(st.just("swap"), FAMILIES, FAMILIES),
)


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    made = Scratch()
    yield made
    made.close()


@given(st.lists(STEPS, max_size=60), st.sampled_from([1, 4, 64]))
def test_it_holds_what_a_dictionary_holds(steps: list[tuple[Any, ...]], hash_bits: int) -> None:
    scratch = Scratch(hash_bits=hash_bits)
    expected: dict[str, dict[bytes, tuple[bytes, int]]] = {"default": {}, "db1": {}, "db2": {}}
    for name, *arguments in steps:
        apply(scratch, expected, name, arguments)
    for family, keys in expected.items():
        assert all(scratch.get(family, key) == held for key, held in keys.items())
    held = {(family, key): (value, deadline_ms) for family, key, value, deadline_ms in scratch}
    scratch.close()
    assert held == {
        (family, key): held for family, keys in expected.items() for key, held in keys.items()
    }


def apply(scratch: Scratch, expected: dict[str, Any], name: str, arguments: list[Any]) -> None:
    """One step on both."""
    if name == "put":
        family, key, value, deadline_ms = arguments
        scratch.put(family, key, (value, deadline_ms))
        expected[family][key] = (value, deadline_ms)
    elif name == "delete":
        family, key = arguments
        scratch.put(family, key, None)
        expected[family].pop(key, None)
        assert scratch.get(family, key) is None
    elif name == "clear":
        scratch.clear(arguments[0])
        expected[arguments[0]] = {}
    elif name == "clear_all":
        scratch.clear_all()
        expected.update(default={}, db1={}, db2={})
    else:
        one, other = arguments
        scratch.swap(one, other)
        expected[one], expected[other] = expected[other], expected[one]


def test_a_key_that_is_written_again_and_again_takes_one_place(scratch: Scratch) -> None:
    for number in range(50_000):
        scratch.put("default", b"key", (b"%d" % number, number))
    assert (scratch.count, scratch.get("default", b"key")) == (1, (b"49999", 49_999))


def test_many_keys_come_and_go(scratch: Scratch) -> None:
    for number in range(100_000):
        scratch.put("default", b"%d" % number, (b"value", number))
        if number % 10:
            scratch.put("default", b"%d" % number, None)
    assert scratch.count == 10_000
    assert [key for _, key, _, _ in scratch] == [b"%d" % n for n in range(0, 100_000, 10)]


@pytest.mark.parametrize("size", [0, 1_048_555, 1_048_556, 3_000_000])
def test_values_larger_than_what_is_held_in_memory_come_back(scratch: Scratch, size: int) -> None:
    held = (bytes(range(256)) * (size // 256 + 1), 7)
    for key in (b"a", b"b", b"c"):
        scratch.put("default", key, held)
    assert scratch.get("default", b"b") == held
    assert list(scratch) == [("default", key, *held) for key in (b"a", b"b", b"c")]
