"""The short way through `get` and `put` means exactly what the long way means."""

from __future__ import annotations

import doctest
import inspect
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ephemera
from ephemera import _keyspace
from ephemera.core.arguments import KEY_BYTES_MAX
from ephemera.core.clock import SteadyClock
from ephemera.core.expiry import DEADLINE_MS_MAX, duration_ms
from ephemera.keyspace import Keyspace

seconds = st.one_of(
    st.integers(1, 10**11),
    st.floats(1e-9, 1e11),
    st.integers(1, 10**6).map(lambda halves: halves / 2_000),
)


@given(seconds)
@example(0.0005)
@example(0.0025)
@example(10**9)
@example(10**9 + 1)
@example(1e9)
def test_numbers_of_seconds_become_the_same_deadline_either_way(ttl: float) -> None:
    with ephemera.open("memory://", clock=ephemera.ManualClock(), maintenance="manual") as store:
        store.put(b"short", b"", ttl=ttl)
        store.put_many({b"long": b""}, ttl=ttl)
        assert store.ttl(b"short") == store.ttl(b"long") == duration_ms(ttl, name="ttl") / 1000


@pytest.mark.parametrize("ttl", [2, 2.0, timedelta(seconds=2)])
def test_near_the_end_of_time_the_short_way_is_as_strict(ttl: float | timedelta) -> None:
    clock = ephemera.ManualClock(DEADLINE_MS_MAX - 1_000)
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        with pytest.raises(ephemera.InvalidArgument, match="9999"):
            store.put(b"key", b"", ttl=ttl)
        store.put(b"key", b"", ttl=1)
        assert store.ttl(b"key") == 1.0


def test_a_single_str_or_bytes_is_no_list_of_keys() -> None:
    with ephemera.open("memory://") as store:
        for wrong in (b"abc", "abc", 7, None):
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.get_many(wrong)  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.delete_many(wrong)  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.put_many(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_scan_raises_at_the_call_what_is_wrong_with_it() -> None:
    with ephemera.open("memory://") as store:
        for wrong in ({"limit": -1}, {"limit": True}, {"prefix": 1}, {"end": 1}, {"reverse": 1}):
            with pytest.raises(ephemera.InvalidArgument, match=next(iter(wrong))):
                store.scan(**wrong)


# --- compiled, and still the same methods -------------------------------------------------------

START_MS = 1_700_000_000_000


class Foreign:
    """A clock that is neither the system's nor a ManualClock, that can fail, and that lets things happen once."""

    def __init__(self) -> None:
        self.instant_ms = START_MS
        self.is_broken = False
        self.meanwhile: Callable[[], object] | None = None

    def now_ms(self) -> int:
        if self.is_broken:
            raise OSError("no such clock")
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return self.instant_ms


Open = Callable[..., ephemera.Store]


@pytest.fixture(params=["memory", "local"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens stores of a compiled and of a Python engine, which are closed at the end."""
    opened: list[ephemera.Store] = []

    def open_one(**options: Any) -> ephemera.Store:  # Any: as `ephemera.open`
        url = "memory://" if request.param == "memory" else str(tmp_path / f"{len(opened)}.eph")
        opened.append(ephemera.open(url, maintenance="manual", **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_the_examples_of_the_compiled_methods_run() -> None:
    found = doctest.DocTestFinder().find(_keyspace.OneKey, module=_keyspace)
    examples = [test for test in found if test.examples]
    assert {test.name.rpartition(".")[2] for test in examples} == {"get", "put"}
    runner = doctest.DocTestRunner()
    for test in examples:
        runner.run(test)
    assert (runner.failures, runner.tries > 0) == (0, True)


@pytest.mark.parametrize("kind", [ephemera.Store, ephemera.Family, ephemera.Transaction])
def test_help_shows_what_the_compiled_methods_take(kind: type[Keyspace]) -> None:
    assert str(inspect.signature(kind.get)) == "(self, /, key, default=None, max_age=None)"
    assert str(inspect.signature(kind.put)) == (
        "(self, /, key, value, *, ttl=None, at=None, idle=None, durable=None)"
    )
    assert (kind.put.__doc__ or "").startswith("Store the value.")


@pytest.mark.parametrize("clock", [ephemera.ManualClock(START_MS), Foreign()])
def test_any_clock_decides_to_the_millisecond(open_store: Open, clock: Any) -> None:  # Any: of two
    store = open_store(clock=clock)
    store.put(b"key", b"value", ttl=0.005)

    def pass_ms(ms: int) -> None:
        if isinstance(clock, Foreign):
            clock.instant_ms += ms
        else:
            clock.advance(ms / 1000)

    pass_ms(4)
    assert store.get(b"key") == b"value"
    pass_ms(1)
    assert store.get(b"key") is None
    assert store.get(b"key", b"-") == b"-"


def test_a_clock_that_fails_is_heard_and_nothing_is_written(open_store: Open) -> None:
    clock = Foreign()
    store = open_store(clock=clock)
    store.put(b"key", b"before", ttl=60)
    clock.is_broken = True
    with pytest.raises(OSError, match="no such clock"):
        store.put(b"key", b"after", ttl=1)
    with pytest.raises(OSError, match="no such clock"):
        store.get(b"key")
    clock.is_broken = False
    assert store.get(b"key") == b"before"


@pytest.mark.parametrize("is_old", [False, True], ids=["recent", "old"])
def test_a_key_that_is_renewed_just_before_its_death_is_never_absent(
    open_store: Open, is_old: bool
) -> None:
    clock = Foreign()
    store = open_store(clock=clock)
    store.put(b"key", b"before", ttl=1)
    if is_old:
        store.checkpoint()

    def renew() -> None:
        clock.instant_ms = START_MS + 999
        store.put(b"key", b"after", ttl=1)
        clock.instant_ms = START_MS + 1_000

    clock.meanwhile = renew
    assert store.get(b"key") == b"after"
    clock.instant_ms = START_MS + 1_999
    assert store.get(b"key") is None


def test_a_value_is_its_own_whatever_happens_while_the_clock_is_asked(tmp_path: Path) -> None:
    clock, value, path = Foreign(), b"v" * 1_000, tmp_path / "one.eph"
    store = ephemera.open(path, clock=clock, maintenance="manual")
    store.put(b"key", value, ttl=60)
    store.checkpoint()

    def write_over() -> None:
        store.close()
        with ephemera.open(path, clock=clock, maintenance="manual") as other:
            for number in range(8):
                other.put(b"key", b"%d" % number * 1_000)
                other.checkpoint()

    clock.meanwhile = write_over
    assert store.get(b"key") == value


@pytest.mark.parametrize("is_old", [False, True], ids=["recent", "old"])
def test_a_dead_value_is_not_copied(tmp_path: Path, is_old: bool) -> None:
    clock, size = SteadyClock(), 16 * 1024 * 1024
    offset = bytearray(8)
    clock.share(offset, 0, is_first=True)
    with ephemera.open(tmp_path / "one.eph", clock=clock, maintenance="manual") as store:
        store.put(b"key", bytes(size), ttl=60)
        if is_old:
            store.checkpoint()
        assert _most_bytes(lambda: store.get(b"key")) > size
        struct.pack_into("<q", offset, 0, struct.unpack_from("<q", offset)[0] + 60_000_000)
        assert store.get(b"key") is None
        assert _most_bytes(lambda: store.get(b"key")) < size // 100


def _most_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python had for this at a time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_has_no_deadline_needs_no_clock(tmp_path: Path) -> None:
    clock = Foreign()
    with ephemera.open(tmp_path / "one.eph", clock=clock, maintenance="manual") as store:
        store.put(b"key", b"value")
        clock.is_broken = True
        assert store.get(b"key") == b"value"
        clock.is_broken = False


def test_a_clock_that_tells_no_number_is_an_error(open_store: Open) -> None:
    clock = Foreign()
    store = open_store(clock=clock)
    clock.instant_ms = None  # type: ignore[assignment]  # on purpose
    with pytest.raises(TypeError):
        store.put(b"key", b"value", ttl=1)
    clock.instant_ms = START_MS
    assert store.get(b"key") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((b"", b"value"), {}), "a key has 1 to"),
        (((b"k" * (KEY_BYTES_MAX + 1), b"value"), {}), "a key has 1 to"),
        (((None, b"value"), {}), "a key is bytes or str"),
        (((b"key", 7), {}), "a value is bytes or str"),
        (((b"key", b"value"), {"ttl": 0}), "positive"),
        (((b"key", b"value"), {"ttl": -1.0}), "positive"),
        (((b"key", b"value"), {"ttl": float("nan")}), "positive"),
        (((b"key", b"value"), {"ttl": True}), "a number of seconds"),
        (((b"key", b"value"), {"ttl": 10**30}), "9999"),
        (((b"key", b"value"), {"ttl": "60"}), "a number of seconds"),
        (((b"key", b"value"), {"ttl": 1, "at": 2e9}), "not both"),
        (((b"key", b"value"), {"durable": 1}), "durable must be"),
    ],
)
def test_bad_arguments_are_refused_and_change_nothing(
    open_store: Open, arguments: tuple[tuple[Any, Any], dict[str, Any]], message: str
) -> None:  # Any: wrong on purpose
    store = open_store(clock=ephemera.ManualClock())
    store.put(b"key", b"before", ttl=60)
    given, named = arguments
    with pytest.raises(ephemera.InvalidArgument, match=message):
        store.put(*given, **named)
    assert list(store.scan()) == [(b"key", b"before")]
    assert store.ttl(b"key") == 60


def test_wrong_counts_of_arguments_are_type_errors(open_store: Open) -> None:
    store: Any = open_store()  # Any: called as no checker would let pass
    for call in (
        lambda: store.get(),
        lambda: store.get(b"key", None, None, None),
        lambda: store.put(b"key"),
        lambda: store.put(b"key", b"value", 60),
        lambda: store.put(b"key", b"value", tll=60),
    ):
        with pytest.raises(TypeError):
            call()
    assert store.count() == 0


def test_defaults_of_family_and_store_hold_on_the_short_way(open_store: Open) -> None:
    store = open_store(clock=ephemera.ManualClock(), default_ttl=30)
    family = store.family("codes", default_ttl=5)
    lasting = store.family("lasting", default_ttl=ephemera.Ttl.NEVER)
    for keyspace in (store, family, lasting):
        keyspace.put(b"key", b"value")
    assert (store.ttl(b"key"), family.ttl(b"key"), lasting.ttl(b"key")) == (30, 5, None)


def test_transactions_and_snapshots_read_and_write_by_their_own_instant(open_store: Open) -> None:
    clock = ephemera.ManualClock()
    store = open_store(clock=clock)
    store.put(b"key", b"old", ttl=1)
    with store.snapshot() as snapshot, store.transaction() as txn:
        clock.advance(2)
        txn.put(b"key", b"new", ttl=5)
        assert (txn.get(b"key"), store.get(b"key"), snapshot.get(b"key")) == (b"new", None, b"old")
        with pytest.raises(ephemera.ReadOnly):
            snapshot.put(b"key", b"never")
    assert (store.get(b"key"), store.ttl(b"key")) == (b"new", 3)


def test_what_is_given_as_text_or_as_a_view_is_the_same_key(open_store: Open) -> None:
    store = open_store()
    store.put("ключ", memoryview(b"value"), ttl=60)
    for key in ("ключ", "ключ".encode(), bytearray("ключ".encode())):
        assert store.get(key) == b"value"


def test_a_closed_store_says_so_on_the_short_way(open_store: Open) -> None:
    store = open_store()
    store.put(b"key", b"value", ttl=60)
    store.close()
    with pytest.raises(ephemera.StoreClosed):
        store.get(b"key")
    with pytest.raises(ephemera.StoreClosed):
        store.put(b"key", b"value", ttl=60)


def test_the_system_clock_is_used_as_it_is_and_others_are_asked(open_store: Open) -> None:
    store = open_store()
    assert type(store.clock) is SteadyClock
    before_ms = store.clock.now_ms()
    store.put(b"key", b"value")
    entry = store.entry(b"key")
    assert entry is not None
    assert before_ms <= entry.written_at.timestamp() * 1000 + 1 <= store.clock.now_ms() + 2


def test_a_keyspace_of_its_own_needs_the_rules_about_lifetimes(open_store: Open) -> None:
    store = open_store()
    bare = _keyspace.OneKey(store.engine, store._ref, store.clock, None)
    bare.put(b"key", b"value", ttl=60)
    with pytest.raises(TypeError, match="_lifetime"):
        bare.put(b"key", b"other", idle=60)
    assert bare.get(b"key") == b"value"
