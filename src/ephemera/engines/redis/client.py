"""A client of redis-py to the server of a URL, for tools that read it without a store."""

from __future__ import annotations

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from ephemera.engines.redis.nodes import connection_settings
from ephemera.engines.redis.routing import Router, read
from ephemera.engines.redis.settings import RedisSettings

RETRIES = 3
PAUSE_S_MAX = 0.5


def check_answers(settings: RedisSettings) -> None:
    """Raise what opening a store there would raise, where no Redis server answers."""
    router = Router(settings)
    try:
        router.ask(read(b"", b"PING"))
    finally:
        router.close()


def client_of(settings: RedisSettings, number: int) -> redis.Redis:
    """Return a client for a database by its number."""
    address = settings.addresses[0] if settings.addresses else None
    chosen = connection_settings(settings, address) | {
        "db": number,
        "retry": Retry(ExponentialBackoff(cap=PAUSE_S_MAX), RETRIES),
    }
    return redis.Redis(connection_pool=redis.ConnectionPool(**chosen))
