"""A store: its `default` family, its other families, and what concerns all of them.

`open` is the one place that knows which engine a URL means.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self, cast

from ephemera.core.arguments import DEFAULT_FAMILY, check_family_name, count_at_least
from ephemera.core.clock import Clock
from ephemera.core.errors import EphemeraError, InvalidArgument, StoreClosed
from ephemera.core.expiry import Ttl, TtlLike, duration_ms
from ephemera.core.keyvalue import (
    NO_DEFAULT_TTL_MS,
    Capability,
    CheckReport,
    Expired,
    KeyValue,
)
from ephemera.core.options import Options
from ephemera.core.passwords import without_password
from ephemera.family import Family
from ephemera.snapshot import Snapshot
from ephemera.transaction import Transaction

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
NO_PATH = re.compile(r"\?[A-Za-z_]+=")
"""The parameters of a URL, behind what would be a path."""
MISSPELT_MEMORY = re.compile(r":?memory:?/?", re.IGNORECASE)
ALLOWED_URLS = "a path, memory://, s3://, gs://, az://, file://, redis://, rediss://, unix:// or redis+cluster://"
SLATEDB_SCHEMES = ("s3", "gs", "az", "file")
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster")
STORE_SCHEMES = ("memory", *SLATEDB_SCHEMES, *REDIS_SCHEMES)


def open(url: str | os.PathLike[str], **options: Any) -> Store:  # Any: Options checks each of them
    """Open the store at a path or URL, creating it when it is not there; `memory://` is one in memory.

    The options and their defaults; docs/api.md says more of each:

      default_ttl=None           seconds or timedelta that keys live where nothing else is said
      durability="interval"      sync once a second; "commit": each write; "none": at checkpoints
      read_only=False            True: refuse writes
      exclusive=False            True: keep every other opener out
      maintenance="background"   "manual": checkpoint, sweep and deliver events by calls alone
      clock=None                 an object with now_ms(); None: the system's clock, made steady
      size_limit=68_719_476_736  bytes (64 GiB) of rows and index; puts beyond raise StoreFull
      lock_timeout=10.0          seconds to wait for another process or thread, then StoreBusy
      segment_bytes=33_554_432   bytes (32 MiB) written before a checkpoint moves them
      snapshot_max_age=None      seconds or timedelta after which a snapshot ends; None: never
      mode=None                  permissions of the files; None: 0o600, or those that they have

    Raises InvalidArgument for a URL or an option that it does not know, UnsupportedOperation for an
    engine whose package is not installed.

    >>> import ephemera
    >>> with ephemera.open("memory://", default_ttl=3600) as store:
    ...     store.put("name", "ada")
    ...     store.get("name")
    b'ada'
    """
    allowed = [field.name for field in fields(Options)]
    for name in options:
        if name not in allowed:
            raise InvalidArgument(f"there is no option {name!r}; there are {', '.join(allowed)}")
    settings = Options(**options)
    engine = _engine(url, settings)
    try:
        return Store(engine, os.fspath(url), settings.default_ttl_ms)
    except BaseException:
        # Its own error would hide the one that matters.
        with contextlib.suppress(EphemeraError, OSError):
            engine.close()
        raise


def _engine(url: object, options: Options) -> KeyValue:
    if not isinstance(url, (str, os.PathLike)) or not isinstance(os.fspath(url), str):
        raise InvalidArgument(f"a store is opened by {ALLOWED_URLS}, not {type(url).__name__}")
    place = str(os.fspath(url))
    found = SCHEME.match(place)
    scheme = found.group(1).lower() if found else ""
    engine: object
    # Imported here: a program loads the engine that it uses, and no other.
    if scheme == "memory":
        from ephemera.engines.memory import MemoryEngine

        if place[len("memory://") :]:
            raise InvalidArgument(f"memory:// takes nothing after it: {place!r}")
        engine = MemoryEngine(options)
    elif scheme in SLATEDB_SCHEMES:
        from ephemera.engines.slatedb import SlateEngine

        engine = SlateEngine(place, options)
    elif scheme in REDIS_SCHEMES:
        from ephemera.engines.redis import open_engine

        engine = open_engine(place, options)
    elif isinstance(url, str) and MISSPELT_MEMORY.fullmatch(url):
        raise InvalidArgument(
            f"a store in memory is opened as 'memory://', not {place!r}; a directory of that name"
            " as './memory'"
        )
    elif scheme or not place.strip():
        raise InvalidArgument(f"a store is opened by {ALLOWED_URLS}, not {place!r}")
    else:
        if isinstance(url, str):
            _check_path(url)
        from ephemera.engines.local.engine import LocalEngine

        engine = LocalEngine(place, options)
    # An engine asks for FamilyRefs of its own making where the protocol allows any.
    return cast(KeyValue, engine)


def _check_path(path: str) -> None:
    """Raise InvalidArgument for what looks like a misspelt URL: a Path of that name is not looked at."""
    name, colon, rest = path.partition(":")
    if colon and name.lower() in STORE_SCHEMES:
        slashes = "///" if name.lower() == "unix" else "//"
        raise InvalidArgument(
            f"a URL is written {name.lower() + ':' + slashes + rest.lstrip('/')!r}, not {path!r};"
            f" a directory of that name as './{path}'"
        )
    if NO_PATH.search(path):
        raise InvalidArgument(
            f"a path has no parameters, as in {path!r}: options are arguments of open();"
            f" a directory of that name is opened as a pathlib.Path"
        )


class Store(Family):
    """An open store: the `default` family, and the way to everything else. See `ephemera.open`.

    A store may be used by any number of threads. It is a context manager that closes it.
    """

    __slots__ = ("_is_closed", "_url")

    def __init__(self, engine: KeyValue, url: str, default_ttl_ms: int | None) -> None:
        ref = engine.family(DEFAULT_FAMILY, create=True)
        assert ref is not None  # every store has this family
        super().__init__(engine, ref, default_ttl_ms)
        self._url = url
        self._is_closed = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the engine behind this store can do."""
        return self._engine.capabilities

    @property
    def clock(self) -> Clock:
        """The clock that decides what is dead."""
        return self._engine.clock

    @property
    def engine(self) -> KeyValue:
        """What keeps the rows: for tools that move whole rows (`ephemera.formats.transfer`).

        It takes what it is given unchecked.

        >>> import ephemera
        >>> ephemera.open("memory://").engine.name
        'memory'
        """
        return self._open_engine()

    # --- families -----------------------------------------------------------------------------

    def family(self, name: str, default_ttl: TtlLike = None) -> Family:
        """The family of this name, created when it is not there.

        `default_ttl` is kept in the store; not given, it stays what it is. `Ttl.NEVER` means that
        keys of this family take no default at all, `Ttl.DEFAULT` that they take the store's.

        >>> import ephemera
        >>> store = ephemera.open("memory://", clock=ephemera.ManualClock())
        >>> codes = store.family("codes", default_ttl=300)
        >>> codes.put("ada", "492817")
        >>> codes.ttl("ada")
        300.0
        """
        engine = self._open_engine()
        check_family_name(name)
        ttl_ms = _default_ttl_ms(default_ttl)
        ref = engine.family(name, create=True)
        assert ref is not None  # it was to be created
        if default_ttl is not None and ref.default_ttl_ms != ttl_ms:
            engine.set_default_ttl(ref, ttl_ms)
        return Family(engine, ref, self._store_ttl_ms)

    def families(self) -> list[str]:
        """The names of all families.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> _ = store.family("sessions")
        >>> store.families()
        ['default', 'sessions']
        """
        return self._open_engine().families()

    def drop_family(self, name: str) -> bool:
        """Take a family away with all its keys; whether it was there.

        Raises InvalidArgument for `default`, which can only be cleared.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> _ = store.family("sessions")
        >>> store.drop_family("sessions"), store.drop_family("sessions")
        (True, False)
        """
        engine = self._open_engine()
        if check_family_name(name) == DEFAULT_FAMILY:
            raise InvalidArgument("the family 'default' always exists: clear() empties it")
        return engine.drop_family(name)

    # --- several operations as one ------------------------------------------------------------

    def transaction(self, *, durable: bool | None = None) -> Transaction:
        """Acquire the writer lock for reads and writes that happen all together or not at all.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> with store.transaction() as txn:
        ...     if txn.get("seat:7") is None:
        ...         txn.put("seat:7", "ada", ttl=600)
        >>> store.get("seat:7")
        b'ada'
        """
        return Transaction(self._open_engine(), self._ref, self._store_ttl_ms, durable=durable)

    def snapshot(self) -> Snapshot:
        """The store as it is now, for consistent reads whatever is written meanwhile.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("name", "ada")
        >>> with store.snapshot() as snap:
        ...     store.clear()
        ...     snap.count()
        1
        """
        return Snapshot(self._open_engine(), self._ref, self._store_ttl_ms)

    # --- expiry -------------------------------------------------------------------------------

    def purge_expired(self, limit: int | None = None, batch: int = 1000) -> int:
        """Remove dead keys, at most `limit` of them, the longest dead first; how many it removed.

        Other writers get the lock between two batches. With maintenance="background" the store
        does this by itself.

        >>> import ephemera
        >>> clock = ephemera.ManualClock()
        >>> store = ephemera.open("memory://", clock=clock, maintenance="manual")
        >>> store.put_many({"a": "1", "b": "2"}, ttl=60)
        >>> clock.advance(60)
        >>> store.purge_expired(), store.purge_expired()
        (2, 0)
        """
        engine = self._open_engine()
        if limit is not None:
            count_at_least(limit, 0, name="limit")
        return engine.purge_expired(limit=limit, batch=count_at_least(batch, 1, name="batch"))

    def on_expire(self, callback: Callable[[Expired], object]) -> Callable[[], None]:
        """Have `callback` called for every key that dies; returns a function that ends it.

        It runs in the thread that removes the key, outside every lock: a thread of the store's own,
        or with maintenance="manual" the one that calls `purge_expired`. What it raises is logged.

        >>> import ephemera
        >>> clock = ephemera.ManualClock()
        >>> store = ephemera.open("memory://", clock=clock, maintenance="manual")
        >>> unsubscribe = store.on_expire(lambda expired: print(expired.family, expired.key))
        >>> store.put("code", "492817", ttl=60)
        >>> clock.advance(60)
        >>> _ = store.purge_expired()
        default b'code'
        >>> unsubscribe()
        """
        engine = self._open_engine()
        if not callable(callback):
            raise InvalidArgument(f"a callback is a function, not {type(callback).__name__}")
        return engine.on_expire(callback)

    # --- housekeeping -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:  # Any: each engine reports what it has to tell
        """Numbers about the store; which ones depends on the engine.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.put("name", "ada")
        >>> store.stats()["keys"]
        1
        """
        engine = self._open_engine()
        ignores_wall = getattr(engine.clock, "ignores_wall", False)
        return {**engine.stats(), "clock_ignores_wall": ignores_wall}

    def check(self) -> CheckReport:
        """Walk everything and report every disagreement.

        >>> import ephemera
        >>> ephemera.open("memory://").check().is_clean
        True
        """
        return self._open_engine().check()

    def repair(self) -> int:
        """Let the index of deadlines say what the rows say; how many entries were wrong or missing.

        It changes nothing that is read: rows stay as they are, damaged ones too. Raises CorruptStore
        where the damage goes deeper.

        >>> import ephemera
        >>> ephemera.open("memory://").repair()
        0
        """
        return self._open_engine().repair()

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the store to a new place, while it goes on being used.

        Raises UnsupportedOperation when the engine has no `Capability.BACKUP`.

        >>> import ephemera
        >>> ephemera.Capability.BACKUP in ephemera.open("memory://").capabilities
        False
        """
        engine = self._open_engine()
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidArgument(f"a backup is written to a path, not {type(path).__name__}")
        if SCHEME.match(os.fspath(path)):
            raise InvalidArgument(
                f"a backup is written to a path, not to a URL: {path}; `ephemera copy` copies between URLs"
            )
        engine.backup(os.fspath(path))

    def compact(self) -> None:
        """Give back the space that removed keys left behind, and erase what is left of them.

        On a path this checkpoints, then writes a new file with the rows of now: docs/operations.md says
        what it does not reach. Writers wait for it only once several segments are full.

        >>> import ephemera
        >>> ephemera.open("memory://").compact()
        """
        self._open_engine().compact()

    def checkpoint(self) -> None:
        """Move what was written into the base tier now; engines without one do nothing.

        >>> import ephemera
        >>> ephemera.open("memory://").checkpoint()
        """
        self._open_engine().checkpoint()

    def sync(self) -> None:
        """Return when everything written so far would survive a power loss.

        >>> import ephemera
        >>> ephemera.open("memory://").sync()
        """
        self._open_engine().sync()

    def close(self) -> None:
        """Let the store go; everything but another close raises StoreClosed from then on.

        >>> import ephemera
        >>> store = ephemera.open("memory://")
        >>> store.close()
        >>> store.get("name")
        Traceback (most recent call last):
        ephemera.core.errors.StoreClosed: the store was closed
        """
        if not self._is_closed:
            self._is_closed = True
            self._engine.close()

    def __enter__(self) -> Self:
        self._open_engine()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {without_password(self._url)!r}, {'closed' if self._is_closed else 'open'}>"

    def _open_engine(self) -> KeyValue:
        if self._is_closed:
            raise StoreClosed("the store was closed")
        return self._engine


def _default_ttl_ms(default_ttl: TtlLike) -> int | None:
    """As an engine keeps it: see `FamilyRef`."""
    if default_ttl is None or default_ttl is Ttl.DEFAULT:
        return None
    if default_ttl is Ttl.NEVER:
        return NO_DEFAULT_TTL_MS
    return duration_ms(default_ttl, name="default_ttl")
