"""What all clients of a server share: the store and its databases, settings, counters, and who listens."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, cast

import ephemera
from ephemera import Family, Store, Transaction
from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.core.keyvalue import Gathers, KeyValue
from ephemera.core.options import Durability
from ephemera.resp.replies import Refused
from ephemera.server._direct import ServerCounters
from ephemera.server.busy import Busy
from ephemera.server.cursors import Cursors
from ephemera.server.database import Database
from ephemera.server.events import EXPIRED, Event
from ephemera.server.expirations import Expirations
from ephemera.server.expirylag import ExpiryLag
from ephemera.server.gathering import Gathered
from ephemera.server.latency import Latency
from ephemera.server.notifications import Notifications
from ephemera.server.pacing import Pacing
from ephemera.server.pause import Pause
from ephemera.server.pubsub import Hub
from ephemera.server.rates import Done, Rates
from ephemera.server.saving import Saving
from ephemera.server.scripts import Scripts
from ephemera.server.settings import DATABASES, Settings
from ephemera.server.slowlog import SlowLog
from ephemera.server.table import Command, Commands
from ephemera.server.tracking import Tracking
from ephemera.server.watches import Watches

if TYPE_CHECKING:
    from ephemera.server.session import Session

OnChange = Callable[[int, bytes | None, Event], object]
"""Told the database, the key (None: all of them) and what happened."""


def open_store(
    url: str,
    *,
    durability: Durability = "interval",
    read_only: bool = False,
    clock: ephemera.Clock | None = None,
) -> Store:
    """A store for one server alone; with `read_only`, one that another process may write.

    With "commit" the listener syncs once for all the clients of an event-loop tick; the store
    must not do so for every write as well.
    """
    own: Durability = "none" if durability == "commit" else durability
    store = ephemera.open(
        url, exclusive=not read_only, read_only=read_only, durability=own, clock=clock
    )
    if read_only or not isinstance(store.engine, Gathers):
        return store
    # An engine asks for FamilyRefs of its own making where the protocol allows any.
    return Store(cast(KeyValue, Gathered(store.engine)), url, default_ttl_ms=None)


def family_name(number: int) -> str:
    """The family that a database is: 0 is the store's own, so that a program finds it there."""
    return f"db{number}" if number else DEFAULT_FAMILY


FAMILIES = tuple(family_name(number) for number in range(DATABASES))


class Aside(NamedTuple):
    """A transaction that is under way while others are served."""

    transaction: Transaction | None
    inside: dict[int, Database]
    untold: list[Callable[[], object]]
    abandoned: Refused | None


class Server(ServerCounters):
    """One served store. Everything here belongs to one thread.

    `families` names the family of each database, made when it is not there.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings | None = None,
        *,
        families: Sequence[str] = FAMILIES,
    ) -> None:
        super().__init__(store.clock)
        self.store = store
        self.families = families
        self.settings = settings or Settings()
        self.commands = Commands(self.settings.renamed)
        self.now_ms = store.clock.now_ms
        self.started_ms = self.now_ms()
        self.clients: dict[int, Session] = {}
        self.listeners = []
        self.expirations = Expirations(self)
        self.cursors = Cursors()
        self.monitors: list[Session] = []
        self.pause = Pause()
        self.pacing = Pacing(self)
        self.busy = Busy(self)
        self.stop: Callable[[], object] = _stay
        self.run_id = token_hex(20)
        self.expiry_lag = ExpiryLag(store)
        self.saving = Saving(store, families, lambda: self.changes)
        self.settings.dir = str(self.saving.directory or "")
        self.slowlog = SlowLog(self.settings)
        self.latency = Latency(self.settings)
        self._review_timing()
        self.rates = Rates(self.started_ms)
        self.errors: Counter[str] = Counter()
        self.connections = 0
        self.refused_connections = 0
        self._client_ids = itertools.count(1)
        # All of them now: inside a transaction no family can be made.
        self._databases = [
            Database(self, number, store.family(name), store.engine)
            for number, name in enumerate(_served(store, families))
        ]
        self._transaction: Transaction | None = None
        self._inside: dict[int, Database] = {}
        self._untold: list[Callable[[], object]] = []
        self._abandoned: Refused | None = None
        self.hand_over: Callable[[Callable[[], object]], object] = _call
        self.numbers = {name: number for number, name in enumerate(families)}
        self.watches = Watches(self)
        self.tracking = Tracking(self)
        self.pubsub = Hub()
        self.notifications = Notifications(self)
        self.scripts = Scripts(self)

    # --- databases ----------------------------------------------------------------------------

    def database(self, number: int) -> Database:
        """The database of this number; inside a transaction, the one that writes into it.

        Raises Refused where there are not so many.
        """
        if number >= len(self._databases):
            raise Refused("ERR DB index is out of range")
        if self._transaction is None:
            return self._databases[number]
        inside = self._inside.get(number)
        if inside is None:
            # A transaction's keyspace: the operations of a Family without its name.
            space = cast(Family, self._transaction.family(self.families[number]))
            inside = self._inside[number] = Database(self, number, space, None)
        return inside

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Let everything in the block be one transaction of the store, told of once it is committed.

        Inside another one it is a part of that.
        """
        if self._transaction is not None:
            yield
            return
        try:
            with self.store.transaction() as self._transaction:
                yield
                if self._abandoned is not None:
                    raise self._abandoned
        except BaseException:
            self._untold.clear()
            raise
        finally:
            self._transaction = self._abandoned = None
            self._inside.clear()
        untold, self._untold = self._untold, []
        for act in untold:
            act()

    def set_aside(self) -> Aside:
        """Be outside the transaction under way until it is brought back."""
        aside = Aside(self._transaction, self._inside, self._untold, self._abandoned)
        self._transaction, self._inside, self._untold, self._abandoned = None, {}, [], None
        return aside

    def bring_back(self, aside: Aside) -> None:
        self._transaction, self._inside, self._untold, self._abandoned = aside

    @property
    def is_inside_transaction(self) -> bool:
        """Whether the command under way runs inside EXEC or a script."""
        return self._transaction is not None

    def abandon(self, reason: Refused) -> None:
        """Let nothing of the transaction under way be written: it ends with this error."""
        self._abandoned = reason

    def tell(self, number: int, key: bytes | None, event: Event) -> None:
        """Tell all who listen what happened to a key, after the commit if it is inside a transaction.

        An expired key is told to the listeners of `expirations`, and to nobody else.
        """
        if self._transaction is not None:
            self._untold.append(partial(self.tell, number, key, event))
            return
        for listener in tuple(self.expirations.listeners if event is EXPIRED else self.listeners):
            listener(number, key, event)

    def after_commit(self, act: Callable[[], object]) -> None:
        """Do something now; inside a transaction, once it is committed, in turn with what is told."""
        if self._transaction is None:
            act()
        else:
            self._untold.append(act)

    def tell_new_keys(self, is_wanted: bool) -> None:
        """Whether writes find out, and tell, that their key was not there before."""
        self.tells_new_keys = is_wanted

    # --- clients ------------------------------------------------------------------------------

    def enter(self, session: Session) -> int:
        """Count a new client in; its id."""
        number = next(self._client_ids)
        self.clients[number] = session
        self.connections += 1
        return number

    def leave(self, session: Session) -> None:
        self.clients.pop(session.id, None)
        self.pacing.forget(session)
        self.release(session)

    def release(self, session: Session) -> None:
        """End what a client holds: watched keys, tracking and subscriptions."""
        self.watches.forget(session)
        self.tracking.disable(session)
        self.pubsub.leave(session)

    # --- what all clients are held to ---------------------------------------------------------

    @property
    def is_special(self) -> bool:
        """Whether somebody watches every command, or commands have to wait, or are refused for a while."""
        return bool(self.monitors) or self.pause.until_ms > 0 or self.busy.is_on

    def monitor(self, session: Session) -> None:
        """Show this client every command from here on."""
        self.monitors.append(session)
        self.review()

    def unmonitor(self, session: Session) -> None:
        if session in self.monitors:
            self.monitors.remove(session)
            self.review()

    def review(self) -> None:
        """Let all that depends on settings, monitors and pauses follow a change of them."""
        self.slowlog.trim()
        self._review_timing()
        self.notifications.review()
        for session in self.clients.values():
            session.review()

    def unpause(self) -> None:
        """Let the commands that waited run."""
        self.pause.end()
        self.review()
        for session in tuple(self.clients.values()):
            if session.is_postponed:
                session.wake()

    # --- counters -----------------------------------------------------------------------------

    def _review_timing(self) -> None:
        """Follow the settings of what is measured: `note_slow` is called from `slow_ns` nanoseconds on."""
        settings = self.settings
        spike_ns = settings.latency_monitor_threshold * 1e6 or math.inf
        slow_ns = settings.slowlog_log_slower_than * 1e3
        self.slow_ns = spike_ns if slow_ns < 0 else min(slow_ns, spike_ns)
        self.tracks_latency = settings.latency_tracking

    def note_slow(
        self, session: Session, command: Command, args: list[bytes], took_ns: int
    ) -> None:
        micros, now_ms = took_ns // 1000, self.now_ms()
        self.latency.note(command, micros, at_ms=now_ms)
        if 0 <= self.settings.slowlog_log_slower_than <= micros:
            self.slowlog.note(
                args, micros, at_ms=now_ms, address=session.address, name=session.name
            )

    def done(self) -> Done:
        """What was done since the start, or since the counters were reset."""
        commands = sum(command.calls for command in self.commands.all.values())
        return Done(commands, self.input_bytes, self.output_bytes)

    def run_cron(self) -> None:
        """Do the periodic work: to be called once a second."""
        self.rates.look(self.now_ms(), self.done())

    def reset_counters(self) -> None:
        """Count from here on: CONFIG RESETSTAT."""
        self.hits = self.misses = self.connections = self.refused_connections = 0
        self.input_bytes = self.output_bytes = 0
        self.errors.clear()
        self.expiry_lag.reset()
        for command in self.commands.all.values():
            command.reset_counters()


def _served(store: Store, families: Sequence[str]) -> Sequence[str]:
    """The families to serve. Where none can be made, those up to the first that is not there."""
    if not store.engine.is_read_only:
        return families
    there = set(store.families())
    return list(itertools.takewhile(there.__contains__, families))


def _call(act: Callable[[], object]) -> None:
    """How a thread of the store hands work over while nobody serves: it does it itself."""
    act()


def _stay() -> None:
    """What SHUTDOWN does while nobody serves."""
