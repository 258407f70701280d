-- The world of a script: what it can see and cannot change, and how it is run and ended.
--
-- Handed in: the members of `redis`, the libraries by name, `explain` (the text of an error that a function of
-- ours raised), `ask` (after how many instructions to look again at the script that holds so many kilobytes; 0 if it
-- has to end), `note_end` (told the line at which it had to), how many instructions pass before the first look, and from
-- how many kilobytes on they are counted without the garbage.
-- Handed out: `compile`, `run`, `null`, what arms and disarms those looks, and the collector.
--
-- Functions of ours are userdata to Lua, and their errors are too. A script sees neither: it is told "function",
-- and errors as tables with a field `err`. They are not wrapped in functions of Lua, because the tail call
-- `return redis.call(...)` would then leave no trace of the line it stands in.

local redis, libraries, explain, ask, note_end, LOOK_FIRST, KILOBYTES_MAX = ...

local collectgarbage, gcinfo = collectgarbage, gcinfo
local error, getinfo, getmetatable, loadstring = error, debug.getinfo, getmetatable, loadstring
local next, pairs, pcall, rawget, rawset = next, pairs, pcall, rawget, rawset
local setfenv, sethook, setmetatable, tostring = setfenv, debug.sethook, setmetatable, tostring
local type, xpcall = type, xpcall
local byte, find, sub = string.byte, string.find, string.sub
local concat, floor, insert = table.concat, math.floor, table.insert
local create, resume, running = coroutine.create, coroutine.resume, coroutine.running

local READONLY = "Attempt to modify a readonly table"
local OWN = getinfo(1, "S").source
local null = newproxy()

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

-- Errors, as scripts know them. A stack that overflows in the look at the script does so in the script.

local OWN_PLACE = getinfo(1, "S").short_src .. ":"

local function known(err)
  if type(err) == "userdata" and err ~= null then
    return {err = explain(err)}
  elseif type(err) == "string" and sub(err, 1, #OWN_PLACE) == OWN_PLACE then
    return sub(err, find(err, " ", #OWN_PLACE, true) + 1), true
  end
  return err
end

local function caught(is_well, err, ...)
  if is_well then
    return true, err, ...
  end
  err = known(err)
  if type(err) == "table" and type(err.err) == "string" then
    err = err.err
  end
  return false, err
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

function look()
  is_looking = true
  if gcinfo() > KILOBYTES_MAX then
    collectgarbage()
  end
  local every = ask(gcinfo())
  if every == 0 then
    local info = place()
    note_end(info and info.source .. ":" .. info.currentline or "")
    sethook(look, "", 1)
    error("ended", 0)
  elseif every ~= intervals[running() or FIRST_THREAD] then
    look_after(every)
  end
  is_looking = false
end

local function arm()
  is_looking = false
  look_after(LOOK_FIRST)
end

-- One of C would go on for minutes, and nothing could look at it meanwhile.

local STRING_MAX = KILOBYTES_MAX * 1024 / 2

local function refuse_argument(name, place, wanted, given)
  error(("bad argument #%d to '%s' (%s expected, got %s)"):format(place, name, wanted, given), 3)
end

function string.rep(text, count)
  if type(text) ~= "string" and type(text) ~= "number" then
    refuse_argument("rep", 1, "string", type(text))
  end
  text, count = text .. "", tonumber(count) or refuse_argument("rep", 2, "number", type(count))
  if #text * count > STRING_MAX then
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

-- That of C writes raw, past what refuses. It is asked for nothing that it would refuse itself, since its error
-- would not name the script's line.

local function type_seen(given)
  local found = type(given)
  return found == "userdata" and given ~= null and "function" or found
end

function table.insert(...)
  local to, place = ...
  local count = select("#", ...)
  if type(to) ~= "table" then
    refuse_argument("insert", 1, "table", count == 0 and "no value" or type_seen(to))
  elseif count ~= 2 and count ~= 3 then
    error("wrong number of arguments to 'insert'", 2)
  elseif count == 3 and not tonumber(place) then
    refuse_argument("insert", 2, "number", type_seen(place))
  elseif behind[to] then
    error(READONLY, 0)
  end
  return insert(...)
end

-- What scripts see.

local globals = {}

for _, name in ipairs {
  "_VERSION", "assert", "collectgarbage", "error", "gcinfo", "getmetatable", "ipairs", "rawequal", "select",
  "tonumber", "unpack",
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

function globals.type(...)
  type(...) -- refuses to be asked about nothing
  return type_seen((...))
end

function globals.tostring(...)
  local given = ...
  if type(given) == "userdata" then
    return given == null and "userdata: NULL" or "function: builtin"
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

function globals.xpcall(act, handle)
  return xpcall(act, function(err)
    if is_looking then
      return err
    end
    return handle(known(err))
  end)
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
  if info then
    err.source, err.line = info.source, info.currentline
  end
  return err
end

local function run(script, keys, arguments)
  collectgarbage("restart") -- in case that another script stopped it
  globals.KEYS, globals.ARGV = keys, arguments
  return xpcall(script, report)
end

return compile, run, null, arm, sethook, collectgarbage
