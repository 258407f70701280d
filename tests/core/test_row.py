"""The bytes of a row."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.core.row import NEVER_MS, Row, decode_row, encode_row

int64 = st.integers(-(2**63), 2**63 - 1)
deadlines = st.integers(0, 2**63 - 2)
rows = st.one_of(
    st.tuples(st.binary(), int64),
    st.tuples(st.binary(), int64, deadlines),
    st.tuples(st.binary(), int64, deadlines, st.integers(1, 2**62), int64),
).map(lambda fields: Row(*fields))


@given(rows)
def test_a_row_comes_back_as_it_was(row: Row) -> None:
    assert decode_row(encode_row(row)) == row


def test_a_row_pays_only_for_what_it_has() -> None:
    assert len(encode_row(Row(b"", 1))) == 9
    assert len(encode_row(Row(b"value", 1, 2))) == 9 + 8 + 5
    assert len(encode_row(Row(b"value", 1, 2, 3, 4))) == 9 + 8 + 16 + 5


def test_the_layout_is_flags_times_value_in_little_endian() -> None:
    assert encode_row(Row(b"v", 1)) == struct.pack("<Bq", 0, 1) + b"v"
    assert encode_row(Row(b"v", 1, 2)) == struct.pack("<Bqq", 1, 1, 2) + b"v"
    assert encode_row(Row(b"v", 1, 2, 3, 4)) == struct.pack("<Bqqqq", 3, 1, 2, 3, 4) + b"v"


def test_never_is_later_than_every_instant() -> None:
    assert NEVER_MS == 2**63 - 1
    assert Row(b"", 0).deadline_ms == Row(b"", 0).hard_ms == NEVER_MS


@pytest.mark.parametrize("flags", [1, 2, 3])
def test_every_beginning_of_a_head_is_refused(flags: int) -> None:
    whole = encode_row(
        {1: Row(b"", 1, 2), 2: Row(b"", 1, NEVER_MS, 3, 4), 3: Row(b"", 1, 2, 3, 4)}[flags]
    )
    assert whole[0] == flags
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="no row"):
            decode_row(whole[:size])


@pytest.mark.parametrize("flags", [4, 0x80, 0xFF])
def test_flags_that_nobody_knows_are_refused(flags: int) -> None:
    with pytest.raises(ValueError, match="no row"):
        decode_row(bytes([flags]) + bytes(64))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_row_or_refused(data: bytes) -> None:
    try:
        row = decode_row(data)
    except ValueError:
        return
    assert isinstance(row, Row)
    assert data.endswith(row.value)
