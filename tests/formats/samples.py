"""Keys of all kinds for round trips, how to put them into a Redis, and what a Redis holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import redis

from ephemera import Store
from ephemera.core.keyvalue import Range
from ephemera.core.row import NEVER_MS
from ephemera.formats.databases import family_of
from ephemera.formats.transfer import Record, RecordSource
from tests.wire.servers import Process

HOUR_MS = 3_600_000
DATABASES = (0, 3)
PIPELINED = 5_000

Keys = dict[tuple[str, bytes], tuple[bytes, int]]
"""By family and key: the value and its deadline."""


def sample(count: int, now_ms: int) -> Keys:
    """Binary keys and texts, numbers, long values; a third without a deadline, a third that die
    within the hour, a third later."""
    random = Random(count)
    keys: Keys = {}
    for number in range(count):
        family = family_of(DATABASES[number % len(DATABASES)])
        key = random.randbytes(random.randint(1, 40)) if number % 5 == 0 else b"key:%d" % number
        deadline_ms = NEVER_MS
        if number % 3:
            deadline_ms = now_ms + (number % 3 - 1) * HOUR_MS + HOUR_MS // 2 + number
        keys[family, key] = (_value(number, random), deadline_ms)
    return keys


def _value(number: int, random: Random) -> bytes:
    kinds = (
        lambda: b"%d" % random.randint(-200, 200),
        lambda: b"%d" % random.randint(-(2**31), 2**31),
        lambda: b"%d" % random.randint(-(2**63), 2**63),
        lambda: random.randbytes(random.randint(0, 100)),
        lambda: b"the same words again and again, " * random.randint(1, 8),
        lambda: f"grüße {number}".encode(),
    )
    if number % 500 == 0:
        return (b"large and compressible %d " % number) * 20_000
    if number % 500 == 1:
        return random.randbytes(300_000)
    return kinds[number % len(kinds)]()


def alive_at(keys: Keys, now_ms: int) -> Keys:
    return {place: held for place, held in keys.items() if held[1] > now_ms}


# --- what is held where ---------------------------------------------------------------------------


def client_of(
    server: Process, number: int = 0
) -> Any:  # Any: the client's own types fit neither kind
    return redis.Redis(server.host, server.port, db=number)


def fill(server: Process, keys: Keys) -> None:
    """Put all of these into a Redis."""
    for number in DATABASES:
        with client_of(server, number) as client, client.pipeline(transaction=False) as pipeline:
            own = [item for item in keys.items() if item[0][0] == family_of(number)]
            for at, ((_, key), (value, deadline_ms)) in enumerate(own, 1):
                pipeline.set(key, value, pxat=None if deadline_ms == NEVER_MS else deadline_ms)
                if at % PIPELINED == 0:
                    pipeline.execute()
            pipeline.execute()


def held_by_redis(server: Process, databases: Mapping[str, int] | None = None) -> Keys:
    """Every string of a Redis with its deadline."""
    held: Keys = {}
    names = databases or {family_of(number): number for number in range(16)}
    for name, number in names.items():
        with client_of(server, number) as client:
            keys = list(set(client.scan_iter(count=PIPELINED, _type="string")))
            with client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.get(key)
                    pipeline.execute_command("PEXPIRETIME", key)
                replies = pipeline.execute()
        for key, value, told in zip(keys, replies[::2], replies[1::2], strict=True):
            held[name, key] = (value, NEVER_MS if told == -1 else told)
    return held


def held_by_store(store: Store) -> Keys:
    engine = store.engine
    held: Keys = {}
    for name in engine.families():
        family = engine.family(name, create=False)
        assert family is not None
        for key, row in engine.scan(family, Range(), None):
            held[name, key] = (row.value, row.deadline_ms)
    return held


def yielded(source: RecordSource | Iterable[Record]) -> Keys:
    """What a source yields."""
    return {(family, key): (row.value, row.deadline_ms) for family, key, row in source}
