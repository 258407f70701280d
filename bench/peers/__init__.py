"""Who is measured. Every peer does the same work through the same few methods of `Peer`."""

from __future__ import annotations

from bench.peers.base import TTL_S, Mode, NotOffered, Peer
from bench.peers.files import Diskcache, Lmdb, LmdbDurable, Rocksdict, Snkv, Sqlite
from bench.peers.ours import Ephemera, EphemeraCommit, EphemeraMemory
from bench.peers.process import Cachetools, Dict, PlainDict
from bench.peers.slate import Slatedb

__all__ = ["OURS", "PEERS", "TTL_S", "Mode", "NotOffered", "Peer"]

OURS = Ephemera.name

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Ephemera,
        EphemeraCommit,
        EphemeraMemory,
        Snkv,
        Diskcache,
        Rocksdict,
        Lmdb,
        LmdbDurable,
        Sqlite,
        Slatedb,
        Cachetools,
        Dict,
        PlainDict,
    )
}
