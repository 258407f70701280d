"""Peers that keep their keys on disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from importlib import import_module

from bench.peers.base import Mode, Pairs, Peer, PeerWithoutTtl

SINCE_WAL_CHECKPOINT = "writes since the last WAL checkpoint"
MAP_BYTES = 8 * 1024**3


class Snkv(Peer):
    """TTLs are in seconds; a TTL write keeps a row, its deadline and an index entry."""

    name = "snkv"
    package = "snkv"
    killed = "nothing"
    unpowered = SINCE_WAL_CHECKPOINT
    puts_share = 0.1

    def open(self, mode: Mode = "default") -> None:
        self._store = import_module("snkv").KVStore(str(self.directory / "snkv.db"))
        self.get = self._store.get
        self.put = self.put_ttl = self._store.put

    def close(self) -> None:
        self._store.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        self._store.begin(write=True)
        for key, value in pairs:
            self._store.put(key, value, ttl_s)
        self._store.commit()

    def move_to_base(self) -> None:
        self._store.checkpoint(import_module("snkv").CHECKPOINT_TRUNCATE)

    def purge(self) -> int:
        return int(self._store.purge_expired())

    def scan(self) -> Iterable[object]:
        pairs: Iterable[object] = self._store.iterator()
        return pairs


class Diskcache(Peer):
    """It has no scan of pairs, so a scan reads each key that it lists."""

    name = "diskcache"
    package = "diskcache"
    killed = "nothing"
    unpowered = SINCE_WAL_CHECKPOINT
    puts_share = 0.025
    gets_share = 0.25
    purges_share = 0.2

    def open(self, mode: Mode = "default") -> None:
        # Each write culls a few dead keys; a measured purge must find them all.
        settings = {"cull_limit": 0} if mode == "purge" else {}
        self._cache = import_module("diskcache").Cache(str(self.directory), **settings)
        self.get = self._cache.get
        self.put = self.put_ttl = self._cache.set
        self.touch = self._cache.touch

    def close(self) -> None:
        self._cache.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        with self._cache.transact():
            for key, value in pairs:
                self._cache.set(key, value, ttl_s)

    def purge(self) -> int:
        return int(self._cache.expire())

    def scan(self) -> Iterable[object]:
        get = self._cache.get
        return ((key, get(key)) for key in self._cache.iterkeys())


class Rocksdict(PeerWithoutTtl):
    name = "rocksdict"
    package = "rocksdict"
    killed = "nothing"
    unpowered = "what the system had not yet written back"

    def open(self, mode: Mode = "default") -> None:
        rocksdict = import_module("rocksdict")
        self._db = rocksdict.Rdict(str(self.directory / "rocks"), rocksdict.Options(raw_mode=True))
        self.get = self._db.get
        self.put = self._db.put

    def close(self) -> None:
        self._db.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        for key, value in pairs:
            self._db.put(key, value)

    def move_to_base(self) -> None:
        self._db.flush()

    def scan(self) -> Iterable[object]:
        pairs: Iterable[object] = self._db.items()
        return pairs


class Lmdb(PeerWithoutTtl):
    """A transaction for each operation, as a program would have it that shares the store."""

    name = "lmdb"
    package = "lmdb"
    killed = "nothing"
    unpowered = "the whole store: it can be corrupt (sync=False)"
    is_synced = False

    def open(self, mode: Mode = "default") -> None:
        self._env = import_module("lmdb").open(
            str(self.directory), map_size=MAP_BYTES, sync=self.is_synced
        )

    def close(self) -> None:
        self._env.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        with self._env.begin(write=True) as txn:
            for key, value in pairs:
                txn.put(key, value)

    def put(self, key: bytes, value: bytes) -> None:
        with self._env.begin(write=True) as txn:
            txn.put(key, value)

    def get(self, key: bytes) -> object:
        with self._env.begin() as txn:
            return txn.get(key)

    def scan(self) -> Iterable[object]:
        with self._env.begin() as txn:
            yield from txn.cursor()


class LmdbDurable(Lmdb):
    name = "lmdb-sync"
    unpowered = "nothing"
    workloads = frozenset({"put", "put_ttl"})
    puts_share = 0.005
    is_synced = True


class Sqlite(Peer):
    """The expiry column that everybody writes by hand: WAL, synchronous=NORMAL, autocommit."""

    name = "sqlite3"
    package = "sqlite3"
    killed = "nothing"
    unpowered = SINCE_WAL_CHECKPOINT
    puts_share = 0.1

    def open(self, mode: Mode = "default") -> None:
        self._db = sqlite3.connect(self.directory / "kv.sqlite", isolation_level=None)
        self._db.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB, deadline REAL)
                WITHOUT ROWID;
            CREATE INDEX IF NOT EXISTS kv_deadline ON kv (deadline) WHERE deadline IS NOT NULL;
            """
        )
        self._execute = self._db.execute

    def close(self) -> None:
        self._db.close()

    def load(self, pairs: Pairs, ttl_s: float | None) -> None:
        deadline = None if ttl_s is None else time.time() + ttl_s
        rows = ((key, value, deadline) for key, value in pairs)
        self._execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", rows)
        self._execute("COMMIT")

    def move_to_base(self) -> None:
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def put(self, key: bytes, value: bytes) -> None:
        self._execute("INSERT OR REPLACE INTO kv VALUES (?, ?, NULL)", (key, value))

    def put_ttl(self, key: bytes, value: bytes, ttl_s: float) -> None:
        row = (key, value, time.time() + ttl_s)
        self._execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", row)

    def get(self, key: bytes) -> object:
        row = self._execute(
            "SELECT value FROM kv WHERE key = ? AND (deadline IS NULL OR deadline > ?)",
            (key, time.time()),
        ).fetchone()
        return None if row is None else row[0]

    def touch(self, key: bytes, ttl_s: float) -> None:
        self._execute("UPDATE kv SET deadline = ? WHERE key = ?", (time.time() + ttl_s, key))

    def purge(self) -> int:
        return self._execute("DELETE FROM kv WHERE deadline <= ?", (time.time(),)).rowcount

    def scan(self) -> Iterable[object]:
        return self._execute(
            "SELECT key, value FROM kv WHERE deadline IS NULL OR deadline > ? ORDER BY key",
            (time.time(),),
        )
