"""Opening what is at a location: the one writer, or a reader that follows it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ephemera.core.errors import InvalidArgument, StoreFenced
from ephemera.engines.slatedb._calls import Handle
from ephemera.engines.slatedb.families import OWNER_KEY
from ephemera.engines.slatedb.library import FENCED, explain, load
from ephemera.engines.slatedb.location import StoreLocation
from ephemera.engines.slatedb.reading import ReadHandle

T = TypeVar("T")

RETRIES_MAX = None
"""How often SlateDB repeats a request that fails: without end. A background task that gives up would close the
database and lose what it had in memory; the calls of this engine are bounded by `library.wait` instead."""
MANIFEST_UPDATE_S = 30 * 86_400.0
"""How long SlateDB tries to update its manifest, before it closes itself: longer than any outage."""
POLLS_MISSED = 4
LIFETIME_S_MIN = 600
"""What a reader reads is kept for it so long after it was last heard of, and at least for some of its polls."""
READER_MEMORY_BYTES = 64 * 1024 * 1024
CACHE_ID = 0
OWNER_BYTES = 16


# Any, here and below: objects of a module without types.
def object_store(location: StoreLocation) -> Any:
    """The bucket, container or directory, with the environment's credentials."""
    slatedb = load().slatedb
    kinds = slatedb.ObjectStoreType
    if location.scheme == "file":
        Path("/", location.path).mkdir(mode=0o700, parents=True, exist_ok=True)
        builder = slatedb.ObjectStoreBuilder(kinds.LOCAL)
        builder.with_config("local_path", f"/{location.path}")
        return builder.build()
    kind = {"s3": kinds.S3, "gs": kinds.GCS, "az": kinds.AZURE}[location.scheme]
    builder = slatedb.ObjectStoreBuilder.from_env(kind)
    builder.with_url(f"{location.scheme}://{location.bucket}")
    if location.endpoint:
        builder.with_config("endpoint", location.endpoint)
        builder.with_config("allow_http", str(location.endpoint.startswith("http://")).lower())
    if location.region:
        builder.with_config("region", location.region)
    return builder.build()


def path_in_store(location: StoreLocation) -> str:
    """Where the store's objects are, seen from its object store."""
    return "store" if location.scheme == "file" else location.path


class Claim:
    """How a writer that opens its store again finds out whether it is still its own.

    Every opening raises the epoch in the manifest by one, also one that fails after that. So an epoch that is
    too high may be this writer's own doing or another writer's, and then the record of the owner decides.
    """

    def __init__(self) -> None:
        self.owner = secrets.token_bytes(OWNER_BYTES)
        self.owners: set[bytes | None] = {self.owner}
        """What the record may say: its own name, or that of the writer before until its own is flushed."""
        self._epoch: int | None = None
        self._failed_tries = 0

    def check(self, location: StoreLocation, epoch: int) -> None:
        """Raise StoreFenced if another writer has opened the store, whose manifest has this epoch."""
        if self._epoch is None or epoch == self._epoch:
            return
        is_own = self._epoch < epoch <= self._epoch + self._failed_tries
        if not (is_own and read_owner(location) in self.owners):
            raise StoreFenced(FENCED)

    def begin(self) -> None:
        """The epoch is being taken, and nobody knows whether that succeeds."""
        self._failed_tries += 1

    def take(self, epoch: int) -> None:
        self._epoch, self._failed_tries = epoch, 0


def open_writer(location: StoreLocation, claim: Claim) -> Handle:
    """Take the store over, and return the database. The writer before is fenced.

    With the claim of a writer that has failed, it is taken over from that one alone: raises StoreFenced if there
    has been another since. Raises EngineUnavailable where the object store does not answer.
    """
    library = load()
    manifest = read_manifest(open_admin(location))
    stored_epoch = 0 if manifest is None else manifest.writer_epoch
    claim.check(location, stored_epoch)

    def build() -> Any:
        builder = library.slatedb.DbBuilder(path_in_store(location), object_store(location))
        builder.with_settings(_settings(location))
        _set_cache(builder, location)
        return builder

    builder = _explained(build)
    claim.begin()
    opened: Handle = library.run_long("dbbuilder_build", library.borrow("dbbuilder", builder))
    claim.take(stored_epoch + 1)
    return opened


def read_owner(location: StoreLocation) -> bytes | None:
    """Return the name of the writer that has last opened the store. Nobody is fenced by this."""
    reader = open_reader(location)
    try:
        return ReadHandle("dbreader", reader).record(OWNER_KEY)
    finally:
        load().run("dbreader_shutdown", reader)


def open_reader(location: StoreLocation) -> Handle:
    """Follow the store's writer. Raises InvalidArgument where no store is."""
    library = load()
    slatedb = library.slatedb
    if not is_there(location):
        raise InvalidArgument(f"there is no store at {location}, and reading alone makes none")

    def build() -> Any:
        builder = slatedb.DbReaderBuilder(path_in_store(location), object_store(location))
        builder.with_options(
            slatedb.ReaderOptions(
                manifest_poll_interval_ms=round(location.poll_interval * 1000),
                checkpoint_lifetime_ms=round(
                    max(LIFETIME_S_MIN, POLLS_MISSED * location.poll_interval) * 1000
                ),
                max_memtable_bytes=READER_MEMORY_BYTES,
                skip_wal_replay=False,
                object_store_max_retries=RETRIES_MAX,
            )
        )
        _set_cache(builder, location)
        return builder

    builder = _explained(build)
    opened: Handle = library.run_long(
        "dbreaderbuilder_build", library.borrow("dbreaderbuilder", builder)
    )
    return opened


def open_admin(location: StoreLocation) -> Handle:
    """For what concerns the store as a whole: compactions, checkpoints, garbage."""
    library = load()
    admin = _explained(
        lambda: library.slatedb.AdminBuilder(
            path_in_store(location), object_store(location)
        ).build()
    )
    return library.borrow("admin", admin)


def is_there(location: StoreLocation) -> bool:
    """Whether anybody has opened this location to write yet."""
    if location.scheme == "file" and not Path("/", location.path).is_dir():
        return False
    return read_manifest(open_admin(location)) is not None


def read_manifest(admin: Handle) -> Any:
    """What the store consists of now, None when there is none."""
    library = load()
    answer = library.run("admin_read_manifest", admin, library.lower("OptionalUInt64", None))
    return library.lift("OptionalTypeVersionedManifest", answer)


def _explained(build: Callable[[], T]) -> T:
    slatedb = load().slatedb
    try:
        return build()
    except slatedb.Error as error:
        raise explain(error) from None
    except OSError as error:
        raise InvalidArgument(f"the store's directory cannot be made: {error}") from None


def _set_cache(builder: Any, location: StoreLocation) -> None:
    slatedb = load().slatedb
    if location.cache == 0:
        builder.with_db_cache_disabled()
        return
    options = slatedb.MokaCacheOptions(
        max_capacity=location.cache, time_to_live=None, time_to_idle=None
    )
    builder.with_db_cache(slatedb.DbCache.new_moka_cache(options), CACHE_ID)


def _settings(location: StoreLocation) -> Any:
    garbage = {
        "interval": _seconds(location.garbage_age),
        "min_age": _seconds(location.garbage_age),
        "dry_run": False,
    }
    settings = load().slatedb.Settings.default()
    for name, value in {
        "flush_interval": _seconds(location.flush_interval),
        "manifest_update_timeout": _seconds(MANIFEST_UPDATE_S),
        "compactor_options.manifest_update_timeout": _seconds(MANIFEST_UPDATE_S),
        "manifest_poll_interval": _seconds(location.poll_interval),
        "compactor_options.poll_interval": _seconds(location.poll_interval),
        "compactor_options.worker.compactions_poll_interval": _seconds(location.poll_interval),
        "compactor_options.commit_compacted_interval": _seconds(min(1.0, location.poll_interval)),
        "compactor_options.object_store_max_retries": RETRIES_MAX,
        # What a compaction replaced is kept by a checkpoint first, and as garbage after that.
        "compactor_options.checkpoint_lifetime": _seconds(location.garbage_age),
        "garbage_collector_options.manifest_options": garbage,
        "garbage_collector_options.wal_options": garbage,
        "garbage_collector_options.compacted_options": garbage,
        "garbage_collector_options.compactions_options": garbage,
        "garbage_collector_options.object_store_max_retries": RETRIES_MAX,
        "object_store_max_retries": RETRIES_MAX,
    }.items():
        settings.set(name, json.dumps(value))
    return settings


def _seconds(number: float) -> str:
    return f"{round(number * 1000)}ms"
