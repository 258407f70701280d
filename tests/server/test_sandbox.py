"""Scripts share one interpreter: what one of them can reach is its own, or cannot be changed, crash or hang the server."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from time import thread_time

import pytest

import ephemera
from ephemera.resp.replies import Refused
from ephemera.server import lua, lua_libraries
from ephemera.server.scripts import Api
from ephemera.server.server import Server
from ephemera.server.settings import Settings
from tests.server.clients import Client

SLICE_SECONDS_MAX = 1.5
"""How long a script runs at most before others are served, however heavy one of its calls is."""

WALK = """
local MARK = 'left by a script'
local own = {[KEYS] = true, [ARGV] = true}
local seen, found, values = {}, {}, 0
local ways = {
  function(to) to[MARK] = MARK end,
  function(to) rawset(to, MARK, MARK) end,
  function(to) setmetatable(to, {__index = {[MARK] = MARK}}) end,
  function(to) table.insert(to, MARK) end,
  function(to) table.insert(to, 1, MARK) end,
  function(to) for name in pairs(to) do to[name] = nil end end,
  function(to) for name in pairs(to) do rawset(to, name, MARK) end end,
  function(to) getmetatable(to).__index = nil end,
  function(to) getmetatable(to).__metatable = nil end,
  function(to) rawset(getmetatable(to), MARK, MARK) end,
  function(to) table.sort(to, function() return true end) end,
  function(to) table.remove(to) table.remove(to, 1) end,
}

local function note(path, what)
  found[#found + 1] = path .. ': ' .. what
end

local walk

local function walk_results(path, ...)
  for place = 1, select('#', ...) do
    local result = select(place, ...)
    if type(result) == 'userdata' then
      walk(result, path .. '()')
    elseif type(result) == 'function' then
      walk(result, path .. '()', true)
    elseif type(result) == 'table' and not own[result] then
      own[result] = true -- nobody else has it, but it may lead on
      for key, value in pairs(result) do
        walk_results(path .. '()', key, value)
      end
      walk(getmetatable(result), path .. '()@')
    end
  end
end

local ARGUMENTS = {
  {}, {nil}, {{}}, {'x'}, {1}, {'x', 'x'}, {'x', 'x', 'x'}, {{}, 'x'}, {{3, 1}, 1, 2}, {MARK}, {function() end},
  {'get', 'x'}, {'ping'}, {'count'},
}
for _, arguments in ipairs(ARGUMENTS) do
  own[arguments] = true
  for _, value in pairs(arguments) do own[value] = true end
end

local function called(value, path)
  for _, arguments in ipairs(ARGUMENTS) do
    walk_results(path, pcall(value, unpack(arguments, 1, 3)))
    walk_results(path, xpcall(function() return value(unpack(arguments, 1, 3)) end, function(e) return e end))
    walk_results(path, coroutine.resume(coroutine.create(function() return value(unpack(arguments, 1, 3)) end)))
    walk_results(path, pcall(function() return coroutine.wrap(function(...) return value(...) end)(unpack(arguments, 1, 3)) end))
  end
end

function walk(value, path, is_result)
  if value == nil or seen[value] or own[value] then return end
  local kind = type(value)
  if kind ~= 'table' and kind ~= 'userdata' and kind ~= 'function' and kind ~= 'thread' then return end
  seen[value], values = true, values + 1
  if kind == 'thread' then
    note(path, 'a thread')
  elseif kind == 'userdata' and value ~= cjson.null then
    note(path, 'an object')
  end
  if kind ~= 'function' or not is_result then
    for number, way in ipairs(ways) do
      local before = kind == 'table' and getmetatable(value)
      if pcall(way, value) and (kind ~= 'table' or rawget(value, MARK) or getmetatable(value) ~= before) then
        note(path, 'changed in way ' .. number)
      end
    end
  end
  if kind == 'table' then
    for key, inner in pairs(value) do
      walk(inner, path .. '.' .. tostring(key))
      walk(key, path .. '.key')
    end
  elseif kind == 'function' and not is_result then
    called(value, path)
  end
  walk(getmetatable(value), path .. '@')
end
"""

ROOTS = """
walk(_G, '_G')
for _, value in ipairs {'text', 1, true, function() end, coroutine.create(function() end), cjson.null} do
  walk(getmetatable(value), type(value) .. '@')
end
walk(('').rep, '("").rep')
local texts = getmetatable('')
walk(texts.__index, 'string@.__index')
if rawget(_G, MARK) or pcall(function() return string[MARK].x end) or ('')[MARK] then note('_G', 'marked') end
for _, library in pairs {redis, cjson, bit, math, string, table, coroutine} do
  if library[MARK] ~= nil or library[1] ~= nil then note('library', 'marked') end
end
table.insert(found, 1, values)
return found
"""

REACHED = """
local t = {}
for _, name in ipairs {'_G', 'redis', 'cjson', 'bit', 'math', 'string', 'table', 'coroutine'} do
  for key, value in pairs(_G[name]) do
    local text = type(value) == 'table' and 'table' or tostring(value)
    if key ~= 'KEYS' and key ~= 'ARGV' then t[#t + 1] = name .. '.' .. tostring(key) .. '=' .. text end
  end
end
table.sort(t)
return t
"""


def test_nothing_that_a_script_can_reach_is_shared_and_can_be_changed(
    client: Client, server: Server
) -> None:
    other = Client(server)
    before = other("EVAL", REACHED, 0)
    values, *changed = client("EVAL", WALK + ROOTS, 1, "key", "argument")
    assert changed == []
    assert values > 100, "it did walk"
    assert other("EVAL", REACHED, 0) == before
    assert other("EVAL", "return {redis.call('ping'), ARGV[1]}", 0, "mine") == [b"PONG", b"mine"]


@pytest.mark.parametrize(
    "value",
    ["redis.call", "redis.sha1hex", "cjson.encode", "bit.band", "string.find", "cjson.null"],
)
def test_no_function_or_object_has_a_metatable(value: str, client: Client) -> None:
    script = f"return tostring(getmetatable({value}))"
    assert client("EVAL", script, 0) == b"nil"


@pytest.mark.parametrize(
    "attack",
    [
        "getmetatable(redis.call).__call = function(...) return 'forged' end",
        "rawset(getmetatable(redis.call), '__call', function(...) return 'forged' end)",
        "local _, e = xpcall(redis.call, function(e) return e end) getmetatable(e).__call = 1",
        "local _, e = pcall(redis.call) getmetatable(e).__index = nil",
        "local c = coroutine.create(function() redis.call() end) local _, e = coroutine.resume(c) getmetatable(e).__gc = nil",
        "local _, e = pcall(coroutine.wrap(function() redis.call() end)) getmetatable(e).__call = nil",
    ],
)
def test_a_metatable_that_others_use_is_not_changed(
    attack: str, client: Client, server: Server
) -> None:
    client("EVAL", attack, 0)
    script = "return {redis.call('echo', ARGV[1]), getmetatable('').__index ~= nil}"
    assert Client(server)("EVAL", script, 0, "secret")[0] == b"secret"


@pytest.mark.parametrize(
    "catch",
    [
        "select(2, pcall(redis.call, 'nope'))",
        "select(2, xpcall(function() redis.call('nope') end, function(e) return e end))",
        "select(2, xpcall(redis.call, function() return redis.call('nope') end))",
        "select(2, coroutine.resume(coroutine.create(function() redis.call('nope') end)))",
        "select(2, pcall(coroutine.wrap(function() redis.call('nope') end)))",
        "select(2, pcall(string.gsub, 'x', 'x', function() redis.call('nope') end))",
        "select(2, pcall(table.sort, {2, 1}, function() redis.call('nope') end))",
        "select(2, pcall(load, function() redis.call('nope') end))",
        "select(2, pcall(function() return setmetatable({}, {__index = redis.call}).nope end))",
        "select(2, pcall(tostring, setmetatable({}, {__tostring = redis.call})))",
        "select(2, pcall(cjson.encode, {redis.call}))",
    ],
)  # fmt: skip
def test_an_error_that_is_caught_is_no_object_of_python(catch: str, client: Client) -> None:
    assert client("EVAL", f"return type({catch})", 0) in (b"string", b"table")


def test_a_script_cannot_set_the_pace_of_the_collector(client: Client, server: Server) -> None:
    for option in ("stop", "restart", "setpause", "setstepmul"):
        client("EVAL", f"return collectgarbage('{option}', 1000000)", 0)
    script = "return {collectgarbage('setpause', 200), collectgarbage('setstepmul', 200)}"
    assert Client(server)("EVAL", script, 0) == [200, 200]


def test_random_numbers_of_one_script_do_not_depend_on_another(
    client: Client, server: Server
) -> None:
    drawn = "return tostring(math.random())"
    client("EVAL", "math.randomseed(1)", 0)
    first = Client(server)("EVAL", drawn, 0)
    client("EVAL", "math.randomseed(1)", 0)
    assert Client(server)("EVAL", drawn, 0) != first


@pytest.mark.parametrize(
    ("call", "drawn"),
    [
        ("math.randomseed(5) return math.random(1, 100)", 53),
        ("math.randomseed(0) return math.random(1000)", 171),
        ("math.randomseed(-1) return math.random(-1000, 1000)", -400),
    ],
)  # fmt: skip
def test_a_seed_gives_the_random_numbers_of_redis(call: str, drawn: int, client: Client) -> None:
    assert client("EVAL", call, 0) == drawn


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("math.random(0)", "bad argument #1 to 'random' (interval is empty)"),
        ("math.random(2, 1)", "bad argument #2 to 'random' (interval is empty)"),
        ("math.random(1, 2, 3)", "wrong number of arguments"),
        ("math.random({})", "bad argument #1 to 'random' (number expected, got table)"),
    ],
)
def test_math_random_refuses_as_that_of_redis_does(call: str, text: str, client: Client) -> None:
    assert client.error("EVAL", f"local x = {call}", 0).startswith(f"ERR user_script:1: {text}")


# --- what stock Lua does not guard ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("local x = unpack({1, 2, 3}, -2, 2147483647)", "too many results to unpack"),
        ("local x = unpack({}, 1, 8001)", "too many results to unpack"),
        ("local x = unpack({}, -2147483648, 2147483647)", "too many results to unpack"),
        ("local x = unpack({}, 0, 1/0)", "too many results to unpack"),
        ("local x = unpack({}, -1e300, 1e300)", "too many results to unpack"),
        ("local x = unpack({}, 0/0, 0/0)", "too many results to unpack"),
        ("table.insert({}, -2147483648, 1)", "bad argument #2 to 'insert' (position out of bounds)"),
        ("table.insert({}, 0/0, 1)", "bad argument #2 to 'insert' (position out of bounds)"),
        ("local x = string.rep('x', 1e300)", "resulting string too large"),
        ("local x = string.rep('x', 1/0)", "resulting string too large"),
        ("local x = (''):find(('a?'):rep(1000000))", "pattern too complex"),
        ("local x = ('x'):rep(1000):match(('x*'):rep(100000))", "pattern too complex"),
        ("local x = ('x'):gsub(('(x?'):rep(60000), '')", "pattern too complex"),
        ("local x = string.format('%99999999s', 'x')", "invalid format (width or precision too long)"),
        ("local x = string.byte(('x'):rep(100000), 1, -1)", "string slice too long"),
        ("local function f() return coroutine.wrap(f)() end f()", "C stack overflow"),
        ("local function f() return pcall(f) and error('x') end return f() or error('over')", "over"),
        ("local function f(s) return (s:gsub('.', f)) end f('x')", "C stack overflow"),
        ("local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end return t.x",
         "C stack overflow"),
        ("loadstring('return ' .. ('('):rep(100000))()", "attempt to call a nil value"),
    ],
)  # fmt: skip
def test_a_call_that_would_exceed_a_stack_is_an_error(
    script: str, text: str, client: Client
) -> None:
    assert text in client.error("EVAL", script, 0)
    assert client("EVAL", "return 1", 0) == 1


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ("#{unpack({}, 2^31 + 10, 5)}", 0),
        ("#{unpack({1, 2, 3}, '2')}", 2),
        ("#{unpack({1, 2, 3}, -1, 1)}", 3),
        ("#{unpack({1, 2, 3}, 3, 2147483647 - 2^31 + 4)}", 1),
        ("#string.rep('', 1/0)", 0),
        ("#string.rep('x', -1/0)", 0),
        ("table.concat({1, 2}, ',', 1, 2)", b"1,2"),
        ("#{string.byte(('x'):rep(7000), 1, -1)}", 7000),
        ("select('#', unpack({}, 1, 7900))", 7900),
    ],
)
def test_bounds_that_are_unusual_work_as_in_lua(
    expression: str, seen: object, client: Client
) -> None:
    assert client("EVAL", f"return {expression}", 0) == seen


def test_a_command_takes_about_8000_results_of_unpack(client: Client) -> None:
    script = """
        local t = {}
        for i = 1, 3980 do t[2 * i - 1] = 'key' .. i t[2 * i] = i end
        redis.call('mset', unpack(t))
        return redis.call('dbsize')
    """
    assert client("EVAL", script, 0) == 3980


def test_a_big_number_of_a_million_digits_is_passed_on(client: Client) -> None:
    digits = b"1" * 1_000_000
    script = "return {big_number = ARGV[1]}"
    assert client("EVAL", script, 0, digits) == digits
    assert client("EVAL", script, 0, "12x") == b"12x", "as in Redis, whatever it is"


@pytest.mark.parametrize(
    "bomb",
    [
        "local t = {1} for _ = 1, 40 do t = {t, t} end return t",
        "local t = {1} for _ = 1, 40 do t = {t, t} end return cjson.encode(t)",
        "local t = {a = ('x'):rep(1000)} for _ = 1, 30 do t = {map = {a = t, b = t}} end return t",
        "local t = {} for i = 1, 100 do t[i] = ('x'):rep(100000) end return {t, t, t, t, t, t, t}",
    ],
)
def test_a_reply_that_grows_beyond_measure_is_an_error(
    bomb: str, client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "KILOBYTES_MAX", 1024)
    monkeypatch.setattr(lua_libraries, "JSON_BYTES_MAX", 16 * 1024)
    server.settings.busy_reply_threshold = 0
    assert "too large" in client.error("EVAL", bomb, 0)
    assert client("EVAL", "return 1", 0) == 1


@pytest.fixture
def busy() -> Iterator[Server]:
    """A server whose scripts may take one millisecond before others are told BUSY."""
    with ephemera.open("memory://", maintenance="manual") as store:
        yield Server(store, Settings(busy_reply_threshold=1))


@pytest.mark.parametrize(
    "endless",
    [
        "('a'):rep(40):find(('a?'):rep(40) .. ('a'):rep(41))",
        "('a'):rep(1000):match(('.-'):rep(20) .. 'b')",
        "for _ in ('a'):rep(1000):gmatch(('a*'):rep(20) .. 'b') do end",
        "('a'):rep(1000):gsub(('a+'):rep(20) .. 'b', '')",
        "while true do ('a'):rep(3000):find('.-b') end",
        "local s = ('a'):rep(2000000) while true do s:find(('a'):rep(100000) .. 'b', 1, true) end",
        "local t = {} for i = 1, 2000 do t[i] = i end while true do table.sort(t, rawequal) end",
        "while true do pcall(string.rep, 'x', 1e9) end",
        "while true do collectgarbage() end",
        "while true do pcall(coroutine.wrap(function() redis.call('nope') end)) end",
        "load(function() return ' ' end)",
        "xpcall(redis.call, function() while true do redis.call('ping') end end)",
        "coroutine.wrap(function() while true do coroutine.wrap(function() for i = 1, 10 do end end)() end end)()",
        "setmetatable({}, {__index = function() while true do end end}).x = getmetatable('').x",
        "local function f() while true do pcall(f) end end f()",
        "local function f() while true do xpcall(f, function() end) end end f()",
        "local function f() while true do coroutine.resume(coroutine.create(f)) end end f()",
        "local function spin() while true do end end"
        " local function f() pcall(f) while true do pcall(spin) end end f()",
        "local function spin() while true do end end"
        " local function f(n) while n == 0 do pcall(spin) end return (f(n - 1)) end"
        " for n = 19990, 19960, -1 do pcall(f, n) end",
        # Handlers of errors that are raised where a hook of Lua could not run.
        "local function spin() while true do end end local function f(n)"
        " if n == 0 then return xpcall(spin, spin) end string.gsub('a', 'a', function() f(n - 1) end) end"
        " for n = 199, 60, -1 do pcall(f, n) end",
        "local function spin() while true do end end local function f(n)"
        " if n == 0 then return xpcall(spin, spin) end f(n - 1) return 1 end"
        " for n = 19999, 19960, -1 do pcall(f, n) end",
        # No anchor in gmatch.
        "for _ in string.gmatch(('^'):rep(1e7), '^^-x') do end",
        # Functions of C that functions of C call back.
        "string.gsub(('x'):rep(5e7), '.', redis.debug)",
        "string.gsub(('x'):rep(9e7), '.', gcinfo)",
        "string.gsub(('x'):rep(5e7), '.', setmetatable({}, {__index = redis.debug}))",
        "local t = {} for i = 1, 8e6 do t[i] = i end table.foreach(t, redis.debug)",
        "local t = {} for i = 1, 8e6 do t[i] = i end table.foreachi(t, redis.debug)",
        # Heavy calls after light ones.
        "local s = ('x'):rep(1e8) for i = 1, 1e6 do end while true do redis.sha1hex(s) end",
        "local s = ('x'):rep(1e8) for i = 1, 1e6 do end while true do redis.debug(s) end",
        "local s = ('1'):rep(1e8) for i = 1, 1e6 do end while true do local x = tonumber(s) end",
        "local s = ('x'):rep(1e8) for i = 1, 1e6 do end while true do local x = s:upper() end",
        "local s = ('x'):rep(2^26) for i = 1, 1e6 do end while true do local x = s .. 'y' end",
        "local t = {} for i = 1, 8e6 do t[i] = i end while true do table.remove(t, 1) t[8e6] = 1 end",
        "local t = {} for i = 1, 8e6 do t[i] = i end while true do table.maxn(t) end",
        "local t = {} for i = 1, 1e6 do end while true do table.insert(t, -999999, 1) end",
        # A table of few elements that calls itself long.
        "local t = {} for k = 0, 29 do t[2 ^ k] = 1 end while true do pcall(table.insert, t, 1, 1) end",
        "local t = {} for k = 0, 29 do t[2 ^ k] = 1 end while true do pcall(table.remove, t, 1) end",
        # Texts and tables that Python reads.
        "local s = ('\\1'):rep(1e7) while true do cjson.encode(s) end",
        "local s = '[' .. ('1,'):rep(3e7) .. '1]' while true do pcall(cjson.decode, s) end",
        "local t = {} for i = 1, 1e6 do t['k' .. i] = 1 end while true do cjson.encode(t) end",
        # What the compiler takes quadratic time for.
        "local s = 'while x do ' .. ('if x then break end '):rep(1e5) .. 'end' while true do loadstring(s) end",
        "local s = 'return ' .. ('x and '):rep(1e6) .. 'x' while true do loadstring(s) end",
        "local s = ('x=1 '):rep(4e6) while true do loadstring(s) end",
    ],
)  # fmt: skip
def test_a_script_that_takes_long_ends_soon_after_script_kill(endless: str, busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    script = f"{endless} while true do end"
    slowest_s, reply = timed(lambda: client("EVAL", script, 0))
    for _ in range(5):
        assert reply is False, "it goes on"
        slice_s, reply = timed(client.go_on)
        slowest_s = max(slowest_s, slice_s)
    assert other("SCRIPT", "KILL") == b"OK"
    slice_s, reply = timed(client.go_on)
    assert "killed" in str(reply)
    assert max(slowest_s, slice_s) < SLICE_SECONDS_MAX
    assert client("EVAL", "return 1", 0) == 1


def test_a_script_is_interrupted_in_a_forked_process_too(busy: Server) -> None:
    client = Client(busy)
    client("EVAL", "return 1", 0)
    child = os.fork()
    if child == 0:
        os._exit(0 if client("EVAL", "while true do end", 0) is False else 1)
    assert os.waitpid(child, 0)[1] == 0


def timed(act: Callable[[], object]) -> tuple[float, object]:
    """How much of the processor it took, however busy others keep the machine."""
    began_s = thread_time()
    result = act()
    return thread_time() - began_s, result


@pytest.mark.parametrize(
    "returned",
    [
        "local s = ('x'):rep(1e8) local t = {} for i = 1, 7000 do t[i] = s end return t",
        "local s = ('x'):rep(1e8) local t = {} for i = 1, 7000 do t['k' .. i] = s end return {map = t}",
        "local s = ('x'):rep(1e8) local t = {} for i = 1, 7000 do t[i] = s end return cjson.encode(t)",
        "local s = ('x'):rep(1e6) local t = {} for d = 1, 120 do local n = {t} for i = 1, 60 do n[i + 1] = s end"
        " t = n end return cjson.encode(t)",
        "local s = ('x'):rep(1e8) local t = {} for i = 1, 7000 do t[i] = s end redis.call('mset', unpack(t))",
        "return cjson.encode(('x'):rep(1.2e8))",
    ],
)  # fmt: skip
def test_what_holds_one_text_many_times_is_refused_before_it_is_copied(
    returned: str, client: Client
) -> None:
    assert "too large" in client.error("EVAL", returned, 0)


def test_only_the_first_result_of_a_script_is_converted(client: Client) -> None:
    script = "local t = {} for i = 1, 7000 do t[i] = ARGV[1] end return unpack(t)"
    assert client("EVAL", script, 0, "x" * 10_000_000) == b"x" * 10_000_000


def test_fields_that_are_no_part_of_a_reply_are_not_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua.Lua, "fields", None)
    monkeypatch.setattr(lua.Lua, "batches", None)
    script = "local t = {1, 2, nil, 4} for i = 1, 1000 do t['k' .. i] = i end return {t, {}, {ok = 'x', a = 1}}"
    assert client("EVAL", script, 0) == [[1, 2], [], b"x"]


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1000, 1001])
def test_a_reply_has_all_members_of_a_table(count: int, client: Client) -> None:
    script = "local t = {} for i = 1, tonumber(ARGV[1]) do t[i] = i end return t"
    assert client("EVAL", script, 0, count) == list(range(1, count + 1))
    texts = "local t = {} for i = 1, 5 do t[i] = i .. ARGV[1] end return t"
    assert client("EVAL", texts, 0, "x" * 700_000) == [
        b"%d" % i + b"x" * 700_000 for i in range(1, 6)
    ]


@pytest.mark.parametrize(
    ("call", "results"),
    [
        ("xpcall(function() return 1, 2 end, error)", [1, 1, 2]),
        ("xpcall(function() error('x', 0) end, function(e) return e .. 'y', 5 end)", [None, b"xy"]),
        ("xpcall(function() error({err = 'x'}) end, function(e) return e.err end)", [None, b"x"]),
        ("xpcall(error, error)", [None, b"error in error handling"]),
        ("xpcall(error, nil)", [None, b"error in error handling"]),
        ("xpcall(nil, function(e) return e end)", [None, b"attempt to call a nil value"]),
    ],
)
def test_xpcall_returns_what_its_handler_does(
    call: str, results: list[object], client: Client
) -> None:
    assert client("EVAL", f"return {{{call}}}", 0) == results


def test_code_that_is_too_large_or_too_complex_is_not_compiled(client: Client) -> None:
    refused = "ERR Error compiling script (new function): code is too large or too complex"
    assert client.error("EVAL", "return 1 --" + "x" * 17_000_000, 0) == refused
    assert client.error("EVAL", "return " + "x or " * 30_000 + "x", 0) == refused
    assert client("EVAL", "return " + "false or " * 10_000 + "1", 0) == 1


# --- memory ---------------------------------------------------------------------------------------


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Python's collector rests: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_nothing_is_kept_of_what_a_function_raised(client: Client) -> None:
    client("EVAL", "for i = 1, 9 do pcall(bit.band, {}, {}) redis.pcall({}) end", 0)
    texts = (b"ERR bad argument to a function of bit", b"ERR Lua redis lib command arguments")
    raised = [each for each in gc.get_objects() if isinstance(each, Refused)]
    assert [each for each in raised if each.__traceback__ and each.text.startswith(texts)] == []


@pytest.mark.usefixtures("uncollected")
def test_nothing_is_kept_of_a_reply_that_is_refused(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "MEMBER_BYTES", 1_000_000)
    script = "local t = {} for i = 1, 100000 do t[i] = {} end return t"
    assert "too large" in client.error("EVAL", script, 0)
    client("EVAL", "collectgarbage()", 0)
    assert server.scripts.interpreter_bytes < 2_000_000


def test_a_handle_outlives_the_coroutine_that_passed_it(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(Api, "sha1hex", lambda _, *arguments: kept.extend(arguments))
    script = """
        for i = 1, 1000 do coroutine.wrap(function() redis.sha1hex({i}) coroutine.yield() end)() end
        collectgarbage()
    """
    client("EVAL", script, 0)
    assert [dict(server.scripts.lua.fields(each)) for each in kept[:2]] == [{1: 1}, {1: 2}]
    kept.clear()
    assert client("EVAL", "collectgarbage() return 1", 0) == 1


def test_an_error_in_a_coroutine_keeps_nothing_of_it(client: Client) -> None:
    script = """
        for i = 1, 2000 do
          coroutine.wrap(function()
            pcall(redis.call, {})
            redis.pcall({})
            pcall(cjson.encode, {{function() end}, redis.call})
            pcall(bit.band, {}, {})
          end)()
          if i % 100 == 0 then collectgarbage() end
        end
        return 1
    """
    assert client("EVAL", script, 0) == 1


FILL = """
    local texts, held = {[0] = 'x'}, {}
    for i = 1, 22 do texts[i] = texts[i - 1] .. texts[i - 1] end
    for i = 22, 4, -1 do
      while collectgarbage('count') * 1024 + 2 ^ i + 40 < tonumber(ARGV[1]) do
        held[#held + 1] = texts[i] .. #held
      end
    end
"""


@pytest.mark.parametrize(
    "act",
    [
        "redis.call('nope')",
        "redis.call('set', 'k', 'v')",
        "redis.pcall({}, {}, {})",
        "redis.debug({}, {}, {})",
        "redis.sha1hex(1, 2)",
        "cjson.encode({{}, {}})",
        "cjson.decode('[[], []]')",
        "math.random()",
        "string.rep('x', 100000)",
        "coroutine.wrap(function() redis.call('nope') end)()",
    ],
)
def test_functions_are_not_entered_where_memory_may_run_out(
    act: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 16 * 1024 * 1024
    monkeypatch.setattr(lua, "MEMORY_BYTES_MAX", size)
    client("EVAL", "return 1", 0)
    for missing in range(-20_000, 120_000, 1_009):
        client("EVAL", f"{FILL} for i = 1, 20 do {act} end", 0, size - missing)
        assert client("EVAL", "return redis.call('echo', 'x')", 0) == b"x"


@pytest.mark.parametrize(
    "script",
    [
        "local t = {} for i = 1, 100 do t[i] = redis.call('get', 'large') .. i end",
        "local t = {} for i = 1, 100 do t[i] = cjson.decode(ARGV[1]) end",
        "local t = {} for i = 1, 100 do t[i] = redis.call('mget', 'large', 'large') t[i][3] = i .. t[i][1] end",
    ],
)
def test_a_reply_that_does_not_fit_into_memory_is_an_error(
    script: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "MEMORY_BYTES_MAX", 8 * 1024 * 1024)
    client("SET", "large", "x" * 500_000)
    text = "[" + ",".join(["[]"] * 50_000) + "]"
    assert "ERR" in client.error("EVAL", script, 0, text)
    assert client("EVAL", "return #redis.call('get', 'large')", 0) == 500_000


def test_arguments_and_scripts_that_do_not_fit_into_memory_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "MEMORY_BYTES_MAX", 8 * 1024 * 1024)
    refused = "ERR too large for the interpreter of scripts"
    assert client.error("EVAL", "return 1", 0, "x" * 4_000_000, "x" * 4_000_000) == refused
    assert client.error("EVAL", "return 1 --" + "x" * 4_000_000, 0) == refused
    assert client("EVAL", "return #ARGV[1]", 0, "x" * 1_000_000) == 1_000_000


def test_scripts_are_forgotten_before_they_fill_the_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "KILOBYTES_MAX", 1024)
    for number in range(12):
        assert client("EVAL", f"return {{{'1,' * 10_000}{number}}}", 0)[-1] == number
    assert client("EVAL", "return 1", 0) == 1
