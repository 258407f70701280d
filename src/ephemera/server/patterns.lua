-- string.find, match, gmatch and gsub with a bound on what one call costs.
--
-- Lua's own pattern matcher is one call of C: nothing can interrupt it, a pattern with many quantifiers takes
-- exponential time, and each quantifier takes C stack. `guard` estimates the worst case of a call. Where that is small,
-- Lua's own functions do the work; beyond it a backtracking matcher written in Lua does, which can be interrupted and
-- whose depth is bounded. tests/server/test_patterns.py holds the two against each other.
--
-- Handed in: `search`, which finds plain text in linear time, and `as_lua`, which makes of a function of C one of Lua.
-- Handed out: the guarded functions by name, and the matcher's own by name for that test.

local search, as_lua = ...

local error, getmetatable, select, tonumber, type = error, getmetatable, select, tonumber, type
local floor, max, min = math.floor, math.max, math.min
local byte, char, concat, sub = string.byte, string.char, table.concat, string.sub
local own = {find = string.find, match = string.match, gmatch = string.gmatch, gsub = string.gsub}
local find = own.find

local STEPS_MAX = 1e8 -- of the matcher in C, a fraction of a second
local PATTERN_BYTES_MAX = 100000
local NESTED_MAX = 5000 -- quantifiers and captures of one pattern: each nests a call
local CAPTURES_MAX = 32
local CACHED_MAX = 500
local CACHED_BYTES_MAX = 200
local UNCLOSED, POSITION = -1, -2

local function cached(make)
  local known, count = {}, 0
  return function(text)
    local found = known[text]
    if found == nil then
      found = make(text)
      if #text <= CACHED_BYTES_MAX then
        if count == CACHED_MAX then
          known, count = {}, 0
        end
        known[text], count = found, count + 1
      end
    end
    return found
  end
end

-- Where the item that starts at `at` ends, its quantifier not included; nil where the pattern is malformed.

local function item_end(pattern, at)
  local first = byte(pattern, at)
  if first == 37 then -- %
    local class = sub(pattern, at + 1, at + 1)
    if class == "b" then
      return at + 3 < #pattern + 1 and at + 4 or nil
    elseif class == "f" then
      return sub(pattern, at + 2, at + 2) == "[" and item_end(pattern, at + 2) or nil
    end
    return class ~= "" and at + 2 or nil
  elseif first ~= 91 then -- [
    return at + 1
  end
  at = at + (byte(pattern, at + 1) == 94 and 2 or 1) -- ^
  repeat
    local inside = byte(pattern, at)
    if not inside then
      return nil
    end
    at = at + (inside == 37 and at < #pattern and 2 or 1)
  until byte(pattern, at) == 93 -- ]
  return at + 1
end

local function quantifier_at(pattern, at)
  local found = sub(pattern, at, at)
  return found ~= "" and find("*+-?", found, 1, true) and found
end

-- How often the length of the subject, and 2, are factors of the steps that a match takes at worst. A quantifier
-- with nothing behind it never backtracks: to reach it is to match.

local factors = cached(function(pattern)
  local at, lengths, twos = 1, 1, 0
  if #pattern > PATTERN_BYTES_MAX then
    return {1 / 0, 0}
  elseif byte(pattern) == 94 then
    at, lengths = 2, 0
  end
  while at <= #pattern do
    local escape, class = byte(pattern, at, at + 1)
    local after = item_end(pattern, at)
    if not after then
      break
    end
    local quantifier = quantifier_at(pattern, after)
    if escape == 37 and class and (class == 98 or class >= 48 and class <= 57) then -- %b, %1
      lengths = lengths + 1
    elseif quantifier and escape ~= 40 and escape ~= 41 and not (escape == 37 and class == 102) then -- ( ) %f
      after = after + 1
      if find(pattern, "^[()]*$", after) then
        break
      elseif quantifier == "?" then
        twos = twos + 1
      else
        lengths = lengths + 1
      end
    end
    at = after
  end
  return {lengths, twos}
end)

local function cost(subject, pattern)
  local power = factors(pattern)
  return #pattern * max(2, #subject + 1) ^ power[1] * 2 ^ power[2]
end

-- A pattern as a list of items.

local members = cached(function(class)
  local set = {}
  for code = 0, 255 do
    set[code] = find(char(code), "^" .. class) ~= nil
  end
  return set
end)

local function single(pattern, at, after)
  if after - at == 1 and byte(pattern, at) ~= 46 then -- .
    return {[byte(pattern, at)] = true}
  end
  return members(sub(pattern, at, after - 1))
end

local function parse(pattern)
  pattern = sub(pattern, 1, (find(pattern, "\0", 1, true) or 0) - 1) -- as in C, where it ends the text
  if #pattern > PATTERN_BYTES_MAX then
    error("pattern too complex")
  end
  local items, at, nested = {}, 1, 0
  items.is_anchored = byte(pattern) == 94
  at = items.is_anchored and 2 or 1
  while at <= #pattern do
    local text = sub(pattern, at, at)
    local class = text == "%" and sub(pattern, at + 1, at + 1)
    local after = item_end(pattern, at)
    local item
    if text == "(" then
      item = {op = sub(pattern, at + 1, at + 1) == ")" and "position" or "open"}
      after = item.op == "position" and at + 2 or after
      nested = nested + 1
    elseif text == ")" then
      item, nested = {op = "close"}, nested + 1
    elseif text == "$" and at == #pattern then
      item = {op = "end"}
    elseif not after then
      error(class == "b" and "unbalanced pattern" or class == "f" and "missing '[' after '%f' in pattern"
        or class and "malformed pattern (ends with '%')" or "malformed pattern (missing ']')")
    elseif class == "b" then
      item = {op = "balanced", opening = byte(pattern, at + 2), closing = byte(pattern, at + 3)}
    elseif class == "f" then
      item = {op = "frontier", set = members(sub(pattern, at + 2, after - 1))}
    elseif class and find(class, "%d") then
      item = {op = "back", capture = tonumber(class)}
    else
      item = {op = "single", set = single(pattern, at, after)}
      local quantifier = quantifier_at(pattern, after)
      if quantifier then
        item.op, after, nested = quantifier, after + 1, nested + 1
      end
    end
    if nested > NESTED_MAX then
      error("pattern too complex")
    end
    items[#items + 1] = item
    at = after
  end
  return items
end

-- The matcher. A match has its subject `text`, the `items`, and the captures: `starts`, `lengths`, `level`.

local match

local steps = {}

function steps.open(m, at, index, length)
  if m.level == CAPTURES_MAX then
    error("too many captures")
  end
  m.level = m.level + 1
  m.starts[m.level], m.lengths[m.level] = at, length or UNCLOSED
  local found = match(m, at, index + 1)
  if not found then
    m.level = m.level - 1
  end
  return found
end

function steps.position(m, at, index)
  return steps.open(m, at, index, POSITION)
end

function steps.close(m, at, index)
  local level = m.level
  while level > 0 and m.lengths[level] ~= UNCLOSED do
    level = level - 1
  end
  if level == 0 then
    error("invalid pattern capture")
  end
  m.lengths[level] = at - m.starts[level]
  local found = match(m, at, index + 1)
  if not found then
    m.lengths[level] = UNCLOSED
  end
  return found
end

steps["*"] = function(m, at, index, least)
  local text, set, stop = m.text, m.items[index].set, at
  while set[byte(text, stop)] do
    stop = stop + 1
  end
  for after = stop, at + (least or 0), -1 do
    local found = match(m, after, index + 1)
    if found then
      return found
    end
  end
end

steps["+"] = function(m, at, index)
  return steps["*"](m, at, index, 1)
end

steps["-"] = function(m, at, index)
  local text, set = m.text, m.items[index].set
  while true do
    local found = match(m, at, index + 1)
    if found or not set[byte(text, at)] then
      return found
    end
    at = at + 1
  end
end

steps["?"] = function(m, at, index)
  if m.items[index].set[byte(m.text, at)] then
    local found = match(m, at + 1, index + 1)
    if found then
      return found
    end
  end
  return match(m, at, index + 1)
end

-- Items without alternatives: where the next one starts to match, or nil.

local advance = {}

function advance.single(m, at, item)
  return item.set[byte(m.text, at)] and at + 1
end

advance["end"] = function(m, at)
  return at == #m.text + 1 and at
end

function advance.frontier(m, at, item)
  local before = at > 1 and byte(m.text, at - 1) or 0
  return not item.set[before] and item.set[byte(m.text, at) or 0] and at
end

function advance.balanced(m, at, item)
  local text, depth = m.text, 1
  if byte(text, at) ~= item.opening then
    return nil
  end
  for place = at + 1, #text do
    local code = byte(text, place)
    if code == item.closing then
      depth = depth - 1
      if depth == 0 then
        return place + 1
      end
    elseif code == item.opening then
      depth = depth + 1
    end
  end
end

function advance.back(m, at, item)
  local level = item.capture
  if level < 1 or level > m.level or m.lengths[level] == UNCLOSED then
    error("invalid capture index")
  end
  local length = m.lengths[level]
  if length == POSITION then
    return nil
  end
  local captured = sub(m.text, m.starts[level], m.starts[level] + length - 1)
  return sub(m.text, at, at + length - 1) == captured and at + length
end

function match(m, at, index)
  local items = m.items
  while true do
    local item = items[index]
    if not item then
      return at
    end
    local step = steps[item.op]
    if step then
      return step(m, at, index)
    end
    at = advance[item.op](m, at, item)
    if not at then
      return nil
    end
    index = index + 1
  end
end

local function begin(text, pattern)
  return {text = text, items = parse(pattern), starts = {}, lengths = {}, level = 0}
end

local function match_at(m, at)
  m.level = 0
  return match(m, at, 1)
end

local function capture(m, level, from, after)
  if level > m.level then
    if level == 1 then
      return sub(m.text, from, after - 1)
    end
    error("invalid capture index")
  end
  local start, length = m.starts[level], m.lengths[level]
  if length == UNCLOSED then
    error("unfinished capture")
  end
  return length == POSITION and start or sub(m.text, start, start + length - 1)
end

local function captures(m, from, after, count, level)
  level = level or 1
  if level > count then
    return
  end
  return capture(m, level, from, after), captures(m, from, after, count, level + 1)
end

-- The four functions on it, of texts.

local function first(text, init)
  init = floor(tonumber(init) or 1)
  return max(1, min(init < 0 and #text + 1 + init or init, #text + 1))
end

local function locate(text, pattern, init)
  local m, at = begin(text, pattern), first(text, init)
  repeat
    local after = match_at(m, at)
    if after then
      return m, at, after
    end
    at = at + 1
  until at > #text + 1 or m.items.is_anchored
end

local matcher = {}

function matcher.find(text, pattern, init)
  local m, at, after = locate(text, pattern, init)
  if m then
    return at, after - 1, captures(m, at, after, m.level)
  end
end

function matcher.match(text, pattern, init)
  local m, at, after = locate(text, pattern, init)
  if m then
    return captures(m, at, after, max(1, m.level))
  end
end

-- In gmatch the character that is an anchor elsewhere is none.

local function without_anchor(pattern)
  return byte(pattern) == 94 and "%" .. pattern or pattern
end

function matcher.gmatch(text, pattern)
  local m, at = begin(text, without_anchor(pattern)), 1
  return function()
    while at <= #text + 1 do
      local from, after = at, match_at(m, at)
      if after then
        at = after == from and after + 1 or after
        return captures(m, from, after, max(1, m.level))
      end
      at = at + 1
    end
  end
end

local function expand(m, replacement, from, after)
  return (own.gsub(replacement, "%%(.?)", function(escaped)
    if escaped == "0" then
      return sub(m.text, from, after - 1)
    elseif find(escaped, "%d") then
      return capture(m, tonumber(escaped), from, after)
    end
    return escaped == "" and "\0" or escaped -- in C, the end of the text
  end))
end

local function replaced(m, replacement, from, after)
  local kind, value = type(replacement), nil
  if kind == "string" then
    return expand(m, replacement, from, after)
  elseif kind == "table" then
    value = replacement[capture(m, 1, from, after)]
  else
    value = replacement(captures(m, from, after, max(1, m.level)))
  end
  if not value then
    return sub(m.text, from, after - 1)
  elseif type(value) ~= "string" and type(value) ~= "number" then
    error("invalid replacement value (a " .. type(value) .. ")")
  end
  return value
end

function matcher.gsub(text, pattern, replacement, count_max)
  local m, at, pieces, count = begin(text, pattern), 1, {}, 0
  count_max = floor(tonumber(count_max) or #text + 1)
  while count < count_max do
    local after = match_at(m, at)
    if after then
      count = count + 1
      pieces[#pieces + 1] = replaced(m, replacement, at, after)
    end
    if after and after > at then
      at = after
    elseif at <= #text then
      pieces[#pieces + 1] = sub(text, at, at)
      at = at + 1
    else
      break
    end
    if m.items.is_anchored then
      break
    end
  end
  pieces[#pieces + 1] = sub(text, at)
  return concat(pieces), count
end

-- The choice between the two. Whatever Lua's own function would refuse, it is given, so that it does.

local guarded = {}

local function is_costly(text, pattern, more)
  return cost(text, pattern) + (more or 0) > STEPS_MAX
end

local function as_text(value)
  return type(value) == "number" and value .. "" or value
end

local function is_text(...)
  for place = 1, select("#", ...) do
    if type((select(place, ...))) ~= "string" then
      return false
    end
  end
  return true
end

function guarded.find(...)
  local text, pattern, init, is_plain = ...
  text, pattern = as_text(text), as_text(pattern)
  if not is_text(text, pattern) or init and not tonumber(init) then
    return own.find(...)
  elseif is_plain or not find(pattern, "[%^%$%*%+%?%.%(%[%%%-]") then
    if #text * #pattern > STEPS_MAX then
      local at = search(text, pattern, first(text, init))
      if at then
        return at, at + #pattern - 1
      end
      return nil
    end
  elseif is_costly(text, pattern) then
    return matcher.find(text, pattern, init)
  end
  return own.find(...)
end

function guarded.match(...)
  local text, pattern, init = ...
  text, pattern = as_text(text), as_text(pattern)
  if is_text(text, pattern) and (not init or tonumber(init)) and is_costly(text, pattern) then
    return matcher.match(text, pattern, init)
  end
  return own.match(...)
end

function guarded.gmatch(...)
  local text, pattern = ...
  text, pattern = as_text(text), as_text(pattern)
  if is_text(text, pattern) and is_costly(text, without_anchor(pattern)) then
    return matcher.gmatch(text, pattern)
  end
  return own.gmatch(...)
end

-- What gsub asks for a replacement: a table with a metatable may lead to a function of C.

local function interruptible(replacement)
  if type(replacement) == "table" and getmetatable(replacement) ~= nil then
    return function(name) return replacement[name] end
  end
  return as_lua(replacement)
end

function guarded.gsub(...)
  local text, pattern, replacement, count_max = ...
  text, pattern, replacement = as_text(text), as_text(pattern), as_text(replacement)
  local kind = type(replacement)
  if not is_text(text, pattern) or kind ~= "string" and kind ~= "table" and kind ~= "function"
    or count_max and not tonumber(count_max) then
    return own.gsub(...)
  end
  replacement = interruptible(replacement)
  if is_costly(text, pattern, kind == "string" and #text * #replacement) then
    return matcher.gsub(text, pattern, replacement, count_max)
  end
  return own.gsub(text, pattern, replacement, count_max)
end

guarded.gfind = guarded.gmatch

return guarded, matcher
