"""INFO, MONITOR, SLOWLOG, LATENCY, MEMORY."""

from __future__ import annotations

import re

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.server import info
from ephemera.server._latency import Histogram
from ephemera.server.latency import Spike
from ephemera.server.server import Server
from ephemera.server.session import Session
from tests.server.clients import Client

START_MS = ManualClock().now_ms()
START_S = START_MS // 1000


def fields(client: Client, *sections: str) -> dict[str, str]:
    """What INFO says, by field."""
    lines = client("INFO", *sections).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def titles(client: Client, *sections: str) -> list[str]:
    return re.findall(r"# (\w+)\r\n", client("INFO", *sections).decode())


# --- INFO -----------------------------------------------------------------------------------------

DEFAULT = ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Modules",
           "Errorstats", "Cluster", "Keyspace", "Ephemera"]  # fmt: skip


def test_info_has_the_sections_of_redis_and_our_own(client: Client) -> None:
    assert titles(client) == titles(client, "default") == DEFAULT
    everything = [*DEFAULT[:8], "Commandstats", "Errorstats", "Latencystats", *DEFAULT[9:]]
    assert titles(client, "everything") == titles(client, "ALL") == everything


def test_info_shows_the_sections_asked_for(client: Client) -> None:
    assert client("INFO", "cluster") == b"# Cluster\r\ncluster_enabled:0\r\n"
    assert titles(client, "keyspace", "CPU") == ["CPU", "Keyspace"]
    assert client("INFO", "nosuch") == b""


def test_info_tells_both_versions(client: Client) -> None:
    server = fields(client, "server")
    assert server["redis_version"].startswith("7.4.")
    assert server["ephemera_version"] == ephemera.__version__
    assert re.fullmatch("[0-9a-f]{40}", server["run_id"])


def test_info_counts_what_happened(clock: ManualClock, server: Server, client: Client) -> None:
    client("SET", "key", "1")
    client("GET", "key")
    client("GET", "nosuch")
    client("NOSUCH")
    client("INCR")
    clock.advance(90_061)
    told = fields(client, "everything")
    assert told["uptime_in_seconds"] == "90061"
    assert told["uptime_in_days"] == "1"
    assert (told["keyspace_hits"], told["keyspace_misses"]) == ("1", "1")
    assert told["total_commands_processed"] == "3"
    assert told["total_error_replies"] == "2"
    assert told["errorstat_ERR"] == "count=2"
    assert told["connected_clients"] == "1"
    assert told["role"] == "master"
    assert re.fullmatch(
        r"calls=2,usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=0,failed_calls=0",
        told["cmdstat_get"],
    )
    assert told["cmdstat_incr"].endswith("calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0")  # fmt: skip


def test_rates_are_those_between_two_ticks(
    clock: ManualClock, server: Server, client: Client
) -> None:
    server.run_cron()
    for _ in range(100):
        client("PING")
    clock.advance(2)
    server.run_cron()
    assert fields(client, "stats")["instantaneous_ops_per_sec"] == "50"


@pytest.mark.parametrize(
    "field",
    ["used_memory", "used_memory_rss", "used_memory_peak", "maxmemory", "mem_fragmentation_ratio",
     "loading", "rdb_last_save_time", "rdb_bgsave_in_progress", "aof_enabled", "maxclients",
     "blocked_clients", "expired_keys", "evicted_keys", "rejected_connections", "connected_slaves",
     "master_repl_offset", "used_cpu_sys", "used_cpu_user", "pubsub_channels", "latest_fork_usec",
     "instantaneous_input_kbps", "total_net_output_bytes", "store_engine", "expiry_lag_p99_ms"],
)  # fmt: skip
def test_fields_that_monitoring_reads_are_there(client: Client, field: str) -> None:
    assert field in fields(client)


def test_info_and_memory_stats_show_what_scripts_take(client: Client) -> None:
    names = ("lua", "vm_eval", "vm_total", "scripts_eval", "scripts")

    def memory() -> dict[str, int]:
        shown = fields(client, "memory")
        return {name: int(shown[f"used_memory_{name}"]) for name in names}

    assert set(memory().values()) == {0}, "there is no interpreter before the first script"
    client("SCRIPT", "LOAD", "return 1")
    first = memory()
    assert first["lua"] == first["vm_eval"] == first["vm_total"] > 10_000
    assert first["scripts"] == first["scripts_eval"] > 0
    client("SCRIPT", "LOAD", f"return '{'x' * 1_000_000}'")
    assert memory()["lua"] - first["lua"] > 1_000_000
    assert memory()["scripts"] == 2 * first["scripts"]
    client("HELLO", 3)
    assert client("MEMORY", "STATS")[b"lua.caches"] == 2 * first["scripts"]
    client("SCRIPT", "FLUSH")
    assert set(memory().values()) == {0}


def test_keyspace_has_a_line_for_each_database_with_keys(
    clock: ManualClock, client: Client
) -> None:
    client("SET", "a", "1")
    client("SET", "b", "1", "PX", 1000)
    client("SET", "c", "1", "PX", 3000)
    client("SET", "dies", "1", "PX", 10)
    client("SELECT", 3)
    client("SET", "d", "1")
    clock.advance(0.01)
    assert fields(client, "keyspace") == {
        "db0": "keys=3,expires=2,avg_ttl=1990",
        "db3": "keys=1,expires=0,avg_ttl=0",
    }


def test_a_large_database_is_estimated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "KEYS_COUNTED_MAX", 10)
    for number in range(40):
        client("SET", number, "1", *(["EX", "60"] if number % 2 else []))
    assert fields(client, "keyspace") == {"db0": "keys=40,expires=20,avg_ttl=60000"}


@pytest.mark.parametrize(
    "command",
    [["TTL"], ["PTTL"], ["EXPIRETIME"], ["PEXPIRETIME"], ["TYPE"], ["OBJECT", "ENCODING"],
     ["OBJECT", "REFCOUNT"], ["OBJECT", "IDLETIME"], ["DUMP"]],
    ids=" ".join,
)  # fmt: skip
def test_asking_about_a_key_counts_as_reading_it(client: Client, command: list[str]) -> None:
    client("SET", "key", "1")
    for key in ("key", "nosuch", "nothing"):
        client(*command, key)
    told = fields(client, "stats")
    assert (told["keyspace_hits"], told["keyspace_misses"]) == ("1", "2")


def test_copying_counts_as_reading(client: Client) -> None:
    client("SET", "key", "1")
    for key in ("key", "nosuch"):
        client("COPY", key, "other")
    told = fields(client, "stats")
    assert (told["keyspace_hits"], told["keyspace_misses"]) == ("1", "1")


# --- MONITOR --------------------------------------------------------------------------------------


def test_monitor_shows_every_command_with_its_client(server: Server) -> None:
    monitor, client = Client(server), Client(server)
    client.session.address = "10.0.0.1:5"
    assert monitor("MONITOR") == monitor("MONITOR") == b"OK"
    client("SELECT", 2)
    client("SET", "key", b'\x00"\n')
    client("CONFIG", "GET", "hz")
    client("GET")
    client("AUTH", "default", "secret")
    client("HELLO", 2, "AUTH", "default", "secret", "SETNAME", "ada")
    begin = b"%d.000000 [2 10.0.0.1:5] " % START_S
    assert monitor.pushed == [
        begin + b'"SELECT" "2"',
        begin + b'"SET" "key" "\\x00\\"\\n"',
        begin + b'"AUTH" "(redacted)" "(redacted)"',
        begin + b'"HELLO" "2" "AUTH" "(redacted)" "(redacted)" "SETNAME" "ada"',
    ]


def test_monitor_shows_a_transaction_as_it_runs(server: Server) -> None:
    monitor, client = Client(server), Client(server)
    monitor("MONITOR")
    for command in (["MULTI"], ["SET", "key", "1"], ["EXEC"]):
        client(*command)
    assert [line.split(b"] ")[1] for line in monitor.pushed] == [
        b'"MULTI"', b'"SET" "key" "1"', b'"EXEC"',
    ]  # fmt: skip


def test_monitor_shows_a_script_before_what_it_calls(server: Server) -> None:
    pytest.importorskip("lupa")
    monitor, client = Client(server), Client(server)
    monitor("MONITOR")
    client.session.address = "10.0.0.1:5"
    client("EVAL", "redis.call('SELECT', 3) return redis.call('GET', 'key')", 0)
    client("PING")
    shown = [line.split(b" ", 1)[1] for line in monitor.pushed]
    assert [line.split(b'" ')[0].rstrip(b'"') for line in shown] == [
        b'[0 10.0.0.1:5] "EVAL', b'[3 lua] "SELECT', b'[3 lua] "GET', b'[0 10.0.0.1:5] "PING',
    ]  # fmt: skip


def test_monitor_does_not_begin_inside_a_transaction(client: Client, server: Server) -> None:
    client("MULTI")
    client("MONITOR")
    [refused] = client("EXEC")
    assert str(refused) == "ERR MONITOR isn't allowed for DENY BLOCKING client"
    assert server.monitors == []


def test_monitor_shows_its_own_commands_after_their_replies(client: Client) -> None:
    client("MONITOR")
    assert client("PING") == b"PONG"
    assert client("RESET").endswith(b'"PING"')


@pytest.mark.parametrize("end", ["RESET", "close"])
def test_monitor_ends_with_reset_or_the_connection(server: Server, end: str) -> None:
    monitor, client = Client(server), Client(server)
    monitor("MONITOR")
    if end == "RESET":
        monitor("RESET")
        monitor.pushed.clear()
    else:
        monitor.session.close()
    client("PING")
    assert (server.monitors, monitor.pushed, client.session.is_direct) == ([], [], True)


# --- SLOWLOG --------------------------------------------------------------------------------------


def test_slow_commands_are_logged_the_latest_first(
    clock: ManualClock, server: Server, client: Client
) -> None:
    server.settings.slowlog_log_slower_than = -1  # however slow this machine is just now
    server.review()
    client("CLIENT", "SETNAME", "ada")
    client.session.address = "10.0.0.1:5"
    client("CONFIG", "SET", "slowlog-log-slower-than", 0)
    for number in range(12):
        clock.advance(1)
        client("SET", "key", number)
    client("CONFIG", "SET", "slowlog-log-slower-than", -1)
    number, at, micros, args, address, name = client("SLOWLOG", "GET")[0]
    assert (number, at, address, name) == (12, START_S + 12, b"10.0.0.1:5", b"ada")
    assert args == [b"SET", b"key", b"11"]
    assert micros >= 0
    assert client("SLOWLOG", "LEN") == len(client("SLOWLOG", "GET", -1)) == 13
    assert len(client("SLOWLOG", "GET")) == 10
    assert [entry[0] for entry in client("SLOWLOG", "GET", 2)] == [12, 11]
    # The command that set the limit was measured by it.
    assert client("SLOWLOG", "GET", -1)[-1][3][:2] == [b"CONFIG", b"SET"]
    assert client("SLOWLOG", "RESET") == b"OK"
    assert client("SLOWLOG", "GET") == []


def test_the_slow_log_shows_no_secrets_and_keeps_no_large_values(client: Client) -> None:
    client("CONFIG", "SET", "slowlog-log-slower-than", 0)
    client("SET", "key", "x" * 200)
    client("DEL", *range(40))
    client("CONFIG", "SET", "requirepass", "secret")
    entries = [entry[3] for entry in client("SLOWLOG", "GET")]
    assert entries[0] == [b"CONFIG", b"SET", b"requirepass", b"(redacted)"]
    assert len(entries[1]) == 32
    assert entries[1][-1] == b"... (10 more arguments)"
    assert entries[2][2] == b"x" * 128 + b"... (72 more bytes)"


def test_the_slow_log_has_a_length(client: Client) -> None:
    client("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 3)
    for _ in range(5):
        client("PING")
    assert client("SLOWLOG", "LEN") == 3
    client("CONFIG", "SET", "slowlog-max-len", 1, "slowlog-log-slower-than", -1)
    assert client("SLOWLOG", "LEN") == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SLOWLOG GET -2", "ERR count should be greater than or equal to -1"),
        ("SLOWLOG GET x", "ERR count should be greater than or equal to -1"),
        ("SLOWLOG GET 1 2", "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP."),
        ("SLOWLOG FOO", "ERR unknown subcommand 'FOO'. Try SLOWLOG HELP."),
        ("LATENCY FOO", "ERR unknown subcommand 'FOO'. Try LATENCY HELP."),
        ("LATENCY GRAPH foo", "ERR No samples available for event 'foo'"),
        ("LATENCY HISTORY", "ERR wrong number of arguments for 'latency|history' command"),
        ("MEMORY USAGE key SAMPLES", "ERR syntax error"),
        ("MEMORY USAGE key SAMPLES -1", "ERR syntax error"),
        ("MEMORY USAGE key FOO 1", "ERR syntax error"),
        ("MEMORY USAGE key SAMPLES x", "ERR value is not an integer or out of range"),
        ("MONITOR x", "ERR wrong number of arguments for 'monitor' command"),
    ],
)  # fmt: skip
def test_refusals_are_those_of_redis(client: Client, command: str, error: str) -> None:
    assert client.error(*command.split()) == error


# --- LATENCY --------------------------------------------------------------------------------------


def slow(client: Client, name: bytes, millis: int) -> None:
    """Let a command of this session have taken so long."""
    session: Session = client.session
    command = session.server.commands.by_name[name]
    session.server.note_slow(session, command, [name], millis * 1_000_000)


def test_spikes_are_kept_second_by_second(clock: ManualClock, client: Client) -> None:
    client("CONFIG", "SET", "latency-monitor-threshold", 5)
    slow(client, b"keys", 4)
    slow(client, b"keys", 30)
    slow(client, b"keys", 10)
    clock.advance(2)
    slow(client, b"keys", 7)
    slow(client, b"get", 6)
    assert client("LATENCY", "LATEST") == [
        [b"command", START_S + 2, 7, 30],
        [b"fast-command", START_S + 2, 6, 6],
    ]
    assert client("LATENCY", "HISTORY", "command") == [[START_S, 30], [START_S + 2, 7]]
    assert client("LATENCY", "HISTORY", "fork") == []
    assert client("LATENCY", "GRAPH", "command").startswith(b"command - high 30 ms")
    assert b"command: 2 seconds with spikes, 18 ms on average, 30 ms" in client("LATENCY", "DOCTOR")
    assert client("LATENCY", "RESET", "command", "fork") == 1
    assert client("LATENCY", "RESET") == 1
    assert client("LATENCY", "LATEST") == []
    assert client("LATENCY", "DOCTOR") == b"No command was slow.\n"


def test_no_spike_is_kept_unless_wanted(server: Server, client: Client) -> None:
    slow(client, b"keys", 1000)
    assert client("LATENCY", "LATEST") == []
    assert b"latency-monitor-threshold" in client("LATENCY", "DOCTOR")
    assert server.latency.series == {}


def test_the_longest_of_a_second_counts() -> None:
    assert max(Spike(1, 5), Spike(1, 9)) == Spike(1, 9)


def test_every_command_has_a_latency_histogram(server: Server, client: Client) -> None:
    client("HELLO", 3)
    for millis in (1, 1, 3):
        server.commands.all["get"].count_run(server, millis * 1_000_000)
    assert client("LATENCY", "HISTOGRAM", "GET", "nosuch") == {
        b"get": {b"calls": 3, b"histogram_usec": {1056: 2, 4227: 3}}
    }
    assert {b"get", b"hello"} <= client("LATENCY", "HISTOGRAM").keys()
    assert fields(client, "latencystats")["latency_percentiles_usec_get"] == (
        "p50=1048.576,p99=3145.728,p99.9=3145.728"
    )
    client("CONFIG", "SET", "latency-tracking-info-percentiles", "0 100")
    assert fields(client, "latencystats")["latency_percentiles_usec_get"] == (
        "p0=1048.576,p100=3145.728"
    )


def test_latency_is_tracked_by_default_and_can_be_switched_off_and_reset(client: Client) -> None:
    client("HELLO", 3)
    client("GET", "k")
    assert client("LATENCY", "HISTOGRAM", "get")[b"get"][b"calls"] == 1
    client("CONFIG", "SET", "latency-tracking", "no")
    client("GET", "k")
    assert client("LATENCY", "HISTOGRAM", "get")[b"get"][b"calls"] == 1
    client("CONFIG", "RESETSTAT")
    assert client("LATENCY", "HISTOGRAM") == {}


@pytest.mark.parametrize("nanoseconds", [0, 1, 7, 8, 9, 1023, 1024, 1025, 10**6, 2**40, 2**62])
def test_a_histogram_is_at_most_an_eighth_too_high(nanoseconds: int) -> None:
    histogram = Histogram()
    histogram.add(nanoseconds)
    shown_ns = round(histogram.percentile_us(50) * 1000)
    if nanoseconds < 2**41:
        assert max(nanoseconds, 1) <= shown_ns <= max(nanoseconds, 8) * 9 / 8
    assert list(histogram.cumulative().values()) == [histogram.calls] == [1]


# --- MEMORY ---------------------------------------------------------------------------------------


def test_memory_usage_grows_with_the_value(clock: ManualClock, client: Client) -> None:
    client("SET", "small", "1")
    client("SET", "large", "1" * 1000, "PX", 500)
    small, large = client("MEMORY", "USAGE", "small"), client("MEMORY", "USAGE", "large", "SAMPLES", 5)  # fmt: skip
    assert large == small + 999
    clock.advance(0.5)
    assert client("MEMORY", "USAGE", "large") is None


def test_memory_tells_of_itself(client: Client) -> None:
    client("HELLO", 3)
    client("SET", "key", "1")
    stats = client("MEMORY", "STATS")
    assert stats[b"peak.allocated"] >= stats[b"total.allocated"] > 0
    assert stats[b"keys.count"] == 1
    assert b" in use, " in client("MEMORY", "DOCTOR")
    assert client("MEMORY", "PURGE") == b"OK"
    assert client("MEMORY", "MALLOC-STATS") == b"Stats not supported for the current allocator"
