"""A machine that does the same to a store and to its model, in every order that Hypothesis finds.

Few keys and families, so that they collide; few values, so that comparisons succeed; deadlines and
steps of the clock of the same sizes, so that keys die just then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ephemera import Capability, Expired, InvalidArgument, ManualClock, Snapshot, Store, Ttl
from tests.contract.engines import ENGINES
from tests.model.model import Death, Model

STEPS_BETWEEN_CHECKS = 5
SNAPSHOTS_MAX = 3

KEYS = [b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff\xff"]
FAMILIES = ["default", "one", "two"]
VALUES = [b"", b"0", b"41", b"-7", b"9223372036854775807", b"word", b"long " * 20]
DURATIONS_S = [0.001, 0.01, 0.1, 1.0, 60.0]

TTL_WORDS = {"never": Ttl.NEVER, "default": Ttl.DEFAULT}


class Large(bytes):
    """A value larger than a tiny segment, that does not fill the report of a failure."""

    def __repr__(self) -> str:
        return "LARGE"


LARGE = Large(b"x" * 70_000)


class Call(NamedTuple):
    """A method of a family with its arguments, for the store and for the model alike.

    `at_in` among the named ones is seconds from now; it becomes `at` when the call is made.
    """

    method: str
    given: tuple[Any, ...] = ()  # Any: the arguments of whichever method this is
    named: dict[str, Any] = {}  # noqa: RUF012  never changed


class Step(NamedTuple):
    """One call inside a transaction, after the clock went on by some seconds."""

    seconds: float
    family: str
    call: Call


keys = st.sampled_from(KEYS)
families = st.sampled_from(FAMILIES)
values = st.sampled_from(VALUES) | st.just(LARGE)
durations = st.sampled_from(DURATIONS_S)
ttls = durations | st.sampled_from(["never", "default"])
default_ttls = st.none() | durations | st.sampled_from(["never", "default"])
pauses = st.sampled_from([0.0, 0.001, 0.009, 0.01, 0.099, 0.1, 0.9, 1.0, 59.0, 60.0])
lifetimes = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"ttl": ttls}),
    st.fixed_dictionaries({"at_in": durations}),
    st.fixed_dictionaries({"idle": durations}),
    st.fixed_dictionaries({"idle": durations, "ttl": ttls}),
    st.fixed_dictionaries({"idle": durations, "at_in": durations}),
    st.just({"ttl": 0}),
)

NOTHING_NAMED: st.SearchStrategy[dict[str, Any]] = st.just({})


def calls(
    method: str,
    *given: st.SearchStrategy[Any],
    named: st.SearchStrategy[dict[str, Any]] = NOTHING_NAMED,
) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.just(method), st.tuples(*given), named)


pairs = st.lists(st.tuples(keys | st.just(b""), values), max_size=4)
bounds = st.fixed_dictionaries(
    {},
    optional={
        "prefix": st.sampled_from([b"", b"a", b"ab", b"\x00", b"\xff"]),
        "start": keys,
        "end": keys,
        "reverse": st.booleans(),
        "limit": st.none() | st.integers(0, 3),
    },
)
reads = st.one_of(
    calls("get", keys),
    calls("get", keys, values),
    calls("get", keys, named=st.fixed_dictionaries({"max_age": durations})),
    calls("entry", keys),
    calls("ttl", keys),
    calls("get_many", st.lists(keys, max_size=4)),
    calls("scan", named=bounds),
    calls("count"),
)
puts = st.one_of(
    calls("put", keys, values, named=lifetimes),
    calls("put_many", pairs, named=lifetimes),
)
conditionals = st.one_of(
    calls("put_if_absent", keys, values, named=lifetimes),
    calls("compare_and_set", keys, st.none() | values, values, named=lifetimes),
    calls(
        "incr",
        keys,
        st.sampled_from([1, -1, 0, 42, 2**63 - 1, -(2**63)]),
        named=st.fixed_dictionaries({}, optional={"ttl": ttls}),
    ),
)
renewals = st.one_of(
    calls("touch", keys),
    calls("touch", keys, named=lifetimes),
    calls("persist", keys),
)
removals = st.one_of(
    calls("delete", keys),
    calls("delete_many", st.lists(keys, max_size=4)),
    calls("pop", keys),
    calls("pop", keys, st.none() | values),
)
anything = st.one_of(reads, puts, conditionals, renewals, removals)
transactions = st.lists(st.builds(Step, pauses, families, anything), max_size=8)


class StoreMachine(RuleBasedStateMachine):
    """A store beside its model; a subclass says of which engine."""

    engine_name: ClassVar[str]

    crash: ClassVar[Callable[[Store], None] | None] = None
    """Leaves the store as the death of its process would: nothing closed, nothing flushed, and its
    files free to be opened again. The rule that reopens after it runs once an engine has one."""

    def __init__(self) -> None:
        super().__init__()
        self._place = TemporaryDirectory(prefix="ephemera-model-")
        self._engine = ENGINES[self.engine_name](Path(self._place.name))
        self._clock = ManualClock()
        self._model = Model(self._clock.now_ms)
        self._events: list[Expired] = []
        self._written_over: set[Death] = set()
        self._snapshots: list[tuple[Snapshot, Model]] = []
        self._steps = 0
        self._listens = False
        self._store = self._engine.open(self._clock, maintenance="manual")

    @initialize(listens=st.booleans())
    def listen(self, listens: bool) -> None:
        """A store that nobody listens to purges in another way, and must count the same."""
        self._listens = listens and Capability.EXPIRY_EVENTS in self._store.capabilities
        if self._listens:
            self._store.on_expire(self._events.append)

    def teardown(self) -> None:
        self._close()
        self._place.cleanup()

    # --- what may happen ----------------------------------------------------------------------

    @rule(family=families, call=reads)
    def read(self, family: str, call: Call) -> None:
        self._do(family, call)

    @rule(family=families, call=puts)
    def put(self, family: str, call: Call) -> None:
        self._do(family, call)

    @rule(family=families, call=conditionals)
    def put_conditionally(self, family: str, call: Call) -> None:
        self._do(family, call)

    @rule(family=families, call=renewals)
    def renew(self, family: str, call: Call) -> None:
        self._do(family, call)

    @rule(family=families, call=removals)
    def remove(self, family: str, call: Call) -> None:
        self._do(family, call)

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), seconds=pauses)
    def touch_something_alive(self, data: st.DataObject, seconds: float) -> None:
        family, key, _ = data.draw(st.sampled_from(self._alive()))
        self._clock.advance(seconds)
        self._do(family, Call("touch", (key,)))

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), value=values, named=NOTHING_NAMED | lifetimes)
    def swap_something_alive(
        self, data: st.DataObject, value: bytes, named: dict[str, Any]
    ) -> None:
        family, key, expected = data.draw(st.sampled_from(self._alive()))
        self._do(family, Call("compare_and_set", (key, expected, value), named))

    @rule(family=families)
    def clear(self, family: str) -> None:
        self._do(family, Call("clear"))
        self._forget_dead(family)

    @rule(name=families, default_ttl=default_ttls)
    def set_default_ttl(self, name: str, default_ttl: float | str | None) -> None:
        if default_ttl == "default":
            self._store.family(name, default_ttl=Ttl.DEFAULT)
            self._model.family(name, default_ttl="never")
        else:
            self._store.family(name, default_ttl=_for_store(default_ttl))
            self._model.family(name, default_ttl=default_ttl)

    @rule(name=st.sampled_from(FAMILIES[1:]))
    def drop_family(self, name: str) -> None:
        old = self._store.family(name) if name in self._model.families else None
        assert self._store.drop_family(name) == self._model.drop_family(name)
        self._forget_dead(name)
        if old is not None:
            assert _outcome(lambda: old.get(b"a")) == "ValueError"

    @rule(steps=transactions, ends_well=st.booleans())
    def transact(self, steps: list[Step], ends_well: bool) -> None:
        model = self._model.frozen()
        dead = self._model.dead()
        with self._store.transaction() as transaction:
            for step in steps:
                self._clock.advance(step.seconds)
                if step.family not in model.families:
                    assert _outcome(lambda: transaction.family(step.family)) == "ValueError"  # noqa: B023  called at once
                    continue
                target = (
                    transaction if step.family == "default" else transaction.family(step.family)
                )
                self._compare(target, model.family(step.family), step.call)
            if not ends_well:
                transaction.rollback()
        if ends_well:
            self._model.adopt(model)
            self._note_written_over(dead)

    @rule(steps=transactions)
    def transact_and_raise(self, steps: list[Step]) -> None:
        model = self._model.frozen()

        def raise_at_the_end() -> None:
            with self._store.transaction() as transaction:
                for step in steps:
                    if step.family in model.families:
                        target = transaction.family(step.family)
                        self._compare(target, model.family(step.family), step.call)
                raise KeyError("the block's own error")

        assert _outcome(raise_at_the_end) == "KeyError"

    @precondition(lambda self: len(self._snapshots) < SNAPSHOTS_MAX)
    @rule()
    def take_snapshot(self) -> None:
        self._snapshots.append((self._store.snapshot(), self._model.frozen()))

    @precondition(lambda self: self._snapshots)
    @rule(data=st.data(), family=families, call=reads)
    def read_snapshot(self, data: st.DataObject, family: str, call: Call) -> None:
        snapshot, model = data.draw(st.sampled_from(self._snapshots))
        if family in model.families:
            self._compare(snapshot.family(family), model.family(family), call)
        else:
            assert _outcome(lambda: snapshot.family(family)) == "ValueError"

    @precondition(lambda self: self._snapshots)
    @rule(data=st.data())
    def end_snapshot(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self._snapshots) - 1))
        snapshot, model = self._snapshots.pop(place)
        self._compare_whole(snapshot, model)
        snapshot.close()

    @rule(limit=st.none() | st.integers(0, 3), batch=st.sampled_from([1, 2, 1_000]))
    def purge(self, limit: int | None, batch: int) -> None:
        dead = self._model.dead()
        expected = dead[:limit]
        self._events.clear()
        assert self._store.purge_expired(limit=limit, batch=batch) == len(expected)
        if not self._listens:
            # Which of several with the same deadline went, nobody can tell: then all of them go.
            if expected != dead and expected and expected[-1][0] == dead[len(expected)][0]:
                assert self._store.purge_expired(batch=batch) == len(dead) - len(expected)
                expected = dead
            self._model.bury(expected)
            return
        told = [(event.deadline_ms, event.family, event.key, event.value) for event in self._events]
        assert len(set(told)) == len(told)
        purged = [death for death in told if death in dead]
        # Among equal deadlines the engine chooses; the deadlines themselves it cannot.
        assert [death[0] for death in purged] == [death[0] for death in expected]
        self._compare_told(told, dead, is_all=limit is None or len(expected) < limit)
        self._written_over -= set(told)
        self._model.bury(purged)

    def _compare_told(self, told: list[Death], dead: list[Death], *, is_all: bool) -> None:
        """What died and was written over before a purge is told with it, in its order."""
        untold = {*dead, *self._written_over} - set(told)
        assert set(told) <= {*dead, *self._written_over}
        assert [death[0] for death in told] == sorted(death[0] for death in told)
        if is_all:
            assert untold == set()
        elif told:
            assert all(death[0] >= told[-1][0] for death in untold)

    @rule(seconds=pauses)
    def let_time_pass(self, seconds: float) -> None:
        self._clock.advance(seconds)

    @rule()
    def checkpoint(self) -> None:
        self._store.checkpoint()

    @rule(method=st.sampled_from(["sync", "compact"]))
    def look_after(self, method: str) -> None:
        getattr(self._store, method)()

    @precondition(lambda self: self._engine.reopen is not None)
    @rule(seconds=pauses)
    def close_and_reopen(self, seconds: float) -> None:
        self._close()
        self._clock.advance(seconds)
        self._reopen()

    @precondition(lambda self: self._engine.reopen is not None and self.crash is not None)
    @rule(seconds=pauses)
    def crash_and_reopen(self, seconds: float) -> None:
        crash = type(self).crash
        assert crash is not None
        self._snapshots.clear()
        crash(self._store)
        self._clock.advance(seconds)
        self._reopen()

    # --- what must hold after each step -------------------------------------------------------

    @invariant()
    def the_store_is_its_model(self) -> None:
        assert sorted(self._store.families()) == sorted(self._model.families)
        self._compare_whole(self._store, self._model)

    @invariant()
    def the_store_is_clean(self) -> None:
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CHECKS == 0:
            assert self._store.check().problems == ()

    # --- how both are driven ------------------------------------------------------------------

    def _alive(self) -> list[tuple[str, bytes, bytes]]:
        return [
            (name, key, value)
            for name, family in self._model.families.items()
            for key, value in family.scan()
        ]

    def _do(self, family: str, call: Call) -> None:
        dead = self._model.dead()
        self._compare(self._store.family(family), self._model.family(family), call)
        self._note_written_over(dead)

    def _note_written_over(self, dead: list[Death]) -> None:
        self._written_over.update(set(dead) - set(self._model.dead()))

    def _forget_dead(self, family: str) -> None:
        """Nobody is told of keys that were cleared away."""
        self._written_over = {death for death in self._written_over if death[1] != family}

    def _compare(self, target: Any, model: Any, call: Call) -> None:
        """Any: a family, transaction or snapshot, and its model, with methods of the same names."""
        named = dict(call.named)
        if "at_in" in named:
            named["at"] = self._clock.now_ms() / 1000 + named.pop("at_in")
        for_store = {name: _for_store(value) for name, value in named.items()}
        expected = _outcome(lambda: getattr(model, call.method)(*call.given, **named))
        happened = _outcome(lambda: getattr(target, call.method)(*call.given, **for_store))
        assert happened == expected, f"{call} gave {happened!r}, not {expected!r}"

    def _compare_whole(self, view: Store | Snapshot, model: Model) -> None:
        for name, family in model.families.items():
            target = view.family(name)
            assert list(target.scan()) == family.scan()
            assert target.count() == family.count()
            assert [target.entry(key) for key in KEYS] == [family.entry(key) for key in KEYS]

    def _close(self) -> None:
        for snapshot, _ in self._snapshots:
            snapshot.close()
        self._snapshots.clear()
        self._store.close()

    def _reopen(self) -> None:
        assert self._engine.reopen is not None
        self._store = self._engine.reopen(self._clock, maintenance="manual")
        self.listen(self._listens)


def _outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the name of what it raises, for the store and the model alike."""
    try:
        result = call()
    except KeyError:
        return "KeyError"
    except (InvalidArgument, ValueError):
        return "ValueError"
    return (
        result
        if isinstance(result, (bytes, dict, tuple)) or not hasattr(result, "__iter__")
        else list(result)
    )


def _for_store(value: Any) -> Any:
    return TTL_WORDS.get(value, value) if isinstance(value, str) else value
