"""Results as Markdown that also reads well as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers import OURS
from bench.runner import Cell, Results

DASH = "—"


def render(results: Results) -> str:
    """Everything a reader needs: the machine, rates, ratios, costs, and what each peer risks."""
    rates = [name for name, about in results["workloads"].items() if about["unit"] == "ops/s"]
    costs = [name for name in results["workloads"] if name not in rates]
    settings = results["settings"]
    sections = [
        f"{results['date']}, commit {results['commit']}: {settings['keys']:,} keys of 18 bytes, "
        f"values of 100 bytes, median of {settings['rounds']} rounds\n{_machine(results)}"
    ]
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
        grown = f"{results['growth_made']}\n\n{_growth(results)}"
        sections.append(_titled("Growth: operations per second by keys", grown))
    sections += [_titled("What can be lost", _durability(results)), _notes(results)]
    return "\n\n".join(sections)


def _machine(results: Results) -> str:
    facts = results["machine"]
    packages = ", ".join(
        f"{name} {version or '(missing)'}"
        for name, version in results["packages"].items()
        if name != "builtins"
    )
    return (
        f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, "
        f"Python {facts['python']}, SQLite {facts['sqlite']}\n{packages}"
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
            rows[-1].append(_figure(cells[peer], mark, keys_max))
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
    return f"{cell['value']:.2f}{unit if unit == '×' else ' ' + unit}"


def _ratios(results: Results, workloads: Sequence[str]) -> str:
    peers = [peer for peer in results["peers"] if peer != OURS]
    rows = [["workload", *peers]]
    for workload in workloads:
        cells = results["medians"][workload]
        rows.append([workload, *(_ratio(cells[OURS], cells[peer]) for peer in peers)])
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
            told = (cells[peer].get("detail", {}).get("cpu_us") for peer in peers)
            rows.append([workload, *(DASH if us is None else f"{us:.2f}" for us in told)])
    return rows


def _growth(results: Results) -> str:
    sizes = results["growth"]
    peers = list(dict.fromkeys(peer for cells in sizes.values() for peer in cells))
    rows = [["operation", "keys", *peers]]
    for operation in ("first get", "get", "put", "load"):
        for keys, cells in sizes.items():
            told = (cells.get(peer, {}).get("detail", {}).get(operation) for peer in peers)
            figures = (DASH if rate is None else f"{rate:,.0f}" for rate in told)
            rows.append([operation, f"{int(keys):,}", *figures])
    return table(rows)


def _durability(results: Results) -> str:
    rows = [["peer", "kill -9 can lose", "a power loss can lose"]]
    rows += [[name, peer["killed"], peer["unpowered"]] for name, peer in results["peers"].items()]
    return table(rows)


def _notes(results: Results) -> str:
    notes = [f"- {name}: {told['about']}" for name, told in results["workloads"].items()]
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
