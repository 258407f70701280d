"""What the arguments of the shell's commands are called, for its hints.

The server's table knows how many there are; these are their names. A command that is not here gets
names made from the table.
"""

from __future__ import annotations

from ephemera.server.table import Declaration, KeyRange

LIFETIME = "[EX seconds | PX milliseconds | EXAT second | PXAT millisecond"
CONDITION = "[NX | XX | GT | LT]"
FIELD = "type offset"

SYNTAX = {
    "append": "key value",
    "auth": "[username] password",
    "bitcount": "key [start end [BYTE | BIT]]",
    "bitfield": f"key [GET {FIELD} | [OVERFLOW WRAP | SAT | FAIL] "
    f"(SET {FIELD} value | INCRBY {FIELD} increment)] ...",
    "bitfield_ro": f"key [GET {FIELD}] ...",
    "bitop": "AND | OR | XOR | NOT destination key [key ...]",
    "bitpos": "key bit [start [end [BYTE | BIT]]]",
    "client|kill": "address | ID number | ...",
    "client|pause": "milliseconds [WRITE | ALL]",
    "client|setname": "name",
    "config|get": "pattern [pattern ...]",
    "config|set": "setting value [setting value ...]",
    "copy": "source destination [DB number] [REPLACE]",
    "deadlines": "[COUNT count]",
    "decr": "key",
    "decrby": "key number",
    "del": "key [key ...]",
    "dump": "key",
    "echo": "message",
    "eval": "script keys [key ...] [argument ...]",
    "evalsha": "sha1 keys [key ...] [argument ...]",
    "exists": "key [key ...]",
    "expire": f"key seconds {CONDITION}",
    "expireat": f"key second {CONDITION}",
    "expiretime": "key",
    "get": "key",
    "getbit": "key offset",
    "getdel": "key",
    "getex": f"key {LIFETIME} | PERSIST]",
    "getrange": "key start end",
    "getset": "key value",
    "hello": "[protocol [AUTH username password] [SETNAME name]]",
    "incr": "key",
    "incrby": "key number",
    "incrbyfloat": "key number",
    "info": "[section ...]",
    "keys": "pattern",
    "lcs": "key key [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]",
    "memory|usage": "key [SAMPLES count]",
    "mget": "key [key ...]",
    "move": "key database",
    "mset": "key value [key value ...]",
    "msetnx": "key value [key value ...]",
    "object|encoding": "key",
    "object|freq": "key",
    "object|idletime": "key",
    "object|refcount": "key",
    "persist": "key",
    "pexpire": f"key milliseconds {CONDITION}",
    "pexpireat": f"key millisecond {CONDITION}",
    "pexpiretime": "key",
    "ping": "[message]",
    "psetex": "key milliseconds value",
    "psubscribe": "pattern [pattern ...]",
    "pttl": "key",
    "publish": "channel message",
    "purge": "[count]",
    "rename": "key new-key",
    "renamenx": "key new-key",
    "restore": "key milliseconds bytes [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    "scan": "cursor [MATCH pattern] [COUNT count] [TYPE type]",
    "script|exists": "sha1 [sha1 ...]",
    "script|load": "script",
    "select": "database",
    "set": f"key value [NX | XX] [GET] {LIFETIME} | KEEPTTL]",
    "setbit": "key offset value",
    "setex": "key seconds value",
    "setnx": "key value",
    "setrange": "key offset value",
    "slowlog|get": "[count]",
    "strlen": "key",
    "subscribe": "channel [channel ...]",
    "swapdb": "database database",
    "touch": "key [key ...]",
    "ttl": "key",
    "type": "key",
    "unlink": "key [key ...]",
    "watch": "key [key ...]",
}


def arguments_of(declared: Declaration) -> str:
    """The arguments of a command, as a hint shows them."""
    known = SYNTAX.get(declared.name)
    if known is not None:
        return known
    own = declared.name.count("|") + 1
    least = abs(declared.arity) - own
    first = declared.keys.first if isinstance(declared.keys, KeyRange) else 0
    names = ["key" if at == first else "argument" for at in range(own, own + least)]
    return " ".join([*names, *(["[argument ...]"] if declared.arity < 0 else [])])
