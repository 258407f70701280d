"""Errors as callers meet them."""

from __future__ import annotations

import pickle

from ephemera.core.errors import CorruptStore, EphemeraError, InvalidArgument


def test_a_bad_argument_is_a_value_error() -> None:
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(InvalidArgument, EphemeraError)


def test_corruption_names_file_and_offset() -> None:
    assert str(CorruptStore("a.seg", 64, "bad checksum")) == "a.seg at offset 64: bad checksum"
    assert str(CorruptStore("a.seg", None, "too short")) == "a.seg: too short"


def test_corruption_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptStore("a.seg", 64, "bad checksum")))
    assert (error.path, error.offset, error.reason) == ("a.seg", 64, "bad checksum")
