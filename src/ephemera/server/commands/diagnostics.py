"""Commands that say how the server is doing: INFO, MONITOR, SLOWLOG, LATENCY, MEMORY."""

from __future__ import annotations

from itertools import islice
from statistics import fmean

from ephemera.resp.replies import OK, Refused, Reply, Verbatim
from ephemera.server.arguments import SYNTAX_ERROR, integer
from ephemera.server.info import human, report, resident_bytes
from ephemera.server.latency import Series
from ephemera.server.session import Call
from ephemera.server.table import Group, KeyRange

command = Group("server")

SLOW_SHOWN = 10
KEY_OVERHEAD_BYTES = 56
"""What a row costs beside key and value: attributes, checksum, index."""


@command("INFO", arity=-1, flags="loading stale", since="1.0.0",
         tips="nondeterministic_output request_policy:all_shards response_policy:special",
         summary="Figures about the server, by section; `ephemera` is one of our own.")  # fmt: skip
def info(call: Call) -> Reply:
    wanted = [name.decode(errors="replace") for name in call.args[1:]] or ["default"]
    return Verbatim(report(call.server, wanted).encode())


@command("MONITOR", arity=1, flags="admin noscript loading stale", since="1.0.0",
         summary="Shows every command that the server runs from here on.")  # fmt: skip
def monitor(call: Call) -> Reply:
    if call.server.is_inside_transaction:
        raise Refused("ERR MONITOR isn't allowed for DENY BLOCKING client")
    if "O" not in call.session.marks:
        call.session.marks.add("O")
        call.server.monitor(call.session)
    return OK


# --- SLOWLOG --------------------------------------------------------------------------------------

command.container("SLOWLOG", since="2.2.12", summary="Commands that took long.")


@command("SLOWLOG GET", arity=-2, flags="admin loading stale", since="2.2.12",
         tips="nondeterministic_output request_policy:all_nodes",
         summary="The latest slow commands: 10, or so many, or all with -1.")  # fmt: skip
def slowlog_get(call: Call) -> Reply:
    if len(call.args) > 3:
        raise Refused(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try SLOWLOG HELP."
            % call.args[1]
        )
    count = SLOW_SHOWN
    if len(call.args) == 3:
        error = "ERR count should be greater than or equal to -1"
        count = integer(call.args[2], error)
        if count < -1:
            raise Refused(error)
    entries = call.server.slowlog.entries
    return [
        [slow.number, slow.at_ms // 1000, slow.micros, slow.args, slow.address.encode(), slow.name]
        for slow in islice(entries, len(entries) if count < 0 else count)
    ]


@command("SLOWLOG LEN", arity=2, flags="admin loading stale", since="2.2.12",
         tips="nondeterministic_output request_policy:all_nodes response_policy:agg_sum",
         summary="How many slow commands are kept.")  # fmt: skip
def slowlog_len(call: Call) -> Reply:
    return len(call.server.slowlog.entries)


@command("SLOWLOG RESET", arity=2, flags="admin loading stale", since="2.2.12",
         tips="request_policy:all_nodes response_policy:all_succeeded",
         summary="Forgets the slow commands.")  # fmt: skip
def slowlog_reset(call: Call) -> Reply:
    call.server.slowlog.entries.clear()
    return OK


# --- LATENCY --------------------------------------------------------------------------------------

command.container("LATENCY", since="2.8.13", summary="How long commands take.")


@command("LATENCY LATEST", arity=2, flags="admin noscript loading stale", since="2.8.13",
         tips="nondeterministic_output request_policy:all_nodes response_policy:special",
         summary="Of each kind of event: when it was last slow, how slow, and how slow ever.")  # fmt: skip
def latency_latest(call: Call) -> Reply:
    return [
        [name, series.spikes[-1].at_seconds, series.spikes[-1].millis, series.highest_ms]
        for name, series in call.server.latency.series.items()
    ]


@command("LATENCY HISTORY", arity=3, flags="admin noscript loading stale", since="2.8.13",
         tips="nondeterministic_output request_policy:all_nodes response_policy:special",
         summary="When an event was slow, and how slow.")  # fmt: skip
def latency_history(call: Call) -> Reply:
    series = call.server.latency.series.get(call.args[2])
    return [] if series is None else [list(spike) for spike in series.spikes]


@command("LATENCY RESET", arity=-2, flags="admin noscript loading stale", since="2.8.13",
         tips="request_policy:all_nodes response_policy:all_succeeded",
         summary="Forgets all slow events, or those that are named; how many kinds.")  # fmt: skip
def latency_reset(call: Call) -> Reply:
    series = call.server.latency.series
    forgotten = [series.pop(name, None) for name in call.args[2:] or list(series)]
    return sum(each is not None for each in forgotten)


@command("LATENCY GRAPH", arity=3, flags="admin noscript loading stale", since="2.8.13",
         tips="nondeterministic_output request_policy:all_nodes response_policy:special",
         summary="The slow events of a kind, drawn.")  # fmt: skip
def latency_graph(call: Call) -> Reply:
    name = call.args[2]
    series = call.server.latency.series.get(name)
    if series is None:
        raise Refused(b"ERR No samples available for event '%b'" % name)
    return Verbatim(_graph(name.decode(errors="replace"), series).encode())


def _graph(name: str, series: Series) -> str:
    """A line for each spike, the longest one as wide as the page."""
    highest = max(spike.millis for spike in series.spikes)
    lines = [f"{name} - high {highest} ms (all time high {series.highest_ms} ms)"]
    for spike in series.spikes:
        bar = "#" * max(1, 60 * spike.millis // max(highest, 1))
        lines.append(f"{spike.at_seconds} {spike.millis:>6} ms {bar}")
    return "\n".join(lines) + "\n"


@command("LATENCY DOCTOR", arity=2, flags="admin noscript loading stale", since="2.8.13",
         tips="nondeterministic_output request_policy:all_nodes response_policy:special",
         summary="What the slow events come to, in words.")  # fmt: skip
def latency_doctor(call: Call) -> Reply:
    if not call.server.settings.latency_monitor_threshold:
        return Verbatim(
            b"Nothing is watched: CONFIG SET latency-monitor-threshold <milliseconds> begins.\n"
        )
    lines = [
        f"{name.decode()}: {len(series.spikes)} seconds with spikes, "
        f"{fmean(spike.millis for spike in series.spikes):.0f} ms on average, "
        f"{series.highest_ms} ms at most; SLOWLOG GET names the commands.\n"
        for name, series in call.server.latency.series.items()
    ]
    return Verbatim("".join(lines or ["No command was slow.\n"]).encode())


@command("LATENCY HISTOGRAM", arity=-2, flags="admin noscript loading stale", since="7.0.0",
         tips="nondeterministic_output request_policy:all_nodes response_policy:special",
         summary="How often commands took how long, while latency-tracking is on.")  # fmt: skip
def latency_histogram(call: Call) -> Reply:
    commands = call.server.commands
    wanted = [commands.named(name) for name in call.args[2:]] or commands.all.values()
    return {
        each.name.encode(): {
            b"calls": each.latency.calls,
            b"histogram_usec": each.latency.cumulative(),
        }
        for each in wanted
        if each is not None and each.latency.calls
    }


# --- MEMORY ---------------------------------------------------------------------------------------

command.container("MEMORY", since="4.0.0", summary="What takes how much memory.")


@command("MEMORY USAGE", arity=-3, flags="readonly", keys=KeyRange(2, access="RO"), since="4.0.0",
         summary="About how many bytes a key takes.")  # fmt: skip
def memory_usage(call: Call) -> Reply:
    options = call.args[3:]
    if options and (options[0].lower() != b"samples" or len(options) != 2):
        raise Refused(SYNTAX_ERROR)
    if options and integer(options[1]) < 0:
        raise Refused(SYNTAX_ERROR)
    value = call.keys.peek(call.args[2])
    return None if value is None else len(call.args[2]) + len(value) + KEY_OVERHEAD_BYTES


@command("MEMORY STATS", arity=2, since="4.0.0",
         tips="nondeterministic_output request_policy:all_shards response_policy:special",
         summary="The memory of the server, in figures.")  # fmt: skip
def memory_stats(call: Call) -> Reply:
    used, peak = resident_bytes()
    keys = call.server.store.stats().get("keys", 0)
    return {
        b"peak.allocated": peak,
        b"total.allocated": used,
        b"startup.allocated": 0,
        b"replication.backlog": 0,
        b"clients.slaves": 0,
        b"clients.normal": sum(each.memory_bytes for each in call.server.clients.values()),
        b"cluster.links": 0,
        b"aof.buffer": 0,
        b"lua.caches": call.server.scripts.memory_bytes,
        b"functions.caches": 0,
        b"overhead.total": 0,
        b"keys.count": keys,
        b"keys.bytes-per-key": used // keys if keys else 0,
        b"dataset.bytes": used,
        b"dataset.percentage": 100.0,
        b"peak.percentage": 100 * used / peak,
        b"fragmentation": 1.0,
        b"fragmentation.bytes": 0,
    }


@command("MEMORY DOCTOR", arity=2, since="4.0.0",
         tips="nondeterministic_output request_policy:all_shards response_policy:special",
         summary="What the memory of the server comes to, in words.")  # fmt: skip
def memory_doctor(call: Call) -> Reply:
    used, peak = resident_bytes()
    return Verbatim(f"{human(used)} in use, {human(peak)} at most.\n".encode())


@command("MEMORY PURGE", arity=2, since="4.0.0",
         tips="request_policy:all_shards response_policy:all_succeeded",
         summary="Does nothing: freed memory is not held back.")  # fmt: skip
def memory_purge(call: Call) -> Reply:
    return OK


@command("MEMORY MALLOC-STATS", arity=2, since="4.0.0",
         tips="nondeterministic_output request_policy:all_shards response_policy:special",
         summary="Says that the allocator tells nothing.")  # fmt: skip
def memory_malloc_stats(call: Call) -> Reply:
    return b"Stats not supported for the current allocator"
