"""What INFO says: the fields that monitoring reads, by section, and a section of our own."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import ephemera
from ephemera.server.database import Database
from ephemera.server.server import Server
from ephemera.server.settings import REDIS_VERSION

KEYS_COUNTED_MAX = 10_000
"""Up to so many keys, a database is counted; beyond it, estimated."""
KEYS_SAMPLED_MAX = 200
RECORD_OVERHEAD_BYTES = 56
UNITS = "KMGT"

Fields = dict[str, object]


def report(server: Server, wanted: Iterable[str]) -> str:
    """The sections of these names, in Redis's order. `all`, `everything` and `default` are names too."""
    names: set[str] = set()
    for name in wanted:
        names |= GROUPS.get(name.lower(), {name.lower()})
    parts = []
    for name, section in SECTIONS.items():
        if name in names:
            lines = [f"{field}:{_shown(value)}\r\n" for field, value in section(server).items()]
            parts.append(f"# {TITLES.get(name, name.capitalize())}\r\n{''.join(lines)}")
    return "\r\n".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


# --- the machine and the process ------------------------------------------------------------------


def _server(server: Server) -> Fields:
    now_us = server.now.us()
    uptime = (now_us // 1000 - server.started_ms) // 1000
    system = os.uname()
    return {
        "redis_version": REDIS_VERSION,
        "redis_git_sha1": "00000000",
        "redis_git_dirty": 0,
        "redis_build_id": 0,
        "redis_mode": "standalone",
        "ephemera_version": ephemera.__version__,
        "os": f"{system.sysname} {system.release} {system.machine}",
        "arch_bits": 64 if sys.maxsize > 2**32 else 32,
        "monotonic_clock": "POSIX clock_gettime",
        "multiplexing_api": "uvloop",
        "process_id": os.getpid(),
        "process_supervised": "no",
        "run_id": server.run_id,
        "tcp_port": server.settings.port,
        "server_time_usec": now_us,
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // 86_400,
        "hz": 10,
        "configured_hz": 10,
        "lru_clock": now_us // 1_000_000 & 0xFFFFFF,
        "executable": sys.executable,
        "config_file": "",
        "io_threads_active": 0,
    }


def _clients(server: Server) -> Fields:
    sessions = server.clients.values()
    return {
        "connected_clients": len(sessions),
        "cluster_connections": 0,
        "maxclients": server.settings.maxclients,
        "client_recent_max_input_buffer": max((each.unread for each in sessions), default=0),
        "client_recent_max_output_buffer": max(
            (each.count_unsent() for each in sessions), default=0
        ),
        "blocked_clients": sum(each.is_postponed for each in sessions),
        "tracking_clients": len(server.tracking.modes),
        "clients_in_timeout_table": 0,
        "total_blocking_keys": 0,
        "total_blocking_keys_on_nokey": 0,
    }


def resident_bytes() -> tuple[int, int]:
    """The memory of this process now, and at its highest."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            now = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such place on this system
        now = peak
    return now, max(now, peak)


def _memory(server: Server) -> Fields:
    used, peak = resident_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    interpreter, scripts = server.scripts.interpreter_bytes, server.scripts.memory_bytes
    return {
        "used_memory": used,
        "used_memory_human": human(used),
        "used_memory_rss": used,
        "used_memory_rss_human": human(used),
        "used_memory_peak": peak,
        "used_memory_peak_human": human(peak),
        "used_memory_peak_perc": f"{100 * used / peak:.2f}%",
        "used_memory_overhead": 0,
        "used_memory_startup": 0,
        "used_memory_dataset": used,
        "used_memory_dataset_perc": "100.00%",
        "total_system_memory": total,
        "total_system_memory_human": human(total),
        "used_memory_lua": interpreter,
        "used_memory_vm_eval": interpreter,
        "used_memory_lua_human": human(interpreter),
        "used_memory_scripts_eval": scripts,
        "number_of_cached_scripts": server.scripts.count,
        "number_of_functions": 0,
        "number_of_libraries": 0,
        "used_memory_vm_functions": 0,
        "used_memory_vm_total": interpreter,
        "used_memory_vm_total_human": human(interpreter),
        "used_memory_functions": 0,
        "used_memory_scripts": scripts,
        "used_memory_scripts_human": human(scripts),
        "maxmemory": 0,
        "maxmemory_human": "0B",
        "maxmemory_policy": "noeviction",
        "mem_fragmentation_ratio": 1.0,
        "mem_fragmentation_bytes": 0,
        "mem_not_counted_for_evict": 0,
        "mem_replication_backlog": 0,
        "mem_clients_slaves": 0,
        "mem_clients_normal": sum(each.memory_bytes for each in server.clients.values()),
        "mem_cluster_links": 0,
        "mem_total_replication_buffers": 0,
        "mem_aof_buffer": 0,
        "mem_allocator": "libc",
        "active_defrag_running": 0,
        "lazyfree_pending_objects": 0,
        "lazyfreed_objects": 0,
    }


def human(size: int) -> str:
    """A number of bytes for people.

    >>> human(512), human(1536), human(3 * 1024**3)
    ('512B', '1.50K', '3.00G')
    """
    power = min((max(size, 1).bit_length() - 1) // 10, len(UNITS))
    return f"{size / 1024**power:.2f}{UNITS[power - 1]}" if power else f"{size}B"


def _cpu(_: Server) -> Fields:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The thread that answers is the one that runs the event loop; macOS has no figures of one thread.
    loop = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
    return {
        "used_cpu_sys": f"{own.ru_stime:.6f}",
        "used_cpu_user": f"{own.ru_utime:.6f}",
        "used_cpu_sys_children": f"{children.ru_stime:.6f}",
        "used_cpu_user_children": f"{children.ru_utime:.6f}",
        "used_cpu_sys_main_thread": f"{loop.ru_stime:.6f}",
        "used_cpu_user_main_thread": f"{loop.ru_utime:.6f}",
    }


# --- what was done --------------------------------------------------------------------------------


def _persistence(server: Server) -> Fields:
    saving = server.saving
    rdb, aof = saving.rdb, saving.aof
    return {
        "loading": 0,
        "async_loading": 0,
        "rdb_changes_since_last_save": saving.unsaved_changes,
        "rdb_bgsave_in_progress": saving.running is rdb,
        "rdb_last_save_time": saving.saved_ms // 1000,
        "rdb_last_bgsave_status": "err" if rdb.has_failed else "ok",
        "rdb_last_bgsave_time_sec": rdb.took_seconds,
        "rdb_current_bgsave_time_sec": rdb.running_seconds,
        "rdb_saves": rdb.count,
        "rdb_last_cow_size": 0,
        "aof_enabled": 1,
        "aof_rewrite_in_progress": saving.running is aof,
        "aof_rewrite_scheduled": aof in saving.scheduled,
        "aof_last_rewrite_time_sec": aof.took_seconds,
        "aof_current_rewrite_time_sec": aof.running_seconds,
        "aof_last_bgrewrite_status": "err" if aof.has_failed else "ok",
        "aof_rewrites": aof.count,
        "aof_last_write_status": "ok",
        "aof_last_cow_size": 0,
    }


def _stats(server: Server) -> Fields:
    done, rates = server.done(), server.rates
    return {
        "total_connections_received": server.connections,
        "total_commands_processed": done.commands,
        "instantaneous_ops_per_sec": round(rates.commands),
        "total_net_input_bytes": done.input_bytes,
        "total_net_output_bytes": done.output_bytes,
        "total_net_repl_input_bytes": 0,
        "total_net_repl_output_bytes": 0,
        "instantaneous_input_repl_kbps": 0.0,
        "instantaneous_output_repl_kbps": 0.0,
        "instantaneous_input_kbps": rates.input_bytes / 1024,
        "instantaneous_output_kbps": rates.output_bytes / 1024,
        "rejected_connections": server.refused_connections,
        "sync_full": 0,
        "sync_partial_ok": 0,
        "sync_partial_err": 0,
        "expired_keys": server.expiry_lag.expired,
        "expired_stale_perc": 0.0,
        "expired_time_cap_reached_count": 0,
        "evicted_keys": 0,
        "evicted_clients": 0,
        "keyspace_hits": server.hits,
        "keyspace_misses": server.misses,
        "pubsub_channels": len(server.pubsub.channels.by_name),
        "pubsub_patterns": len(server.pubsub.patterns.by_name),
        "pubsubshard_channels": len(server.pubsub.shards.by_name),
        "latest_fork_usec": 0,
        "total_forks": 0,
        "migrate_cached_sockets": 0,
        "slave_expires_tracked_keys": 0,
        "tracking_total_keys": len(server.tracking.readers),
        "tracking_total_items": server.tracking.items,
        "tracking_total_prefixes": len(server.tracking.prefixes),
        "unexpected_error_replies": 0,
        "total_error_replies": server.errors.total(),
    }


def _replication(server: Server) -> Fields:
    return {
        "role": "master",
        "connected_slaves": 0,
        "master_failover_state": "no-failover",
        "master_replid": server.run_id,
        "master_replid2": "0" * 40,
        "master_repl_offset": 0,
        "second_repl_offset": -1,
        "repl_backlog_active": 0,
        "repl_backlog_size": 1_048_576,
        "repl_backlog_first_byte_offset": 0,
        "repl_backlog_histlen": 0,
    }


def _commandstats(server: Server) -> Fields:
    return {
        f"cmdstat_{name}": f"calls={each.calls},usec={each.spent_ns // 1000},"
        f"usec_per_call={each.spent_ns / 1000 / max(each.calls, 1):.2f},"
        f"rejected_calls={each.rejected},failed_calls={each.failed}"
        for name, each in server.commands.all.items()
        if each.calls or each.rejected
    }


def _errorstats(server: Server) -> Fields:
    return {f"errorstat_{code}": f"count={count}" for code, count in server.errors.items()}


def _latencystats(server: Server) -> Fields:
    percentiles = server.settings.latency_tracking_info_percentiles
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{percent:g}={command.latency.percentile_us(percent):.3f}" for percent in percentiles
        )
        for name, command in server.commands.all.items()
        if command.latency.calls
    }


def _cluster(_: Server) -> Fields:
    return {"cluster_enabled": 0}


def _nothing(_: Server) -> Fields:
    return {}


# --- keys and deadlines ---------------------------------------------------------------------------


class Census(NamedTuple):
    """How many keys a database has, how many of them with a deadline, and how long those live on."""

    keys: int
    mortal: int
    mean_ttl_ms: int
    is_exact: bool


def _keyspace(server: Server) -> Fields:
    counted = {number: _census(server.database(number)) for number in range(len(server.families))}
    large = [number for number, census in counted.items() if not census.is_exact]
    if large:
        exact = sum(census.keys for census in counted.values() if census.is_exact)
        rows = _rows(server, large)
        for number in large:
            counted[number] = _scaled(counted[number], (rows.keys - exact) // len(large), rows)
    return {
        f"db{number}": f"keys={each.keys},expires={each.mortal},avg_ttl={each.mean_ttl_ms}"
        for number, each in counted.items()
        if each.keys
    }


def _census(database: Database) -> Census:
    """Count the keys, up to a bound, and look at the deadlines of the first of them."""
    keys = [key for key, _ in islice(database.scan(), KEYS_COUNTED_MAX + 1)]
    is_exact = len(keys) <= KEYS_COUNTED_MAX
    sample = keys[:KEYS_SAMPLED_MAX]
    ttls_ms = [ttl_ms for ttl_ms in map(database.ttl_ms, sample) if ttl_ms >= 0]
    mortal = round(len(keys) * len(ttls_ms) / max(len(sample), 1))
    mean_ttl_ms = sum(ttls_ms) // max(len(ttls_ms), 1)
    return Census(len(keys), mortal, mean_ttl_ms, is_exact)


class RowCounts(NamedTuple):
    """About how many rows the store has, and which part of them has a deadline (None: not known)."""

    keys: int
    mortal_share: float | None


def _rows(server: Server, large: list[int]) -> RowCounts:
    """What the store's own figures come to. Rows in segments are told by their size, and counted as often
    as they were written there."""
    stats = server.store.stats()
    counted = int(stats.get("keys", stats.get("base_rows", 0)))
    mortal_share = stats["deadline_entries"] / counted if counted else None
    sample = list(islice(server.database(large[0]).scan(), KEYS_SAMPLED_MAX))
    mean = sum(len(key) + len(value) for key, value in sample) / len(sample)
    in_segments = stats.get("segment_bytes", 0) / (mean + RECORD_OVERHEAD_BYTES)
    return RowCounts(counted + int(in_segments), mortal_share)


def _scaled(census: Census, keys: int, rows: RowCounts) -> Census:
    keys = max(keys, census.keys)
    share = census.mortal / census.keys if rows.mortal_share is None else rows.mortal_share
    return census._replace(keys=keys, mortal=round(keys * share))


def _ephemera(server: Server) -> Fields:
    lag = server.expiry_lag.measured()
    stats = server.store.stats()
    return {
        "ephemera_version": ephemera.__version__,
        "durability": server.settings.durability,
        "expiry_lag_last_ms": lag.last_ms,
        "expiry_lag_p50_ms": lag.p50_ms,
        "expiry_lag_p99_ms": lag.p99_ms,
        "expiry_lag_max_ms": lag.max_ms,
        "expiry_lag_keys": lag.keys,
        **{f"store_{name}": "" if value is None else value for name, value in stats.items()},
    }


SECTIONS: dict[str, Callable[[Server], Fields]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "cpu": _cpu,
    "modules": _nothing,
    "commandstats": _commandstats,
    "errorstats": _errorstats,
    "latencystats": _latencystats,
    "cluster": _cluster,
    "keyspace": _keyspace,
    "ephemera": _ephemera,
}
TITLES = {"cpu": "CPU"}
GROUPS = {
    "all": set(SECTIONS),
    "everything": set(SECTIONS),
    "default": set(SECTIONS) - {"commandstats", "latencystats"},
}
