"""The page of benchmarks shows what was measured, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, server_report, targets

Kept = dict[str, Any]  # Any: a JSON document
AllKept = tuple[Kept, Kept]


@pytest.fixture(scope="module")
def all_kept() -> AllKept:
    return page.read_kept()


@pytest.fixture(scope="module")
def files(all_kept: AllKept) -> dict[str, str]:
    return page.render(*all_kept)


def test_the_page_in_the_docs_is_made_of_the_kept_results(files: dict[str, str]) -> None:
    for name, text in files.items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == text, f"{name}: make bench-page"


def test_every_plot_is_shown_and_is_a_picture_of_the_right_peers(files: dict[str, str]) -> None:
    for name, text in files.items():
        if name.endswith(".svg"):
            assert f"]({name})" in files[page.PAGE]
            words = {element.text for element in ElementTree.fromstring(text).iter()}
            assert {"ephemera", "redis" if "server" in name else "snkv"} <= words


def test_a_plotted_figure_is_the_measured_one(all_kept: AllKept, files: dict[str, str]) -> None:
    kept, of_server = all_kept
    measured = kept["medians"]["put_ttl"]["ephemera"]["value"]
    assert f">{measured:,.0f}</text>" in files["benchmarks/rates.svg"]
    rates = sorted(rate for rate, _ in of_server["rates"]["SET -P 16"]["redis"])
    assert f">{rates[len(rates) // 2]:,.0f}</text>" in files["benchmarks/server.svg"]


def test_every_figure_of_the_server_has_its_line_on_the_page(
    all_kept: AllKept, files: dict[str, str]
) -> None:
    text = files[page.PAGE]
    for command in ("SET", "GET", "INCR"):
        assert len(re.findall(rf"^\| {command} -P (?:1|16) ", text, re.MULTILINE)) == 4
    assert all(line in text for _, line in server_report.check(all_kept[1]))
    assert "memcached, sixteen at once" in text
    for part in ("GET beside writes", "`expired` events", "small keys with deadlines"):
        assert part in text
    assert all(f"commit {kept['commit']}" in text for kept in all_kept)


def test_every_target_has_its_line_on_the_page(all_kept: AllKept, files: dict[str, str]) -> None:
    lines = [line for _, line in targets.check(all_kept[0])]
    text = files[page.PAGE]
    assert len(lines) == len(targets.TARGETS)
    assert all(line in text for line in lines)


def test_the_page_can_be_written_anywhere(tmp_path: Path) -> None:
    assert page.main(["--docs", str(tmp_path)]) == 0
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8").startswith("# Benchmarks\n")
