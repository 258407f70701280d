"""What a server can be told. Each setting is declared once: name, default, how it is read, and
whether it may change while the server runs.

`Settings` holds those that decide something here; CONFIG has a field's name with dashes. `OTHERS` are settings
of Redis that decide nothing here, so that clients and tools find them: some may be set and are remembered,
some are facts about this server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from ephemera import InvalidArgument
from ephemera.core.options import Durability

REDIS_VERSION = "7.4.0"
"""What clients are told, so that they use what they find supported: redis-py caches from 7.4 on."""
DATABASES = 16
MIB = 1024 * 1024
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


# --- how a setting is read and shown --------------------------------------------------------------


class SettingType(NamedTuple):
    """From text to a value, and back. `parse` raises ValueError in Redis's words."""

    parse: Callable[[str], Any]  # Any: each setting has its own type
    show: Callable[[Any], str] = str  # Any: as above


def number(low: int = 0, high: int = INT_MAX) -> SettingType:
    return SettingType(lambda text: _within(_integer(text), low, high))


def memory(low: int = 0, high: int = LONG_MAX) -> SettingType:
    """Bytes, with or without a unit: 1048576, 1024kb, 1mb."""
    return SettingType(lambda text: _within(_bytes(text), low, high))


def choice(*words: str) -> SettingType:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"argument(s) must be one of the following: {', '.join(words)}")
        return text.lower()

    return SettingType(parse)


def only(kind: SettingType, value: object) -> SettingType:
    """What cannot be otherwise here: anything else is refused."""

    def parse(text: str) -> object:
        if kind.parse(text) != value:
            raise ValueError(f"here it is always '{kind.show(value)}'")
        return value

    return SettingType(parse, kind.show)


def _integer(text: str) -> int:
    if not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text):
        raise ValueError("argument couldn't be parsed into an integer")
    return int(text)


UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": MIB, "g": 1000**3, "gb": 1024**3}


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,19})([a-z]*)", text.lower())
    if found is None or found[2] not in UNITS:
        raise ValueError("argument must be a memory value")
    return int(found[1]) * UNITS[found[2]]


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"argument must be between {low} and {high} inclusive")
    return value


def _flag(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError("argument must be 'yes' or 'no'")
    return text.lower() == "yes"


FLAG = SettingType(_flag, lambda is_on: "yes" if is_on else "no")
TEXT = SettingType(str)
PASSWORD = SettingType(
    lambda text: text.encode(errors="surrogateescape"),
    lambda password: str(password.decode(errors="surrogateescape")),
)


class OutputLimit(NamedTuple):
    """How much a client may leave unread: never `hard` bytes, not `soft` bytes for `soft_seconds`; 0 is no limit."""

    hard: int = 0
    soft: int = 0
    soft_seconds: int = 0


class OutputLimits(NamedTuple):
    """The limits by the kind of client. There are no replicas: theirs is only shown."""

    normal: OutputLimit = OutputLimit()
    slave: OutputLimit = OutputLimit(256 * MIB, 64 * MIB, 60)
    pubsub: OutputLimit = OutputLimit(32 * MIB, 8 * MIB, 60)


DEFAULT_LIMITS = OutputLimits()


def _limits(text: str) -> dict[str, OutputLimit]:
    """The limits that a text names; others stay as they are."""
    words = text.split()
    if len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    found = {}
    for at in range(0, len(words), 4):
        name = words[at].lower().replace("replica", "slave")
        if name not in OutputLimits._fields:
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        try:
            hard, soft, seconds = _bytes(words[at + 1]), _bytes(words[at + 2]), int(words[at + 3])
        except ValueError:
            seconds = -1
        if seconds < 0:
            raise ValueError(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
            )
        found[name] = OutputLimit(hard, soft, seconds)
    return found


OUTPUT_LIMITS = SettingType(
    _limits,
    lambda limits: " ".join(
        f"{name} {limit.hard} {limit.soft} {limit.soft_seconds}"
        for name, limit in limits._asdict().items()
    ),
)


def _percentiles(text: str) -> tuple[float, ...]:
    name = "latency-tracking-info-percentiles"
    try:
        found = tuple(float(word) for word in text.split())
    except ValueError:
        raise ValueError(f"Invalid {name} parameters") from None
    if not all(0 <= percent <= 100 for percent in found):
        raise ValueError(f"{name} parameters should sit between [0.0,100.0]")
    return found


PERCENTILES = SettingType(_percentiles, lambda found: " ".join(f"{percent:g}" for percent in found))


EVENT_CLASSES = "g$lshzxetd"
"""What `notify-keyspace-events` calls A, in the order in which Redis shows them."""


def _events(text: str) -> str:
    """The classes of events in Redis's order, with A for all of them."""
    if set(text) - set("A" + EVENT_CLASSES + "nKEm"):
        raise ValueError("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    is_all = "A" in text or set(EVENT_CLASSES) <= set(text)
    classes = "A" if is_all else "".join(each for each in EVENT_CLASSES if each in text)
    return classes + "".join(each for each in "nKEm" if each in text)


# Beside A, Redis does not show n.
EVENTS = SettingType(_events, lambda events: events.replace("An", "A"))


# --- the settings that decide something -----------------------------------------------------------


class Setting(NamedTuple):
    """What is declared about a setting. A field of `Settings` has its default there."""

    kind: SettingType
    is_fixed: bool = False
    default: Any = None  # Any: see SettingType
    is_fact: bool = False
    """Only shown: nobody may set it, also not at the start."""


FIXED = "fixed"
"""Marks a field that stays what the server was started with."""
FACT = "fact"
"""Marks a field that is filled in when it is known: where the server listens, and where it saves."""


@dataclass(slots=True)
class Settings:
    """The settings of a running server; CONFIG SET changes them in place."""

    durability: Annotated[Durability, choice(*get_args(Durability)), FIXED] = "interval"
    port: Annotated[int, number(0, 65_535), FACT] = 0
    bind: Annotated[str, TEXT, FACT] = ""
    unixsocket: Annotated[str, TEXT, FACT] = ""
    dir: Annotated[str, TEXT, FACT] = ""
    requirepass: Annotated[bytes, PASSWORD] = b""
    protected_mode: Annotated[bool, FLAG] = True
    enable_debug_command: Annotated[str, choice("no", "yes", "local"), FIXED] = "no"
    maxclients: Annotated[int, number(1, 2**32 - 1)] = 10_000
    timeout: Annotated[int, number()] = 0
    proto_max_bulk_len: Annotated[int, memory(MIB)] = 512 * MIB
    client_query_buffer_limit: Annotated[int, memory(MIB)] = 1024 * MIB
    client_output_buffer_limit: Annotated[OutputLimits, OUTPUT_LIMITS] = DEFAULT_LIMITS
    busy_reply_threshold: Annotated[int, number(0, LONG_MAX)] = 5_000
    slowlog_log_slower_than: Annotated[int, number(-1, LONG_MAX)] = 10_000
    slowlog_max_len: Annotated[int, number(0, LONG_MAX)] = 128
    latency_monitor_threshold: Annotated[int, number(0, LONG_MAX)] = 0
    latency_tracking: Annotated[bool, FLAG] = True
    latency_tracking_info_percentiles: Annotated[tuple[float, ...], PERCENTILES] = (50, 99, 99.9)
    notify_keyspace_events: Annotated[str, EVENTS] = ""
    tracking_table_max_keys: Annotated[int, number(0, LONG_MAX)] = 1_000_000
    renamed: dict[str, str] = field(default_factory=dict)
    """Commands under another name; with an empty one, not at all. CONFIG does not show it."""
    others: dict[str, Any] = field(default_factory=dict)  # Any: see SettingType
    """What was set of `OTHERS`."""

    @property
    def appendfsync(self) -> str:
        """The durability, as Redis would call it."""
        return {"commit": "always", "interval": "everysec", "none": "no"}[self.durability]

    @property
    def lua_time_limit(self) -> int:
        """What `busy-reply-threshold` was called before."""
        return self.busy_reply_threshold

    @lua_time_limit.setter
    def lua_time_limit(self, milliseconds: int) -> None:
        self.busy_reply_threshold = milliseconds

    def show(self) -> dict[str, str]:
        """Every setting by its name, as CONFIG GET shows it."""
        return {name: declared.kind.show(self._read(name)) for name, declared in DECLARED.items()}

    def change(self, changes: Iterable[tuple[str, str]], *, is_start: bool = False) -> None:
        """Set all of these, or none; fixed ones only at the start. Raises BadSetting.

        >>> settings = Settings()
        >>> settings.change([("timeout", "60"), ("requirepass", "open sesame")])
        >>> settings.timeout, settings.requirepass
        (60, b'open sesame')
        """
        wanted: dict[str, str] = {}
        for name, text in changes:
            declared = DECLARED.get(name.lower())
            if declared is None:
                raise BadSetting(name, "")
            if declared.is_fact or (declared.is_fixed and not is_start):
                raise BadSetting(name, "can't set immutable config")
            if name.lower() in wanted:
                raise BadSetting(name, "duplicate parameter")
            wanted[name.lower()] = text
        for name, value in [(name, self._parse(name, text)) for name, text in wanted.items()]:
            if name in OTHERS:
                self.others[name] = value
            else:
                setattr(self, _attribute(name), value)

    def _read(self, name: str) -> Any:  # Any: see SettingType
        if name in OTHERS:
            return self.others.get(name, OTHERS[name].default)
        return getattr(self, _attribute(name))

    def _parse(self, name: str, text: str) -> Any:  # Any: see SettingType
        kind = DECLARED[name].kind
        try:
            value = kind.parse(text)
        except ValueError as error:
            raise BadSetting(name, str(error)) from None
        return self._read(name)._replace(**value) if kind is OUTPUT_LIMITS else value


class BadSetting(InvalidArgument):
    """A setting that there is not (without a reason), or that cannot be so. Reasons are in Redis's words."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"setting {name!r}: {reason or 'there is none of this name'}")
        self.name = name
        self.reason = reason


def _attribute(name: str) -> str:
    return name.replace("-", "_")


# --- the settings of Redis that decide nothing here -----------------------------------------------

_SWITCHES = {
    "activedefrag": False,
    "activerehashing": True,
    "aof-load-truncated": True,
    "aof-rewrite-incremental-fsync": True,
    "aof-use-rdb-preamble": True,
    "dynamic-hz": True,
    "lazyfree-lazy-eviction": False,
    "lazyfree-lazy-expire": False,
    "lazyfree-lazy-server-del": False,
    "lazyfree-lazy-user-del": False,
    "lazyfree-lazy-user-flush": False,
    "no-appendfsync-on-rewrite": False,
    "rdb-del-sync-files": False,
    "rdb-save-incremental-fsync": True,
    "rdbchecksum": True,
    "rdbcompression": True,
    "repl-disable-tcp-nodelay": False,
    "repl-diskless-sync": True,
    "replica-ignore-maxmemory": True,
    "replica-lazy-flush": False,
    "replica-read-only": True,
    "replica-serve-stale-data": True,
    "stop-writes-on-bgsave-error": True,
}
_NUMBERS = {
    "acllog-max-len": 128,
    "active-expire-effort": 1,
    "auto-aof-rewrite-percentage": 100,
    "hash-max-listpack-entries": 512,
    "hash-max-listpack-value": 64,
    "hash-max-ziplist-entries": 512,
    "hash-max-ziplist-value": 64,
    "hll-sparse-max-bytes": 3000,
    "hz": 10,
    "lfu-decay-time": 1,
    "lfu-log-factor": 10,
    "list-compress-depth": 0,
    "list-max-listpack-size": -2,
    "list-max-ziplist-size": -2,
    "maxmemory-clients": 0,
    "maxmemory-eviction-tenacity": 10,
    "maxmemory-samples": 5,
    "min-replicas-max-lag": 10,
    "repl-backlog-ttl": 3600,
    "repl-diskless-sync-delay": 5,
    "repl-ping-replica-period": 10,
    "repl-timeout": 60,
    "replica-priority": 100,
    "set-max-intset-entries": 512,
    "set-max-listpack-entries": 128,
    "set-max-listpack-value": 64,
    "shutdown-timeout": 10,
    "stream-node-max-bytes": 4096,
    "stream-node-max-entries": 100,
    "tcp-keepalive": 300,
    "zset-max-listpack-entries": 128,
    "zset-max-listpack-value": 64,
    "zset-max-ziplist-entries": 128,
    "zset-max-ziplist-value": 64,
}
_FACTS = {
    "aclfile": "",
    "always-show-logo": "no",
    "appenddirname": "",  # the append-only file lies in `dir` itself
    "cluster-enabled": "no",
    "daemonize": "no",
    "databases": str(DATABASES),
    "enable-module-command": "no",
    "enable-protected-configs": "no",
    "io-threads": "1",
    "logfile": "",
    "masterauth": "",
    "masteruser": "",
    "pidfile": "",
    "supervised": "no",
    "syslog-enabled": "no",
    "tcp-backlog": "511",
    "unixsocketperm": "700",
}

OTHERS: dict[str, Setting] = {
    **{name: Setting(FLAG, default=default) for name, default in _SWITCHES.items()},
    **{
        name: Setting(number(min(default, 0)), default=default)
        for name, default in _NUMBERS.items()
    },
    **{name: Setting(TEXT, is_fact=True, default=text) for name, text in _FACTS.items()},
    "auto-aof-rewrite-min-size": Setting(memory(), default=64 * MIB),
    "loglevel": Setting(
        choice("debug", "verbose", "notice", "warning", "nothing"), default="notice"
    ),
    "repl-backlog-size": Setting(memory(1), default=MIB),
    # Facts: every write is logged, nothing is evicted, and there is nobody to follow.
    "appendfilename": Setting(only(TEXT, "appendonly.aof"), default="appendonly.aof"),
    "appendonly": Setting(only(FLAG, True), default=True),
    "dbfilename": Setting(only(TEXT, "dump.rdb"), default="dump.rdb"),
    "maxmemory": Setting(only(memory(), 0), default=0),
    "maxmemory-policy": Setting(only(TEXT, "noeviction"), default="noeviction"),
    "min-replicas-to-write": Setting(only(number(), 0), default=0),
    "replicaof": Setting(TEXT, is_fact=True, default=""),
    "save": Setting(only(TEXT, ""), default=""),
}

DECLARED: dict[str, Setting] = {
    **{
        name.replace("_", "-"): Setting(
            hint.__metadata__[0],
            is_fixed=FIXED in hint.__metadata__,
            is_fact=FACT in hint.__metadata__,
        )
        for name, hint in get_type_hints(Settings, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    },
    "appendfsync": Setting(TEXT, is_fact=True),
    "lua-time-limit": Setting(number(0, LONG_MAX)),
    **OTHERS,
}
"""Everything that CONFIG knows, by name."""
