-- The world of a script: what it can see and cannot change, and how it is run.
--
-- Handed in: the members of `redis`, the libraries by name, `draw` (a seed), the source of patterns.lua, and where the guards of
-- _lua_guard.pyx are: its library and the address of their state.
-- Handed out: `compile`, `run`, `null`, the collector, and what reads tables for Python: `fields` and `reply`.
--
-- Rules. All scripts of a server share this interpreter, so whatever a script can reach is its own, or cannot be changed:
--   * Tables that all scripts share are read through an empty table in front of them, which refuses to be written to.
--   * No object of Python is ever handed to a script. Functions in Python are wrapped in closures of C, which turn their
--     errors into tables. Should one slip through, it does nothing: the metatable of these objects is emptied and hidden.
--   * Functions of Lua's own that change state which all scripts share (the collector, the random numbers, environments,
--     debug hooks) are replaced or left out.
--   * Functions of C cannot be interrupted. Those whose cost or depth is not bounded by the size of what they are given are
--     bounded, and what they call back is a function of Lua, which can be.
--   * No code of a script runs where its interrupts do not: not as the handler of an error, which may be that of an interrupt.

local redis, libraries, draw, patterns, library, address = ...
local guard = assert(package.loadlib(library, "ephemera_lua_guard"))(address)

local collectgarbage, error, getinfo, getmetatable = collectgarbage, error, debug.getinfo, getmetatable
local loadstring, next, pairs, pcall, rawget, rawset = loadstring, next, pairs, pcall, rawget, rawset
local select, setfenv, setmetatable, tonumber, tostring = select, setfenv, setmetatable, tonumber, tostring
local type, unpack = type, unpack
local byte, find, format, sub = string.byte, string.find, string.format, string.sub
local concat, floor, sort = table.concat, math.floor, table.sort

local READONLY = "Attempt to modify a readonly table"
local OWN = getinfo(1, "S").source
local null = newproxy()

-- Functions in Python.

local function hide_python(object)
  local meta = debug.getmetatable(object)
  for name in pairs(meta) do
    if name ~= "__gc" then
      meta[name] = nil
    end
  end
  meta.__metatable = false
end

local function as_functions(members)
  for name, member in pairs(members) do
    if type(member) == "userdata" then
      members[name] = guard("python", python.as_function(member))
    end
  end
end

local an_object = draw
draw = guard("python", python.as_function(draw))
redis.pcall = guard("python", python.as_function(redis.call), true)
as_functions(redis)
for _, each in pairs(libraries) do
  as_functions(each)
end
hide_python(an_object)

-- Tables that scripts read through an empty one in front of them.

local behind = {}

local function refuse()
  error(READONLY, 2)
end

local nothing = setmetatable({}, {__newindex = refuse, __metatable = false})
behind[nothing] = {}

local function protect(inner, index)
  local front = setmetatable({}, {
    __index = index or inner, __newindex = refuse, __metatable = nothing,
  })
  behind[front] = inner
  return front
end

-- Errors, as scripts know them. The second value is whether the error named a line of this file, which was taken off.

local OWN_PLACE = getinfo(1, "S").short_src .. ":"

local function known(err)
  if type(err) == "string" and sub(err, 1, #OWN_PLACE) == OWN_PLACE then
    return sub(err, (find(err, " ", #OWN_PLACE, true) or #err) + 1), true
  end
  return err, false
end

-- The line of the script that is running.

local function place()
  local level = 3 -- past this function and the one that asks
  local info = getinfo(level, "Sl")
  while info and (info.what == "C" or info.what == "tail" or info.source == OWN) do
    level = level + 1
    info = getinfo(level, "Sl")
  end
  return info
end

-- Guards of functions of C.

local function refuse_argument(name, place, wanted, given)
  error(format("bad argument #%d to '%s' (%s expected, got %s)", place, name, wanted, given), 3)
end

local search = guard("search")

string.rep = guard("rep")
table.insert = guard("insert", table.insert, behind)
table.remove = guard("remove", table.remove)

-- What a function of C calls back: one of C would be called without an instruction in between.

local function as_lua(act)
  if type(act) == "function" and getinfo(act, "S").what == "C" then
    return function(...) return (act(...)) end
  end
  return act
end

for name, guarded in pairs((loadstring(patterns, OWN)(search, as_lua))) do
  string[name] = guarded
end

for _, name in ipairs {"foreach", "foreachi"} do
  local own = table[name]
  table[name] = function(of, act)
    return own(of, as_lua(act))
  end
end

local function is_less(one, other)
  return one < other
end

function table.sort(...)
  local values, compare = ...
  if compare == nil and type(values) == "table" then
    return sort(values, is_less)
  end
  return sort(values, as_lua(compare))
end

-- Random numbers: those of Redis for the same seed. Each script has its own, since `math.randomseed` of one would decide
-- what others draw. A state is 48 bits, in two halves, because a number of Lua holds the product of two halves.

local HALF = 2 ^ 24
local FACTOR_HIGH, FACTOR_LOW, INCREMENT = 0x5DE, 0xECE66D, 0xB
local RANDOM_MAX = 2 ^ 31 - 1
local high, low

local function seed(number)
  number = number % 2 ^ 32
  high, low = floor(number / 2 ^ 8), number % 2 ^ 8 * 2 ^ 16 + 0x330E
end

local function random()
  if not high then
    seed(draw())
  end
  local product = low * FACTOR_LOW + INCREMENT
  high = (high * FACTOR_LOW + low * FACTOR_HIGH + floor(product / HALF)) % HALF
  low = product % HALF
  return (high * 2 ^ 7 + floor(low / 2 ^ 17)) % RANDOM_MAX / RANDOM_MAX
end

local function bound(name, place, given)
  local number = tonumber(given) or refuse_argument(name, place, "number", type(given))
  return number < 0 and -floor(-number) or floor(number)
end

function math.random(...)
  local count, first, last = select("#", ...), ...
  if count > 2 then
    error("wrong number of arguments", 2)
  elseif count == 0 then
    return random()
  elseif count == 1 then
    first, last = 1, bound("random", 1, first)
  else
    first, last = bound("random", 1, first), bound("random", 2, last)
  end
  if not (first <= last) then
    error(format("bad argument #%d to 'random' (interval is empty)", count), 2)
  end
  return floor(random() * (last - first + 1)) + first
end

function math.randomseed(...)
  local number = ...
  seed(bound("randomseed", 1, number))
end

-- What scripts see.

local globals = {}

for _, name in ipairs {
  "_VERSION", "assert", "error", "gcinfo", "getmetatable", "ipairs", "rawequal", "select", "tonumber", "type",
} do
  globals[name] = _G[name]
end

for _, name in ipairs {"math", "string", "table"} do
  globals[name] = protect(_G[name])
end

globals.redis = protect(redis)
for name, each in pairs(libraries) do
  globals[name] = protect(each)
end
libraries.cjson.null = null
globals.unpack = guard("unpack", unpack)

globals._G = protect(globals, function(_, name)
  local found = globals[name]
  if found == nil then
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end
  return found
end)

-- The compiler takes time quadratic in the number of jumps to one place. None of the words that make them is in much code.

local CODE_BYTES_MAX = 16 * 1024 * 1024
local CODE_BYTES_SAFE = 65536
local JUMPS_MAX = 20000

local function is_too_complex(code)
  if #code <= CODE_BYTES_SAFE or #code > CODE_BYTES_MAX then
    return #code > CODE_BYTES_MAX
  end
  local jumps = 0
  for _, word in ipairs {"and", "or", "break", "elseif"} do
    local at = search(code, word, 1)
    while at and jumps <= JUMPS_MAX do
      jumps, at = jumps + 1, search(code, word, at + 1)
    end
  end
  return jumps > JUMPS_MAX
end

local function compile(code, name)
  if type(code) == "string" and is_too_complex(code) then
    return nil, "code is too large or too complex"
  elseif byte(code) == 27 then
    code = " " .. code -- no text begins like this: it is bytecode, which could do anything
  end
  local made, err = loadstring(code, name)
  if made then
    setfenv(made, globals._G)
  end
  return made, err
end

function globals.loadstring(code, name)
  return compile(code, name or code)
end

function globals.load(read, name)
  local pieces = {}
  for piece in read do
    if piece == "" then
      break
    end
    pieces[#pieces + 1] = piece
  end
  return compile(concat(pieces), name or "=(load)")
end

-- The collector works for all scripts: none sets its pace.

local PACE = {stop = 0, restart = 0, setpause = 200, setstepmul = 200}

function globals.collectgarbage(...)
  local option = ...
  return PACE[option] or collectgarbage(...)
end

function globals.tostring(...)
  if ... == null then
    return "userdata: (nil)"
  end
  return tostring(...)
end

function globals.next(from, key)
  return next(behind[from] or from, key)
end

function globals.pairs(from)
  if behind[from] then
    return globals.next, from, nil
  end
  return pairs(from)
end

function globals.rawget(from, key)
  return rawget(behind[from] or from, key)
end

function globals.rawset(to, key, value)
  if behind[to] then
    error(READONLY, 0)
  end
  return rawset(to, key, value)
end

function globals.setmetatable(to, meta)
  if behind[to] then
    error(READONLY, 0)
  end
  return setmetatable(to, meta)
end

local function caught(is_well, err, ...)
  if is_well then
    return true, err, ...
  end
  err = known(err)
  if type(err) == "table" and type(rawget(err, "err")) == "string" then
    err = rawget(err, "err")
  end
  return false, err
end

function globals.pcall(...)
  return caught(pcall(...))
end

-- Lua's own calls the handler before it unwinds, and so perhaps within an interrupt.

local function handled(handle, is_well, err, ...)
  if is_well then
    return true, err, ...
  end
  local is_handled, result = pcall(handle, (known(err)))
  if is_handled then
    return false, result
  end
  return false, "error in error handling"
end

function globals.xpcall(act, handle)
  return handled(handle, pcall(act))
end

local resume = guard("resume", coroutine.resume)

local function passed_on(is_well, ...)
  if not is_well then
    error((...), 0)
  end
  return ...
end

globals.coroutine = protect {
  create = coroutine.create,
  resume = function(...) return caught(resume(...)) end,
  running = coroutine.running,
  status = coroutine.status,
  wrap = function(act)
    local made = coroutine.create(act)
    return function(...) return passed_on(resume(made, ...)) end
  end,
  yield = coroutine.yield,
}

getmetatable("").__metatable = nothing

-- Tables for Python, some members at a time, because all of them may be far more than fits into its memory. Functions are
-- replaced by one of Lua: lupa loses its place in a table that holds one of C with an object of Python behind it.

local MEMBERS_MAX = 500
local BYTES_MAX = 1e6

local passed

function passed(value)
  return type(value) == "function" and passed or value
end

-- First a function that returns more of them in the same way, or nil where there are no more, then the size of their texts,
-- then names and values in turn.

local function fields(of, name)
  local found, count, bytes, value = {}, 0, 0, nil
  repeat
    name, value = next(of, name)
    if name == nil then
      return nil, bytes, unpack(found, 1, count)
    end
    found[count + 1], found[count + 2] = passed(name), passed(value)
    count, bytes = count + 2, bytes + (type(name) == "string" and #name or 0) + (type(value) == "string" and #value or 0)
  until count == 2 * MEMBERS_MAX or bytes > BYTES_MAX
  return function() return fields(of, name) end, bytes, unpack(found, 1, count)
end

-- A table as a reply. First the name of the field that makes it something else than an array, and that field; or false,
-- whether there are more members, and those behind a place. They end before the first that is missing.

local TAGS = {
  {"err", "string"}, {"ok", "string"}, {"double", "number"}, {"map", "table"}, {"set", "table"},
  {"big_number", "string"}, {"verbatim_string", "table"},
}

local function tagged(of)
  for place = 1, #TAGS do
    local name, kind = TAGS[place][1], TAGS[place][2]
    local value = rawget(of, name)
    if name == "verbatim_string" and type(value) == kind then
      value, kind = rawget(value, "string"), "string"
    end
    if type(value) == kind then
      return name, value
    end
  end
end

local function reply(of, place)
  local tag, value
  if place == 0 then
    tag, value = tagged(of)
  end
  if tag then
    return tag, value
  end
  local found, count, bytes = {}, 0, 0
  repeat
    value = rawget(of, place + count + 1)
    if value == nil then
      return false, false, unpack(found, 1, count)
    end
    count, bytes = count + 1, bytes + (type(value) == "string" and #value or 0)
    found[count] = passed(value)
  until count == MEMBERS_MAX or bytes > BYTES_MAX
  return false, true, unpack(found, 1, count)
end

-- Running.

local function report(err)
  local is_misplaced
  err, is_misplaced = known(err)
  local info = place()
  if info and is_misplaced then
    err = info.short_src .. ":" .. info.currentline .. ": " .. err
  end
  if type(err) ~= "table" or behind[err] then
    err = {err = "ERR " .. tostring(err)}
  end
  return {err = rawget(err, "err"), place = info and info.source .. ":" .. info.currentline}
end

local run_guarded = guard("run")

local function outcome(is_well, value)
  if is_well then
    return true, value
  elseif type(value) == "table" then
    return false, value.err, value.place
  end
  collectgarbage() -- it may be that there is no memory left
  return false, "ERR " .. tostring(value)
end

-- Whether it went well, and its result or the text of its error and its place.

local function run(script, keys, arguments)
  high, low = nil, nil
  globals.KEYS, globals.ARGV = keys, arguments
  return outcome(run_guarded(script, report))
end

return compile, run, null, collectgarbage, fields, reply
