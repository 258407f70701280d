"""A running Redis as the source of an import: its URL is read as that of a store on Redis."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ephemera import Clock, InvalidArgument
from ephemera.engines.redis.client import check_answers, client_of
from ephemera.engines.redis.settings import RedisSettings, read_url
from ephemera.formats.live_redis import LiveRedis

STORE = "is about a store of Ephemera on Redis, which `ephemera copy` reads"
UNUSED = {
    "prefix": STORE,
    "retry_for": "is about a store: an interrupted import is resumed with --resume FILE",
    "wait_replicas": "is about writes, and an import reads",
}
"""Parameters of a store's URL that an import cannot honour, and why."""


def live_redis(url: str, *, clock: Clock, cursor_path: Path | None = None) -> LiveRedis:
    """Return the server at a URL as a source, once it has answered.

    Raises InvalidArgument for a URL that is wrong, EngineUnavailable when no server answers there.
    """
    settings = _read(url)
    check_answers(settings)
    return LiveRedis(
        partial(client_of, settings),
        place=settings.place,
        database=settings.database,
        clock=clock,
        cursor_path=cursor_path,
    )


def _read(url: str) -> RedisSettings:
    settings = read_url(url)
    for name, text in parse_qsl(urlsplit(url).query):
        why = STORE if (name, text) == ("values", "rows") else UNUSED.get(name)
        if why:
            raise InvalidArgument(
                f"{name}={text}: {name} {why}; leave it out for all keys as they are"
            )
    return settings
