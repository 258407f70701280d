"""Errors as callers meet them."""

from __future__ import annotations

import pickle

from ephemera.core.errors import CorruptStore, EphemeraError, InvalidArgument, StoreLocked


def test_a_bad_argument_is_a_value_error() -> None:
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(InvalidArgument, EphemeraError)


def test_corruption_names_file_and_offset() -> None:
    assert str(CorruptStore("a.seg", 64, "bad checksum")) == "a.seg at offset 64: bad checksum"
    assert str(CorruptStore("a.seg", None, "too short")) == "a.seg: too short"


def test_corruption_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptStore("a.seg", 64, "bad checksum")))
    assert (error.path, error.offset, error.reason) == ("a.seg", 64, "bad checksum")


def test_a_served_store_is_refused_with_the_url_that_opens_it() -> None:
    error = StoreLocked("s.eph is served by process 7", "rediss://host:6380")
    assert str(error) == (
        "s.eph is served by process 7: stop the server, or open what it serves with"
        ' ephemera.open("rediss://host:6380/0?values=plain")'
    )
    assert str(StoreLocked("s.eph is open elsewhere")) == "s.eph is open elsewhere"


def test_a_locked_store_survives_pickling() -> None:
    error = StoreLocked("s.eph is served by process 7", "redis://host:6380")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.served_at) == (str(error), error.served_at)
