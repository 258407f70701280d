"""Everything that Redis shows of itself, name by name: ours has it, or docs/server.md says that it has not.

A name that is documented as missing and is there fails as well, so the page lists nothing that has passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.wire.pair import Pair
from tests.wire.resp import Reply, Wire
from tests.wire.servers import running, start_ephemera, start_redis

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
HEADING = "## What Redis shows and Ephemera does not"
LATER_THAN_REDIS_7_0 = {"client|no-touch", "client|setinfo", "waitaof"}
OWN_COMMANDS = {"deadlines", "expirylag", "purge"}
DETAILS = ("name", "arity", "flags", "first key", "last key", "step", "categories", "tips", "keys")
DETAILS_SINCE_7_2 = {"command|getkeys": {"arity"}, "command|getkeysandflags": {"arity"}}
"""Since 7.2 both may be asked about a command's name alone."""


def documented(surface: str) -> set[str]:
    """The names and patterns that the page's table lists in the row of this surface."""
    section = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    row = re.search(rf"^\| {re.escape(surface)} \| (.*) \|$", section, re.MULTILINE)
    return set(re.findall("`([^`]+)`", row[1])) if row else set()


def assert_documented(missing: set[str], surface: str) -> None:
    patterns = documented(surface)
    unsaid = {name for name in missing if not any(fnmatchcase(name, each) for each in patterns)}
    passed = {each for each in patterns if not any(fnmatchcase(name, each) for name in missing)}
    assert not unsaid, (
        f"{surface}: Redis has these, and {PAGE.name} does not say that they are missing"
    )
    assert not passed, f"{surface}: {PAGE.name} says that these are missing, and they are not"


def pairs_of(reply: Reply) -> Iterator[tuple[str, Reply]]:
    """The names and values of a map, or of an array in which they alternate."""
    members = iter(reply.members)
    for name in members:
        yield name.data.decode(), next(members)


def test_every_field_of_info_is_there_or_documented(pair: Pair) -> None:
    sent = [("SET", "k", "v"), ("GET", "k"), ("NOPE",), ("INFO", "everything")]
    ours, theirs = pair.pipeline(sent)[-1]
    assert_documented(set(_fields(theirs)) - set(_fields(ours)), "INFO fields")


def _fields(info: Reply) -> Iterator[str]:
    """Every field with its section; what was counted of single commands and errors, by its kind alone."""
    section = ""
    for line in info.data.decode().splitlines():
        if line.startswith("# "):
            section = line[2:].lower()
        elif line:
            name = line.partition(":")[0]
            yield re.sub(r"^(cmdstat|errorstat|latency_percentiles_usec)_.*", r"\1_*", name)
    assert section


def test_every_field_of_client_list_is_there_or_documented(pair: Pair) -> None:
    ours, theirs = pair("CLIENT", "LIST")
    missing = {*_client_fields(theirs)} - {*_client_fields(ours)}
    assert_documented(missing, "CLIENT LIST fields")


def _client_fields(reply: Reply) -> list[str]:
    line = reply.data.decode().splitlines()[0]
    return [word.partition("=")[0] for word in line.split()]


def test_every_setting_is_there_or_documented(pair: Pair) -> None:
    ours, theirs = pair("CONFIG", "GET", "*")
    missing = {name for name, _ in pairs_of(theirs)} - {name for name, _ in pairs_of(ours)}
    assert_documented(missing, "CONFIG settings")


def test_every_setting_has_redis_default_or_is_documented(tmp_path: Path) -> None:
    # Servers of its own: other tests change the settings of those that they share.
    with (
        running(start_redis(tmp_path)) as redis,
        running(start_ephemera("memory://")) as ephemera,
        Wire(ephemera) as our_client,
        Wire(redis) as their_client,
    ):
        replies = Pair(our_client, their_client)("CONFIG", "GET", "*")
    ours, theirs = (dict(pairs_of(reply)) for reply in replies)
    own = {"bind", "dir", "enable-debug-command", "logfile", "pidfile", "port", "save", "daemonize"}
    differing = {
        name
        for name, value in theirs.items()
        if name in ours and name not in own and ours[name].data != value.data
    }
    assert_documented(differing, "CONFIG defaults")


def test_every_field_of_memory_stats_is_there_or_documented(pair: Pair) -> None:
    ours, theirs = pair("MEMORY", "STATS")
    missing = {name for name, _ in pairs_of(theirs)} - {name for name, _ in pairs_of(ours)}
    assert_documented(
        {re.sub(r"^db\.\d+$", "db.*", name) for name in missing}, "MEMORY STATS fields"
    )


def _details(commands: Reply) -> dict[str, tuple[Reply, ...]]:
    """What COMMAND says of every command and subcommand, by its name."""
    found = {}
    for command in commands.members:
        found[command.members[0].data.decode()] = command.members[:9]
        found |= _details(command.members[9])
    return found


def _groups(docs: Reply) -> dict[str, str]:
    """The group of every command and subcommand, as COMMAND DOCS has it."""
    found = {}
    for name, about in pairs_of(docs):
        fields = dict(pairs_of(about))
        found[name] = fields["group"].data.decode()
        if "subcommands" in fields:
            found |= _groups(fields["subcommands"])
    return found


def test_every_command_is_there_or_documented(pair: Pair) -> None:
    ours, theirs = (set(_details(reply)) for reply in pair("COMMAND"))
    groups = _groups(pair.theirs("COMMAND", "DOCS"))
    listed = documented("groups of commands")
    assert listed <= set(groups.values())
    missing = {name for name in theirs - ours if groups[name] not in listed}
    assert_documented({name.upper().replace("|", " ") for name in missing}, "commands")
    assert not {name for name in ours if groups.get(name) in listed}
    assert ours - theirs == LATER_THAN_REDIS_7_0 | OWN_COMMANDS


def test_every_command_has_the_details_that_redis_declares(pair: Pair) -> None:
    ours, theirs = (_details(reply) for reply in pair("COMMAND"))
    differing = {
        (name, detail): (mine, other)
        for name in ours.keys() & theirs.keys()
        for detail, mine, other in zip(DETAILS, ours[name], theirs[name], strict=True)
        if detail not in DETAILS_SINCE_7_2.get(name, ()) and _unordered(mine) != _unordered(other)
    }
    assert differing == {}


def test_every_field_of_a_key_specification_is_there_or_documented(pair: Pair) -> None:
    ours, theirs = (_details(reply) for reply in pair("COMMAND"))
    missing = {
        field
        for name in ours.keys() & theirs.keys()
        for mine, other in zip(ours[name][8].members, theirs[name][8].members, strict=True)
        for field in dict(pairs_of(other)).keys() - dict(pairs_of(mine)).keys()
    }
    assert_documented(missing, "key specifications of COMMAND")


def _unordered(reply: Reply) -> object:
    """A reply as far as it is compared: flags have no order, and notes on keys are prose."""
    if not isinstance(reply.value, tuple):
        return reply.value
    members = list(reply.value)
    for at, member in enumerate(members):
        if member.value == b"notes":
            del members[at : at + 2]
            break
    return sorted(map(repr, map(_unordered, members)))


@pytest.mark.parametrize(
    "request_",
    [
        "SET k v",
        "SET k v GET",
        "MSET a 1 b 2",
        "RENAME a b",
        "COPY a b",
        "BITOP AND a b c",
        "BITFIELD k",
        "BITFIELD k GET u8 0 OVERFLOW BOGUS get i5 #1",
        "BITFIELD k GET set incrby",
        "BITFIELD k GET u8 0 SET u8 0 1",
        "BITFIELD k INCRBY u8 0 1",
        "BITFIELD k GET u8",
        "BITFIELD k GET u8 0 BOGUS",
        "BITFIELD_RO k GET u8 0",
        "DEL a b",
        "EVAL x 2 a b c",
        "OBJECT ENCODING a",
        "NOPE a",
    ],
)
def test_command_getkeysandflags_agrees_with_redis(pair: Pair, request_: str) -> None:
    ours, theirs = pair("COMMAND", "GETKEYSANDFLAGS", *request_.split())
    assert (ours.kind, _unordered(ours)) == (theirs.kind, _unordered(theirs))
