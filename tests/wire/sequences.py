"""What Hypothesis makes requests of: every command with arguments that are good, odd or wrong.

Keys are few, so that requests meet; deadlines are far away or long past, so that none arrives while
a sequence runs. No two relative deadlines of a sequence are alike: which of two equal ones is later
would depend on the millisecond (`placed`). DBSIZE is left out: Redis counts dead keys until it finds them.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.wire.resp import Argument

Request = tuple[Argument, ...]
FAR_SECONDS = 33_177_117_420
PLACE_SECONDS = 7


class Soon(NamedTuple):
    """A duration, which gets its place in the sequence added."""

    seconds: int
    scale: int

    def at(self, place: int) -> int:
        return (self.seconds + place * PLACE_SECONDS) * self.scale


Part = Argument | Soon
Parts = tuple[Part, ...]


def any_of(*choices: Part) -> SearchStrategy[Part]:
    return st.sampled_from(choices)


keys = st.sampled_from([b"a", b"b", b"c", b"\xff\x00", b"a" * 20])
numbers = any_of(0, 1, 2, -1, -3, 7, 100, 2**31, 2**63 - 1, -(2**63), 2**63)
odd_numbers = any_of(b"", b"x", b"1.5", b" 1", b"01", b"+1", b"-0", b"1e3")
integers = st.one_of(numbers, numbers, odd_numbers)
small: SearchStrategy[Part] = st.one_of(st.integers(-12, 40), st.integers(-12, 40), odd_numbers)
floats: SearchStrategy[Part] = st.one_of(
    st.decimals(-1000, 1000, places=3).map(str),
    any_of(b"0.1", b"1e5", b"-2.5e-3", b"nan", b"inf", b"x", b" 1", b"3.0"),
)
values = st.one_of(
    st.sampled_from([b"", b"v", b"10", b"-7", b"9223372036854775807", b"3.25", b"text", b"abcabd"]),
    st.binary(max_size=12),
)
bits = any_of(0, 1, 0, 1, 0, 1, 2, b"x")
units = any_of(b"BYTE", b"BIT", b"bit", b"BOGUS")
databases = any_of(0, 1, 0, 1, 16, -1, b"x")
seconds = st.sampled_from([10_000, 20_000, 1_000_000])
in_seconds: SearchStrategy[Part] = st.one_of(
    seconds.map(lambda each: Soon(each, 1)), any_of(0, -1, b"x", 2**63 - 1)
)
in_milliseconds: SearchStrategy[Part] = st.one_of(
    seconds.map(lambda each: Soon(each, 1000)), any_of(0, -1, b"1.5", 2**63 - 1)
)
at_seconds = any_of(FAR_SECONDS, FAR_SECONDS + 1, 1, 0, -1, b"x")
at_milliseconds = any_of(FAR_SECONDS * 1000, FAR_SECONDS * 1000 + 500, 1, 0, -1, b"x")


def joined(*parts: SearchStrategy[Parts]) -> SearchStrategy[Parts]:
    return st.tuples(*parts).map(lambda each: tuple(part for some in each for part in some))


def words(*strategies: SearchStrategy[Part] | Part) -> SearchStrategy[Parts]:
    """One argument after the other, each given or to be drawn."""
    return st.tuples(
        *(each if isinstance(each, SearchStrategy) else st.just(each) for each in strategies)
    )


def some(*choices: SearchStrategy[Parts], at_most: int = 2) -> SearchStrategy[Parts]:
    """None to a few of these, in any order."""
    return st.lists(st.one_of(*choices), max_size=at_most).map(
        lambda each: tuple(part for parts in each for part in parts)
    )


lifetimes = st.one_of(
    words(b"EX", in_seconds),
    words(b"px", in_milliseconds),
    words(b"EXAT", at_seconds),
    words(b"PXAT", at_milliseconds),
)
conditions = some(*(words(each) for each in (b"NX", b"xx", b"GT", b"LT", b"BOGUS")))
set_options = some(
    lifetimes, *(words(each) for each in (b"NX", b"XX", b"GET", b"KEEPTTL")), at_most=3
)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=3).map(
    lambda each: tuple(part for pair in each for part in pair)
)
several = st.lists(keys, min_size=1, max_size=3).map(tuple)

near_bounds: SearchStrategy[Part] = st.one_of(
    st.builds(lambda power, by: 2**power + by, st.integers(0, 62), st.integers(-2, 1)),
    st.builds(lambda power, by: by - 2**power, st.integers(0, 62), st.integers(-2, 1)),
    st.builds(lambda power, by: 2**power - 2**63 + by, st.integers(0, 62), st.integers(-1, 1)),
)
"""Integers near the bounds of every width that a field can have."""
field_numbers: SearchStrategy[Part] = st.one_of(near_bounds, st.integers(-300, 300))
field_types: SearchStrategy[Part] = st.one_of(
    st.integers(1, 64).map(lambda width: b"i%d" % width),
    st.integers(1, 63).map(lambda width: b"u%d" % width),
    any_of(b"u1", b"u8", b"i8", b"i64", b"u63"),
)
field_offsets: SearchStrategy[Part] = st.one_of(
    st.integers(0, 40), st.integers(0, 3).map(lambda place: b"#%d" % place)
)
field_reads = words(b"GET", field_types, field_offsets)
field_writes = words(any_of(b"SET", b"incrby"), field_types, field_offsets, field_numbers)
overflows = words(b"OVERFLOW", any_of(b"WRAP", b"sat", b"SAT", b"fail"))
odd_types = st.one_of(field_types, any_of(b"u64", b"i65", b"i0", b"I8", b"x", b""))
odd_offsets = st.one_of(field_offsets, any_of(-1, b"#-1", b"x", b"#", 2**32, b"#536870912"))
odd_operations = st.one_of(
    words(b"GET", odd_types, odd_offsets),
    words(any_of(b"SET", b"INCRBY", b"BOGUS"), odd_types, odd_offsets, integers),
    words(b"OVERFLOW", any_of(b"WRAP", b"BOGUS")),
)

STRINGS: list[SearchStrategy[Parts]] = [
    joined(words(b"SET", keys, values), set_options),
    joined(words(b"SET", keys, values), set_options),
    words(b"GET", keys),
    joined(words(b"GETEX", keys), some(lifetimes, words(b"PERSIST"), at_most=2)),
    words(b"GETDEL", keys),
    words(b"GETSET", keys, values),
    words(b"SETNX", keys, values),
    words(b"SETEX", keys, in_seconds, values),
    words(b"PSETEX", keys, in_milliseconds, values),
    joined(words(b"MSET"), pairs),
    joined(words(b"MSETNX"), pairs),
    joined(words(b"MGET"), several),
    words(b"APPEND", keys, values),
    words(b"STRLEN", keys),
    words(b"SETRANGE", keys, small, values),
    words(b"GETRANGE", keys, small, small),
    words(b"SUBSTR", keys, small, small),
    words(b"INCR", keys),
    words(b"DECR", keys),
    words(b"INCRBY", keys, integers),
    words(b"DECRBY", keys, integers),
    words(b"INCRBYFLOAT", keys, floats),
    joined(
        words(b"LCS", keys, keys),
        some(words(b"LEN"), words(b"IDX"), words(b"WITHMATCHLEN"), words(b"MINMATCHLEN", small)),
    ),
]
BITS: list[SearchStrategy[Parts]] = [
    words(b"SET", keys, values),
    words(b"GET", keys),
    words(b"SETBIT", keys, small, bits),
    words(b"GETBIT", keys, small),
    words(b"BITCOUNT", keys),
    words(b"BITCOUNT", keys, small, small),
    words(b"BITCOUNT", keys, small, small, units),
    words(b"BITPOS", keys, bits),
    words(b"BITPOS", keys, bits, small),
    words(b"BITPOS", keys, bits, small, small),
    words(b"BITPOS", keys, bits, small, small, units),
    joined(
        words(b"BITOP", st.sampled_from([b"AND", b"or", b"XOR", b"NOT", b"NAND"]), keys), several
    ),
]
BITFIELDS: list[SearchStrategy[Parts]] = [
    joined(words(b"SET", keys, values), set_options),
    words(b"GET", keys),
    joined(words(b"BITFIELD", keys), some(field_writes, overflows, field_reads, at_most=6)),
    joined(words(b"BITFIELD", keys), overflows, field_writes, field_writes),
    joined(words(b"BITFIELD", keys), some(odd_operations, at_most=3)),
    joined(words(b"BITFIELD_RO", keys), some(field_reads, at_most=3)),
    joined(words(b"BITFIELD_RO", keys), some(odd_operations)),
]
KEYS: list[SearchStrategy[Parts]] = [
    joined(words(b"SET", keys, values), set_options),
    words(b"GET", keys),
    joined(words(b"DEL"), several),
    joined(words(b"UNLINK"), several),
    joined(words(b"EXISTS"), several),
    joined(words(b"TOUCH"), several),
    words(b"TYPE", keys),
    words(b"RENAME", keys, keys),
    words(b"RENAMENX", keys, keys),
    joined(words(b"COPY", keys, keys), some(words(b"DB", databases), words(b"REPLACE"))),
    words(b"MOVE", keys, databases),
    words(b"SELECT", databases),
    words(b"SWAPDB", databases, databases),
    words(b"KEYS", st.sampled_from([b"*", b"a*", b"[ab]", b"?", b"[^a]*", b"\\a", b"[a", b"**c"])),
    words(b"FLUSHDB"),
    words(b"DUMP", keys),
]
EXPIRY: list[SearchStrategy[Parts]] = [
    joined(words(b"SET", keys, values), set_options),
    joined(words(b"EXPIRE", keys, in_seconds), conditions),
    joined(words(b"PEXPIRE", keys, in_milliseconds), conditions),
    joined(words(b"EXPIREAT", keys, at_seconds), conditions),
    joined(words(b"PEXPIREAT", keys, at_milliseconds), conditions),
    words(b"PERSIST", keys),
    words(b"TTL", keys),
    words(b"PTTL", keys),
    words(b"EXPIRETIME", keys),
    words(b"PEXPIRETIME", keys),
    words(b"EXISTS", keys),
    words(b"INCR", keys),
    words(b"RENAME", keys, keys),
    words(b"COPY", keys, keys, b"REPLACE"),
]
SCRIPTS: list[SearchStrategy[Parts]] = [
    joined(words(b"SET", keys, values), set_options),
    words(b"EVAL", b"return redis.call('GET', KEYS[1])", 1, keys),
    words(b"EVAL", b"return redis.call('SET', KEYS[1], ARGV[1])", 1, keys, values),
    words(b"EVAL", b"return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, keys, integers),
    words(b"EVAL", b"return redis.pcall('INCRBY', KEYS[1], ARGV[1])", 1, keys, integers),
    words(b"EVAL", b"return {KEYS, ARGV, #ARGV}", any_of(0, 1, 2, 3, -1, b"x"), keys, values),
    words(b"EVAL", b"return ARGV[1] * 2", 0, st.one_of(integers, values)),
    words(b"EVAL", b"return tonumber(ARGV[1])", 0, small),
    words(b"EVAL", b"redis.call('DEL', KEYS[1]) return redis.call('EXISTS', KEYS[1])", 1, keys),
    words(b"EVAL", b"return {redis.call('MGET', unpack(KEYS)), #KEYS}", 2, keys, keys),
    words(
        b"EVAL",
        b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
        1,
        keys,
        values,
    ),
    words(b"EVAL", b"return redis.sha1hex(ARGV[1])", 0, values),
    words(b"EVAL", b"local made = string.rep(ARGV[1], 3) return made", 0, values),
    words(b"EVAL_RO", b"return redis.call('STRLEN', KEYS[1])", 1, keys),
]  # fmt: skip
EVERYTHING = STRINGS + BITS + BITFIELDS + KEYS + EXPIRY


@st.composite
def misspelt(draw: st.DrawFn, requests: SearchStrategy[Parts]) -> Parts:
    """A request, at times in another case, with an argument too many or too few."""
    request = draw(requests)
    match draw(st.integers(0, 19)):
        case 0:
            return request[:-1] or request
        case 1:
            return (*request, b"x")
        case 2:
            return (str(request[0], "ascii").swapcase().encode(), *request[1:])  # type: ignore[arg-type]  # a name is bytes
    return request


@st.composite
def transactions(draw: st.DrawFn, requests: SearchStrategy[Parts]) -> list[Parts]:
    """MULTI, some requests, EXEC or DISCARD; at times out of order, at times with a WATCH before."""
    inside = draw(st.lists(requests, max_size=6))
    ends = st.sampled_from([b"EXEC", b"EXEC", b"EXEC", b"DISCARD", b"MULTI"])
    watched: list[Parts] = [(b"WATCH", draw(keys))] if draw(st.booleans()) else []
    return [*watched, (b"MULTI",), *inside, (draw(ends),)]


def sequences(
    commands: list[SearchStrategy[Parts]], *, has_transactions: bool = False
) -> SearchStrategy[list[Request]]:
    """Requests one after the other, ready to be sent."""
    requests = misspelt(st.one_of(*commands))
    parts: SearchStrategy[list[Parts]] = requests.map(lambda each: [each])
    if has_transactions:
        parts = st.one_of(parts, transactions(requests))
    return st.lists(parts, min_size=1, max_size=25).map(
        lambda each: [
            placed(parts, place) for place, parts in enumerate(one for many in each for one in many)
        ]
    )


def placed(parts: Parts, place: int) -> Request:
    return tuple(part.at(place) if isinstance(part, Soon) else part for part in parts)
