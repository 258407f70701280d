"""LCS, held against the textbook's table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.server.commands.lcs import common_length, matches
from ephemera.server.server import Server
from tests.server.clients import Client

texts = st.text("abc", max_size=20).map(str.encode)


def longest(a: bytes, b: bytes) -> int:
    above = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(row[j], above[j + 1]))
        above = row
    return above[-1]


@given(texts, texts)
def test_the_pieces_are_common_to_both_and_as_long_as_can_be(a: bytes, b: bytes) -> None:
    assert common_length(a, b) == longest(a, b)
    found = list(matches(a, b))
    assert sum(each.length for each in found) == longest(a, b)
    for each in found:
        part = a[each.last_a - each.length + 1 : each.last_a + 1]
        assert part == b[each.last_b - each.length + 1 : each.last_b + 1]
    for later, earlier in pairwise(found):
        assert earlier.last_a <= later.last_a - later.length
        assert earlier.last_b <= later.last_b - later.length


@pytest.fixture
def texts_stored(client: Client) -> Client:
    client("MSET", "a", "ohmytext", "b", "mynewtext")
    return client


def test_the_common_part_its_length_and_its_places(texts_stored: Client) -> None:
    client = texts_stored
    assert client("LCS", "a", "b") == b"mytext"
    assert client("LCS", "a", "b", "LEN") == 6
    places = [[[4, 7], [5, 8]], [[2, 3], [0, 1]]]
    assert client("LCS", "a", "b", "IDX") == [b"matches", places, b"len", 6]
    assert client("LCS", "a", "b", "IDX", "MINMATCHLEN", 4) == [b"matches", places[:1], b"len", 6]
    with_length = [[[4, 7], [5, 8], 4]]
    assert client("LCS", "a", "b", "idx", "minmatchlen", 4, "withmatchlen") == [
        b"matches", with_length, b"len", 6,
    ]  # fmt: skip


def test_absent_keys_have_nothing_in_common(texts_stored: Client) -> None:
    client = texts_stored
    assert client("LCS", "a", "absent") == b""
    assert client("LCS", "absent", "a", "LEN") == 0
    assert client("LCS", "absent", "gone", "IDX") == [b"matches", [], b"len", 0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["FOO"], "ERR syntax error"),
        (["MINMATCHLEN"], "ERR syntax error"),
        (["MINMATCHLEN", "x"], "ERR value is not an integer or out of range"),
        (["LEN", "IDX"], "ERR If you want both the length and indexes, please just use IDX."),
    ],
)
def test_lcs_refuses_what_it_cannot_take(options: list[str], error: str, client: Client) -> None:
    assert client.error("LCS", "a", "b", *options) == error


def test_values_that_would_take_too_much_are_refused(client: Client, server: Server) -> None:
    server.settings.proto_max_bulk_len = 4 * 5 * 5
    client("MSET", "a", "abcd", "b", "abcd", "c", "abcde")
    assert client("LCS", "a", "b") == b"abcd"
    assert client.error("LCS", "a", "c") == (
        "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"
    )


def test_long_values_are_compared_by_the_row(client: Client) -> None:
    client("MSET", "a", "ab" * 4000, "b", "ba" * 4000)
    assert client("LCS", "a", "b", "LEN") == 7999
    assert len(client("LCS", "a", "b")) == 7999
