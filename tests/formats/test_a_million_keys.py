"""A million keys out of a store and into another: how fast, and in how little memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import ephemera
from ephemera.core.clock import elapsed_ns

KEYS = 1_000_000
BATCH_KEYS = 10_000
VALUE_BYTES = 100
TTL_SECONDS = 86_400
MEMORY_KIB_MAX = 300 * 1024
PROGRAM = """
import resource, sys
from pathlib import Path
from ephemera.cli.main import main
try:
    main()
finally:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(spent.ru_utime + spent.ru_stime, peak.split()[1], file=sys.stderr)
"""


class Cost(NamedTuple):
    """What a command took, and what it said."""

    seconds: float
    cpu_seconds: float
    peak_kib: int
    told: dict[str, object]

    def __str__(self) -> str:
        return (
            f"{KEYS / self.seconds:,.0f} keys/s, {KEYS / self.cpu_seconds:,.0f} per second of CPU, "
            f"peak {self.peak_kib / 1024:.0f} MiB"
        )


def measured(*args: object) -> Cost:
    """Run a command in a process of its own; all its memory counts, mapped files too."""
    began_ns = elapsed_ns()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, args), "--json"], capture_output=True, check=True
    )
    seconds = (elapsed_ns() - began_ns) / 1e9
    cpu_seconds, peak_kib = done.stderr.split()
    return Cost(seconds, float(cpu_seconds), int(peak_kib), json.loads(done.stdout))


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a million keys of 16 bytes with values of 100; every other one has a deadline."""
    path = tmp_path_factory.mktemp("million") / "s.eph"
    chance = random.Random(0)
    with ephemera.open(path, durability="none") as store:
        for start in range(0, KEYS, BATCH_KEYS):
            for number, ttl in ((start, TTL_SECONDS), (start + 1, ephemera.Ttl.NEVER)):
                keys = [b"%016d" % each for each in range(number, start + BATCH_KEYS, 2)]
                values = [chance.randbytes(VALUE_BYTES // 2).hex() for _ in keys]
                store.put_many(dict(zip(keys, values, strict=True)), ttl=ttl)
    return path


@pytest.mark.soak
@pytest.mark.parametrize("suffix", ["rdb", "aof", "jsonl"])
def test_a_million_keys_go_out_and_in_again_in_bounded_memory(
    million: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, again = tmp_path / f"x.{suffix}", tmp_path / "again.eph"
    out, into = measured("export", million, file), measured("import", again, file)
    with capsys.disabled():
        sys.stdout.write(f"\n{suffix} export: {out}\n{suffix} import: {into}\n")
    assert (out.told["keys"], into.told["imported"]) == (KEYS, KEYS)
    assert max(out.peak_kib, into.peak_kib) < MEMORY_KIB_MAX
    with ephemera.open(million) as before, ephemera.open(again) as after:
        for number in random.Random(1).sample(range(KEYS), 1_000):
            key = b"%016d" % number
            entry = before.entry(key)
            found = after.entry(key)
            assert entry is not None
            assert found is not None
            assert (found.value, found.deadline) == (entry.value, entry.deadline)
