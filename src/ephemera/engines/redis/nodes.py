"""The connections to one server: commands out, replies in, and what is known when they do not come."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from ephemera.core.errors import InvalidArgument
from ephemera.engines.redis.settings import Address, RedisSettings

CONNECTIONS_MAX = 2**31
"""Each thread uses one at a time, so threads are the bound; at fewer, redis-py would refuse rather than wait."""
UNNAMED: dict[str, None] = (
    {"driver_info": None}
    if find_spec("redis.driver_info")
    else {"lib_name": None, "lib_version": None}
)
"""No name and version of the library to each new connection: looking them up takes longer than connecting."""

PASSWORD_HINT = (
    ". Give its password in a file or the environment, ?password_file=PATH or ?password_env=NAME,"
    " or in the URL: redis://USER:PASSWORD@HOST"
)

Command = tuple[bytes, ...]
Reply = Any  # Any: bytes, a number, None, a list of these, or an exception in their place


class Unreached(Exception):
    """Nothing was sent, so nothing has happened."""


class Lost(Exception):
    """In place of a reply: it was sent, and no answer came. It may have happened."""


class Unlike(Lost):
    """The same, where bytes came that no Redis server sends, or the other end hung up."""


def pack(commands: Sequence[Command]) -> bytes:
    """Commands as they are sent.

    >>> pack([(b"GET", b"key")])
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts += [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
    return b"".join(parts)


class Exchange:
    """Commands on their way over one connection, until their replies are read."""

    def __init__(
        self, pool: ConnectionPool, commands: Sequence[Command], place: str, prefix: str
    ) -> None:
        self._pool = pool
        self._place = place
        self._count = len(commands)
        self._lost: Lost | None = None
        try:
            self._connection = pool.get_connection()
        except (AuthenticationError, ResponseError) as error:  # such as for a database too many
            raise self._refused(error) from None
        except (RedisError, OSError) as error:
            raise Unreached(f"{prefix}{_reason(error)}") from None
        try:
            # Not asked after its health: a connection that was closed is noticed when it is taken.
            self._connection.send_packed_command(  # type: ignore[no-untyped-call]  # redis-py's own
                [pack(commands)], check_health=False
            )
        except (RedisError, OSError) as error:
            self._lost = Lost(f"{prefix}{_reason(error)}")
        except BaseException:
            pool.release(self._connection)
            raise

    def replies(self) -> list[Reply]:
        """As many as there were commands: what was answered, an error, or Lost."""
        found: list[Reply] = []
        try:
            while self._lost is None and len(found) < self._count:
                try:
                    found.append(self._connection.read_response())
                except (ResponseError, BusyLoadingError) as error:
                    found.append(error)
                    if isinstance(error, BusyLoadingError):  # redis-py has hung up
                        self._lost = Lost(_reason(error))
                except AuthenticationError as error:
                    raise self._refused(error) from None
                except TimeoutError as error:
                    self._lost = Lost(_reason(error))
                except (RedisError, OSError) as error:
                    self._lost = Unlike(_reason(error))
        except BaseException:
            # The rest of the replies is on its way.
            self._connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own
            raise
        finally:
            self._pool.release(self._connection)
        return found + [self._lost] * (self._count - len(found))

    @property
    def is_lost(self) -> bool:
        """Whether an answer did not come."""
        return self._lost is not None

    def _refused(self, error: RedisError) -> InvalidArgument:
        hint = PASSWORD_HINT if isinstance(error, AuthenticationError) else ""
        said = str(error).rstrip(".")
        return InvalidArgument(f"the server at {self._place} refused the connection: {said}{hint}")

    def abandon(self) -> None:
        """Want no replies any more: what comes of the commands, nobody will know."""
        self._connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own
        self._pool.release(self._connection)


class Node:
    """One server, and the connections to it."""

    def __init__(self, settings: RedisSettings, address: Address | None) -> None:
        self.place = settings.place if address is None else str(address)
        self.address = address
        # A message of the router begins with the place of the store: in a cluster, it is not this one.
        self._prefix = "" if self.place == settings.place else f"{self.place}: "
        self._pool = ConnectionPool(**connection_settings(settings, address))

    def send(self, commands: Sequence[Command]) -> Exchange:
        """Send commands. Raises Unreached when there is no connection to be had."""
        return Exchange(self._pool, commands, self.place, self._prefix)

    def ask(self, command: Command) -> Reply:
        """The reply to one command, which may be an error. Raises Unreached and Lost."""
        reply = self.send([command]).replies()[0]
        if isinstance(reply, Lost):
            raise reply
        return reply

    def reconnect(self) -> None:
        """Let connections that nobody uses go: the name may lead to another server now."""
        self._pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        self._pool.disconnect()


def _reason(error: Exception) -> str:
    """What went wrong, without the address, which redis-py repeats around what the system said."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error).rstrip(".")


def connection_settings(
    settings: RedisSettings, address: Address | None
) -> dict[str, Any]:  # Any: of many types
    """What redis-py is told about a connection to one server."""
    chosen: dict[str, Any] = {
        "db": settings.database or 0,
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        "protocol": 2,
        "max_connections": CONNECTIONS_MAX,
        **UNNAMED,
        # What is tried again, and for how long, is decided in `routing` alone.
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
    }
    if address is None:
        return chosen | {"connection_class": UnixDomainSocketConnection, "path": settings.socket}
    chosen |= {"host": address.host, "port": address.port, "connection_class": Connection}
    if settings.is_tls:
        chosen |= {
            "connection_class": SSLConnection,
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    return chosen
