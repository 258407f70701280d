-- The world of a script: what it can see and cannot change, and how it is run and ended.
--
-- Handed in: the members of `redis`, the libraries by name, `explain` (the text of an error that a function in Python
-- raised), `ask` (after how many instructions to look again at the script that holds so many kilobytes; 0 if it
-- has to end), `note_end` (given the line at which it had to), `search` (the place of a plain text), `draw` (a seed), the
-- source of patterns.lua, how many instructions pass before the first look, and from how many kilobytes on they are
-- counted without the garbage.
-- Handed out: `compile`, `run`, `null`, what arms and disarms those looks, the collector, and `fields` of a table.
--
-- Rules. All scripts of a server share this interpreter, so whatever a script can reach is its own, or cannot be changed:
--   * Tables that all scripts share are read through an empty table in front of them, which refuses to be written to.
--   * No object of Python is ever handed to a script. Functions in Python are wrapped in closures of C (`as_function`), not
--     of Lua, because the tail call `return redis.call(...)` of a function of Lua leaves no trace of its line. Their
--     errors arrive as objects of Python, and every way to catch an error (pcall, xpcall, coroutine.resume) turns
--     them into tables or text. Should one slip through, it does nothing: the metatable of these objects is emptied and hidden.
--   * Functions of Lua's own that change state which all scripts share (the collector, the random numbers, environments,
--     debug hooks) are replaced or left out.
--   * Functions of C cannot be interrupted. Those whose cost or depth is not bounded by the size of what they are given are guarded.

local redis, libraries, explain, ask, note_end, search, draw, patterns, LOOK_FIRST, KILOBYTES_MAX = ...

local collectgarbage, gcinfo = collectgarbage, gcinfo
local error, getinfo, getmetatable, loadstring = error, debug.getinfo, getmetatable, loadstring
local next, pairs, pcall, rawget, rawset = next, pairs, pcall, rawget, rawset
local select, setfenv, sethook, setmetatable = select, setfenv, debug.sethook, setmetatable
local tonumber, tostring, type, unpack, xpcall = tonumber, tostring, type, unpack, xpcall
local byte, find, format, sub = string.byte, string.find, string.format, string.sub
local concat, floor, insert, sort = table.concat, math.floor, table.insert, table.sort
local create, resume, running = coroutine.create, coroutine.resume, coroutine.running

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
      members[name] = python.as_function(member)
    end
  end
  return members
end

local an_object = explain
local called = as_functions {explain = explain, ask = ask, note_end = note_end, search = search, draw = draw}
explain, ask, note_end, search, draw = called.explain, called.ask, called.note_end, called.search, called.draw
as_functions(redis)
for _, library in pairs(libraries) do
  as_functions(library)
end
hide_python(an_object)
an_object, called = nil, nil

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

-- Errors, as scripts know them. A stack that overflows in the look at the script does so in the script. The second
-- value is whether the error named a line of this file, which was taken off.

local OWN_PLACE = getinfo(1, "S").short_src .. ":"

local function known(err)
  if type(err) == "userdata" and err ~= null then
    return {err = explain(err)}, false
  elseif type(err) == "string" and sub(err, 1, #OWN_PLACE) == OWN_PLACE then
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

-- The look at time and memory. Once a script has to end every instruction fails, so that no pcall goes on.
-- While an error of the look itself is handled nothing looks: no code of the script may run then.

local is_looking = false
local look
local FIRST_THREAD = {} -- which has no name that could be a key
local intervals = setmetatable({}, {__mode = "k"})

local function look_after(every, thread)
  intervals[thread or running() or FIRST_THREAD] = every
  if thread then
    sethook(thread, look, "", every)
  else
    sethook(look, "", every)
  end
end

local function finish()
  local info = place()
  note_end(info and info.source .. ":" .. info.currentline or "")
  sethook(look, "", 1)
  error("ended", 0)
end

function look()
  is_looking = true
  if gcinfo() > KILOBYTES_MAX then
    collectgarbage()
  end
  local every = ask(gcinfo())
  if every == 0 then
    finish()
  elseif every ~= intervals[running() or FIRST_THREAD] then
    look_after(every)
  end
  is_looking = false
end

local function arm()
  is_looking = false
  look_after(LOOK_FIRST)
end

-- The look of functions of C that may take long: after so many steps of theirs, however few instructions passed.

local CHARGED_MAX = 1e7
local charged = 0

local function charge(steps)
  charged = charged + steps
  if charged >= CHARGED_MAX then
    charged, is_looking = 0, true
    if ask(0) == 0 then
      finish()
    end
    is_looking = false
  end
end

-- Where too little of a stack is left to call `look`, the hook fails instead, and the script may catch that error. So
-- whoever catches an error looks, by calling a function of C, which takes none of the C stack.

local function look_at_catch()
  if gcinfo() > KILOBYTES_MAX then
    look()
  else
    charge(CHARGED_MAX)
  end
end

local function caught(is_well, err, ...)
  if is_well then
    return true, err, ...
  end
  look_at_catch()
  err = known(err)
  if type(err) == "table" and type(rawget(err, "err")) == "string" then
    err = rawget(err, "err")
  end
  return false, err
end

-- Guards of functions of C.

local STRING_MAX = KILOBYTES_MAX * 1024 / 2
local UNPACKED_MAX = 8000 -- what the stack of C holds
local SHIFTED_MAX = 1e6

local function refuse_argument(name, place, wanted, given)
  error(format("bad argument #%d to '%s' (%s expected, got %s)", place, name, wanted, given), 3)
end

function string.rep(...)
  local text, count = ...
  local given = select("#", ...)
  if type(text) ~= "string" and type(text) ~= "number" then
    refuse_argument("rep", 1, "string", given < 1 and "no value" or type(text))
  end
  text = text .. ""
  count = tonumber(count) or refuse_argument("rep", 2, "number", given < 2 and "no value" or type(count))
  if text == "" or not (count >= 1) then
    return ""
  elseif #text * count > STRING_MAX then
    error("resulting string too large", 2)
  end
  local made = ""
  while count >= 1 do
    if count % 2 >= 1 then
      made = made .. text
    end
    count = floor(count / 2)
    text = count >= 1 and text .. text
  end
  return made
end

for name, guarded in pairs((loadstring(patterns, OWN)(charge, search))) do
  string[name] = guarded
end

-- The one of C writes raw, past what refuses, and moves everything from a place far below 1. It is given nothing that it
-- would refuse itself, since its error would not name the script's line.

function table.insert(...)
  local to, place = ...
  local count = select("#", ...)
  if type(to) ~= "table" then
    refuse_argument("insert", 1, "table", count == 0 and "no value" or type(to))
  elseif count ~= 2 and count ~= 3 then
    error("wrong number of arguments to 'insert'", 2)
  elseif count == 3 and not tonumber(place) then
    refuse_argument("insert", 2, "number", type(place))
  elseif behind[to] then
    error(READONLY, 0)
  elseif count == 3 and not (tonumber(place) > -SHIFTED_MAX and tonumber(place) < 2 ^ 31) then
    error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  return insert(...)
end

-- In C the comparisons would be no instructions: nobody could end a sort that takes quadratic time.

local function is_less(one, other)
  return one < other
end

function table.sort(...)
  local values, compare = ...
  if type(values) ~= "table" or compare ~= nil and type(compare) ~= "function" then
    return sort(...)
  elseif compare == nil then
    return sort(values, is_less)
  elseif getinfo(compare, "S").what == "C" then
    return sort(values, function(one, other) return (compare(one, other)) end)
  end
  return sort(values, compare)
end

local function unpack_guarded(...)
  local from, first, last = ...
  if type(from) == "table" then
    first = tonumber(first == nil and 1 or first)
    last = tonumber(last == nil and #from or last)
    if first and last then
      if last < first then
        return
      elseif not (last - first < UNPACKED_MAX) then
        error("too many results to unpack", 2)
      end
    end
  end
  return unpack(...)
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
for name, library in pairs(libraries) do
  globals[name] = protect(library)
end
libraries.cjson.null = null
globals.unpack = unpack_guarded

globals._G = protect(globals, function(_, name)
  local found = globals[name]
  if found == nil then
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end
  return found
end)

local function compile(code, name)
  if byte(code) == 27 then
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
  if option ~= "count" then
    charge(CHARGED_MAX)
  end
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

function globals.pcall(...)
  return caught(pcall(...))
end

local function handled(is_well, err, ...)
  if is_well then
    return true, err, ...
  end
  look_at_catch()
  return false, (known(err))
end

function globals.xpcall(act, handle)
  return handled(xpcall(act, function(err)
    if is_looking then
      return err
    end
    return handle((known(err)))
  end))
end

-- A coroutine of Lua 5.1 has a hook of its own.

local function begin(act)
  local made = create(act)
  look_after(LOOK_FIRST, made)
  return made
end

local function passed_on(is_well, ...)
  if not is_well then
    error((...), 0)
  end
  return ...
end

globals.coroutine = protect {
  create = begin,
  resume = function(...) return caught(resume(...)) end,
  running = coroutine.running,
  status = coroutine.status,
  wrap = function(act)
    local made = begin(act)
    return function(...) return passed_on(resume(made, ...)) end
  end,
  yield = coroutine.yield,
}

getmetatable("").__metatable = nothing

-- The fields of a table for Python: first a function that returns more of them in the same way, or nil where there are no more,
-- then names and values in turn. Functions are replaced by one of Lua, because lupa loses its place in a table that
-- holds one of C with an object of Python behind it.

local FIELDS_MAX = 500

local passed

function passed(value)
  return type(value) == "function" and passed or value
end

local function fields(of, name)
  local found, count, value = {}, 0, nil
  repeat
    name, value = next(of, name)
    if name == nil then
      return nil, unpack(found, 1, count)
    end
    found[count + 1], found[count + 2] = passed(name), passed(value)
    count = count + 2
  until count == 2 * FIELDS_MAX
  return function() return fields(of, name) end, unpack(found, 1, count)
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
  local text = rawget(err, "err")
  if info then
    return {err = text, source = info.source, line = info.currentline}
  end
  return {err = text}
end

local function run(script, keys, arguments)
  high, low, charged = nil, nil, 0
  globals.KEYS, globals.ARGV = keys, arguments
  return xpcall(script, report)
end

return compile, run, null, arm, sethook, collectgarbage, fields
