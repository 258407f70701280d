"""The server's figures, as `bench.server` keeps them: in Markdown, and as plots."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench import machine, memcached, plots, report, stalls
from bench.rates import PERCENTILES
from bench.report import DASH
from bench.server_targets import Figures, Rounds, check, column, ratio
from bench.servers import OURS, THEIRS, UNKEPT

INTRODUCTION = """\
## The server

`make bench-server` asks our server, a `redis-server` whose log is synced once a second, and one that keeps nothing, in
turns. A ratio is the median of the rounds' ratios, with the lowest and the highest of them; the ratio of the two
medians is another figure, and stands beside it. `redis-benchmark` has 50 clients, values of 100 bytes and 200,000 random
keys; PING is the floor, which asks nothing of a store. The processor time is that of the whole process until it rests,
and ours is told to checkpoint first, so that a checkpoint is the writes' that it is for.
[Decision 24](decisions/0024-server-profile.md) says where it goes.

Delays are of milliseconds, and a virtual machine may stand still for longer. So a round during which the host took away
more than 1 % of the processors is repeated, three times at most, and the least disturbed one counts; the tables say how
much was taken away from it."""


def render(results: Figures) -> str:
    """A section of the page of benchmarks; what was not measured is not in it."""
    verdicts = "\n".join(line for _, line in check(results))
    sections = [INTRODUCTION, f"```\n{verdicts}\n```"]
    tables = {
        "rates": _rates,
        "memcached": _memcached,
        "memory": _memory,
        "stalls": _stalls,
        "delays": _delays,
    }
    for part, told in tables.items():
        if results.get(part, {}).get("found"):
            sections += [
                f"{machine.told(results[part]['made'])}:",
                *told(results[part]["found"]),
            ]
    return "\n\n".join(sections)


def plot_rates(results: Figures) -> str:
    """Requests per second of every server, a panel for each command."""
    panels = []
    for case, found in results["rates"]["found"].items():
        medians = {
            name: statistics.median(column(rounds, "rate")) for name, rounds in found.items()
        }
        marks = [(name, [rate], f"{rate:,.0f}") for name, rate in medians.items()]
        panels.append((f"{case}, requests per second", marks))
    return plots.draw(panels)


def _rates(found: Figures) -> Iterator[str]:
    yield _beside("requests per second", found, "rate", 0, (THEIRS, UNKEPT))
    yield _beside("processor time, µs", found, "cpu_us", 2, (THEIRS, UNKEPT))
    timed = {
        case: servers
        for case, servers in found.items()
        if all(f"{rank}_ms" in servers[OURS][0] for rank in PERCENTILES)
    }
    if timed:
        rows = [[f"{' / '.join(PERCENTILES)}, ms", OURS, THEIRS, UNKEPT]]
        rows += [
            [case, *(_latencies(servers[name]) for name in rows[0][1:])]
            for case, servers in timed.items()
        ]
        yield report.table(rows)


def _memcached(found: Figures) -> Iterator[str]:
    about = "one client of our own asks both"
    yield _beside(f"requests per second, {about}", found, "rate", 0, (memcached.NAME,))
    yield _beside(f"processor time, µs, {about}", found, "cpu_us", 2, (memcached.NAME,))


def _beside(
    title: str, found: Mapping[str, Mapping[str, Rounds]], name: str, digits: int,
    others: Sequence[str],
) -> str:  # fmt: skip
    """One figure of all servers, case by case, and its ratios."""
    rows = [[title, OURS, *others, *(f"ours ÷ {other}" for other in others), "rounds"]]
    for case, servers in found.items():
        medians = [statistics.median(column(servers[each], name)) for each in (OURS, *others)]
        ratios = [
            ratio(column(servers[OURS], name), column(servers[other], name)) for other in others
        ]
        rows.append(
            [case, *(f"{median:,.{digits}f}" for median in medians),
             *(f"{each.median:.2f}×" for each in ratios), str(len(servers[OURS]))]
        )  # fmt: skip
    return report.table(rows)


def _latencies(rounds: Rounds) -> str:
    ranks = (statistics.median(column(rounds, f"{rank}_ms")) for rank in PERCENTILES)
    return " / ".join(f"{rank:.2f}" for rank in ranks)


def _memory(found: Figures) -> Iterator[str]:
    rows = [[f"{found['keys']:,} small keys with deadlines", "its own, MiB", "with mapped files, MiB",
             "of its own, bytes/key", "on the disk, bytes/key", "rounds"]]  # fmt: skip
    for name in (name for name in (OURS, THEIRS, UNKEPT) if name in found):
        rounds = found[name]
        full, resident = (column(rounds, "full", kind) for kind in ("private", "resident"))
        empty = column(rounds, "empty", "private")
        each = [(a - b) / found["keys"] for a, b in zip(full, empty, strict=True)]
        disk = DASH
        if name != UNKEPT and "disk" in rounds[0]:
            disk = f"{statistics.median(column(rounds, 'disk')) / found['keys']:.0f}"
        rows.append(
            [name, *(f"{statistics.median(of) / 2**20:.1f}" for of in (full, resident)),
             f"{statistics.median(each):.0f}", disk, str(len(rounds))]
        )  # fmt: skip
    yield report.table(rows)
    yield "On the disk: ours after a checkpoint, with the room that it set aside for what is written next."


def _stalls(found: Figures) -> Iterator[str]:
    for case, about in stalls.CASES.items():
        rows = [[f"GET beside writes{about}, ms", *stalls.PERCENTILES, "checkpoints", "dead keys",
                 "taken away at most", "rounds"]]  # fmt: skip
        for name, rounds in found[case].items():
            ranks = (statistics.median(column(rounds, f"{rank}_ms")) for rank in stalls.PERCENTILES)
            checkpoints, dead = (column(rounds, of) for of in ("checkpoints", "dead"))
            rows.append(
                [name, *(f"{rank:.2f}" for rank in ranks), _count(checkpoints), _count(dead),
                 f"{max(column(rounds, 'stolen')):.1%}", str(len(rounds))]
            )  # fmt: skip
        yield report.table(rows)
    yield (
        f"Each round is {found['seconds']:g} s of {found['reads_a_second']:,} GETs a second beside "
        f"{found['writes_a_second']:,} SETs a second of new keys: half of them stay, a quarter die before a "
        "checkpoint, a quarter after it. Checkpoints and dead keys are those of a round."
    )


def _count(figures: Sequence[float]) -> str:
    median = statistics.median(figures)
    return DASH if math.isinf(median) else f"{median:,.0f}"


def _delays(found: Figures) -> Iterator[str]:
    rows = [["`expired` events, ms late", "p50", "p99", "did not come", "taken away at most", "rounds"]]  # fmt: skip
    for name in (OURS, THEIRS):
        rounds = found[name]
        late = (statistics.median(column(rounds, f"p{rank}_ms")) for rank in (50, 99))
        missing = statistics.median(column(rounds, "missing"))
        rows.append(
            [name, *(DASH if math.isinf(ms) else f"{ms:.1f}" for ms in late),
             f"{missing:,.0f} of {found['expiring']:,}", f"{max(column(rounds, 'stolen')):.1%}",
             str(len(rounds))]
        )  # fmt: skip
    yield report.table(rows)
    yield (
        f"{found['expiring']:,} keys die in {found['seconds']:g} s, while {found['waiting']:,} others wait. An event "
        f"did not come when it was not there {found['patience']:g} s after the last deadline; {DASH}: so many did "
        "not come that there is no such percentile."
    )
