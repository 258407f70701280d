"""The page of benchmarks shows what was measured, and nothing else."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import kept, page, server_targets, targets

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
    rounds = of_server["rates"]["found"]["SET -P 16"]["redis"]
    rate = statistics.median(each["rate"] for each in rounds)
    assert f">{rate:,.0f}</text>" in files["benchmarks/server.svg"]


def test_every_part_is_on_the_page_with_its_run(all_kept: AllKept, files: dict[str, str]) -> None:
    text, (stores, of_server) = files[page.PAGE], all_kept
    parts = [*stores["made"].values(), *(part["made"] for part in of_server.values())]
    parts += [cell["made"] for cells in stores["growth"].values() for cell in cells.values()]
    assert all(f"{made['date']}, commit {made['commit']}" in text for made in parts)
    for case in of_server["rates"]["found"]:
        assert len(re.findall(rf"^\| {case} ", text, re.MULTILINE)) >= 2
    assert all(line in text for _, line in server_targets.check(of_server))


def test_every_target_has_its_line_on_the_page(all_kept: AllKept, files: dict[str, str]) -> None:
    lines = [line for _, line in targets.check(all_kept[0])]
    text = files[page.PAGE]
    assert len(lines) == len(targets.TARGETS)
    assert all(line in text for line in lines)


def test_the_page_can_be_written_anywhere(tmp_path: Path) -> None:
    assert page.main(["--docs", str(tmp_path)]) == 0
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8").startswith("# Benchmarks\n")


def _run(date: str, workloads: Kept, growth: Kept) -> Kept:
    return {
        "made": {name: {"date": date} for name in workloads},
        "workloads": {name: {"unit": "ops/s"} for name in workloads},
        "medians": workloads,
        "packages": {},
        "peers": {name: {} for cells in workloads.values() for name in cells},
        "growth": growth,
        "rounds": ["each of them"],
    }


def test_a_workload_that_is_measured_again_replaces_its_row_and_no_other() -> None:
    before = _run("monday", {"get": {"snkv": 1, "ephemera": 2}, "put": {"ephemera": 3}}, {})
    merged = kept.merge(before, _run("tuesday", {"get": {"ephemera": 4, "lmdb": 5}}, {}))
    assert merged["medians"] == {"put": {"ephemera": 3}, "get": {"ephemera": 4, "lmdb": 5}}
    assert merged["made"] == {"put": {"date": "monday"}, "get": {"date": "tuesday"}}
    assert list(merged["peers"]) == ["ephemera", "lmdb"]
    assert "rounds" not in merged


def test_stores_that_grow_are_kept_one_by_one() -> None:
    before = _run("monday", {}, {"1000": {"ephemera": 1, "lmdb": 2}})
    later = _run("tuesday", {}, {"10000000": {"ephemera": 3}, "1000": {"ephemera": 4}})
    merged = kept.merge(before, later)
    assert merged["growth"] == {"1000": {"ephemera": 4, "lmdb": 2}, "10000000": {"ephemera": 3}}
    assert list(merged["growth"]) == ["1000", "10000000"]


def test_a_part_of_the_server_is_kept_over_the_same_part(
    all_kept: AllKept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RESULTS", "DOCS"):
        monkeypatch.setattr(page, name, tmp_path)
    of_server = all_kept[1]
    page.keep_server({"memory": of_server["memory"]})
    page.keep_server({"delays": of_server["delays"]})
    assert json.loads((tmp_path / page.KEPT_SERVER).read_text()) == {
        "memory": of_server["memory"],
        "delays": of_server["delays"],
    }
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "small keys with deadlines" in text
    assert "did not come" in text


def test_a_ratio_tells_the_rounds_and_the_medians_apart() -> None:
    told = server_targets.ratio([1.0, 2.0, 9.0], [2.0, 2.0, 3.0]).told(1, "ms")
    assert told == "1.00× (0.50 to 3.00); by medians 1.00×: 2.0 against 2.0 ms"
