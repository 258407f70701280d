"""Where the two servers differ on purpose, each with its reason.

The Redis that Debian ships is 7.0; the standard here is 7.4. A case that names a difference fails as
soon as the servers agree, so that this list says nothing that has passed.
"""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {
    "bitfield-growth": "BITFIELD that fails and lengthens the value counts as a write; Redis tells no WATCH and no cache.",
    "bitfield-offset": "An offset of BITFIELD beyond 64 bits is refused; in Redis it overflows and reads another place.",
    "decimal-floats": "Numbers of INCRBYFLOAT are decimal; Redis reads hexadecimal ones too, and never writes them.",
    "dump-plain": "DUMP does not compress; RESTORE takes what Redis compressed.",
    "key-size": "A key has 1 to 1,900 bytes here: the base tier keeps keys in its tree's pages.",
    "kill-undoes": "SCRIPT KILL ends a script that wrote, too, and undoes it; Redis says UNKILLABLE.",
    "last-words": "Replies to requests before POST or Host: go out; Redis drops them with the connection.",
    "noloop-scripts": "NOLOOP spares the client whose script writes in BCAST mode, too; Redis only in the default mode.",
    "only-strings": "Lists, hashes, sets and sorted sets are unknown commands: clients fall back cleanly.",
    "seven-two-client": "CLIENT SETINFO and CLIENT NO-TOUCH came with 7.2.",
    "seven-two-getkeys": "Since 7.2 COMMAND GETKEYS may be asked about a name alone.",
    "seven-two-hello": "Since 7.2 the refusal of HELLO names the place of the version.",
    "seven-two-script-reads": "Since 7.2 the keys that a script reads are tracked, and not those that it declares.",
    "swapdb-invalidates": "SWAPDB invalidates what clients have cached; Redis leaves values of the other database in caches.",
}
