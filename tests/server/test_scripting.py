"""Scripts: what they see, what they answer, how they fail, and that they are one transaction."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator

import hiredis
import pytest

import ephemera
from ephemera import ManualClock
from ephemera.resp.replies import BigNumber, Reply, Simple, Unordered, Verbatim
from ephemera.server import lua, lua_libraries
from ephemera.server.server import Server
from ephemera.server.settings import Settings
from tests.server.clients import Client, wire

NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
READ_ONLY = "ERR Write commands are not allowed from read-only scripts."


def sha(script: str) -> str:
    return hashlib.sha1(script.encode()).hexdigest()


def placed(text: str, script: str, line: int = 1) -> str:
    """An error as it is told, with the script and its line."""
    return f"{text} script: {sha(script)}, on @user_script:{line}."


def raw(client: Client, script: str) -> bytes:
    """The bytes of a script's answer."""
    return client.session.feed(wire("EVAL", script, 0))


# --- EVAL and EVALSHA -----------------------------------------------------------------------------


def test_keys_and_arguments_are_handed_over(client: Client) -> None:
    script = "return {#KEYS, KEYS[1], KEYS[2], #ARGV, ARGV[1]}"
    assert client("EVAL", script, 2, "a", b"\x00\r\n", "x") == [2, b"a", b"\x00\r\n", 1, b"x"]


def test_a_script_runs_commands(client: Client) -> None:
    script = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])"
    assert client("EVAL", script, 1, "a", "x") == b"x"
    assert client("GET", "a") == b"x"


@pytest.mark.parametrize("name", ["EVAL", "EVAL_RO"])
@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (("x",), "ERR value is not an integer or out of range"),
        (("2", "a"), "ERR Number of keys can't be greater than number of args"),
        (("-1",), "ERR Number of keys can't be negative"),
    ],
)
def test_the_number_of_keys_is_checked_before_anything_is_kept(
    name: str, rest: tuple[str, ...], text: str, client: Client
) -> None:
    assert client.error(name, "return 1", *rest) == text
    assert client("SCRIPT", "EXISTS", sha("return 1")) == [0]


@pytest.mark.parametrize("name", ["EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO"])
def test_a_script_needs_the_number_of_keys(name: str, client: Client) -> None:
    refused = f"ERR wrong number of arguments for '{name.lower()}' command"
    assert client.error(name, "return 1") == refused


def test_a_known_script_is_called_by_its_hash(client: Client) -> None:
    assert client.error("EVALSHA", sha("return 7"), 0) == NO_SCRIPT
    client("EVAL", "return 7", 0)
    assert client("EVALSHA", sha("return 7"), 0) == 7
    assert client("EVALSHA_RO", sha("return 7").upper(), 0) == 7
    assert client.error("EVALSHA", "abc", 0) == NO_SCRIPT


def test_script_load_keeps_without_running(client: Client) -> None:
    script = "return redis.call('incr', 'n')"
    assert client("SCRIPT", "LOAD", script) == sha(script).encode()
    assert client("GET", "n") is None
    assert client("EVALSHA", sha(script), 0) == 1
    assert client("SCRIPT", "EXISTS", sha(script), "x", sha(script).upper()) == [1, 0, 1]


@pytest.mark.parametrize("options", [(), ("SYNC",), ("async",)])
def test_script_flush_forgets(options: tuple[str, ...], client: Client) -> None:
    client("SCRIPT", "LOAD", "return 1")
    assert client("SCRIPT", "FLUSH", *options) == b"OK"
    assert client("SCRIPT", "EXISTS", sha("return 1")) == [0]
    assert client("EVAL", "return 1", 0) == 1


@pytest.mark.parametrize("options", [("x",), ("SYNC", "x")])
def test_script_flush_takes_no_other_option(options: tuple[str, ...], client: Client) -> None:
    refused = "ERR SCRIPT FLUSH only support SYNC|ASYNC option"
    assert client.error("SCRIPT", "FLUSH", *options) == refused


def test_script_kill_finds_nothing_where_nothing_is_busy(client: Client) -> None:
    assert client.error("SCRIPT", "KILL") == "NOTBUSY No scripts in execution right now."


# --- what a script answers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ("return 3.99", b":3\r\n"),
        ("return -3.99", b":-3\r\n"),
        ("return 1e20", b":-9223372036854775808\r\n"),
        ("return 0/0", b":-9223372036854775808\r\n"),
        ("return 'x'", b"$1\r\nx\r\n"),
        ("return true", b":1\r\n"),
        ("return false", b"$-1\r\n"),
        ("return nil", b"$-1\r\n"),
        ("", b"$-1\r\n"),
        ("return type", b"$-1\r\n"),
        ("return {}", b"*0\r\n"),
        ("return {1, 'a', {2, {3}}, false, true, 1.5}",
         b"*6\r\n:1\r\n$1\r\na\r\n*2\r\n:2\r\n*1\r\n:3\r\n$-1\r\n:1\r\n:1\r\n"),
        ("return {1, 2, nil, 4}", b"*2\r\n:1\r\n:2\r\n"),
        ("return {ok = 'fine'}", b"+fine\r\n"),
        ("return {ok = 'a\\r\\nb'}", b"+a  b\r\n"),
        ("return {ok = 5}", b"*0\r\n"),
        ("return {err = 'nocode'}", b"-nocode\r\n"),
        ("return {err = 'a\\r\\nb', ok = 'c'}", b"-a  b\r\n"),
        ("return redis.status_reply('x')", b"+x\r\n"),
        ("return redis.status_reply()", b"-ERR wrong number or type of arguments\r\n"),
        ("return redis.error_reply('My Err')", b"-My Err\r\n"),
        ("return redis.error_reply('-My Err')", b"-My Err\r\n"),
        ("return redis.error_reply('Oops')", b"-ERR Oops\r\n"),
        ("return redis.error_reply(1)", b"-ERR wrong number or type of arguments\r\n"),
        ("return {double = 3.5}", b"$3\r\n3.5\r\n"),
        ("return {double = 'x'}", b"*0\r\n"),
        ("return {map = {a = 1}}", b"*2\r\n$1\r\na\r\n:1\r\n"),
        ("return {map = 1}", b"*0\r\n"),
        ("return {set = {a = true}}", b"*1\r\n$1\r\na\r\n"),
        ("return {set = 1}", b"*0\r\n"),
        ("return {big_number = '123'}", b"$3\r\n123\r\n"),
        ("return {big_number = 12}", b"*0\r\n"),
        ("return {verbatim_string = {format = 'txt', string = 'hi'}}", b"$2\r\nhi\r\n"),
        ("return {verbatim_string = 1}", b"*0\r\n"),
        ("redis.setresp(3) return true", b":1\r\n"),
        ("redis.setresp(3) return false", b":0\r\n"),
    ],
)  # fmt: skip
def test_values_of_lua_become_replies(script: str, reply: bytes, client: Client) -> None:
    assert raw(client, script) == reply


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ("return false", b"_\r\n"),
        ("return true", b":1\r\n"),
        ("redis.setresp(3) return {true, false}", b"*2\r\n#t\r\n#f\r\n"),
        ("return {double = 3.5}", b",3.5\r\n"),
        ("return {map = {a = 1}}", b"%1\r\n$1\r\na\r\n:1\r\n"),
        ("return {set = {a = true}}", b"~1\r\n$1\r\na\r\n"),
        ("return {big_number = '-12'}", b"(-12\r\n"),
        ("return {verbatim_string = {format = 'txt', string = 'hi'}}", b"=6\r\ntxt:hi\r\n"),
    ],
)
def test_resp3_has_types_of_its_own_for_them(script: str, reply: bytes, client: Client) -> None:
    client("HELLO", 3)
    assert raw(client, script) == reply


def test_a_table_that_holds_itself_is_cut_off(client: Client) -> None:
    assert raw(client, "local t = {} t[1] = t return t").endswith(
        b"*1\r\n-ERR reached lua stack limit\r\n"
    )


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        ("redis.call('get', 'absent') == false", "true"),
        ("redis.call('ping').ok", "PONG"),
        ("redis.call('incr', 'n') + 0.5", "1.5"),
        ("redis.call('echo', 'x')", "x"),
        ("#redis.call('mget', 'a', 'b', 'c')", "3"),
        ("redis.call('mget', 'a')[1]", "false"),
        ("redis.pcall('incr', 'text').err", "ERR value is not an integer or out of range"),
        ("#redis.call('command', 'info', 'nope')", "1"),
        ("redis.call('command', 'docs', 'get')[1]", "get"),
    ],
)
def test_replies_become_values_of_lua(call: str, seen: str, client: Client) -> None:
    client("SET", "text", "x")
    assert client("EVAL", f"return tostring({call})", 0) == seen.encode()


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        ("redis.call('get', 'absent') == nil", "true"),
        ("redis.call('command', 'docs', 'get').map.get.map.since", "1.0.0"),
        ("redis.call('get', 'text')", "x"),
    ],
)
def test_a_script_that_asks_for_resp3_gets_its_types(call: str, seen: str, client: Client) -> None:
    client("SET", "text", "x")
    assert client("EVAL", f"redis.setresp(3) return tostring({call})", 0) == seen.encode()
    assert client("EVAL", "return redis.call('get', 'absent') == false", 0) == 1, "the next has 2"


@pytest.mark.parametrize(
    "reply",
    [
        {b"a": 1}, Unordered([b"a"]), 1.5, True, False, None, BigNumber(b"%d" % 2**70), Verbatim(b"text"),
        Simple(b"OK"), b"bytes", 7, (1, (b"x", True)),
    ],
    ids=repr,
)  # fmt: skip
def test_every_kind_of_reply_comes_back_as_it_was(
    reply: Reply, client: Client, server: Server
) -> None:
    client("EVAL", "return 1", 0)
    there = server.scripts.lua.from_reply(reply, 3)
    back = server.scripts.lua.to_reply(there, 3)
    assert (type(back), back) == (type(reply), reply)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("5", b"5"),
        ("1e15", b"1000000000000000"),
        ("1.5", b"1.5"),
        ("-0.25", b"-0.25"),
        ("1e20", b"1e+20"),
        ("10/3", b"3.3333333333333335"),
    ],
)
def test_numbers_are_passed_to_commands_in_full(number: str, text: bytes, client: Client) -> None:
    assert client("EVAL", f"return redis.call('echo', {number})", 0) == text


# --- how a script fails ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("return 1 +", "unexpected symbol near '<eof>'"),
        ("return +", "unexpected symbol near '+'"),
        ("x = = 1", "unexpected symbol near '='"),
        ("\x1bLua", "unexpected symbol near 'char(27)'"),
    ],
)
def test_what_is_no_lua_is_refused(script: str, text: str, client: Client) -> None:
    refused = f"ERR Error compiling script (new function): user_script:1: {text}"
    assert client.error("EVAL", script, 0) == refused
    assert client.error("SCRIPT", "LOAD", script) == refused


@pytest.mark.parametrize(
    ("script", "text", "line"),
    [
        ("error('boom')", "ERR user_script:1: boom", 1),
        ("error('boom', 0)", "ERR boom", 1),
        ("error({err = 'MYERR x'})", "MYERR x", 1),
        ("error({})", "ERR unknown error", 1),
        ("error()", "ERR nil", 1),
        ("\n\nreturn nil .. 'x'", "ERR user_script:3: attempt to concatenate a nil value", 3),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call", 1),
        ("return redis.call('nope')", "ERR Unknown Redis command called from script", 1),
        ("return redis.call('client', 'nope')", "ERR Unknown Redis command called from script", 1),
        ("return redis.call('get')", "ERR Wrong number of args calling Redis command from script", 1),
        ("return redis.call('client')", "ERR Wrong number of args calling Redis command from script", 1),
        ("return redis.call('get', {})", "ERR Lua redis lib command arguments must be strings or integers", 1),
        ("return redis.call('get', true)", "ERR Lua redis lib command arguments must be strings or integers", 1),
        ("return redis.call('subscribe', 'a')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('multi')", "ERR This Redis command is not allowed from script", 1),
        ("return redis.call('eval', 'return 1', 0)", "ERR This Redis command is not allowed from script", 1),
        ("\nreturn redis.call('set', 'a', 1, 'x')", "ERR syntax error", 2),
        ("local function f()\n return redis.call('nope')\nend\nreturn f()",
         "ERR Unknown Redis command called from script", 2),
        ("local r = redis.pcall('nope') error(r)", "ERR Unknown Redis command called from script", 1),
        ("redis.setresp(4)", "ERR RESP version must be 2 or 3.", 1),
        ("redis.setresp()", "ERR redis.setresp() requires one argument.", 1),
        ("return redis.sha1hex()", "ERR wrong number of arguments", 1),
        ("redis.log()", "ERR redis.log() requires two arguments or more.", 1),
        ("redis.log('x', 'y')", "ERR First argument must be a number (log level).", 1),
        ("redis.log(99, 'x')", "ERR Invalid debug level.", 1),
        ("redis.set_repl()", "ERR redis.set_repl() requires two arguments.", 1),
        ("redis.acl_check_cmd('nope')", "ERR Invalid command passed to redis.acl_check_cmd()", 1),
        ("local function f() return 1 + f() end return f()", "ERR user_script:1: stack overflow", 1),
    ],
)  # fmt: skip
def test_an_error_names_the_script_and_the_line(
    script: str, text: str, line: int, client: Client
) -> None:
    assert client.error("EVAL", script, 0) == placed(text, script, line)


def test_pcall_returns_what_call_raises(client: Client) -> None:
    unknown = b"ERR Unknown Redis command called from script"
    assert client("EVAL", "return {redis.pcall('nope').err}", 0) == [unknown]
    assert client.error("EVAL", "return redis.pcall('nope')", 0) == unknown.decode()
    assert client("EVAL", "local ok, e = pcall(redis.call, 'nope') return {ok, e}", 0) == [
        None,
        unknown,
    ]
    handled = "local _, e = xpcall(redis.call, function(e) return e.err end) return e"
    assert b"at least one argument" in client("EVAL", handled, 0)
    resumed = """
        local c = coroutine.create(function() redis.call('nope') end)
        return select(2, coroutine.resume(c))
    """
    assert client("EVAL", resumed, 0) == unknown


def test_what_was_written_before_an_error_stays(client: Client) -> None:
    client.error("EVAL", "redis.call('set', 'a', 1) error('x')", 0)
    assert client("GET", "a") == b"1"


# --- the sandbox ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["x", "os", "io", "require", "module", "package", "dofile", "loadfile", "debug", "print", "python",
     "getfenv", "setfenv", "newproxy"],
)  # fmt: skip
def test_there_is_no_such_global(name: str, client: Client) -> None:
    text = f"ERR user_script:1: Script attempted to access nonexistent global variable '{name}'"
    script = f"return {name}"
    assert client.error("EVAL", script, 0) == placed(text, script)
    assert name in client.error("EVAL", f"return loadstring('return {name}')()", 0)
    assert client("EVAL", f"return rawget(_G, '{name}')", 0) is None


@pytest.mark.parametrize(
    "script",
    ["x = 1", "KEYS = 1", "redis.call = 1", "string.rep = 1", "getmetatable('').__index = 1",
     "getmetatable(_G).__newindex = nil", "local _, inner = pairs(string) inner.rep = 1",
     "cjson.encode = 1", "coroutine.wrap = 1"],
)  # fmt: skip
def test_what_all_scripts_share_cannot_be_changed(script: str, client: Client) -> None:
    text = "ERR user_script:1: Attempt to modify a readonly table"
    assert client.error("EVAL", script, 0) == placed(text, script)


@pytest.mark.parametrize(
    "script",
    ["rawset(_G, 'x', 1)", "setmetatable(_G, {})", "rawset(string, 'rep', 1)",
     "table.insert(redis, 1)", "table.insert(_G, 1, 2)", "table.insert(table, 1)",
     "table.insert(getmetatable(_G), 1)", "table.insert(getmetatable(''), 1)"],
)  # fmt: skip
def test_nor_by_going_around(script: str, client: Client) -> None:
    assert client.error("EVAL", script, 0) == placed(
        "ERR Attempt to modify a readonly table", script
    )


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("table.insert()", "bad argument #1 to 'insert' (table expected, got no value)"),
        ("table.insert(nil, 1)", "bad argument #1 to 'insert' (table expected, got nil)"),
        ("table.insert(redis.call, 1)", "bad argument #1 to 'insert' (table expected, got function)"),
        ("table.insert({})", "wrong number of arguments to 'insert'"),
        ("table.insert(redis)", "wrong number of arguments to 'insert'"),
        ("table.insert({}, 1, 2, 3)", "wrong number of arguments to 'insert'"),
        ("table.insert({}, 'x', 1)", "bad argument #2 to 'insert' (number expected, got string)"),
        ("table.insert(redis, {}, 1)", "bad argument #2 to 'insert' (number expected, got table)"),
    ],
)  # fmt: skip
def test_table_insert_refuses_as_that_of_lua_does(script: str, text: str, client: Client) -> None:
    assert client.error("EVAL", script, 0) == placed(f"ERR user_script:1: {text}", script)


def test_table_insert_inserts(client: Client) -> None:
    script = (
        "local t = {1} table.insert(t, 3) table.insert(t, '2', 2) table.insert(t, nil) return t"
    )
    assert client("EVAL", script, 0) == [1, 2, 3]


@pytest.mark.parametrize(
    "script",
    [
        "return redis.call.__class__",
        "return redis.call['__globals__']",
        "redis.call.x = 1",
        "return cjson.encode.__init__",
        "local _, e = xpcall(redis.call, function(e) return e end) return e.__class__.x",
    ],
)
def test_python_cannot_be_reached(script: str, client: Client) -> None:
    assert "script:" in client.error("EVAL", script, 0)


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ("type(redis.call)", "function"),
        ("tostring(redis.call):match('^function: 0x%x+$') ~= nil", "true"),
        ("tostring(cjson.null)", "userdata: (nil)"),
        ("tostring(loadstring(string.dump(function() return 7 end)))", "nil"),
        ("load(function() return nil end)()", "nil"),
        ("loadstring('return 5')()", "5"),
        ("next({7})", "1"),
        ("rawget({7}, 1)", "7"),
        ("rawset({}, 1, 8)[1]", "8"),
        ("getmetatable(setmetatable({}, {__metatable = 9}))", "9"),
        ("pcall(type)", "false"),
        ("coroutine.wrap(function() coroutine.yield(3) end)()", "3"),
        ("('ab'):rep(3)", "ababab"),
        ("string.rep('x', 0)", ""),
        ("string.rep(7, 2)", "77"),
        ("#string.rep('x', 100001)", "100001"),
        ("_VERSION", "Lua 5.1"),
        ("redis.REDIS_VERSION", "7.4.0"),
        ("redis.REDIS_VERSION_NUM", str(0x00070400)),
        ("redis.sha1hex('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("redis.acl_check_cmd('get', 'x')", "true"),
        ("redis.replicate_commands()", "true"),
        ("redis.breakpoint()", "false"),
        ("redis.debug('x')", "nil"),
        ("redis.set_repl(redis.REPL_ALL)", "nil"),
        ("redis.LOG_WARNING", "3"),
    ],
)
def test_what_scripts_have(expression: str, seen: str, client: Client) -> None:
    assert client("EVAL", f"return tostring(({expression}))", 0) == seen.encode()


def test_all_globals_can_be_listed(client: Client) -> None:
    script = "local t = {} for name in pairs(_G) do t[#t + 1] = name end table.sort(t) return t"
    assert client("EVAL", script, 0) == [
        b"ARGV", b"KEYS", b"_G", b"_VERSION", b"assert", b"bit", b"cjson", b"collectgarbage",
        b"coroutine", b"error", b"gcinfo", b"getmetatable", b"ipairs", b"load", b"loadstring", b"math",
        b"next", b"pairs", b"pcall", b"rawequal", b"rawget", b"rawset", b"redis", b"select",
        b"setmetatable", b"string", b"table", b"tonumber", b"tostring", b"type", b"unpack", b"xpcall",
    ]  # fmt: skip


def test_a_script_can_write_to_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ephemera.server"):
        client("EVAL", "redis.log(redis.LOG_WARNING, 'low', 'disk')", 0)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "low disk")
    ]


# --- cjson and bit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{1, 2, {a = 'x/y'}}", rb'[1,2,{"a":"x\/y"}]'),
        ("{}", b"{}"),
        ("{[1] = 1, [3] = 3}", b"[1,null,3]"),
        ("{[1.5] = true}", b'{"1.5":true}'),
        ("cjson.null", b"null"),
        ("nil", b"null"),
        ("1.5", b"1.5"),
        ("1e15", b"1e+15"),
        (r"'\0\n\127\"\\é'", rb'"\u0000\n\u007f\"\\' + "é".encode() + b'"'),
        ("false", b"false"),
    ],
)
def test_cjson_encodes(value: str, text: bytes, client: Client) -> None:
    assert client("EVAL", f"return cjson.encode({value})", 0) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{[100] = 1}", "ERR Cannot serialise table: excessively sparse array"),
        ("{[true] = 1}", "ERR Cannot serialise table: table key must be a number or string"),
        ("0/0", "ERR Cannot serialise number: must not be NaN or Inf"),
        ("redis.call", "ERR Cannot serialise function: type not supported"),
        ("{type}", "ERR Cannot serialise function: type not supported"),
    ],
)
def test_cjson_does_not_encode(value: str, text: str, client: Client) -> None:
    script = f"return cjson.encode({value})"
    assert client.error("EVAL", script, 0) == placed(text, script)


def test_cjson_does_not_go_round_in_circles(client: Client) -> None:
    assert "excessive depth" in client.error("EVAL", "local t = {} t.t = t cjson.encode(t)", 0)
    assert "nested" in client.error("EVAL", "cjson.decode(string.rep('[', 100000))", 0)


@pytest.mark.parametrize(
    ("text", "expression", "seen"),
    [
        ('{"a": [1, 2.5, {"b": null}]}', "found.a[3].b == cjson.null", "true"),
        ('{"a": [1, 2.5]}', "found.a[1] + found.a[2]", "3.5"),
        ('"\\u00e9"', "found", "é"),
        ("[true, false]", "found[2]", "false"),
        ("null", "type(found)", "userdata"),
        ("12345678901234567890", "found > 1e19", "true"),
    ],
)
def test_cjson_decodes(text: str, expression: str, seen: str, client: Client) -> None:
    script = f"local found = cjson.decode(ARGV[1]) return tostring({expression})"
    assert client("EVAL", script, 0, text) == seen.encode()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000_000])
def test_cjson_encodes_a_text_of_any_length(
    piece_bytes: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua_libraries, "PIECE_BYTES", piece_bytes)
    named = {b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\f": b"\\f", b"\r": b"\\r"}
    texts = {bytes((code,)): b"\\u%04x" % code for code in (*range(32), 127)} | named
    texts |= {each: b"\\" + each for each in (b'"', b"\\", b"/")}
    every = bytes(range(256))
    expected = b"".join(texts.get(bytes((code,)), bytes((code,))) for code in every)
    assert client("EVAL", "return cjson.encode(ARGV[1])", 0, every) == b'"%b"' % expected
    assert (
        client("EVAL", "return cjson.encode({[ARGV[1]] = 1})", 0, every) == b'{"%b":1}' % expected
    )


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", '[1,-2.5,true,false,null,"x"]', '{"a":[{"b":{}},[[]]]}', '"\\u00e4\\n\\/"', " 1 ",
        "[1,]", "[1 2]", '{"a"}', '{"a":}', "[", "x", '["a', "[1]]", "",
    ],
)  # fmt: skip
def test_cjson_decodes_a_text_of_any_length_alike(
    text: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "return {pcall(function() return cjson.encode(cjson.decode(ARGV[1])) end)}"
    short = client("EVAL", script, 0, text)
    monkeypatch.setattr(lua_libraries, "PIECE_BYTES", 1)
    assert client("EVAL", script, 0, text) == short


def test_cjson_decodes_no_more_values_than_fit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua_libraries, "PIECE_BYTES", 1)
    monkeypatch.setattr(lua_libraries, "JSON_VALUES_MAX", 100)
    script = "return #cjson.decode('[' .. ('1,'):rep(ARGV[1]) .. '1]')"
    assert client("EVAL", script, 0, 99) == 100
    assert "too many values" in client.error("EVAL", script, 0, 100)


def test_cjson_passes_on_bytes_that_are_no_text(client: Client) -> None:
    script = "return cjson.decode(cjson.encode(ARGV[1]))"
    assert client("EVAL", script, 0, b"\xff\x00\x80") == b"\xff\x00\x80"


@pytest.mark.parametrize("text", ["", "[1,2", "{a:1}", "nope"])
def test_cjson_refuses_what_is_no_json(text: str, client: Client) -> None:
    assert "Expected value" in client.error("EVAL", "return cjson.decode(ARGV[1])", 0, text)
    assert client("EVAL", "return {pcall(cjson.decode, ARGV[1])}", 0, text)[0] is None


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ("bit.band(7, 3, 2)", 2), ("bit.bor(1, 2, 8)", 11), ("bit.bxor(5, 1)", 4), ("bit.bnot(0)", -1),
        ("bit.lshift(1, 31)", -(2**31)), ("bit.rshift(-1, 28)", 15), ("bit.arshift(-8, 1)", -4),
        ("bit.rol(0x12345678, 8)", 0x34567812), ("bit.ror(0x12345678, 8)", 0x78123456),
        ("bit.ror(1, 0)", 1), ("bit.bswap(0x12345678)", 0x78563412), ("bit.tobit(0xffffffff)", -1),
        ("bit.tohex(255)", b"000000ff"), ("bit.tohex(255, 4)", b"00ff"), ("bit.tohex(-1, -2)", b"FF"),
    ],
)  # fmt: skip
def test_bit_works_on_32_bits(expression: str, seen: object, client: Client) -> None:
    assert client("EVAL", f"return {expression}", 0) == seen


@pytest.mark.parametrize("call", ["bit.band()", "bit.band('x')", "bit.lshift(1)", "bit.bnot(1/0)"])
def test_bit_refuses_what_is_no_number(call: str, client: Client) -> None:
    assert "argument" in client.error("EVAL", f"return {call}", 0)


# --- read-only scripts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["'set', 'a', 1", "'del', 'a'", "'publish', 'a', 'b'", "'flushall'"]
)
def test_a_read_only_script_does_not_write(call: str, client: Client) -> None:
    script = f"return redis.call({call})"
    assert client.error("EVAL_RO", script, 0) == placed(READ_ONLY, script)
    client("SCRIPT", "LOAD", script)
    assert client.error("EVALSHA_RO", sha(script), 0) == placed(READ_ONLY, script)


def test_a_read_only_script_reads(client: Client) -> None:
    client("SET", "a", 1)
    assert client("EVAL_RO", "return redis.call('get', 'a')", 0) == b"1"


def test_a_script_can_say_itself_that_it_does_not_write(client: Client) -> None:
    script = "#!lua flags=no-writes\nreturn redis.call('set', 'a', 1)"
    assert client.error("EVAL", script, 0) == placed(READ_ONLY, script, 2)
    assert client("EVAL_RO", "#!lua flags=no-writes,allow-stale\nreturn 1", 0) == 1
    assert client.error("EVAL_RO", "#!lua\nreturn 1", 0) == (
        "ERR Can not execute a script with write flag using *_ro command."
    )


@pytest.mark.parametrize(
    ("first", "text"),
    [
        ("#!lua", "ERR Invalid script shebang"),
        ("#!js\n", "ERR Unexpected engine in script shebang: #!js"),
        ("#!lua flags=nope\n", "ERR Unexpected flag in script shebang: nope"),
        ("#!lua name=x\n", "ERR Unknown lua shebang option: name=x"),
    ],
)
def test_a_first_line_that_is_wrong_is_refused(first: str, text: str, client: Client) -> None:
    assert client.error("EVAL", first, 0) == text


# --- one transaction ------------------------------------------------------------------------------


def test_a_script_reads_what_it_wrote(client: Client) -> None:
    script = """
        redis.call('set', 'a', 1, 'px', 50)
        redis.call('incr', 'a')
        return {redis.call('get', 'a'), redis.call('pttl', 'a'), redis.call('dbsize')}
    """
    assert client("EVAL", script, 0) == [b"2", 50, 1]


def test_nobody_sees_half_of_a_script(client: Client, server: Server) -> None:
    seen: list[int] = []
    server.listeners.append(lambda *_: seen.append(server.store.count()))
    client("EVAL", "redis.call('set', 'a', 1) redis.call('set', 'b', 1)", 0)
    assert seen == [2, 2]


def test_select_inside_ends_with_the_script(client: Client) -> None:
    client("EVAL", "redis.call('select', 5) redis.call('set', 'a', 1)", 0)
    assert client("GET", "a") is None
    client("SELECT", 5)
    assert client("GET", "a") == b"1"


def test_a_script_inside_exec_is_a_part_of_it(client: Client) -> None:
    client("MULTI")
    client("SET", "a", 1)
    client("EVAL", "redis.call('select', 5) return redis.call('dbsize')", 0)
    client("EVAL", "return redis.call('incr', 'a')", 0)
    client("EVAL", "error('x')", 0)
    client("GET", "a")
    replies = client("EXEC")
    assert [*replies[:3], replies[4]] == [b"OK", 0, 2, b"2"]
    assert isinstance(replies[3], hiredis.ReplyError)


def test_dead_keys_are_not_seen_by_scripts(client: Client, clock: ManualClock) -> None:
    client("SET", "a", 1, "PX", 10)
    clock.advance(0.010)
    script = "return {redis.call('exists', 'a'), redis.call('ttl', 'a'), redis.call('get', 'a')}"
    assert client("EVAL", script, 0) == [0, -2, None]


def test_commands_in_scripts_are_counted(client: Client, server: Server) -> None:
    client("EVAL", "redis.call('get', 'a') redis.call('get', 'a')", 0)
    assert server.commands.all["get"].calls == 2
    assert client.session.call.command.name == "eval"


# --- limits ---------------------------------------------------------------------------------------


@pytest.fixture
def busy() -> Iterator[Server]:
    """A server whose scripts may take one millisecond before others are told BUSY."""
    with ephemera.open("memory://", maintenance="manual") as store:
        yield Server(store, Settings(busy_reply_threshold=1))


def killed(script: str, line: int = 1) -> str:
    return placed("ERR Script killed by user with SCRIPT KILL...", script, line)


LONG = """
    local function now_us() local time = redis.call('time') return time[1] * 1e6 + time[2] end
    local end_us = now_us() + 5000
    while now_us() < end_us do end
"""
"""Takes longer than the threshold of `busy`, on any machine."""


def end_of(client: Client, steps_max: int = 10_000) -> object:
    """The reply to a script that takes long."""
    for _ in range(steps_max):
        reply = client.go_on()
        if reply is not False:
            return reply
    raise AssertionError("it does not end")


ENDLESS = pytest.mark.parametrize(
    "endless",
    [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do redis.call('get', 'x') end",
        "while true do redis.pcall('get', 'x') end",
        "while true do pcall(redis.call, 'get', 'x') end",
        "local function again() return again() end again()",
        "coroutine.wrap(function() while true do end end)()",
        "local c = coroutine.create(function() while true do pcall(function() while true do end end) end end) "
        "coroutine.resume(c)",
        "local t = setmetatable({}, {__index = function() while true do end end}) return t.x",
        "table.sort({1, 2, 3}, function() while true do end end)",
        "xpcall(function() while true do end end, function() while true do end end)",
        "local t = {} for i = 1, 20000 do t[i] = i end while true do cjson.encode(t) end",
        "local t = '[' .. string.rep('1,', 20000) .. '1]' while true do cjson.decode(t) end",
        "local t = {} for i = 1, 2000 do t[i] = 'xx' end while true do table.concat(t) end",
        "while true do string.rep('x', 1000000) end",
        "local s = string.rep('x', 100000) while true do s:upper() end",
        "local s = string.rep('x', 1000000) while true do s = (s .. 'x'):sub(2) end",
        "local s = string.rep('a', 500) while true do s:find('.-b') end",
    ],
)  # fmt: skip


@ENDLESS
def test_a_script_that_takes_long_can_be_killed_and_is_undone(endless: str, busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    script = f"redis.call('set', 'a', 1) {endless}"
    assert client("EVAL", script, 0) is False, "no reply yet"
    assert other.error("GET", "a") == BUSY
    for _ in range(3):
        assert client.go_on() is False
        assert other.error("PING") == BUSY
    assert other("SCRIPT", "KILL") == b"OK"
    reply = str(end_of(client))
    assert reply.startswith("ERR Script killed by user with SCRIPT KILL... script: " + sha(script))
    assert other("GET", "a") is None
    assert client("EVAL", "return 1", 0) == 1
    assert other.error("SCRIPT", "KILL") == "NOTBUSY No scripts in execution right now."


def test_a_script_that_takes_long_comes_to_its_end(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    script = f"redis.call('set', 'a', 0) {LONG} return redis.call('incr', 'a')"
    assert client("EVAL", script, 0) is False
    assert other.error("GET", "a") == BUSY, "and none of it is seen"
    assert end_of(client) == 1
    assert other("GET", "a") == b"1"


def test_only_what_redis_allows_is_allowed_meanwhile(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    busy.settings.requirepass = b"secret"
    client("EVAL", "while true do end", 0)
    for command in (["GET", "a"], ["SET", "a", 1], ["EVAL", "return 1", 0], ["SCRIPT", "FLUSH"],
                    ["CLIENT", "LIST"], ["INFO"], ["FUNCTION", "STATS"], ["SHUTDOWN"],
                    ["SUBSCRIBE", "a"], ["CONFIG", "GET", "*"]):  # fmt: skip
        assert other.error(*command) == BUSY, command
    for command in (["WATCH", "a"], ["UNWATCH"], ["MULTI"], ["DISCARD"], ["RESET"],
                    ["AUTH", "secret"]):  # fmt: skip
        assert other(*command) in (b"OK", b"RESET"), command
    assert other("HELLO", 2)[:2] == [b"server", b"redis"]
    late = Client(busy)
    assert late.error("GET", "a") == "NOAUTH Authentication required."
    assert late("AUTH", "secret") == b"OK"
    assert late.error("GET", "a") == BUSY
    other("SCRIPT", "KILL")
    assert "killed" in str(end_of(client))
    assert other("PING") == b"PONG"


def test_a_transaction_that_meets_a_busy_server_is_broken(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    other("MULTI")
    client("EVAL", "while true do end", 0)
    assert other.error("SET", "a", 1) == BUSY
    assert other.error("EXEC") == f"EXECABORT Transaction discarded because of: {BUSY}"
    other("SCRIPT", "KILL")
    end_of(client)
    assert other("GET", "a") is None


def test_a_server_that_stops_ends_the_script_with_its_next_slice(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    assert client("EVAL", "redis.call('set', 'a', 1) while true do end", 0) is False
    busy.busy.stop()
    assert "the server stops" in str(client.go_on())
    assert other("GET", "a") is None
    assert other("EVAL", "return redis.call('incr', 'a')", 0) == 1, "short ones are answered"


def test_exec_goes_on_in_slices_too(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    client("MULTI")
    client("SET", "a", 1)
    client("EVAL", LONG + "return redis.call('incr', 'a')", 0)
    client("GET", "a")
    assert client("EXEC") is False
    assert other.error("GET", "a") == BUSY
    assert end_of(client) == [b"OK", 2, b"2"]
    assert other("GET", "a") == b"2"


def test_exec_with_a_killed_script_does_nothing(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    client("MULTI")
    client("SET", "a", 1)
    client("EVAL", "while true do end", 0)
    client("EXEC")
    other("SCRIPT", "KILL")
    assert "killed" in str(end_of(client))
    assert other("GET", "a") is None


def test_requests_behind_a_long_script_wait_for_it(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    script = wire("EVAL", LONG + "return 1", 0)
    out = client.session.feed(script + wire("SET", "a", 1))
    out += client.session.feed(wire("GET", "a"))
    assert out == b""
    while client.session.has_waiting:
        assert other.error("GET", "a") == BUSY
        out += client.session.go_on()
    assert out == b":1\r\n+OK\r\n$1\r\n1\r\n"


def test_a_script_whose_client_is_gone_is_ended_and_undone(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    client(
        "EVAL",
        "redis.call('set', 'a', 1) while true do pcall(function() while true do end end) end",
        0,
    )
    assert other.error("GET", "a") == BUSY
    client.session.close()
    assert other("GET", "a") is None
    assert other("EVAL", "return 1", 0) == 1


def test_all_scripts_of_exec_end_when_its_client_is_gone(busy: Server) -> None:
    client, other = Client(busy), Client(busy)
    client("MULTI")
    for _ in range(3):
        client("EVAL", "redis.call('set', 'a', 1) while true do end", 0)
    client("EXEC")
    client.session.close()
    assert other("GET", "a") is None


def test_a_monitor_is_shown_what_happens_meanwhile_with_its_client(busy: Server) -> None:
    client, other, monitor = Client(busy), Client(busy), Client(busy)
    other.session.address = "10.0.0.1:5"
    monitor("MONITOR")
    client("EVAL", "while true do end", 0)
    other("UNWATCH")
    other("SCRIPT", "KILL")
    end_of(client)
    assert b'10.0.0.1:5] "UNWATCH"' in monitor.pushed[-2]
    assert b'10.0.0.1:5] "SCRIPT" "KILL"' in monitor.pushed[-1]


def test_a_long_script_is_slow_as_a_whole(busy: Server) -> None:
    client = Client(busy)
    client("EVAL", LONG, 0)
    assert end_of(client) is None
    took = busy.commands.all["eval"].spent_ns
    assert took > 1_000_000
    assert busy.commands.all["eval"].calls == 1


def test_a_limit_of_zero_is_none(client: Client, server: Server) -> None:
    server.settings.busy_reply_threshold = 0
    assert client("EVAL", "local n = 0 for i = 1, 300000 do n = n + 1 end return n", 0) == 300_000


def test_a_script_that_takes_too_much_memory_is_ended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "KILOBYTES_MAX", 1024)
    monkeypatch.setattr("ephemera.server.scripts.KILOBYTES_MAX", 1024)
    hoard = "redis.call('set', 'a', 1) local t = {} while true do t[#t + 1] = {} end"
    assert "it held more than" in client.error("EVAL", hoard, 0)
    assert client.session.server.busy.is_on is False
    assert client("GET", "a") is None
    waste = "for i = 1, 100000 do local t = {i, i, i} end return 1"
    assert client("EVAL", waste, 0) == 1, "what is garbage is not held"


def test_a_text_that_is_too_large_is_not_made(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "MEMORY_BYTES_MAX", 8 * 1024 * 1024)
    double = "local s = string.rep('x', 1024) while true do s = s .. s end"
    assert client.error("EVAL", double, 0) == "ERR not enough memory"
    assert client.error("EVAL", "string.rep('x', 1e10)", 0) == placed(
        "ERR user_script:1: resulting string too large", "string.rep('x', 1e10)"
    )
    assert client("EVAL", "return 1", 0) == 1


def test_a_script_cannot_stop_the_collector_for_others(client: Client) -> None:
    client("EVAL", "collectgarbage('stop')", 0)
    grown = "local t for i = 1, 200000 do t = {i} end return collectgarbage('count') < 10000"
    assert client("EVAL", grown, 0) == 1


# --- FUNCTION -------------------------------------------------------------------------------------


def test_there_are_no_libraries(client: Client) -> None:
    assert client("FUNCTION", "LIST") == []
    assert client("FUNCTION", "LIST", "WITHCODE", "LIBRARYNAME", "x*") == []
    assert client("FUNCTION", "FLUSH") == client("FUNCTION", "FLUSH", "ASYNC") == b"OK"
    assert client("FUNCTION", "STATS") == [
        b"running_script", None, b"engines", [b"LUA", [b"libraries_count", 0, b"functions_count", 0]],
    ]  # fmt: skip


def test_nothing_is_dumped_as_redis_does_it(client: Client) -> None:
    assert client("FUNCTION", "DUMP") == b"\x0b\x004D\xe13\xf2\xe0KS"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("LIST", "x"), "ERR Unknown argument x"),
        (("LIST", "WITHCODE", "withcode"), "ERR Unknown argument withcode"),
        (("LIST", "LIBRARYNAME"), "ERR library name argument was not given"),
        (("FLUSH", "x"), "ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        (
            ("FLUSH", "SYNC", "y"),
            "ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP.",
        ),
        (("NOPE",), "ERR unknown subcommand 'NOPE'. Try FUNCTION HELP."),
    ],
)
def test_function_refuses_in_rediss_words(args: tuple[str, ...], text: str, client: Client) -> None:
    assert client.error("FUNCTION", *args) == text


# --- without what scripts need --------------------------------------------------------------------


def test_a_lupa_that_exports_too_little_is_named_with_a_remedy(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lua, "missing_function", lambda _: "lua_sethook")
    error = client.error("EVAL", "return 1", 0)
    assert "scripts need a lupa that exports lua_sethook" in error
    assert "pip install" in error
