"""The engine on Redis, Valkey, Redis Cluster, or Ephemera's own server: docs/redis.md.

settings      what the URL says
nodes         the connections to one server: commands out, replies in
routing       which server a key is on; trying again within a bounded time
swap          the one script: change keys if they are as they were
layout        how rows become keys and values
families      the table of families, kept in a key of its own
walking       visiting all keys: count, scan, purge, check
transaction   what was read, and the commit that holds if it still is so
operations    what both layouts have in common
engine        whole rows, with everything that a store can do here
plain         plain values, shared with other programs
client        a client of redis-py, for tools that read a server without a store
"""

from __future__ import annotations

from ephemera.core.errors import UnsupportedOperation
from ephemera.core.options import Options

try:
    import redis  # noqa: F401  (only to say what is missing)
except ImportError:
    raise UnsupportedOperation(
        "a store on Redis needs the package redis: pip install 'ephemera-kv[redis]'"
    ) from None

from ephemera.engines.redis.engine import RedisEngine
from ephemera.engines.redis.plain import PlainEngine
from ephemera.engines.redis.settings import read_url

__all__ = ["PlainEngine", "RedisEngine", "open_engine"]


def open_engine(url: str, options: Options) -> RedisEngine | PlainEngine:
    """The engine that a URL asks for: whole rows, or with `values=plain` plain values."""
    return PlainEngine(url, options) if read_url(url).is_plain else RedisEngine(url, options)
