"""What the URL of a store on Redis says, checked once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ephemera.core.errors import InvalidArgument
from ephemera.core.passwords import SOURCES

PORT_DEFAULT = 6379
WAIT_REPLICAS_MAX = 64

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?")
# No colon, which ends it, so that no store's keys are another's; no braces, which would put all keys into
# one slot; nothing that a pattern reads.
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """A store on Redis: where it is, how its keys look, and how long anything may take.

    `timeout_s` is for one answer, `retry_for_s` for all attempts at an operation together; the last
    attempt may begin just before that is over. `database` is None where the URL names none: a store is
    in the first, and an import reads all of them.
    """

    addresses: tuple[Address, ...] = ()
    socket: str | None = None
    is_cluster: bool = False
    is_tls: bool = False
    database: int | None = None
    username: str | None = None
    password: str | None = None
    prefix: bytes = b"ephemera"
    is_plain: bool = False
    timeout_s: float = 5.0
    retry_for_s: float = 15.0
    wait_replicas: int = 0
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def place(self) -> str:
        """Where the store is, for messages: without the password."""
        return self.socket or ",".join(map(str, self.addresses))


def read_url(url: str) -> RedisSettings:
    """The settings that a URL gives. Raises InvalidArgument for one that is wrong.

    >>> read_url("redis://cache:7000/2?timeout=1").place
    'cache:7000'
    >>> read_url("redis+cluster://a,b:7001?wait_replicas=1").addresses[1].port
    7001
    """
    parts = urlsplit(url)
    if parts.fragment:
        raise InvalidArgument(f"a URL of Redis has nothing after #, not {parts.fragment!r}")
    given = _read_query(parts.query)
    is_cluster = parts.scheme == "redis+cluster"
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise InvalidArgument("a socket is given as unix:///path/to/redis.sock")
        return RedisSettings(socket=unquote(parts.path), **given)
    if "database" in given:
        raise InvalidArgument("db is for unix:// alone: elsewhere it is redis://host:port/DB")
    user, _, places = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    if password and "password" in given:
        raise InvalidArgument("the password is given twice: in the URL, or by one parameter")
    addresses = tuple(_read_place(place) for place in places.split(","))
    if len(addresses) > 1 and not is_cluster:
        raise InvalidArgument("several servers are a cluster: redis+cluster://host:port,host:port")
    return RedisSettings(
        addresses=addresses,
        is_cluster=is_cluster,
        is_tls=given.pop("is_tls", False) or parts.scheme == "rediss",
        database=_read_path(parts.path, is_cluster=is_cluster),
        username=unquote(username) or None,
        password=given.pop("password", None) or unquote(password) or None,
        **given,
    )


def _read_place(place: str) -> Address:
    found = _PLACE.fullmatch(place)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if found is None or not 0 < port < 65536:
        raise InvalidArgument(f"a server is given as host or host:port, not {place!r}")
    return Address(found[1].strip("[]"), port)


def _read_path(path: str, *, is_cluster: bool) -> int | None:
    name = path.strip("/")
    if not name:
        return None
    if is_cluster:
        raise InvalidArgument(f"a cluster has no databases to choose from: {path!r}")
    return _whole_number("the database", name, most=2**31 - 1)


def _read_query(query: str) -> dict[str, Any]:  # Any: fields of RedisSettings, of several types
    given: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in PARAMETERS:
            raise InvalidArgument(
                f"a URL of Redis has no parameter {name!r}; there are {', '.join(PARAMETERS)}"
            )
        field, read = PARAMETERS[name]
        if field in given:
            raise InvalidArgument(f"the parameter {name!r} is given twice")
        given[field] = read(name, text)
    return given


def _whole_number(name: str, text: str, *, most: int) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else most + 1
    if number > most:
        raise InvalidArgument(f"{name} is a whole number from 0 to {most}, not {text!r}")
    return number


def _seconds(name: str, text: str) -> float:
    seconds = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0
    if not 0 < seconds <= 86_400:
        raise InvalidArgument(f"{name} is a number of seconds up to a day, not {text!r}")
    return seconds


def _prefix(name: str, text: str) -> bytes:
    if not _PREFIX.fullmatch(text):
        raise InvalidArgument(
            f"{name} has 1 to 32 of letters, digits and _ . -, unlike {text[:40]!r}"
        )
    return text.encode()


def _is_plain(name: str, text: str) -> bool:
    return _one_of(name, text, ("rows", "plain")) == "plain"


def _is_yes(name: str, text: str) -> bool:
    return _one_of(name, text, ("no", "yes")) == "yes"


def _one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise InvalidArgument(f"{name} is one of {', '.join(allowed)}, not {text!r}")
    return text


def _path(name: str, text: str) -> str:
    if not text:
        raise InvalidArgument(f"{name} is the path of a file, not nothing")
    return text


def _password(name: str, text: str) -> str:
    return SOURCES[name](text)


def _replicas(name: str, text: str) -> int:
    return _whole_number(name, text, most=WAIT_REPLICAS_MAX)


def _database(name: str, text: str) -> int:
    return _whole_number(name, text, most=2**31 - 1)


PARAMETERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "prefix": ("prefix", _prefix),
    "values": ("is_plain", _is_plain),
    "timeout": ("timeout_s", _seconds),
    "retry_for": ("retry_for_s", _seconds),
    "wait_replicas": ("wait_replicas", _replicas),
    "db": ("database", _database),
    "password_file": ("password", _password),
    "password_env": ("password", _password),
    "tls": ("is_tls", _is_yes),
    "ca_file": ("ca_file", _path),
    "cert_file": ("cert_file", _path),
    "key_file": ("key_file", _path),
}
"""What may stand in the query of a URL: the field that it sets, and how it is read."""
