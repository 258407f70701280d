"""The matcher in Lua, which does what takes long, against Lua's own: they agree on every pattern."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ephemera.server.lua import _lupa, _source

SETUP = b"""
local source = ...
local own = {}
for name, member in pairs(string) do own[name] = member end
local _, matcher = loadstring(source)(function() end, function(act) return act end)

local REPLACEMENTS = {
  '<%0>', '%1', '-', '%%', 'a%', {a = 'x', ab = 1, b = false}, function(...) return table.concat({...}, '|') end,
}

local function outcome(f, ...)
  local found = {pcall(f, ...)}
  local text = {tostring(found[1])}
  for place = 2, table.maxn(found) do
    local value = found[place]
    text[place] = type(value) .. ' ' .. tostring(value):gsub('^.-:%d+: ', '')
  end
  return table.concat(text, ', ')
end

local function all(library, text, pattern, init)
  local found = {outcome(library.find, text, pattern, init), outcome(library.match, text, pattern, init)}
  found[3] = outcome(function()
    local every = {}
    for one, other in library.gmatch(text, pattern) do
      every[#every + 1] = tostring(one) .. '/' .. tostring(other)
    end
    return table.concat(every, ' ')
  end)
  for _, replacement in ipairs(REPLACEMENTS) do
    found[#found + 1] = outcome(library.gsub, text, pattern, replacement)
    found[#found + 1] = outcome(library.gsub, text, pattern, replacement, 1)
  end
  return table.concat(found, '\\n')
end

return function(text, pattern, init)
  return all(own, text, pattern, init), all(matcher, text, pattern, init)
end
"""
PIECES = ["a", "b", ".", "%a", "%A", "%d", "%s", "%z", "[ab]", "[^a]", "[%w_]", "[a-c]", "[]]", "[^]]", "%.", "%%",
          "a*", "b+", ".-", "a?", "[ab]*", "%a+", "(", ")", "(a)", "(.-)", "()", "%1", "%2", "%bab", "%f[a]", "^", "$",
          "*", "-", "+", "?", "]", "["]  # fmt: skip


@pytest.fixture(scope="module")
def both() -> Any:  # Any: a function of Lua
    runtime = _lupa().LuaRuntime(encoding=None, unpack_returned_tuples=True)
    return runtime.execute(SETUP, _source("patterns.lua"))


@given(
    text=st.text("ab1 ]\0", max_size=12),
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    init=st.sampled_from([None, 1, 2, -2, 30, -30, 1.5]),
)
def test_the_matcher_agrees_with_that_of_lua(
    text: str, pieces: list[str], init: float | None, both: Any
) -> None:
    pattern = "".join(pieces)
    assume(set(pattern) & set("^$*+?.([%-"))  # find takes anything else as plain text
    own, ours = both(text.encode(), pattern.encode(), init)
    # What is malformed is refused at once here, and in C where the match arrives there.
    assume(not any(word in ours for word in (b"malformed", b"missing '['", b"unbalanced")))
    assert ours.split(b"\n") == own.split(b"\n")
