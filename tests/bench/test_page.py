"""The page of benchmarks shows what was measured, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, targets

Kept = dict[str, Any]  # Any: a JSON document


@pytest.fixture(scope="module")
def kept() -> Kept:
    results: Kept = json.loads(page.KEPT.read_text())
    return results


def test_the_page_in_the_docs_is_made_of_the_kept_results(kept: Kept) -> None:
    for name, text in page.render(kept).items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == text, f"{name}: make bench-page"


def test_every_plot_is_shown_and_is_a_picture_of_the_right_peers(kept: Kept) -> None:
    files = page.render(kept)
    for name, text in files.items():
        if name.endswith(".svg"):
            assert f"]({name})" in files[page.PAGE]
            words = {element.text for element in ElementTree.fromstring(text).iter()}
            assert {"ephemera", "snkv"} <= words


def test_a_plotted_figure_is_the_measured_one(kept: Kept) -> None:
    measured = kept["medians"]["put_ttl"]["ephemera"]["value"]
    assert f">{measured:,.0f}</text>" in page.render(kept)["benchmarks/rates.svg"]


def test_every_target_has_its_line_on_the_page(kept: Kept) -> None:
    lines = [line for _, line in targets.check(kept)]
    text = page.render(kept)[page.PAGE]
    assert len(lines) == len(targets.TARGETS)
    assert all(line in text for line in lines)


def test_the_page_can_be_written_anywhere(kept: Kept, tmp_path: Path) -> None:
    assert page.main(["--docs", str(tmp_path)]) == 0
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8").startswith("# Benchmarks\n")
