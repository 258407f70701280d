"""The server's figures, as `bench.server` keeps them: in Markdown, as a plot, and against the targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench import plots, report, targets
from bench.targets import Verdict

OURS, THEIRS, UNKEPT = "ephemera", "redis", "redis (in memory)"
SERVERS = (OURS, THEIRS, UNKEPT)
RATIOS_AT_LEAST = {
    1: {"SET": 1.0, "GET": 1.0, "INCR": 1.0},
    16: {"SET": 1.2, "GET": 1.0, "INCR": 1.0},
}
"""Our rate beside Redis's, by how many requests a client sends at once."""
CPU_AT_MOST = 0.9
CPU_PIPELINED = 16
MEMORY_AT_MOST = 1.0
STALL_AT_MOST = 3.0
DELAY_MS_AT_MOST = 20.0

Figures = dict[str, Any]  # Any: what `json` writes
Rounds = Sequence[Sequence[float]]
"""Requests a second and microseconds of processor time for each, in each round."""

INTRODUCTION = """\
## The server

`make bench-server` lets `redis-benchmark` (50 clients, values of 100 bytes, 200,000 random keys) ask our server, a
`redis-server` whose log is synced once a second, and one that keeps nothing, in turns; a ratio is the median of the
rounds' ratios, of which there are more with one request at a time. The processor time is that of the whole process
until it rests, so that a checkpoint is the writes' that it is for.
[Decision 24](decisions/0024-server-profile.md) says where it goes.

Delays are of milliseconds, and a virtual machine may stand still for longer. So a run during which the host took away
more than 1 % of the processors is repeated, three times at most, and the least disturbed one counts; the tables say how
much was taken away from it."""


class Beside(NamedTuple):
    """Ours ÷ Redis's: the medians of the rounds."""

    rate: float
    cpu: float


def beside(found: Mapping[str, Rounds]) -> Beside:
    pairs = list(zip(found[OURS], found[THEIRS], strict=True))
    # A tiny run is over before the kernel has counted anything.
    costs = [ours[1] / theirs[1] for ours, theirs in pairs if theirs[1]]
    return Beside(
        statistics.median(ours[0] / theirs[0] for ours, theirs in pairs),
        statistics.median(costs) if costs else math.nan,
    )


def _spread(found: Mapping[str, Rounds]) -> str:
    """From the lowest to the highest ratio of a round."""
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(found[OURS], found[THEIRS], strict=True)]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def medians(rounds: Rounds) -> tuple[float, ...]:
    return tuple(statistics.median(figures) for figures in zip(*rounds, strict=True))


def render(results: Figures) -> str:
    """A section of the page of benchmarks; what was not measured is not in it."""
    verdicts = "\n".join(line for _, line in check(results))
    facts, settings = results["machine"], results["settings"]
    sections = [
        INTRODUCTION,
        f"{settings['rounds']} rounds on {facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, "
        f"Python {facts['python']}",
        f"```\n{verdicts}\n```",
    ]
    tables = {"rates": _rates, "memory": _memory, "stalls": _stalls, "delays": _delays}
    for part, told in tables.items():
        if part in results:
            sections += [f"{results[part]['made']}:", *told(results[part])]
    return "\n\n".join(sections)


def check(results: Figures) -> list[Verdict]:
    """For each target of what was measured whether it is met, and a line that says so with the figures."""
    held = {
        "rates": _check_rates,
        "memory": _check_memory,
        "stalls": _check_stalls,
        "delays": _check_delays,
    }
    return [
        verdict
        for part, checked in held.items()
        if part in results
        for verdict in checked(results[part])
    ]


def _check_rates(rates: Figures) -> Iterator[Verdict]:
    for case, found in _cases(rates):
        command, _, pipelined = case.split()
        ratio, ours, theirs = beside(found), medians(found[OURS]), medians(found[THEIRS])
        least = RATIOS_AT_LEAST[int(pipelined)][command]
        yield targets.verdict(
            ratio.rate >= least,
            f"{case} ≥ {least:g} × redis",
            f"{ratio.rate:.2f}× ({_spread(found)}): {ours[0]:,.0f} against {theirs[0]:,.0f} requests/s",
        )
        if int(pipelined) == CPU_PIPELINED:
            yield targets.verdict(
                ratio.cpu <= CPU_AT_MOST,
                f"{case}, processor time ≤ {CPU_AT_MOST:g} × redis",
                f"{ratio.cpu:.2f}×: {ours[1]:.2f} against {theirs[1]:.2f} µs",
            )


def _check_memory(memory: Figures) -> Iterator[Verdict]:
    """All that each has in memory, pages of mapped files included."""
    ours, theirs = memory[OURS]["full"]["resident"], memory[THEIRS]["full"]["resident"]
    own = memory[OURS]["full"]["private"]
    yield targets.verdict(
        ours <= MEMORY_AT_MOST * theirs,
        f"resident memory ≤ {MEMORY_AT_MOST:g} × redis",
        f"{ours / theirs:.2f}×: {ours / 2**20:.1f} against {theirs / 2**20:.1f} MiB "
        f"(without mapped files {own / theirs:.2f}×)",
    )


def _check_stalls(stalls: Figures) -> Iterator[Verdict]:
    checked, unchecked = (stalls[name]["p99.9_ms"] for name in ("with checkpoints", "without"))
    yield targets.verdict(
        checked <= STALL_AT_MOST * unchecked,
        f"GET p99.9 ≤ {STALL_AT_MOST:g} × without checkpoints",
        f"{checked / unchecked:.2f}×: {checked:.2f} against {unchecked:.2f} ms",
    )


def _check_delays(delays: Figures) -> Iterator[Verdict]:
    p99 = delays[OURS]["p99_ms"]
    yield targets.verdict(
        p99 <= DELAY_MS_AT_MOST, f"`expired` events, p99 ≤ {DELAY_MS_AT_MOST:g} ms", f"{p99:.1f} ms"
    )


def plot(results: Figures) -> str:
    """Requests per second of every server, a panel for each command."""
    panels = []
    for case, found in _cases(results["rates"]):
        rates = {name: medians(rounds)[0] for name, rounds in found.items()}
        marks = [(name, [rate], f"{rate:,.0f}") for name, rate in rates.items()]
        panels.append((f"{case}, requests per second", marks))
    return plots.draw(panels)


def _cases(rates: Figures) -> Iterator[tuple[str, dict[str, Rounds]]]:
    for pipelined, commands in RATIOS_AT_LEAST.items():
        for command in commands:
            yield f"{command} -P {pipelined}", rates[f"{command} -P {pipelined}"]


def _rates(rates: Figures) -> Iterator[str]:
    speed = [["requests per second", *SERVERS, "ours ÷ redis"]]
    cost = [["processor time, µs", *SERVERS, "ours ÷ redis"]]
    for case, found in _cases(rates):
        ratio = beside(found)
        figures = [medians(found[name]) for name in SERVERS]
        speed.append([case, *(f"{rate:,.0f}" for rate, _ in figures), f"{ratio.rate:.2f}×"])
        cost.append([case, *(f"{us:.2f}" for _, us in figures), f"{ratio.cpu:.2f}×"])
    yield report.table(speed)
    yield report.table(cost)
    if rates.get("memcached cpu_us"):
        told = ", ".join(f"{name} {us:.2f}" for name, us in rates["memcached cpu_us"].items())
        yield f"memcached, sixteen at once, µs: {told}."


def _memory(figures: Figures) -> Iterator[str]:
    rows = [[f"memory of {figures['keys']:,} small keys with deadlines, MiB", "its own",
             "with mapped files", "of its own, for each key"]]  # fmt: skip
    for name in (OURS, THEIRS):
        full, empty = figures[name]["full"], figures[name]["empty"]
        each = (full["private"] - empty["private"]) / figures["keys"]
        rows.append(
            [name, f"{full['private'] / 2**20:.1f}", f"{full['resident'] / 2**20:.1f}",
             f"{each:.0f} bytes"]
        )  # fmt: skip
    yield report.table(rows)


def _stalls(figures: Figures) -> Iterator[str]:
    ranks = ("50", "99", "99.9")
    rows = [["GET beside writes, ms", *(f"p{rank}" for rank in ranks), "taken away at most"]]
    rows += [
        [
            name,
            *(f"{figures[name][f'p{rank}_ms']:.2f}" for rank in ranks),
            f"{figures[name]['stolen']:.1%}",
        ]
        for name in ("with checkpoints", "without", THEIRS)
    ]
    yield report.table(rows)


def _delays(figures: Figures) -> Iterator[str]:
    rows = [["`expired` events, ms late", "p50", "p99", "taken away"]]
    rows += [
        [
            name,
            *(f"{figures[name][f'p{rank}_ms']:.1f}" for rank in (50, 99)),
            f"{figures[name]['stolen']:.1%}",
        ]
        for name in (OURS, THEIRS)
    ]
    yield report.table(rows)
