"""A store goes round: local → SlateDB on S3 → a Redis cluster → local, and is the same at every station."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import Store, Ttl
from ephemera.core.keyvalue import Range
from ephemera.core.row import Row
from ephemera.formats import transfer
from ephemera.formats.copying import Copy
from tests.cli.typing_it import ok
from tests.engines.redis import servers
from tests.engines.slatedb import buckets
from tests.house.source import ROOT

YEAR_3000_S = 32_503_680_000.0
BATCH_KEYS = 200
SYNCED_KEYS = 400

Contents = dict[str, tuple[int | None, dict[bytes, Row]]]


def fill(path: Path, keys: int) -> None:
    """Rows of every kind in three families; no deadline is near enough to come on the way."""
    rng = random.Random(3)
    lives: list[dict[str, Any]] = [
        {},
        {"at": YEAR_3000_S},
        {"at": YEAR_3000_S + 0.001},
        {"at": YEAR_3000_S, "idle": 86_400 * 365},
    ]
    with ephemera.open(path, durability="none") as store:
        families = [
            store,
            store.family("sessions", default_ttl=1800),
            store.family("never", default_ttl=Ttl.NEVER),
        ]
        for start in range(0, keys, 1_000):
            for number, family in enumerate(families):
                life = lives[(start // 1_000 + number) % len(lives)]
                some = range(start + number, min(start + 1_000, keys), len(families))
                pairs = {b"%08d\xff\x00" % n: rng.randbytes(rng.randrange(80)) for n in some}
                family.put_many(pairs, **life)


def contents(url: str | Path) -> Contents:
    with ephemera.open(url, read_only=True) as store:
        return read(store)


def read(store: Store) -> Contents:
    """Everything that is kept: default TTLs, and rows with all their times."""
    engine = store.engine
    found: Contents = {}
    for name in engine.families():
        ref = engine.family(name, create=False)
        assert ref is not None
        found[name] = ref.default_ttl_ms, dict(engine.scan(ref, Range(), None))
    return found


@pytest.fixture
def cluster() -> Iterator[str]:
    servers.cluster().flush()
    yield servers.cluster().url
    servers.cluster().flush()


def go_round(tmp_path: Path, slatedb: str, cluster: str, keys: int) -> None:
    fill(tmp_path / "one", keys)
    expected = contents(tmp_path / "one")
    assert sum(len(rows) for _, rows in expected.values()) == keys
    stations = [str(tmp_path / "one"), slatedb, cluster, str(tmp_path / "two")]
    for source, target in pairwise(stations):
        done = ok("copy", source, target, "--verify", "--json").json
        assert (done["copied"], done["dead"], done["differences"]) == (keys, 0, 0)
        assert done["settled"]
        assert contents(target) == expected


def test_five_thousand_keys_go_round(tmp_path: Path, cluster: str) -> None:
    go_round(tmp_path, buckets.file_url(tmp_path / "objects"), cluster, 5_000)


@pytest.mark.soak
def test_two_hundred_thousand_keys_go_round(tmp_path: Path, cluster: str) -> None:
    go_round(tmp_path, buckets.s3_url(), cluster, 200_000)


@pytest.mark.parametrize("station", ["slatedb", "cluster"])
def test_a_copy_that_was_killed_goes_on_at_every_station(
    tmp_path: Path, cluster: str, station: str
) -> None:
    fill(tmp_path / "one", 3_000)
    target = cluster if station == "cluster" else buckets.file_url(tmp_path / "objects")
    # A process of its own, not a fork: SlateDB's threads do not survive one.
    program = "import sys; from tests.cli.test_copy_between_engines import copy_until as c; c(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(tmp_path / "one"), target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = ok("copy", tmp_path / "one", target, "--verify", "--json").json
    assert again["resumed"]
    # Where a copy stands is noted after a sync, and may reach the disk with the next one only.
    assert 0 < again["copied"] <= 3_000 - 2_000 + 2 * SYNCED_KEYS + BATCH_KEYS
    assert again["differences"] == 0
    assert contents(target) == contents(tmp_path / "one")


def copy_until(source: str, target: str) -> None:
    """Copy two thousand keys and be killed."""

    def progress(done: int, total: int | None) -> None:
        if done >= 2_000:
            os.kill(os.getpid(), signal.SIGKILL)

    transfer.BATCH_RECORDS, transfer.SYNC_RECORDS = BATCH_KEYS, SYNCED_KEYS
    with ephemera.open(source, read_only=True) as origin, ephemera.open(target) as destination:
        label = str(Path(source).resolve())
        Copy(origin.engine, destination.engine, label=label, removes=False).run(progress)
