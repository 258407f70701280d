"""Bad input gets a clear error and changes nothing, wherever it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

import pytest

from ephemera import Capability, Entry, InvalidArgument, ManualClock, Store
from tests.contract.engines import EngineUnderTest
from tests.contract.times import START_MS, after

# Any: the target is a Store, Family or Transaction, and what it is handed is of a wrong type.
Call = Callable[[Any, Any], object]

KEY_METHODS: dict[str, Call] = {
    "get": lambda target, key: target.get(key),
    "get max_age": lambda target, key: target.get(key, max_age=60),
    "entry": lambda target, key: target.entry(key),
    "ttl": lambda target, key: target.ttl(key),
    "contains": lambda target, key: key in target,
    "getitem": lambda target, key: target[key],
    "get_many": lambda target, key: target.get_many([b"a", key]),
    "put": lambda target, key: target.put(key, b"new"),
    "put ttl": lambda target, key: target.put(key, b"new", ttl=60),
    "setitem": lambda target, key: target.__setitem__(key, b"new"),
    "put_if_absent": lambda target, key: target.put_if_absent(key, b"new"),
    "compare_and_set": lambda target, key: target.compare_and_set(key, None, b"new"),
    "incr": lambda target, key: target.incr(key),
    "put_many": lambda target, key: target.put_many([(b"a", b"new"), (key, b"new")]),
    "touch": lambda target, key: target.touch(key, ttl=60),
    "persist": lambda target, key: target.persist(key),
    "delete": lambda target, key: target.delete(key),
    "delitem": lambda target, key: target.__delitem__(key),
    "pop": lambda target, key: target.pop(key, None),
    "delete_many": lambda target, key: target.delete_many([b"a", key]),
}
BAD_KEYS: dict[str, tuple[object, str]] = {
    "empty": (b"", "1 to 1900 bytes"),
    "empty str": ("", "1 to 1900 bytes"),
    "too long": (b"k" * 1_901, "1901"),
    "too long in utf-8": ("ö" * 951, "1902"),
    "not utf-8": ("\ud800", "UTF-8"),
    "None": (None, "NoneType"),
    "int": (7, "int"),
    "float": (1.5, "float"),
    "tuple": ((b"a",), "tuple"),
}

VALUE_METHODS: dict[str, Call] = {
    "put": lambda target, value: target.put(b"a", value),
    "put ttl": lambda target, value: target.put(b"a", value, ttl=60),
    "setitem": lambda target, value: target.__setitem__(b"a", value),
    "put_if_absent": lambda target, value: target.put_if_absent(b"new", value),
    "put_if_absent present": lambda target, value: target.put_if_absent(b"a", value),
    "compare_and_set": lambda target, value: target.compare_and_set(b"a", b"1", value),
    "compare_and_set absent": lambda target, value: target.compare_and_set(b"n", None, value),
    "put_many": lambda target, value: target.put_many({b"a": b"new", b"b": value}),
}
BAD_VALUES: dict[str, tuple[object, str]] = {
    "None": (None, "NoneType"),
    "int": (7, "int"),
    "float": (1.5, "float"),
    "list": ([b"a"], "list"),
    "not utf-8": ("\ud800", "UTF-8"),
}

TTL_METHODS: dict[str, Call] = {
    "put": lambda target, ttl: target.put(b"a", b"new", ttl=ttl),
    "put idle": lambda target, ttl: target.put(b"a", b"new", idle=60, ttl=ttl),
    "put_if_absent": lambda target, ttl: target.put_if_absent(b"new", b"new", ttl=ttl),
    "put_if_absent present": lambda target, ttl: target.put_if_absent(b"a", b"new", ttl=ttl),
    "compare_and_set": lambda target, ttl: target.compare_and_set(b"a", b"1", b"2", ttl=ttl),
    "compare_and_set other": lambda target, ttl: target.compare_and_set(b"a", b"x", b"2", ttl=ttl),
    "incr": lambda target, ttl: target.incr(b"new", ttl=ttl),
    "incr present": lambda target, ttl: target.incr(b"a", ttl=ttl),
    "touch": lambda target, ttl: target.touch(b"a", ttl=ttl),
    "touch absent": lambda target, ttl: target.touch(b"absent", ttl=ttl),
    "put_many": lambda target, ttl: target.put_many({b"a": b"2", b"new": b"3"}, ttl=ttl),
}
BAD_DURATIONS: dict[str, tuple[object, str]] = {
    "zero": (0, "0"),
    "negative": (-1, "-1"),
    "minus a bit": (-0.001, "-0.001"),
    "nan": (float("nan"), "nan"),
    "inf": (float("inf"), "inf"),
    "minus inf": (float("-inf"), "-inf"),
    "past 9999": (253_402_300_800, "9999"),
    "now + ttl past 9999": (253_402_300_799, "9999"),
    "huge": (10**400, "9999"),
    "huge float": (1e300, "9999"),
    "True": (True, "True"),
    "str": ("60", "'60'"),
    "bytes": (b"60", "b'60'"),
    "datetime": (after(60), "datetime"),
    "timedelta zero": (timedelta(0), "timedelta"),
    "timedelta negative": (timedelta(seconds=-1), "timedelta"),
}


class NoOffset(tzinfo):
    """A time zone that does not know how far it is from UTC."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


WEST = timezone(timedelta(hours=-11))

AT_METHODS: dict[str, Call] = {
    "put": lambda target, at: target.put(b"a", b"new", at=at),
    "put idle": lambda target, at: target.put(b"a", b"new", idle=60, at=at),
    "touch": lambda target, at: target.touch(b"a", at=at),
    "put_if_absent": lambda target, at: target.put_if_absent(b"new", b"new", at=at),
    "compare_and_set": lambda target, at: target.compare_and_set(b"a", b"1", b"2", at=at),
    "put_many": lambda target, at: target.put_many({b"a": b"2"}, at=at),
}
BAD_INSTANTS: dict[str, tuple[object, str]] = {
    "now": (START_MS / 1000, f"{datetime.fromtimestamp(START_MS / 1000, UTC)} has passed"),
    "past": (START_MS / 1000 - 1, f"{datetime.fromtimestamp(START_MS / 1000 - 1, UTC)} has passed"),
    "epoch": (0, "future"),
    "negative": (-5, "-5"),
    "past datetime": (after(-1), "future"),
    "naive datetime": (datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001  naive on purpose
    "past 9999": (253_402_300_800, "9999"),
    "datetime.max": (datetime.max.replace(tzinfo=UTC), "the last deadline"),
    "datetime.max west": (datetime.max.replace(tzinfo=WEST), "the last deadline"),
    "datetime.min": (datetime.min.replace(tzinfo=UTC), "1970"),
    "no offset": (datetime(2030, 1, 1, tzinfo=NoOffset()), "time zone"),
    "milliseconds": (START_MS + 60_000, "9999"),
    "nan": (float("nan"), "nan"),
    "inf": (float("inf"), "inf"),
    "True": (True, "True"),
    "str": ("2030-01-01", "2030-01-01"),
    "timedelta": (timedelta(seconds=60), "timedelta"),
}

IDLE_METHODS: dict[str, Call] = {
    "put": lambda target, idle: target.put(b"a", b"new", idle=idle),
    "put capped": lambda target, idle: target.put(b"a", b"new", idle=idle, ttl=60),
    "touch": lambda target, idle: target.touch(b"a", idle=idle),
    "put_if_absent": lambda target, idle: target.put_if_absent(b"new", b"new", idle=idle),
    "compare_and_set": lambda target, idle: target.compare_and_set(b"a", b"1", b"2", idle=idle),
    "put_many": lambda target, idle: target.put_many({b"a": b"2"}, idle=idle),
}

DURABLE_METHODS: dict[str, Call] = {
    "put": lambda target, durable: target.put(b"a", b"new", durable=durable),
    "put ttl": lambda target, durable: target.put(b"a", b"new", ttl=60, durable=durable),
    "touch": lambda target, durable: target.touch(b"a", ttl=60, durable=durable),
    "persist": lambda target, durable: target.persist(b"a", durable=durable),
    "delete": lambda target, durable: target.delete(b"a", durable=durable),
    "pop": lambda target, durable: target.pop(b"a", durable=durable),
    "put_if_absent": lambda target, durable: target.put_if_absent(b"n", b"1", durable=durable),
    "compare_and_set": lambda target, durable: target.compare_and_set(
        b"a", b"1", b"2", durable=durable
    ),
    "incr": lambda target, durable: target.incr(b"a", durable=durable),
    "put_many": lambda target, durable: target.put_many({b"a": b"2"}, durable=durable),
    "delete_many": lambda target, durable: target.delete_many([b"a"], durable=durable),
}
BAD_FLAGS: dict[str, tuple[object, str]] = {
    "str": ("yes", "'yes'"),
    "int": (1, "1"),
    "zero": (0, "0"),
}

SCAN_METHODS: dict[str, Call] = {
    "prefix": lambda target, bound: list(target.scan(prefix=bound)),
    "start": lambda target, bound: list(target.scan(start=bound)),
    "end": lambda target, bound: list(target.scan(end=bound)),
}
BAD_BOUNDS: dict[str, tuple[object, str]] = {
    "int": (7, "int"),
    "list": ([b"a"], "list"),
    "not utf-8": ("\ud800", "UTF-8"),
}

LIMIT_METHODS: dict[str, Call] = {
    "scan limit": lambda target, number: list(target.scan(limit=number)),
}
BAD_COUNTS: dict[str, tuple[object, str]] = {
    "negative": (-1, "-1"),
    "float": (1.5, "1.5"),
    "str": ("3", "'3'"),
    "True": (True, "True"),
}

BY_METHODS: dict[str, Call] = {
    "incr": lambda target, by: target.incr(b"a", by),
    "incr absent": lambda target, by: target.incr(b"absent", by),
}
BAD_BYS: dict[str, tuple[object, str]] = {
    "str": ("1", "'1'"),
    "float": (1.0, "1.0"),
    "None": (None, "None"),
    "True": (True, "True"),
    "past 64 bits": (2**63, "64"),
    "below 64 bits": (-(2**63) - 1, "64"),
    "huge": (10**400, "64"),
}

MANY_METHODS: dict[str, Call] = {
    "get_many": lambda target, keys: target.get_many(keys),
    "delete_many": lambda target, keys: target.delete_many(keys),
    "put_many": lambda target, pairs: target.put_many(pairs),
}
BAD_COLLECTIONS: dict[str, tuple[object, str]] = {
    "one key": (b"ab", "bytes"),
    "one str": ("ab", "str"),
    "None": (None, "NoneType"),
    "int": (7, "int"),
}

OTHERS: dict[str, tuple[Call, object, str]] = {
    "both ttl and at": (
        lambda target, at: target.put(b"a", b"new", ttl=60, at=at), after(60), "not both"),
    "touch with both ttl and at": (
        lambda target, at: target.touch(b"a", ttl=60, at=at), after(60), "not both"),
    "reverse that is no bool": (lambda target, given: target.scan(reverse=given), "yes", "'yes'"),
    "expected that is no value": (
        lambda target, given: target.compare_and_set(b"a", given, b"new"), 7, "int"),
    "max_age of a wrong type": (lambda target, given: target.get(b"a", max_age=given), "1", "'1'"),
    "negative max_age": (lambda target, given: target.get(b"a", max_age=given), -1, "-1"),
    "pairs of three": (lambda target, given: target.put_many(given), [(b"a", b"b", b"c")], "pair"),
    "pairs that are keys": (lambda target, given: target.put_many(given), [b"ab"], "pair"),
}  # fmt: skip


class Case(NamedTuple):
    """A call with one bad argument, and what the message must say about it."""

    call: Call
    given: object
    says: str


def _cases(methods: dict[str, Call], bad: dict[str, tuple[object, str]]) -> dict[str, Case]:
    return {
        f"{method}, {what}": Case(call, given, says)
        for method, call in methods.items()
        for what, (given, says) in bad.items()
    }


CASES: dict[str, dict[str, Case]] = {
    "key": _cases(KEY_METHODS, BAD_KEYS),
    "value": _cases(VALUE_METHODS, BAD_VALUES),
    "ttl": _cases(TTL_METHODS, BAD_DURATIONS),
    "at": _cases(AT_METHODS, BAD_INSTANTS),
    "idle": _cases(IDLE_METHODS, BAD_DURATIONS),
    "durable": _cases(DURABLE_METHODS, BAD_FLAGS),
    "bound": _cases(SCAN_METHODS, BAD_BOUNDS),
    "limit": _cases(LIMIT_METHODS, BAD_COUNTS),
    "by": _cases(BY_METHODS, BAD_BYS),
    "collection": _cases(MANY_METHODS, BAD_COLLECTIONS),
    "other": {what: Case(*other) for what, other in OTHERS.items()},
}
KEYS_IN_CASES = [b"a", b"b", b"n", b"new", b"absent"]


def _state(store: Store) -> dict[str, object]:
    return {name: _entries(store.family(name)) for name in store.families()}


def _entries(target: Any) -> list[Entry | None]:
    return [target.entry(key) for key in KEYS_IN_CASES]


@contextmanager
def _unchanged(store: Store) -> Iterator[None]:
    before = _state(store)
    yield
    assert _state(store) == before


@pytest.fixture
def filled(store: Store) -> Store:
    store.put(b"a", b"1", ttl=600)
    store.put(b"b", b"2")
    store.family("one").put_many({b"a": b"1", b"b": b"2"}, ttl=600)
    return store


@pytest.mark.parametrize("argument", CASES)
@pytest.mark.parametrize("place", ["store", "family", "transaction"])
def test_a_bad_argument_is_refused_by_name_and_changes_nothing(
    filled: Store, place: str, argument: str
) -> None:
    """All cases in one store: each leaves it as it was, so the next starts from the same state."""
    if argument in ("bound", "limit") and Capability.ORDERED_SCAN not in filled.capabilities:
        pytest.skip("this engine has no ORDERED_SCAN: ordered scans")
    if place == "transaction" and Capability.TRANSACTIONS not in filled.capabilities:
        pytest.skip("this engine has no TRANSACTIONS: transactions over several keys")
    with _unchanged(filled):
        if place == "transaction":
            with filled.transaction() as transaction:
                missed = _refusals_missed(transaction, CASES[argument])
        else:
            target = filled if place == "store" else filled.family("one")
            missed = _refusals_missed(target, CASES[argument])
    assert missed == {}


def _refusals_missed(target: Any, cases: dict[str, Case]) -> dict[str, str]:
    missed = {}
    before = _entries(target)
    for name, case in cases.items():
        try:
            result = case.call(target, case.given)
        except InvalidArgument as error:
            if case.says not in str(error):
                missed[name] = f"says {str(error)!r} and nothing of {case.says!r}"
        except Exception as error:
            missed[name] = f"raised {error!r}"
        else:
            missed[name] = f"returned {result!r}"
        assert _entries(target) == before, f"{name} changed the state"
    return missed


BAD_NAMES: dict[str, tuple[object, str]] = {
    "empty": ("", "1 to 255 bytes"),
    "too long": ("n" * 256, "256"),
    "too long in utf-8": ("ö" * 128, "256"),
    "reserved": ("__ephemera_meta", "__ephemera_"),
    "not utf-8": ("\ud800", "UTF-8"),
    "bytes": (b"one", "bytes"),
    "None": (None, "NoneType"),
    "int": (7, "int"),
}


@pytest.mark.parametrize("what", BAD_NAMES)
@pytest.mark.parametrize("method", ["family", "drop_family", "snapshot", "transaction"])
def test_a_bad_family_name_is_refused(filled: Store, method: str, what: str) -> None:
    given, says = BAD_NAMES[what]

    def call() -> None:
        if method in ("family", "drop_family"):
            getattr(filled, method)(given)
        else:
            with getattr(filled, method)() as view:
                view.family(given)

    with _unchanged(filled), pytest.raises(InvalidArgument) as raised:
        call()
    assert says in str(raised.value)


@pytest.mark.parametrize("what", [what for what in BAD_DURATIONS if what != "now + ttl past 9999"])
def test_a_bad_default_ttl_of_a_family_is_refused(filled: Store, what: str) -> None:
    given, says = BAD_DURATIONS[what]
    for name in ("one", "new"):
        with _unchanged(filled), pytest.raises(InvalidArgument) as raised:
            filled.family(name, default_ttl=given)  # type: ignore[arg-type]  # bad on purpose
        assert says in str(raised.value)
    filled.family("one").put(b"c", b"3")
    assert filled.family("one").ttl(b"c") is None


@pytest.mark.parametrize("argument", ["limit", "batch"])
@pytest.mark.parametrize("what", BAD_COUNTS)
def test_a_bad_limit_or_batch_purges_nothing(
    filled: Store, clock: ManualClock, argument: str, what: str
) -> None:
    given, says = BAD_COUNTS[what]
    clock.advance(600)
    bad: dict[str, Any] = {argument: given}
    with pytest.raises(InvalidArgument) as raised:
        filled.purge_expired(**bad)
    assert says in str(raised.value)
    assert filled.purge_expired() == 3


def test_a_batch_of_none_is_refused(filled: Store, clock: ManualClock) -> None:
    clock.advance(600)
    with pytest.raises(InvalidArgument, match="batch"):
        filled.purge_expired(batch=0)
    assert filled.purge_expired() == 3


def test_a_listener_that_cannot_be_called_is_refused(filled: Store) -> None:
    if Capability.EXPIRY_EVENTS not in filled.capabilities:
        pytest.skip("this engine has no EXPIRY_EVENTS: expiry events")
    with pytest.raises(InvalidArgument, match="callback"):
        filled.on_expire("not a function")  # type: ignore[arg-type]  # bad on purpose


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"colour": "red"}, "colour"),
    "durability": ({"durability": "always"}, "'always'"),
    "maintenance": ({"maintenance": "never"}, "'never'"),
    "read_only": ({"read_only": 1}, "read_only"),
    "exclusive": ({"exclusive": "yes"}, "exclusive"),
    "clock": ({"clock": 7}, "now_ms"),
    "size_limit": ({"size_limit": 10}, "size_limit"),
    "size_limit type": ({"size_limit": 1e9}, "size_limit"),
    "segment_bytes": ({"segment_bytes": 1_000}, "segment_bytes"),
    "lock_timeout": ({"lock_timeout": 0}, "lock_timeout"),
    "lock_timeout type": ({"lock_timeout": "1"}, "lock_timeout"),
    "default_ttl zero": ({"default_ttl": 0}, "default_ttl"),
    "default_ttl type": ({"default_ttl": "60"}, "default_ttl"),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_a_bad_option_opens_nothing(engine: EngineUnderTest, clock: ManualClock, what: str) -> None:
    options, says = BAD_OPTIONS[what]
    with pytest.raises(InvalidArgument) as raised:
        engine.open(**{"clock": clock, "maintenance": "manual", **options})
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("durable", "says"), [("yes", "'yes'"), (1, "1"), (0, "0")], ids=["str", "int", "zero"]
)
def test_a_bad_durability_of_a_transaction_begins_none(
    filled: Store, durable: object, says: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        filled.transaction(durable=durable).__enter__()  # type: ignore[arg-type]  # bad on purpose
    assert says in str(raised.value)
    filled.put(b"a", b"the writer lock is free")


def test_durable_belongs_to_the_whole_transaction(filled: Store) -> None:
    with filled.transaction() as transaction, pytest.raises(InvalidArgument, match="transaction"):
        transaction.put(b"a", b"new", durable=True)
    assert filled.get(b"a") == b"1"
