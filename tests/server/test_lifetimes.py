"""Deadlines by command: conditions, roundings, refusals, and the millisecond at which a key dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ephemera
from ephemera import ManualClock
from ephemera.core.clock import elapsed_ns, wall_ms
from ephemera.core.expiry import DEADLINE_MS_MAX
from ephemera.formats import rdb
from ephemera.server.server import Server
from tests.server.clients import Argument, Client

COMMANDS = ["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]
ABSENT, PERMANENT = -2, -1


def time_for(name: str, ttl_ms: int, now_ms: int) -> int:
    """The argument with which a command gives this lifetime."""
    time_ms = ttl_ms + (now_ms if name.endswith("AT") else 0)
    return time_ms if name.startswith("P") else time_ms // 1000


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_lives_until_its_deadline_and_not_longer(
    name: str, client: Client, clock: ManualClock
) -> None:
    client("SET", "a", "1")
    assert client(name, "a", time_for(name, 5000, clock.now_ms())) == 1
    deadline_ms = client("PEXPIRETIME", "a")
    clock.advance((deadline_ms - clock.now_ms() - 1) / 1000)
    assert client("GET", "a") == b"1"
    assert client("PTTL", "a") == 1
    clock.advance(0.001)
    assert client("GET", "a") is None
    assert client("PTTL", "a") == ABSENT


@pytest.mark.parametrize("name", COMMANDS)
def test_a_deadline_in_the_past_deletes(name: str, client: Client, server: Server) -> None:
    told: list[bytes] = []
    server.listeners.append(lambda _, key, event: told.append(event.name))
    for time in (0, -1, -(2**53)):
        client("SET", "a", "1")
        told.clear()
        assert client(name, "a", time) == 1
        assert client("EXISTS", "a") == 0
        assert told[0] == b"del"
        assert client(name, "a", time) == 0


@pytest.mark.parametrize(
    ("ttl_ms", "condition", "new_ms", "is_taken"),
    [
        (PERMANENT, "NX", 5000, True),
        (PERMANENT, "XX", 5000, False),
        (PERMANENT, "GT", 5000, False),
        (PERMANENT, "LT", 5000, True),
        (4000, "NX", 5000, False),
        (4000, "XX", 5000, True),
        (4000, "GT", 5000, True),
        (4000, "GT", 4000, False),
        (4000, "GT", 3000, False),
        (4000, "lt", 5000, False),
        (4000, "lt", 4000, False),
        (4000, "lt", 3000, True),
    ],
)
@pytest.mark.parametrize("name", COMMANDS)
def test_conditions_decide(
    name: str,
    ttl_ms: int,
    condition: str,
    new_ms: int,
    is_taken: bool,
    client: Client,
    clock: ManualClock,
) -> None:
    clock.advance((1000 - clock.now_ms() % 1000) / 1000)  # to a whole second
    client("SET", "a", "1")
    if ttl_ms != PERMANENT:
        client("PEXPIRE", "a", ttl_ms)
    time = time_for(name, new_ms, clock.now_ms())
    assert client(name, "absent", time, condition) == 0
    assert client(name, "a", time, condition) == int(is_taken)
    assert client("PTTL", "a") == (new_ms if is_taken else ttl_ms)


def test_conditions_that_go_together(client: Client) -> None:
    client("SET", "a", "1")
    assert client("EXPIRE", "a", 10, "XX", "GT") == 0
    assert client("EXPIRE", "a", 10, "XX", "LT") == 0
    assert client("EXPIRE", "a", 10, "NX", "nx") == 1
    assert client("EXPIRE", "a", 20, "GT", "XX") == 1
    assert client("EXPIRE", "a", 0, "LT") == 1
    assert client("EXISTS", "a") == 0


@pytest.mark.parametrize(
    ("pair", "error"),
    [
        (["NX", "XX"], "ERR NX and XX, GT or LT options at the same time are not compatible"),
        (["GT", "NX"], "ERR NX and XX, GT or LT options at the same time are not compatible"),
        (["NX", "LT"], "ERR NX and XX, GT or LT options at the same time are not compatible"),
        (["LT", "GT"], "ERR GT and LT options at the same time are not compatible"),
    ],
)
def test_conditions_that_do_not(pair: list[str], error: str, client: Client) -> None:
    client("SET", "a", "1", "PX", 5000)
    assert client.error("EXPIRE", "a", 10, *pair) == error
    assert client("PTTL", "a") == 5000


@pytest.mark.parametrize("name", COMMANDS)
def test_times_that_cannot_be_are_refused(name: str, client: Client, clock: ManualClock) -> None:
    client("SET", "a", "1")
    invalid = f"ERR invalid expire time in '{name.lower()}' command"
    too_late = time_for(name, DEADLINE_MS_MAX + 1000 - clock.now_ms(), clock.now_ms())
    times: list[Argument] = [2**63 - 1, too_late]
    for time in times:
        assert client.error(name, "a", time) == invalid
    if not name.startswith("P"):
        assert client.error(name, "a", -(2**63)) == invalid
    assert client.error(name, "a", "x") == "ERR value is not an integer or out of range"
    assert client.error(name, "a", "x", "FOO") == "ERR Unsupported option FOO"
    assert client("PTTL", "a") == PERMANENT


def test_persist_tells_whether_there_was_a_deadline(client: Client, clock: ManualClock) -> None:
    assert client("PERSIST", "a") == 0
    client("SET", "a", "1")
    assert client("PERSIST", "a") == 0
    client("PEXPIRE", "a", 10)
    assert client("PERSIST", "a") == 1
    clock.advance(1)
    assert client("GET", "a") == b"1"
    client("PEXPIRE", "a", 10)
    clock.advance(0.010)
    assert client("PERSIST", "a") == 0


@pytest.mark.parametrize(("ttl_ms", "seconds"), [(499, 0), (500, 1), (1_499, 1), (1_500, 2)])
def test_ttl_rounds_to_the_nearest_second(client: Client, ttl_ms: int, seconds: int) -> None:
    client("SET", "a", 1, "PX", ttl_ms)
    assert (client("TTL", "a"), client("PTTL", "a")) == (seconds, ttl_ms)


@pytest.mark.parametrize(
    ("at_ms", "seconds"), [(4_000_000_000_499, 4e9), (4_000_000_000_500, 4e9 + 1)]
)
def test_expiretime_rounds_to_the_nearest_second(
    client: Client, at_ms: int, seconds: float
) -> None:
    client("SET", "a", 1)
    client("PEXPIREAT", "a", at_ms)
    assert (client("EXPIRETIME", "a"), client("PEXPIRETIME", "a")) == (seconds, at_ms)


@pytest.mark.parametrize("name", ["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"])
def test_what_has_no_deadline_and_what_is_not_there(
    name: str, client: Client, clock: ManualClock
) -> None:
    client("SET", "a", 1)
    client("SET", "b", 1, "PX", 1)
    clock.advance(0.001)
    assert client(name, "a") == PERMANENT
    assert client(name, "b") == ABSENT
    assert client(name, "c") == ABSENT


def test_the_last_deadline_there_can_be_is_kept_exactly(client: Client) -> None:
    client("SET", "a", 1, "PXAT", DEADLINE_MS_MAX)
    assert client("RENAME", "a", "b") == b"OK"
    assert client("COPY", "b", "c") == 1
    assert client("APPEND", "c", "1") == 2
    assert client("PEXPIRETIME", "c") == DEADLINE_MS_MAX


@pytest.mark.parametrize(
    "args",
    [[name, "a"] for name in COMMANDS]
    + [[name] for name in ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "PERSIST")],
)
def test_too_few_arguments_are_refused(args: list[str], client: Client) -> None:
    error = f"ERR wrong number of arguments for '{args[0].lower()}' command"
    assert client.error(*args) == error


# --- a TTL shown is never larger than the one given --------------------------------------------


class RunningClock(ManualClock):
    """A clock that goes on by a millisecond with each reading, as if every step took so long."""

    def now_ms(self) -> int:
        self.advance(0.001)
        return super().now_ms()


GIVE = [
    ("SET", "k", "v", "PX", 10_000),
    ("SET", "k", "v", "EX", 10, "XX"),
    ("SETEX", "k", 10, "v"),
    ("EXPIRE", "k", 10),
    ("PEXPIRE", "k", 10_000),
    ("PEXPIRE", "k", 10_000, "NX"),
    ("GETEX", "k", "PX", 10_000),
    ("RESTORE", "k", 10_000, rdb.dump(b"v"), "REPLACE"),
]


@pytest.fixture
def running() -> Iterator[Client]:
    """A client of a server whose clock goes on while a command runs."""
    with ephemera.open("memory://", clock=RunningClock(), maintenance="manual") as store:
        yield Client(Server(store))


@pytest.mark.parametrize("give", GIVE, ids=lambda give: " ".join(map(str, give[::2])))
def test_a_ttl_shown_is_never_larger_than_the_one_given(
    give: tuple[Argument, ...], running: Client
) -> None:
    running("SET", "k", "v")
    running(*give)
    assert 9_900 < running("PTTL", "k") <= 10_000


def test_nor_one_that_ends_at_an_instant_of_the_clients_own_clock() -> None:
    for _ in range(50):
        with ephemera.open("memory://", maintenance="manual") as store:
            client = Client(Server(store))
            # As long as either clock takes to its next millisecond, and no whole number of them: the
            # next server starts elsewhere in a millisecond.
            until_ns = elapsed_ns() + 2_130_000
            while elapsed_ns() < until_ns:
                client("SET", "k", "v", "PXAT", wall_ms() + 10_000)
                assert client("PTTL", "k") <= 10_000


@pytest.mark.parametrize("give", GIVE, ids=lambda give: " ".join(map(str, give[::2])))
def test_nor_inside_a_transaction_whose_instant_is_past(
    give: tuple[Argument, ...], running: Client
) -> None:
    running("MULTI")
    running("SET", "k", "v")
    running(*give)
    running("PTTL", "k")
    assert running("EXEC")[-1] == 10_000


def test_a_short_life_given_late_in_a_script_lasts_until_its_end(running: Client) -> None:
    script = """
        redis.call('set', 'k', 'v')
        for _ = 1, 20 do redis.call('ping') end
        redis.call('pexpire', 'k', 1)
        return {redis.call('get', 'k'), redis.call('pttl', 'k')}
    """
    assert running("EVAL", script, 0) == [b"v", 1]
    assert running("GET", "k") is None
