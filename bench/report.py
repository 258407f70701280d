"""Results as Markdown that also reads well as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from bench import targets
from bench.machine import told
from bench.peers import OURS
from bench.runner import Cell, Results

DASH = "—"
NOT_RUN: Cell = {"state": targets.NOT_RUN}


def render(results: Results) -> str:
    """Everything a reader needs: the machine, rates, ratios, costs, and what each peer risks."""
    rates = [name for name, about in results["workloads"].items() if about["unit"] == "ops/s"]
    costs = [name for name in results["workloads"] if name not in rates]
    sections = [f"{_runs(results)}\n\n{_packages(results)}"]
    if rates:
        sections.append(_titled("Operations per second", _figures(results, rates)))
    if rates and OURS in results["peers"]:
        sections.append(_titled(f"Ratio: {OURS} ÷ peer", _ratios(results, rates)))
    if costs:
        sections.append(_titled("Costs (less is better)", _figures(results, costs)))
    processor = _processor(results, rates)
    if len(processor) > 1:
        sections.append(_titled("Processor time per operation, µs", table(processor)))
    if results.get("growth"):
        grown = f"{_growth_runs(results)}\n\n{_growth(results)}"
        sections.append(_titled("Growth: operations per second by keys", grown))
    sections += [_titled("What can be lost", _durability(results)), _notes(results)]
    return "\n\n".join(sections)


def _runs(results: Results) -> str:
    """What was measured together: ratios are of one run."""
    runs: dict[str, list[str]] = {}
    for workload, made in results["made"].items():
        rounds = f"median of {_rounds(made['rounds'])}, {made['keys']:,} keys of 18 bytes"
        runs.setdefault(f"{rounds}, values of 100 bytes; {told(made)}", []).append(workload)
    return "\n".join(f"- {', '.join(workloads)}: {run}" for run, workloads in runs.items())


def _growth_runs(results: Results) -> str:
    runs: dict[str, dict[str, list[str]]] = {}
    for keys, cells in results["growth"].items():
        for peer, cell in cells.items():
            run = f"median of {_rounds(len(cell.get('rounds', ())))}; {told(cell['made'])}"
            runs.setdefault(run, {}).setdefault(peer, []).append(f"{int(keys):,}")
    return "\n".join(
        f"- {'; '.join(f'{peer} with {_listed(sizes)} keys' for peer, sizes in peers.items())}: {run}"
        for run, peers in runs.items()
    )


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["one"]), _listed(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _packages(results: Results) -> str:
    return ", ".join(
        f"{name} {version or '(missing)'}"
        for name, version in results["packages"].items()
        if name != "builtins"
    )


def _figures(results: Results, workloads: Sequence[str]) -> str:
    peers = list(results["peers"])
    rows = [["workload", *peers]]
    for workload in workloads:
        cells = results["medians"][workload]
        keys_max = max((cell.get("n", 0) for cell in cells.values()), default=0)
        is_plain = not results["workloads"][workload]["has_ttl"]
        rows.append([workload])
        for peer in peers:
            mark = "" if is_plain or results["peers"][peer]["has_ttl"] else "†"
            rows[-1].append(_figure(cells.get(peer, NOT_RUN), mark, keys_max))
    return table(rows)


def _figure(cell: Cell, mark: str, keys_max: int) -> str:
    if cell["state"] != "measured":
        return DASH if cell["state"] == "not offered" else str(cell["state"])
    sample = f" ({cell['n']:,})" if cell["n"] < keys_max else ""
    return f"{_number(cell)}{mark}{sample}"


def _number(cell: Cell) -> str:
    if cell["unit"] == "ops/s":
        return f"{cell['value']:,.0f}"
    if "p99" in cell.get("detail", ()):
        p50, p99, worst = (cell["detail"][name] for name in ("p50", "p99", "max"))
        return f"{p50:.1f} / {p99:.1f} / {worst:.1f} {cell['unit']}"
    unit = cell["unit"]
    if unit == "MB":
        return f"{cell['value']:.2f} MB, {cell['value'] * 1e6 / cell['n']:.0f} B/key"
    return f"{cell['value']:.2f}{unit if unit == '×' else ' ' + unit}"


def _ratios(results: Results, workloads: Sequence[str]) -> str:
    peers = [peer for peer in results["peers"] if peer != OURS]
    rows = [["workload", *peers]]
    for workload in workloads:
        cells = results["medians"][workload]
        ours = cells.get(OURS, NOT_RUN)
        rows.append([workload, *(_ratio(ours, cells.get(peer, NOT_RUN)) for peer in peers)])
    return table(rows)


def _ratio(ours: Cell, theirs: Cell) -> str:
    if ours["state"] != "measured" or theirs["state"] != "measured":
        return DASH
    return f"{ours['value'] / theirs['value']:.2f}×"


def _processor(results: Results, workloads: Sequence[str]) -> list[list[str]]:
    """The rows of the table, its head alone where nobody measured this."""
    peers = list(results["peers"])
    rows = [["workload", *peers]]
    for workload in workloads:
        cells = results["medians"][workload]
        if any("cpu_us" in cell.get("detail", ()) for cell in cells.values()):
            spent = (cells.get(peer, {}).get("detail", {}).get("cpu_us") for peer in peers)
            rows.append([workload, *(DASH if us is None else f"{us:.2f}" for us in spent)])
    return rows


def _growth(results: Results) -> str:
    sizes = results["growth"]
    peers = list(dict.fromkeys(peer for cells in sizes.values() for peer in cells))
    rows = [["operation", "keys", *peers]]
    for operation in ("first get", "get", "put", "load"):
        for keys, cells in sizes.items():
            rates = (cells.get(peer, {}).get("detail", {}).get(operation) for peer in peers)
            figures = (DASH if rate is None else f"{rate:,.0f}" for rate in rates)
            rows.append([operation, f"{int(keys):,}", *figures])
    return table(rows)


def _durability(results: Results) -> str:
    rows = [["peer", "kill -9 can lose", "a power loss can lose"]]
    rows += [[name, peer["killed"], peer["unpowered"]] for name, peer in results["peers"].items()]
    return table(rows)


def _notes(results: Results) -> str:
    notes = [f"- {name}: {each['about']}" for name, each in results["workloads"].items()]
    notes += [
        f"- {DASH}: not offered by the peer, or no different from the peer it is a variant of",
        "- †: the peer has no TTL; these are its plain operations",
        "- (n): measured on a sample of that many keys; reads still find all keys loaded",
        "- expiry_lag: p50 / p99 / max",
        "- growth: random reads of keys that were moved to the base tier (where a peer has one), then "
        "random puts with a TTL, in a store of so many keys; load is its filling, in the fastest way "
        "each library has; the first gets are a fifth of those that follow, of the same keys, "
        "by a process that has not read yet",
    ]
    return "\n".join(notes)


def _titled(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded to line up; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
