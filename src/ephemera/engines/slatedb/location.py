"""Where a store lies and how it is kept there, as its URL says: read and checked once.

    s3://BUCKET/PATH    gs://BUCKET/PATH    az://CONTAINER/PATH    file:///DIRECTORY?engine=slatedb

Credentials come from the environment, under the names that the clouds' own tools use. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from urllib.parse import parse_qsl, unquote, urlsplit

from ephemera.core.errors import InvalidArgument

CLOUDS = ("s3", "gs", "az")
POLLS_KEPT = 10
NOT_SETTINGS = {"scheme", "bucket", "path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The location of a store, and its settings.

    `cache` is how many bytes of blocks are kept in memory; `flush_interval` how long a write waits at most
    until it goes to the object store, and so what "interval" may lose; `compaction_interval` how long
    the dead stay at most until everything is rewritten without them (0: only when it is worth it anyway);
    `garbage_age` how long an object stays that was replaced, and so how long a scan or snapshot may last;
    `poll_interval` how often a reader looks for news, a writer for a newer one, and a compactor for work.
    `endpoint` and `region` are for S3 alone.
    """

    scheme: str
    bucket: str
    path: str
    engine: str = "slatedb"
    cache: int = 64 * 1024 * 1024
    flush_interval: float = 0.1
    compaction_interval: float = 86_400.0
    garbage_age: float = 900.0
    poll_interval: float = 1.0
    endpoint: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        # What was replaced must stay until everybody has looked for what replaced it.
        if self.garbage_age < POLLS_KEPT * self.poll_interval:
            raise InvalidArgument(
                f"garbage_age ({self.garbage_age:g}) must be at least {POLLS_KEPT} times "
                f"poll_interval ({self.poll_interval:g})"
            )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}"


def read_location(url: str) -> StoreLocation:
    """The location of a URL. Raises InvalidArgument for what it cannot mean.

    >>> read_location("s3://bucket/sessions?flush_interval=0.05").flush_interval
    0.05
    """
    parts = urlsplit(url)
    scheme, path = parts.scheme.lower(), unquote(parts.path).strip("/")
    if parts.fragment or parts.username or parts.password or parts.port:
        raise InvalidArgument(
            f"{url!r}: a store is at {scheme}://…/path?settings, and nothing else is in its URL; "
            "credentials come from the environment"
        )
    settings = _settings(url, parts.query)
    if settings.get("engine", "slatedb") != "slatedb":
        raise InvalidArgument(f"{url!r}: the engine of such a URL is slatedb, no other")
    if scheme == "file":
        if "engine" not in settings:
            raise InvalidArgument(
                f"{url!r}: add ?engine=slatedb, or give the path alone for the local engine"
            )
        if parts.netloc not in ("", "localhost"):
            raise InvalidArgument(f"{url!r}: a file:// URL has three slashes, file:///directory")
    elif not parts.netloc:
        raise InvalidArgument(f"{url!r}: name the bucket, as in {scheme}://bucket/path")
    if not path:
        raise InvalidArgument(f"{url!r}: a store has a path of its own, as in {scheme}://…/path")
    if scheme != "s3" and (settings.get("endpoint") or settings.get("region")):
        raise InvalidArgument(f"{url!r}: endpoint and region are settings of s3:// alone")
    bucket = "" if scheme == "file" else parts.netloc
    # Any other type than a field's was refused by _settings.
    return StoreLocation(scheme=scheme, bucket=bucket, path=path, **settings)  # type: ignore[arg-type]  # see above


def _settings(url: str, query: str) -> dict[str, str | int | float]:
    known = {
        field.name: str(field.type)
        for field in fields(StoreLocation)
        if field.name not in NOT_SETTINGS
    }
    settings: dict[str, str | int | float] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidArgument(
                f"{url!r}: there is no setting {name!r}; there are {', '.join(known)}"
            )
        if name in settings:
            raise InvalidArgument(f"{url!r}: {name} is given twice")
        settings[name] = _value(name, known[name], text)
    return settings


def _value(name: str, type_name: str, text: str) -> str | int | float:
    if type_name == "str":
        return text
    if type_name == "int":
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidArgument(f"{name} must be a whole number of bytes, not {text!r}")
        return int(text)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    least = 0.0 if name == "compaction_interval" else 0.001
    if not least <= seconds <= 1e9:
        raise InvalidArgument(
            f"{name} must be a number of seconds from {least:g} to 1e9, not {text!r}"
        )
    return seconds
