"""The settings: how each is read, shown and kept from being wrong."""

from __future__ import annotations

import pytest

from ephemera.server.settings import DECLARED, MIB, BadSetting, OutputLimit, Settings


@pytest.mark.parametrize("name", sorted(name for name in DECLARED if not DECLARED[name].is_fact))
def test_what_is_shown_can_be_read_again(name: str) -> None:
    settings = Settings()
    shown = settings.show()
    settings.change([(name, shown[name])], is_start=True)
    assert settings.show() == shown


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout", "60", 60),
        ("TIMEOUT", "0", 0),
        ("requirepass", "\udcff", b"\xff"),
        ("protected-mode", "NO", False),
        ("proto-max-bulk-len", "2mb", 2 * MIB),
        ("client-query-buffer-limit", "2000k", 2_000_000),
        ("proto-max-bulk-len", "1gb", 1024 * MIB),
        ("slowlog-log-slower-than", "-1", -1),
        ("notify-keyspace-events", "KxgE", "gxKE"),
        ("notify-keyspace-events", "KEg$lshzxetd", "AKE"),
        ("notify-keyspace-events", "AnK", "AnK"),
        ("lua-time-limit", "7", 7),
    ],
)
def test_a_setting_is_read(name: str, text: str, value: object) -> None:
    settings = Settings()
    settings.change([(name, text)])
    assert getattr(settings, name.lower().replace("-", "_")) == value


def test_the_two_names_of_the_limit_for_scripts_mean_one() -> None:
    settings = Settings()
    settings.change([("lua-time-limit", "7")])
    assert settings.show()["busy-reply-threshold"] == "7"


def test_output_limits_change_one_kind_of_client_and_leave_the_others() -> None:
    settings = Settings()
    before = settings.client_output_buffer_limit
    settings.change([("client-output-buffer-limit", "pubsub 64mb 16mb 90")])
    after = settings.client_output_buffer_limit
    assert after.pubsub == OutputLimit(64 * MIB, 16 * MIB, 90)
    assert (after.normal, after.slave) == (before.normal, before.slave)
    assert settings.show()["client-output-buffer-limit"] == (
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 67108864 16777216 90"
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("timeout", "soon", "argument couldn't be parsed into an integer"),
        ("timeout", "-1", "argument must be between 0 and 2147483647 inclusive"),
        ("maxclients", "0", "argument must be between 1 and 4294967295 inclusive"),
        ("protected-mode", "maybe", "argument must be 'yes' or 'no'"),
        ("proto-max-bulk-len", "big", "argument must be a memory value"),
        ("proto-max-bulk-len", "1tb", "argument must be a memory value"),
        ("loglevel", "loud", "argument(s) must be one of the following: debug, verbose, notice, warning, nothing"),
        ("notify-keyspace-events", "Q", "Invalid event class character. Use 'Ag$lshzxeKEtmdn'."),
        ("client-output-buffer-limit", "normal 1", "Wrong number of arguments in buffer limit configuration."),
        ("client-output-buffer-limit", "vip 1 1 1", "Invalid client class specified in buffer limit configuration."),
        ("client-output-buffer-limit", "normal 1 1 x", "Error in hard, soft or soft_seconds setting in buffer limit configuration."),
        ("databases", "17", "can't set immutable config"),
        ("port", "6380", "can't set immutable config"),
        ("appendfsync", "no", "can't set immutable config"),
        ("enable-debug-command", "yes", "can't set immutable config"),
        ("maxmemory", "100mb", "here it is always '0'"),
        ("maxmemory-policy", "allkeys-lru", "here it is always 'noeviction'"),
        ("appendonly", "no", "here it is always 'yes'"),
        ("save", "60 1", "here it is always ''"),
    ],
)  # fmt: skip
def test_a_bad_setting_changes_nothing(name: str, text: str, reason: str) -> None:
    settings = Settings()
    with pytest.raises(BadSetting) as caught:
        settings.change([("hz", "50"), (name, text)])
    assert (caught.value.name, caught.value.reason) == (name, reason)
    assert settings == Settings()


def test_a_setting_that_there_is_not() -> None:
    with pytest.raises(BadSetting, match="'nosuch': there is none of this name"):
        Settings().change([("nosuch", "1")])


def test_a_setting_is_given_once() -> None:
    with pytest.raises(BadSetting, match="duplicate parameter"):
        Settings().change([("timeout", "1"), ("TIMEOUT", "2")])


def test_fixed_settings_are_set_at_the_start() -> None:
    settings = Settings()
    settings.change([("enable-debug-command", "local"), ("durability", "commit")], is_start=True)
    assert (settings.enable_debug_command, settings.durability) == ("local", "commit")


@pytest.mark.parametrize("name", ["port", "bind", "unixsocket", "appendfsync", "databases"])
def test_what_the_server_only_shows_is_not_set_at_the_start_either(name: str) -> None:
    settings = Settings()
    shown = settings.show()
    with pytest.raises(BadSetting, match="can't set immutable config"):
        settings.change([(name, "3")], is_start=True)
    assert settings.show() == shown


@pytest.mark.parametrize(
    ("durability", "fsync"), [("commit", "always"), ("interval", "everysec"), ("none", "no")]
)
def test_durability_is_shown_as_redis_calls_it(durability: str, fsync: str) -> None:
    settings = Settings()
    settings.change([("durability", durability)], is_start=True)
    assert settings.show()["appendfsync"] == fsync


def test_settings_without_effect_are_remembered() -> None:
    settings = Settings()
    settings.change([("hash-max-listpack-entries", "7"), ("activedefrag", "yes")])
    assert settings.show()["hash-max-listpack-entries"] == "7"
    assert settings.show()["activedefrag"] == "yes"
