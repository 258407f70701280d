"""Writers that will be killed, and the ledger that knows what must be there afterwards.

What a writer does follows from its number and the operation's index alone, and it reports an
operation after it was acknowledged. So whoever reads the reports knows all that was acknowledged, and the
one operation after it that may have been under way when the writer died.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Collection
from hashlib import blake2b
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import ephemera
from tests.crash.processes import PATIENCE_SECONDS, Peer, Seat

REPORT = struct.Struct("<qqq")
"""Index of an acknowledged operation, when it was called and when it returned."""
PAUSED = -1

PRIVATE_KEYS = 12
BATCHES = 3
BATCH_KEYS = 8
SHARED_KEYS = 4
GROUPS = 3
LONG_TTL_SECONDS = 3600.0
SHORT_TTL_SECONDS = 0.02
FAMILY = "ledger"
LARGE_BYTES = 4_000
COUNTER = b"hits"


class Planned(NamedTuple):
    """An operation: what is done to which thing, and the value that it leaves there, if any."""

    kind: str
    place: bytes
    value: bytes | None


WEIGHTS = {
    "private": 20,
    "remove": 6,
    "touch": 8,
    "batch": 8,
    "brief": 6,
    "shared": 14,
    "unshare": 4,
    "group": 14,
    "ungroup": 4,
    "count": 16,
}
KINDS = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
LEAVES_NOTHING = ("remove", "touch", "unshare", "ungroup")


def plan(writer: int, index: int) -> Planned:
    """The operation of this writer at this index."""
    value = b"%d.%d" % (writer, index)
    # A digest costs a tenth of a seeded generator, and writers must not outrun the ledger.
    draw = blake2b(value, digest_size=8).digest()
    kind = KINDS[int.from_bytes(draw[:2]) % len(KINDS)]
    # Some values are large, so that segments rotate while somebody dies.
    if draw[2] % 5 == 0:
        value += b" " * (int.from_bytes(draw[3:5]) % LARGE_BYTES)
    number = int.from_bytes(draw[5:])
    if kind in ("private", "remove", "touch"):
        place = b"own:%d:%d" % (writer, number % PRIVATE_KEYS)
    elif kind == "brief":
        place = b"brief:%d:%d" % (writer, number % PRIVATE_KEYS)
    elif kind == "batch":
        place = b"batch:%d:%d" % (writer, number % BATCHES)
    elif kind in ("shared", "unshare"):
        place = b"shared:%d" % (number % SHARED_KEYS)
    elif kind in ("group", "ungroup"):
        place = b"group:%d" % (number % GROUPS)
    else:
        return Planned(kind, COUNTER, None)
    return Planned(kind, place, None if kind in LEAVES_NOTHING else value)


def keys_of(place: bytes) -> list[bytes]:
    """The keys that an operation of one writer's own writes together."""
    if place.startswith(b"batch"):
        return [b"%s:%d" % (place, number) for number in range(BATCH_KEYS)]
    return [place]


def perform(store: ephemera.Store, writer: int, operation: Planned) -> None:
    kind, place, value = operation
    if kind == "count":
        store.incr(place)
        store.incr(b"%s:%d" % (place, writer))
    elif kind == "group":
        assert value is not None
        with store.transaction() as txn:
            txn.put(place + b":a", value, ttl=LONG_TTL_SECONDS)
            txn.family(FAMILY).put(place + b":b", value)
            txn.put(place + b":c", value, idle=LONG_TTL_SECONDS)
    elif kind == "ungroup":
        with store.transaction() as txn:
            txn.delete(place + b":a")
            txn.family(FAMILY).delete(place + b":b")
            txn.delete(place + b":c")
    elif kind == "touch":
        store.touch(place, ttl=LONG_TTL_SECONDS)
    elif kind == "batch":
        assert value is not None
        store.put_many(dict.fromkeys(keys_of(place), value), ttl=LONG_TTL_SECONDS)
    elif value is None:
        store.delete(place)
    else:
        store.put(place, value, ttl=SHORT_TTL_SECONDS if kind == "brief" else LONG_TTL_SECONDS)


def write_on(seat: Seat, writer: int, reports: str) -> None:
    """Write until killed; pause when the test says so, until it speaks again."""
    pipe = os.open(reports, os.O_WRONLY)
    index = 0
    while True:
        if seat.pipe.poll():
            if seat.hear() == "stop":
                return
            os.write(pipe, REPORT.pack(PAUSED, index, 0))
            if seat.hear() == "stop":
                return
        called_ns = time.monotonic_ns()
        perform(seat.store, writer, plan(writer, index))
        os.write(pipe, REPORT.pack(index, called_ns, time.monotonic_ns()))
        index += 1


class Writer:
    """A writer in a process of its own, and what it reported."""

    def __init__(self, number: int, path: Path, place: Path, **options: Any) -> None:
        self.number = number
        self.acknowledged = 0
        self.is_paused = False
        self.died_ns: int | None = None
        fifo = place / f"writer-{number}"
        os.mkfifo(fifo)
        self.reports = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self._unread = b""
        self.peer = Peer(path, **options)
        self.peer.tell(write_on, number, str(fifo))

    @property
    def sources(self) -> tuple[int, int]:
        """Where its reports come in, and its answer: a writer that raised something reports no more."""
        return self.reports, self.peer.fileno()

    def read(self) -> list[tuple[int, int, int]]:
        """The reports that have come in; what the writer raised is raised here."""
        if self.died_ns is None and self.peer.has_answered():
            self.peer.answer()
        try:
            while part := os.read(self.reports, 1 << 16):
                self._unread += part
        except BlockingIOError:
            pass
        whole = len(self._unread) - len(self._unread) % REPORT.size
        data, self._unread = self._unread[:whole], self._unread[whole:]
        return list(REPORT.iter_unpack(data))

    def die(self) -> None:
        """It was killed: wait for its end."""
        self.peer.join(-signal.SIGKILL)
        self.died_ns = time.monotonic_ns()

    def stop(self) -> None:
        self.peer.say("stop")
        self.peer.answer()
        self.peer.close()

    @property
    def pending(self) -> Planned:
        """What may have been under way when it died."""
        return plan(self.number, self.acknowledged)


class Candidate(NamedTuple):
    """A value that a shared place may hold: until a write is called after this one had returned."""

    value: bytes | None
    returned_ns: int


class Ledger:
    """What was acknowledged, and so what must be there."""

    def __init__(self) -> None:
        self.own: dict[int, dict[bytes, bytes | None]] = {}
        self.own_counts: dict[int, int] = {}
        self.shared: dict[bytes, list[Candidate]] = {}
        self.count = 0
        self.counts_pending = 0
        self.operations = 0

    def acknowledge(self, writer: int, index: int, called_ns: int, returned_ns: int) -> None:
        kind, place, value = plan(writer, index)
        self.operations += 1
        if kind in ("private", "remove", "brief", "batch"):
            self.own.setdefault(writer, {})[place] = value
        elif kind == "touch":
            pass  # The value stays.
        elif kind == "count":
            self.count += 1
            self.own_counts[writer] = self.own_counts.get(writer, 0) + 1
        else:
            at_first = [Candidate(None, 0)]
            others = self.shared.get(place, at_first)
            standing = [other for other in others if other.returned_ns >= called_ns]
            self.shared[place] = [*standing, Candidate(value, returned_ns)]

    def bury(self, writer: Writer) -> None:
        """A writer died: what it had begun may be there or not."""
        kind, place, value = writer.pending
        assert writer.died_ns is not None
        if kind == "count":
            self.counts_pending += 1
        elif kind in ("shared", "unshare", "group", "ungroup"):
            at_first = [Candidate(None, 0)]
            self.shared.setdefault(place, at_first).append(Candidate(value, writer.died_ns))

    def verify(self, store: ephemera.Store, writers: list[Writer]) -> int:
        """Compare with the store while nobody writes; returns how many facts were looked at."""
        found = dict(store.scan())
        facts = sum(self._verify_own(store, found, writer) for writer in writers)
        count = int(found.get(COUNTER, b"0"))
        assert self.count <= count <= self.count + self.counts_pending
        with store.snapshot() as snap:
            for place, candidates in self.shared.items():
                value = snap.get(place + b":a" if place.startswith(b"group") else place)
                assert value in [candidate.value for candidate in candidates], place
                if place.startswith(b"group"):
                    assert snap.get(place + b":c") == value, place
                    assert snap.family(FAMILY).get(place + b":b") == value, place
                facts += 1
        assert store.check().problems == ()
        return facts + 1

    def _verify_own(self, store: ephemera.Store, found: dict[bytes, bytes], writer: Writer) -> int:
        pending = writer.pending if writer.died_ns is not None else None
        own = self.own.get(writer.number, {})
        for place, value in own.items():
            allowed = {value}
            if pending is not None and pending.place == place and pending.kind != "touch":
                allowed.add(pending.value)
            values = {self._value_of(store, found, key, allowed) for key in keys_of(place)}
            assert len(values) == 1, place
        counted = self.own_counts.get(writer.number, 0)
        is_counting = pending is not None and pending.kind == "count"
        held = int(found.get(b"%s:%d" % (COUNTER, writer.number), b"0"))
        assert counted <= held <= counted + is_counting
        return len(own) + 1

    def _value_of(
        self,
        store: ephemera.Store,
        found: dict[bytes, bytes],
        key: bytes,
        allowed: set[bytes | None],
    ) -> bytes | None:
        """Return the key's value, in which every way of reading and `put_if_absent` must agree."""
        entry = store.entry(key)
        value = None if entry is None else entry.value
        is_brief = key.startswith(b"brief")
        assert value in (allowed | {None} if is_brief else allowed), key
        if entry is not None:
            assert entry.ttl is not None
            assert 0 < entry.ttl <= (SHORT_TTL_SECONDS if is_brief else LONG_TTL_SECONDS)
        if not is_brief:
            assert found.get(key) == value, key
            assert store.get(key) == value, key
            assert value is None or not store.put_if_absent(key, b"absent"), key
        return value

    def forget(self, store: ephemera.Store, writer: Writer) -> None:
        """Delete the keys of a dead writer's own, and those that its last operation may have left."""
        places = set(self.own.pop(writer.number, {}))
        if writer.pending.kind in ("private", "brief", "batch"):
            places.add(writer.pending.place)
        store.delete_many(key for place in places for key in keys_of(place))
        store.delete(b"%s:%d" % (COUNTER, writer.number))


class Crew:
    """Writers at work on one store, with a ledger of what they were told was kept."""

    def __init__(self, path: Path, place: Path, size: int, **options: Any) -> None:
        self._path = path
        self._place = place
        self._options = options
        self._started = 0
        self.ledger = Ledger()
        self.writers: list[Writer] = []
        for _ in range(size):
            self.hire()

    def hire(self) -> None:
        self.writers.append(Writer(self._started, self._path, self._place, **self._options))
        self._started += 1

    def work(self, reports: int) -> None:
        """Return when so many more operations were acknowledged by each writer, on average."""
        wanted = self.ledger.operations + reports * len(self.writers)
        while self.ledger.operations < wanted:
            self._listen()

    def work_each(self, reports: int) -> None:
        """Return when every living writer got so many more operations done."""
        goals = [(writer, writer.acknowledged + reports) for writer in self.writers]
        while any(w.died_ns is None and w.acknowledged < goal for w, goal in goals):
            self._listen()

    def pause(self, *, but: Collection[Writer] = ()) -> None:
        """Have every living writer wait until `resume`, except those in `but`."""
        active = [
            writer
            for writer in self.writers
            if writer.died_ns is None and not writer.is_paused and writer not in but
        ]
        for writer in active:
            writer.peer.say("pause")
        while not all(writer.is_paused for writer in active):
            self._listen()

    def resume(self) -> None:
        for writer in self.writers:
            if writer.is_paused:
                writer.is_paused = False
                writer.peer.say("go on")

    def kill(self, *victims: Writer) -> None:
        for victim in victims:
            victim.peer.strike()
        for victim in victims:
            victim.die()
        for victim in victims:
            self._take(victim)
            self.ledger.bury(victim)

    def remove(self, victim: Writer) -> None:
        os.close(victim.reports)
        self.writers.remove(victim)

    def stop(self) -> None:
        self.pause()
        for writer in list(self.writers):
            writer.stop()
            self.remove(writer)

    def _listen(self) -> None:
        alive = [writer for writer in self.writers if writer.died_ns is None]
        ready = wait([source for writer in alive for source in writer.sources], PATIENCE_SECONDS)
        assert ready, "no writer gets anything done"
        for writer in alive:
            if not set(ready).isdisjoint(writer.sources):
                self._take(writer)

    def _take(self, writer: Writer) -> None:
        for index, called_ns, returned_ns in writer.read():
            if index == PAUSED:
                assert called_ns == writer.acknowledged
                writer.is_paused = True
                continue
            assert index == writer.acknowledged
            writer.acknowledged += 1
            self.ledger.acknowledge(writer.number, index, called_ns, returned_ns)
