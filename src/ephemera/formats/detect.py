"""Which format a file or directory has, by what it begins with."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ephemera.core.errors import InvalidArgument
from ephemera.formats import rdb_file
from ephemera.formats.aof import MANIFEST, AofLog, is_log_directory
from ephemera.formats.diskcache import DiskCache
from ephemera.formats.jsonl import JsonLines
from ephemera.formats.rdb_file import RdbFile
from ephemera.formats.transfer import RecordSource

HEAD_BYTES = 1024
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
HAS_LOG_BEHIND = re.compile(rb"aof-(?:preamble|base)\xc0\x01")
"""The auxiliary field of an RDB that an append-only log begins with."""


def open_source(
    path: str | os.PathLike[str], *, now_ms: int, keep_going: bool = False
) -> RecordSource:
    """The source that reads this file or directory. Raises InvalidArgument when none does."""
    place = Path(path)
    if not place.exists():
        raise InvalidArgument(f"{place} is not there")
    if not place.is_file() and not place.is_dir():
        raise InvalidArgument(f"{place} is neither a file nor a directory: it is read twice")
    if not place.is_dir():
        return _file_kind(place)(place, now_ms=now_ms, keep_going=keep_going)
    if is_log_directory(place):
        return AofLog(place, now_ms=now_ms, keep_going=keep_going)
    return DiskCache(place, keep_going=keep_going)


def is_redis_url(source: str) -> bool:
    """Whether a source is the URL of a running Redis.

    >>> is_redis_url("redis://localhost:6379"), is_redis_url("dump.rdb")
    (True, False)
    """
    return source.lower().startswith(REDIS_SCHEMES)


def _file_kind(place: Path) -> type[AofLog | RdbFile | JsonLines]:
    with open(place, "rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(rdb_file.MAGIC):
        return AofLog if HAS_LOG_BEHIND.search(head) else RdbFile
    if head[:1] in (b"*", b"#") or place.name.endswith(MANIFEST):
        return AofLog
    if head.lstrip()[:1] == b"{":
        return JsonLines
    raise InvalidArgument(f"{place} is no RDB file, append-only log, JSON Lines or diskcache")
