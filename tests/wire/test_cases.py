"""The requests of `cases.txt` to both servers, in both protocols: every reply is the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ephemera.resp.parser import split_inline
from tests.wire.differences import DIFFERENCES
from tests.wire.pair import Pair, is_same

LINE = re.compile(
    r"(?:(?P<mark>~~?|%|\?|!\S+)\s*)?(?P<client>2(?=[<>]))?(?P<way>[<>])?\s*(?P<text>.*)"
)


class Line(NamedTuple):
    """One request, or with no arguments a message to be read."""

    number: int
    mark: str
    is_second_client: bool
    args: list[bytes]


def cases() -> Iterator[tuple[str, list[Line]]]:
    """The title and the lines of every case."""
    title = ""
    lines: list[Line] = []
    text = Path(__file__).with_name("cases.txt").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("=="):
            if title:
                yield title, lines
            title, lines = line.strip("= "), []
        elif line and not line.startswith("#"):
            lines.append(_line(number, line))
    yield title, lines


def _line(number: int, line: str) -> Line:
    found = LINE.fullmatch(line)
    assert found is not None, line
    args = split_inline(found["text"].encode())
    assert args is not None, f"line {number}: {line}"
    assert bool(args) == (found["way"] != "<"), f"line {number}: {line}"
    return Line(number, found["mark"] or "", found["client"] is not None, args)


CASES = dict(cases())


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("title", CASES)
def test_both_servers_answer_alike(connect: Callable[[], Pair], title: str, protocol: int) -> None:
    first, second = connect(), connect()
    second.clear(protocol)
    first.clear(protocol)
    wrong = [
        told
        for line in CASES[title]
        if (told := answer(second if line.is_second_client else first, line))
    ]
    assert not wrong, "\n".join(wrong)


def answer(pair: Pair, line: Line) -> str:
    """Send a line's request to both, or read a message from both; what is wrong with the replies."""
    ours, theirs = pair(*line.args) if line.args else pair.read()
    difference = line.mark[1:] if line.mark.startswith("!") else ""
    agrees = is_same(ours, theirs, line.mark)
    if agrees == (not difference):
        return ""
    asked = b" ".join(line.args).decode(errors="backslashreplace") or "a message"
    if difference:
        return f"line {line.number}: {asked}: both say {ours!r}; no difference {difference}"
    return f"line {line.number}: {asked}\n    ours  {ours!r}\n    redis {theirs!r}"


def test_every_difference_has_a_reason_and_a_case() -> None:
    named = {
        line.mark[1:] for lines in CASES.values() for line in lines if line.mark.startswith("!")
    }
    for path in Path(__file__).parent.glob("test_*.py"):
        named |= set(re.findall(r'The difference "([a-z-]+)"', path.read_text(encoding="utf-8")))
    assert named == DIFFERENCES.keys()
