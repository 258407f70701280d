"""Plots of kept results, as SVG: nothing but text, so that a change shows in a diff."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.peers import OURS
from bench.runner import Cell, Results

WIDTH = 760
LEFT, RIGHT = 130, 90
ROW = 20
OURS_COLOR = "#c2410c"
COLORS = ("#1d4ed8", "#047857", "#7c3aed", "#b45309", "#475569", "#be185d")
GREY = "#64748b"

Marks = Sequence[tuple[str, Sequence[float], str]]
"""For each peer its figures, and the label that is written beside them."""


def rates(results: Results, workloads: Sequence[str]) -> str:
    """Operations per second of every peer, a panel for each workload."""
    panels = []
    for workload in workloads:
        cells = _measured(results["medians"].get(workload, {}))
        marks = [(peer, [cell["value"]], f"{cell['value']:,.0f}") for peer, cell in cells]
        panels.append((f"{workload}, operations per second", marks))
    return draw(panels)


def latencies(results: Results, workloads: Sequence[str]) -> str:
    """From the median to the slowest one in a hundred, and the slowest of all."""
    panels = []
    for workload in workloads:
        marks = []
        for peer, cell in _measured(results["medians"].get(workload, {})):
            figures = [cell["detail"][name] for name in ("p50", "p99", "max")]
            marks.append((peer, figures, f"p99 {figures[1]:,.1f} µs"))
        panels.append((f"{workload}: p50, p99 and max, µs", marks))
    return draw(panels)


def _measured(cells: dict[str, Cell]) -> list[tuple[str, Cell]]:
    return [(peer, cell) for peer, cell in cells.items() if cell["state"] == "measured"]


def draw(panels: Sequence[tuple[str, Marks]]) -> str:
    """Dots on one logarithmic axis for each panel: bars would have no zero to stand on."""
    body: list[str] = []
    top = 10
    for title, marks in panels:
        if marks:
            body += _panel(title, marks, top)
            top += ROW * (len(marks) + 3)
    return _document(body, top)


def _panel(title: str, marks: Marks, top: int) -> Iterator[str]:
    figures = [figure for _, values, _ in marks for figure in values]
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    high = max(high, low + 1)

    def place(figure: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(figure) - low) / (high - low)

    yield _text(10, top + ROW * 0.7, title, weight="bold")
    bottom = top + ROW * (len(marks) + 1)
    for power in range(low, high + 1):
        x = place(10**power)
        yield f'<line x1="{x:.1f}" y1="{top + ROW}" x2="{x:.1f}" y2="{bottom}" stroke="#e2e8f0"/>'
        yield _text(x, bottom + 13, _power(power), anchor="middle", color=GREY)
    for number, (peer, values, label) in enumerate(marks, 1):
        y = top + ROW * (number + 0.5)
        color = OURS_COLOR if peer.startswith(OURS) else GREY
        yield _text(LEFT - 8, y + 4, peer, anchor="end", color=color)
        first, last = place(min(values)), place(max(values))
        yield f'<line x1="{first:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}" stroke="{color}"/>'
        for value in values:
            yield f'<circle cx="{place(value):.1f}" cy="{y}" r="4" fill="{color}"/>'
        yield _text(last + 9, y + 4, label, color=color)


def growth(results: Results, operation: str) -> str:
    """Operations per second against the number of keys, both logarithmic."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for keys, cells in results["growth"].items():
        for peer, cell in _measured(cells):
            lines.setdefault(peer, []).append((int(keys), cell["detail"][operation]))
    height = 320
    keys = [keys for points in lines.values() for keys, _ in points]
    values = [value for points in lines.values() for _, value in points]
    bounds = (
        math.log10(min(keys)),
        math.log10(max(keys)),
        math.floor(math.log10(min(values))),
        math.ceil(math.log10(max(values))),
    )
    body = [
        _text(10, 20, f"{operation}, operations per second, by keys in the store", weight="bold")
    ]
    body += _grid(bounds, height)
    for number, (peer, points) in enumerate(lines.items()):
        color = OURS_COLOR if peer == OURS else COLORS[number % len(COLORS)]
        at = [_spot(bounds, height, count, value) for count, value in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in at]
        body.append(_text(at[-1][0] + 8, at[-1][1] + 4, peer, color=color))
    return _document(body, height + 30)


Bounds = tuple[float, float, int, int]
"""The powers of ten at the ends of both axes."""


def _grid(bounds: Bounds, height: int) -> Iterator[str]:
    first, last, low, high = bounds
    for power in range(low, high + 1):
        _, y = _spot(bounds, height, 10**first, 10**power)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        yield _text(LEFT - 8, y + 4, _power(power), anchor="end", color=GREY)
    for power in range(math.ceil(first), math.floor(last) + 1):
        x, _ = _spot(bounds, height, 10**power, 10**low)
        yield _text(x, height + 18, _power(power), anchor="middle", color=GREY)


def _spot(bounds: Bounds, height: int, count: float, value: float) -> tuple[float, float]:
    first, last, low, high = bounds
    x = LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(count) - first) / max(last - first, 1)
    y = height - (height - 40) * (math.log10(value) - low) / max(high - low, 1)
    return x, y


def _power(power: int) -> str:
    if power < 0:
        return f"{10**power:g}"
    return f"{10**power:,}"


def _text(
    x: float,
    y: float,
    said: str,
    *,
    anchor: str = "start",
    color: str = "#0f172a",
    weight: str = "",
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{bold}>'
        f"{escape(said)}</text>"
    )


def _document(body: Sequence[str], height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="12">'
    )
    return (
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>"]) + "\n"
    )
