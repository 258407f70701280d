"""Damage from outside: flip bits of a store's files or cut them off, open it, and judge what it says.

A trial lays out the files of an `Image` with one damage, in a process of its own kind: a child does one
trial after the other, and where it dies or gets stuck, that is the verdict on the damage at hand.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from ephemera import CorruptStore, EphemeraError, ManualClock, Store, StoreFull
from tests.crash.processes import CONTEXT
from tests.engines.local.stores import open_local

PATIENCE_SECONDS = 20.0
"""How long a trial may take before it counts as stuck."""
CPU_SECONDS = 3_600
GOES_ON_EVERY = 16
"""A store that one in so many damages left is written to and opened once more."""
Contents = dict[str, dict[bytes, tuple[bytes, datetime | None]]]
"""Of each family the keys, with value and deadline."""

WHOLE = "whole"
PREFIX = "prefix"
REFUSED = "refused"
CONFINED = "confined"
REPORTED = "reported"
DIED = "died of "
"""And then the signal."""


class Damage(NamedTuple):
    """Bits turned over in one byte of a file; or the file cut off there, where `flip` is 0."""

    file: str
    offset: int
    flip: int = 0

    def inflict(self, content: bytes) -> bytes:
        if not self.flip:
            return content[: self.offset]
        at = self.offset
        return content[:at] + bytes([content[at] ^ self.flip]) + content[at + 1 :]


class Image(NamedTuple):
    """A store's files, and what it held after each of its transactions: all of it last."""

    files: dict[str, bytes]
    states: list[Contents]
    now_ms: int

    @classmethod
    def of(cls, path: Path, states: list[Contents], now_ms: int) -> Image:
        files = {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and not file.name.endswith("-lock")
        }
        return cls(files, states, now_ms)

    def lay_out(self, path: Path, damage: Damage) -> None:
        shutil.rmtree(path, ignore_errors=True)
        for directory in ("base", "locks", "segments"):
            (path / directory).mkdir(parents=True)
        for name, content in self.files.items():
            (path / name).write_bytes(damage.inflict(content) if name == damage.file else content)


Judge = Callable[[Path, Image, Damage], str]


def contents_of(store: Store) -> Contents:
    """Everything in a store, by every way of reading, which must agree."""
    found: Contents = {}
    for name in store.families():
        family = store.family(name)
        rows = list(family.scan())
        entries = {key: family.entry(key) for key, _ in rows}
        assert rows == list(family.scan(reverse=True))[::-1]
        assert rows == [(key, family.get(key)) for key, _ in rows]
        assert rows == [(key, entry and entry.value) for key, entry in entries.items()]
        assert family.count() == len(rows)
        found[name] = {
            key: (entry.value, entry.deadline) for key, entry in entries.items() if entry
        }
    return found


# --- trials ---------------------------------------------------------------------------------------


def try_all(
    place: Path, image: Image, damages: Sequence[Damage], judge: Judge
) -> dict[Damage, str]:
    """The verdict on each damage."""
    verdicts: dict[Damage, str] = {}
    assert len(set(damages)) == len(damages)
    while len(verdicts) < len(damages):
        waiting = damages[len(verdicts) :]
        pipe, theirs = CONTEXT.Pipe(duplex=False)
        child = CONTEXT.Process(
            target=_try, args=(theirs, place, image, waiting, judge), daemon=True
        )
        child.start()
        theirs.close()
        for damage in waiting:
            verdict = _hear(pipe)
            verdicts[damage] = verdict or _end_of(child)
            if verdict is None:
                break
        child.join()
        pipe.close()
    return verdicts


def _hear(pipe: Connection) -> str | None:
    """What a child says of a damage; None when it died or is stuck."""
    with contextlib.suppress(EOFError):
        if pipe.poll(PATIENCE_SECONDS):
            return str(pipe.recv())
    return None


def _end_of(child: BaseProcess) -> str:
    child.join(1)
    if child.is_alive():
        child.kill()
        child.join()
        return "stuck"
    assert child.exitcode, "it left without a word"
    return f"{DIED}{signal.Signals(-child.exitcode).name}"


def _try(
    pipe: Connection, place: Path, image: Image, damages: Iterable[Damage], judge: Judge
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    for damage in damages:
        image.lay_out(place, damage)
        try:
            verdict = judge(place, image, damage)
        except Exception as error:
            verdict = f"{type(error).__name__}: {error}"
        pipe.send(verdict)


def others(verdicts: dict[Damage, str], *fine: str) -> dict[str, list[Damage]]:
    """The verdicts that are none of these, with some of the damages: {} is what a test wants."""
    found: dict[str, list[Damage]] = {}
    for damage, verdict in verdicts.items():
        if not verdict.startswith(fine):
            found.setdefault(verdict, []).append(damage)
    return {verdict: damages[:5] for verdict, damages in found.items()}


def deaths(verdicts: dict[Damage, str]) -> int:
    return sum(verdict.startswith(DIED) for verdict in verdicts.values())


def tally(verdicts: dict[Damage, str]) -> Counter[str]:
    return Counter(verdicts.values())


# --- judges ---------------------------------------------------------------------------------------


def judge_log(path: Path, image: Image, damage: Damage) -> str:
    """For damage that recovery must find: a prefix of what was written, or nothing at all."""
    try:
        store = open_local(path, ManualClock(image.now_ms))
    except CorruptStore:
        return REFUSED
    with store:
        found = contents_of(store)
        if found not in image.states:
            return f"wrong contents: {found}"
        if not store.check().is_clean:
            return f"check: {store.check().problems}"
        verdict = WHOLE if found == image.states[-1] else PREFIX
        if damage.offset % GOES_ON_EVERY:
            return verdict
        store.put("on", "we go")
        store.checkpoint()
    with open_local(path, ManualClock(image.now_ms)) as store:
        found["default"][b"on"] = (b"we go", None)
        return verdict if contents_of(store) == found else "wrong contents after a checkpoint"


def judge_base(path: Path, image: Image, damage: Damage) -> str:
    """For damage to the base tier: it is found by whoever reads there, and confined to that."""
    try:
        store = open_local(path, ManualClock(image.now_ms))
    except (CorruptStore, StoreFull):
        # Full: where LMDB keeps how much it maps.
        return REFUSED
    with store:
        flaws = {
            flaw for name, rows in image.states[-1].items() for flaw in _flaws(store, name, rows)
        }
        wrong = sorted(flaws - {"missing", "raised"})
        is_clean = store.check().is_clean
    if wrong:
        return ", ".join(wrong)
    if not flaws:
        return WHOLE
    if is_clean:
        return f"{', '.join(sorted(flaws))}, and check() is clean"
    return CONFINED if flaws == {"raised"} else REPORTED


def _flaws(
    store: Store, name: str, rows: dict[bytes, tuple[bytes, datetime | None]]
) -> Iterable[str]:
    """What is wrong with a family that must have these rows."""
    if name not in store.families():
        yield "missing"
        return
    family = store.family(name)
    for key, right in rows.items():
        try:
            entry = family.entry(key)
            value = family.get(key)
        except CorruptStore:
            yield "raised"
            continue
        if entry is None or value is None:
            yield "missing"
        elif (entry.value, entry.deadline) != right or value != right[0]:
            yield f"wrong value of {key!r}"
    for is_reverse in (False, True):
        found: list[tuple[bytes, bytes]] = []
        try:
            found.extend(family.scan(reverse=is_reverse))
            if len(found) < len(rows):
                yield "missing"
        except CorruptStore:
            yield "raised"
        keys = [key for key, _ in found]
        if keys != sorted(set(keys), reverse=is_reverse):
            yield "a scan without order"
        if any(rows.get(key, (None,))[0] != value for key, value in found):
            yield "a wrong row in a scan"


def judge_writes(path: Path, image: Image, damage: Damage) -> str:
    """For damage to the base tier that a writer meets: it may fail, in our words."""
    clock = ManualClock(image.now_ms)
    try:
        store = open_local(path, clock)
    except EphemeraError:
        return REFUSED
    verdict = WHOLE
    writes: list[Callable[[], Any]] = [  # Any: what they return does not matter
        lambda: store.put_many({b"%03d" % n: b"x" * 500 for n in range(40)}),
        lambda: store.put("large", b"x" * 9_000, ttl=5),
        store.checkpoint,
        lambda: clock.advance(1_000),
        store.purge_expired,
        lambda: store.drop_family("other"),
        store.purge_expired,
        store.compact,
        store.close,
    ]
    for write in writes:
        try:
            write()
        except EphemeraError:
            verdict = CONFINED
    return verdict


def judge_live_numbers(path: Path, image: Image, damage: Damage) -> str:
    """For damage to the control page while a store is open: errors may follow, and no wrong value."""
    added = (b"on", b"we go")
    right = {key: value for key, (value, _) in image.states[-1]["default"].items()}
    with contextlib.ExitStack() as closing:

        def opened() -> Store:
            store = open_local(path, ManualClock(image.now_ms), lock_timeout=0.2)
            closing.callback(_close, store)
            return store

        store = opened()
        _damage_in_place(path / damage.file, damage)
        verdict = WHOLE
        reads: list[Callable[[], Iterable[tuple[bytes, bytes | None]]]] = [
            store.scan,
            lambda: [(key, store.get(key)) for key in right],
            lambda: [added] if store.put(*added) is None else [],
            store.scan,
            lambda: opened().scan(),
        ]
        for read in reads:
            try:
                found = dict(read())
            except EphemeraError:
                verdict = CONFINED
                continue
            if found.items() - {added} - right.items():
                return f"wrong rows: {found}"
        return verdict


def _damage_in_place(file: Path, damage: Damage) -> None:
    """Where it is mapped, for all who map it."""
    content = damage.inflict(file.read_bytes())
    with file.open("r+b") as mapped:
        os.pwrite(mapped.fileno(), content[damage.offset : damage.offset + 1], damage.offset)


def _close(store: Store) -> None:
    with contextlib.suppress(EphemeraError):
        store.close()
